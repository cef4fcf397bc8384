/* eps-worker: owns one device and works for one daemon. The main thread talks, a second one computes:
 * device/compute.h. */
#include "device/compute.h"
#include "device/profile.h"
#include "proto/process.h"
#include "proto/profile.h"
#include "proto/session.h"

#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

static const char usage[] =
    "usage: eps-worker --connect ADDRESS [--device cpu] [--device-mem BYTES]\n"
    "\n"
    "Lends one device to a daemon: pulls a layer's weights, runs every microbatch through it, sends contributions "
    "back.\n"
    "Ends with the daemon, or on SIGTERM, SIGINT or SIGHUP.\n"
    "\n"
    "  --connect ADDRESS   the daemon's, as given to epsd --listen; without it, your only live daemon\n"
    "  --device cpu        the device (only cpu so far)\n"
    "  --device-mem BYTES  memory of the device that may be used, at most: 512MiB, 2GiB; default what is free but an "
    "eighth\n"
    "  --profile FILE      measure the device and this host, for eps plan and eps train, write it there and end\n"
    "  --private           end with the process that started this one; --private=PID says which that is\n"
    "  --version           which build this is\n"
    "  --help              this text\n"
    "\n"
    "Exit status: 0 released, 1 failed, 2 misused.\n";

enum { ATTACH_MS = 5000, RETRY_MS = 20 };

struct worker_process {
    uv_loop_t loop;
    uv_async_t outgoing;
    uv_signal_t sigterm, sigint, sighup;
    struct session *session;
    struct mailbox box;
    struct compute_options options;
    bool open, is_private;
    uint64_t progress; /* messages of the compute thread: while they come, it is not stuck */
};

/* The compute thread may be in the middle of a layer, so the process ends without waiting for it: nothing of it
 * outlives the process. */
static void end(int code)
{
    _exit(code);
}

static void on_open(struct session *s, const struct message *welcome)
{
    struct worker_process *w = session_data(s);

    w->open = true;
    log_line("attached as worker %u", welcome->welcome.id);
}

static void on_message(struct session *s, const struct message *m, const int *fds, unsigned n_fds)
{
    struct worker_process *w = session_data(s);

    if (n_fds > MAILBOX_FDS || !mailbox_deliver(&w->box, m, fds, n_fds)) {
        for (unsigned i = 0; i < n_fds; i++)
            close(fds[i]);
        session_refuse(s, "more than this worker was asked to take");
    }
}

static void on_closed(struct session *s, const char *reason)
{
    (void)s;
    if (!reason || strcmp(reason, "closed") == 0) {
        log_line("the daemon has ended this session");
        end(0);
    }
    log_line("the session with the daemon has ended: %s", reason);
    end(1);
}

static void on_outgoing(uv_async_t *async)
{
    struct worker_process *w = async->data;
    struct message m;

    while (mailbox_collect(&w->box, &m)) {
        session_send(w->session, &m);
        session_set_progress(w->session, ++w->progress);
    }
}

static void wake(void *context)
{
    struct worker_process *w = context;

    uv_async_send(&w->outgoing);
}

static void on_signal(uv_signal_t *handle, int number)
{
    struct worker_process *w = handle->data;

    (void)number;
    if (!w->open)
        end(0);
    session_close(w->session);
}

static void watch_signals(struct worker_process *w)
{
    struct sigaction hangup;

    uv_signal_init(&w->loop, &w->sigterm);
    uv_signal_init(&w->loop, &w->sigint);
    uv_signal_init(&w->loop, &w->sighup);
    w->sigterm.data = w->sigint.data = w->sighup.data = w;
    uv_signal_start(&w->sigterm, on_signal, SIGTERM);
    uv_signal_start(&w->sigint, on_signal, SIGINT);
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN) /* else: nohup */
        uv_signal_start(&w->sighup, on_signal, SIGHUP);
    process_take_signals();
}

/* A daemon that was started together with this worker may not have opened its door yet. A private one has: its client
 * is attached to it already. */
static int attach(struct worker_process *w, const char *directory, const struct message *hello, struct error *err)
{
    static const struct session_events events = {on_open, on_message, on_closed};
    static const struct timespec pause = {.tv_nsec = RETRY_MS * 1000000};
    sigset_t ending; /* held until watch_signals: taken from here */

    sigemptyset(&ending);
    sigaddset(&ending, SIGTERM);
    sigaddset(&ending, SIGINT);
    sigaddset(&ending, SIGHUP);
    for (int waited_ms = 0;; waited_ms += RETRY_MS) {
        const int rc = session_connect(&w->session, &w->loop, directory, hello, &events, w, err);
        if ((rc != -ENOENT && rc != -ECONNREFUSED) || w->is_private || waited_ms >= ATTACH_MS)
            return rc;
        if (waited_ms == 0)
            log_line("waiting for the daemon at %s", directory);
        if (sigtimedwait(&ending, NULL, &pause) > 0)
            end(0);
    }
}

static int run(const char *directory, const struct compute_options *options, bool is_private, struct error *err)
{
    struct message hello = {.kind = MESSAGE_HELLO};
    struct worker_process *w = calloc(1, sizeof *w);
    pthread_t thread;
    int rc;

    if (!w)
        return error_set(err, -ENOMEM, "out of memory");
    w->is_private = is_private;
    w->options = *options;
    w->options.box = &w->box;
    rc = uv_loop_init(&w->loop);
    if (rc)
        return error_set(err, rc, "no event loop: %s", uv_strerror(rc));
    uv_async_init(&w->loop, &w->outgoing, on_outgoing);
    w->outgoing.data = w;
    mailbox_init(&w->box, wake, w);
    hello.hello.role = ROLE_WORKER;
    hello.hello.budget = options->budget;
    if (profile_find(&hello.hello.profile, NULL, options->ops->name, err))
        log_line("%s; it is taken to be as fast as most", err->text);
    snprintf(hello.hello.device, sizeof hello.hello.device, "%s", options->ops->name);
    rc = attach(w, directory, &hello, err);
    if (rc)
        return rc;
    rc = -pthread_create(&thread, NULL, compute_run, &w->options);
    if (rc)
        return error_set(err, rc, "the compute thread did not start: %s", strerror(-rc));
    watch_signals(w);
    return uv_run(&w->loop, UV_RUN_DEFAULT); /* on_closed ends the process */
}

struct arguments {
    const char *address;
    bool is_private;
    long parent;         /* 0: not said */
    const char *answer;  /* all that was asked for: --help, --version */
    uint64_t budget;     /* 0: not said */
    const char *profile; /* file to measure for; NULL: not asked */
};

/* False, and said why, if the command line is misused. */
static bool parse(struct arguments *out, int argc, char **argv)
{
    static const struct option options[] = {
        {"connect", required_argument, NULL, 'c'},
        {"device", required_argument, NULL, 'd'},
        {"device-mem", required_argument, NULL, 'm'},
        {"profile", required_argument, NULL, 'f'},
        {"private", optional_argument, NULL, 'p'},
        {"version", no_argument, NULL, 'v'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    const char *device = "cpu";
    struct error err = {""};
    int option;

    opterr = 0;
    *out = (struct arguments){0};
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == '?') {
            log_line("%s: no such option, or its value is missing; see eps-worker --help", argv[optind - 1]);
            return false;
        }
        if (option == 'c')
            out->address = optarg;
        if (option == 'd')
            device = optarg;
        if (option == 'f')
            out->profile = optarg;
        if (option == 'm' && process_parse_bytes(&out->budget, "--device-mem", optarg, &err)) {
            log_line("%s", err.text);
            return false;
        }
        if (option == 'p') {
            out->is_private = true;
            out->parent = optarg ? atol(optarg) : 0;
        }
        if (option == 'h' || option == 'v') {
            out->answer = option == 'h' ? usage : "eps-worker " EPS_VERSION "\n";
            return true;
        }
    }
    if (optind < argc) {
        log_line("'%s' is not an option; see eps-worker --help", argv[optind]);
        return false;
    }
    if (strcmp(device, "cpu") != 0) {
        log_line("--device %s: this build has cpu only", device);
        return false;
    }
    return true;
}

/* What is free, but a margin for others. The CPU's memory is the daemon's too: it gives a job's device no more than what
 * the job leaves there. */
static uint64_t default_budget(void)
{
    const uint64_t available = process_available_bytes(), margin = available / 8;
    char free_text[PROCESS_BYTES_TEXT], margin_text[PROCESS_BYTES_TEXT];

    log_line("no --device-mem: of %s that are free it may be all but a margin of %s",
             process_format_bytes(free_text, available), process_format_bytes(margin_text, margin));
    return available - margin;
}

static int measure(const char *path, const struct device_ops *ops, struct error *err)
{
    const long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
    struct profile profile;
    int rc;

    process_take_signals();
    rc = profile_may_write(path, err);
    if (!rc)
        rc = device_profile(&profile, ops, n_cores > 0 ? (unsigned)n_cores : 1, err);
    return rc ? rc : profile_write(&profile, path, ops->name, err);
}

int main(int argc, char **argv)
{
    struct compute_options compute = {.ops = &device_cpu};
    struct arguments arguments;
    char directory[4096];
    struct error err = {""};

    process_hold_signals();
    process_bound_spinning(argv);
    log_name("eps-worker");
    if (process_check_descriptors(&err)) {
        log_line("%s", err.text);
        return 1;
    }
    if (!parse(&arguments, argc, argv))
        return 2;
    if (arguments.answer) {
        fputs(arguments.answer, stdout);
        return 0;
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a trace grown too large ends, not the worker */
    if (arguments.is_private && !process_follow_parent(arguments.parent)) {
        log_line("whoever started this worker is gone");
        return 1;
    }
    device_check(compute.ops);
    if (arguments.profile) {
        if (measure(arguments.profile, compute.ops, &err) == 0)
            return 0;
        log_line("%s", err.text);
        return 1;
    }
    compute.budget = arguments.budget ? arguments.budget : default_budget();
    int rc = session_directory(directory, sizeof directory, arguments.address, &err);
    if (!rc)
        rc = run(directory, &compute, arguments.is_private, &err);
    log_line("%s", err.text);
    return rc ? 1 : 0;
}

/* eps-worker: owns one device and works for one daemon. The main thread exchanges messages, a second one computes:
 * device/worker/compute.h. */
#include "device/worker/compute.h"
#include "device/worker/profile.h"
#include "proto/base/process.h"
#include "proto/plan/profile.h"
#include "proto/wire/session.h"

#include <ctype.h>
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <uv.h>

static const char usage[] =
    "usage: eps-worker --connect ADDRESS [--device auto|cpu|cuda[:N]] [--device-mem BYTES]\n"
    "\n"
    "Lends one device to a daemon: pulls the weights of one layer at a time, runs every micro-batch\n"
    "through it, and sends its gradients back. Ends with the daemon, or on SIGTERM, SIGINT or SIGHUP.\n"
    "\n"
    "  --connect ADDRESS   the daemon, as given to epsd --listen; default: your only live daemon\n"
    "  --device auto|cpu|cuda[:N]\n"
    "                      cuda:N is CUDA device N, from 0; default auto: CUDA if there is one, else\n"
    "                      the CPU\n"
    "  --device-mem BYTES  hard cap on the device's memory, as in 512MiB or 2GiB; default: 7/8 of free\n"
    "                      memory, on CUDA 31/32 of the device's\n"
    "  --share N           for one of N CPU workers on this host: divides that default by N\n"
    "  --profile FILE      measure the device and this host for eps plan and eps train, write the\n"
    "                      result to FILE, and exit\n"
    "  --private           end with the process that started this one; --private=PID names that process\n"
    "  --version           print the version\n"
    "  --help              print this text\n"
    "\n"
    "Exit status: 0 released, 1 failed, 2 wrong usage.\n";

enum { ATTACH_MS = 10000, RETRY_MS = 20 };

struct worker_process {
    uv_loop_t loop;
    uv_async_t outgoing;
    uv_signal_t sigterm, sigint, sighup;
    struct session *session;
    struct mailbox box;
    struct compute_options options;
    int messages_held; /* session_hold_thread's, to the process's end */
    bool open, is_private;
    char lost[sizeof(struct error)]; /* why this process must end; empty while it works */
};

/* The compute thread may be in the middle of a layer, so the process ends without waiting for it. */
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
    const struct worker_process *w = session_data(s);

    if (*w->lost) {
        log_line("%s", w->lost);
        end(1);
    }
    if (!reason || strcmp(reason, "closed") == 0) {
        log_line("the daemon has ended this session");
        end(0);
    }
    log_line("the session with the daemon has ended: %s", reason);
    end(1);
}

/* A lost device is lost for this process only: a new process may be able to use it. */
static void leave(struct worker_process *w, const struct error *err)
{
    snprintf(w->lost, sizeof w->lost, "%s", err->text);
    session_close(w->session);
}

static void on_outgoing(uv_async_t *async)
{
    struct worker_process *w = async->data;
    struct message m;

    while (mailbox_collect(&w->box, &m)) {
        session_send(w->session, &m);
        if (m.kind == MESSAGE_FAILED && m.failed.code == -EIO)
            leave(w, &m.failed.error);
        if (m.kind == MESSAGE_REFUSED && m.refused.code == -EIO)
            leave(w, &m.refused.error);
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

/* A daemon started together with this worker may not have opened its door yet. A private one has, for its client. */
static int attach(struct worker_process *w, const char *directory, const struct message *hello, struct error *err)
{
    static const struct session_events events = {on_open, on_message, on_closed};
    static const struct timespec pause = {.tv_nsec = RETRY_MS * 1000000};
    sigset_t ending; /* held until watch_signals */

    sigemptyset(&ending);
    sigaddset(&ending, SIGTERM);
    sigaddset(&ending, SIGINT);
    sigaddset(&ending, SIGHUP);
    for (int waited_ms = 0;; waited_ms += RETRY_MS) {
        const int rc = session_connect(&w->session, &w->loop, directory, hello, &events, w, err);
        if ((rc != -ENOENT && rc != -ECONNREFUSED) || w->is_private)
            return rc;
        if (waited_ms >= ATTACH_MS) {
            error_append(err, ", after %d s: start one with epsd --listen", ATTACH_MS / 1000);
            return rc;
        }
        if (waited_ms == 0)
            log_line("waiting for the daemon at %s", directory);
        if (sigtimedwait(&ending, NULL, &pause) > 0)
            end(0);
    }
}

static int run(const char *directory, const struct compute_options *options, bool is_private, struct error *err)
{
    struct message hello = {.kind = MESSAGE_HELLO};
    const struct device_claim *device = &options->device;
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
    hello.hello.budget = device->budget;
    hello.hello.library_bytes = device->facts.library_bytes;
    hello.hello.attention = device->facts.attention;
    if (profile_find(&hello.hello.profile, NULL, device->ops->name, err))
        log_line("%s; it is taken to be as fast as most", err->text);
    snprintf(hello.hello.device, sizeof hello.hello.device, "%s", device->name);
    snprintf(hello.hello.model, sizeof hello.hello.model, "%s", device->facts.model);
    /* All threads are made before anything is promised to the daemon. */
    rc = process_check_threads(compute_threads(&w->options) + 1, err);
    if (!rc)
        rc = session_hold_thread(&w->messages_held, err);
    if (rc)
        return rc;
    rc = -pthread_create(&thread, NULL, compute_run, &w->options);
    if (rc)
        return error_set(err, rc, "the compute thread did not start: %s", strerror(-rc));
    pthread_setname_np(thread, "compute"); /* for top -H and debuggers */
    rc = attach(w, directory, &hello, err);
    if (rc)
        return rc;
    session_share_progress(w->session, &w->box.progress);
    watch_signals(w);
    return uv_run(&w->loop, UV_RUN_DEFAULT); /* on_closed ends the process */
}

struct arguments {
    const char *address;
    bool is_private;
    long parent;        /* 0: unset */
    const char *answer; /* what --help or --version prints */
    struct device_name device;
    uint64_t budget; /* 0: unset */
    uint64_t n_sharers;
    const char *profile; /* file to write measurements to; NULL: none */
};

static int parse_share(uint64_t *out, const char *text, struct error *err)
{
    char *end;

    *out = isdigit((unsigned char)*text) ? strtoul(text, &end, 10) : 0;
    if (*out >= 1 && *out <= MESSAGE_MAX_PARTS && !*end)
        return 0;
    return error_set(err, -EDOM, "--share %.40s: a number of workers, 1 to %d", text, MESSAGE_MAX_PARTS);
}

/* False if the command line is misused; a sentence has been printed. */
static bool parse(struct arguments *out, int argc, char **argv)
{
    static const struct option options[] = {
        {"connect", required_argument, NULL, 'c'},
        {"device", required_argument, NULL, 'd'},
        {"device-mem", required_argument, NULL, 'm'},
        {"share", required_argument, NULL, 's'},
        {"profile", required_argument, NULL, 'f'},
        {"private", optional_argument, NULL, 'p'},
        {"version", no_argument, NULL, 'v'},
        {"help", no_argument, NULL, 'h'},
        {0},
    };
    struct error err = {""};
    int option;

    opterr = 0;
    *out = (struct arguments){.n_sharers = 1};
    while ((option = getopt_long(argc, argv, "", options, NULL)) != -1) {
        if (option == '?') {
            log_line("%s: no such option, or its value is missing; see eps-worker --help", argv[optind - 1]);
            return false;
        }
        if (option == 'c')
            out->address = optarg;
        if (option == 'f')
            out->profile = optarg;
        if ((option == 'd' && device_name_parse(&out->device, "--device", optarg, &err)) ||
            (option == 'm' && process_parse_bytes(&out->budget, "--device-mem", optarg, &err)) ||
            (option == 's' && parse_share(&out->n_sharers, optarg, &err))) {
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
    return true;
}

static int measure(const char *path, const struct device_claim *device, struct error *err)
{
    const long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
    struct profile profile;
    int rc;

    process_take_signals();
    rc = profile_may_write(path, err);
    if (!rc)
        rc = device_profile(&profile, device->ops, device->index, n_cores > 0 ? (unsigned)n_cores : 1, err);
    return rc ? rc : profile_write(&profile, path, device->ops->name, err);
}

/* Does what was requested, on the requested device. */
static int work(const struct arguments *arguments, struct error *err)
{
    struct compute_options compute = {.box = NULL};
    char directory[4096];
    int rc = device_claim_find(&compute.device, &arguments->device, err);

    if (!rc && arguments->profile)
        return measure(arguments->profile, &compute.device, err);
    if (!rc)
        rc = device_claim_budget(&compute.device, arguments->budget, (uint32_t)arguments->n_sharers, err);
    if (!rc)
        rc = session_directory(directory, sizeof directory, arguments->address, err);
    return rc ? rc : run(directory, &compute, arguments->is_private, err);
}

int main(int argc, char **argv)
{
    struct arguments arguments;
    struct error err = {""};
    char name[32];

    process_hold_signals();
    process_bound_spinning(argv);
    log_name("eps-worker");
    if (process_check_stack(&err) || process_check_descriptors(&err)) {
        log_line("%s", err.text);
        return 1;
    }
    if (!parse(&arguments, argc, argv))
        return 2;
    if (arguments.answer) {
        fputs(arguments.answer, stdout);
        return 0;
    }
    if (arguments.n_sharers > 1) { /* sharers write into one log */
        snprintf(name, sizeof name, "eps-worker[%d]", (int)getpid());
        log_name(name);
    }
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN); /* a trace that grows too large ends, but not the worker */
    if (arguments.is_private && !process_follow_parent(arguments.parent)) {
        log_line("whoever started this worker is gone");
        return 1;
    }
    if (work(&arguments, &err) == 0)
        return 0;
    log_line("%s", err.text);
    return 1;
}

/* eps-worker: owns one device and works for one daemon. The main thread exchanges messages, a second one computes:
 * device/worker/compute.h. */
#include "device/arguments.h"
#include "device/worker/compute.h"
#include "device/worker/profile.h"
#include "proto/base/near.h"
#include "proto/base/notify.h"
#include "proto/base/process.h"
#include "proto/net/dial.h"
#include "proto/net/port.h"
#include "proto/plan/time/profile.h"
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

enum {
    ATTACH_MS = 10000,
    RETRY_MS = 20,
    MOST_RETRY_MS = 2000,
    MOST_PAUSE_MS = 16000, /* between sessions that did not come to work */
    HANDSHAKES = 3,        /* that may fail, one after the other */
    POOL = 4               /* libuv's threads, which encrypt */
};

/* In the environment of a worker whose daemon was lost: the directory, or the address on the network, at which it waits
 * for the next one; and how many sessions ended before they had worked for a while, one after the other. */
static const char successor_of[] = "EPS_WORKER_SUCCESSOR_OF", n_in_vain[] = "EPS_WORKER_IN_VAIN";

struct worker_process {
    uv_loop_t loop;
    uv_async_t outgoing;
    uv_signal_t sigterm, sigint, sighup;
    uv_work_t nothing; /* main_start_pool's */
    struct session *session;
    struct mailbox box;
    struct compute_options options;
    struct notify notify;
    int messages_held; /* session_hold_thread's, to the process's end */
    bool open;
    uint64_t opened_ms; /* when it was; on the loop's clock */
    bool seeks;         /* the daemon that it had was lost, or a connection to it broke */
    bool reached;       /* somebody has taken a connection there */
    unsigned in_vain;   /* n_in_vain */
    bool gone;          /* the daemon is lost, and the session freed */
    bool leaving;       /* by a signal; the daemon was told */
    const char *daemon; /* where it may have a successor, as successor_of; NULL: it is private */
    char **argv;
    char lost[sizeof(struct error)]; /* why this process must end; empty while it works */
};

/* The compute thread may be in the middle of a layer, so the process ends without waiting for it. */
static void main_end(int code)
{
    _exit(code);
}

static void main_on_open(struct session *s, const struct message *welcome)
{
    struct worker_process *w = session_data(s);

    w->open = true;
    w->opened_ms = uv_now(&w->loop);
    (void)welcome; /* its id is the session's; workers are counted by the daemon, which names this one by its pid */
    log_line("attached as a worker");
    notify_ready(&w->notify, w->options.device.name);
}

static void main_on_message(struct session *s, const struct message *m, const int *fds, unsigned n_fds)
{
    struct worker_process *w = session_data(s);

    if (n_fds > MAILBOX_FDS || !mailbox_deliver(&w->box, m, fds, n_fds)) {
        for (unsigned i = 0; i < n_fds; i++)
            close(fds[i]);
        session_refuse(s, "more than this worker was asked to take");
    }
}

/* Signals are held until main_watch_signals: one of those that end the worker ends it here. */
static void main_rest(long ms)
{
    const struct timespec pause = {ms / 1000, ms % 1000 * 1000000};
    sigset_t ending;

    sigemptyset(&ending);
    if (!process_ignores(SIGTERM))
        sigaddset(&ending, SIGTERM);
    sigaddset(&ending, SIGINT);
    if (!process_ignores(SIGHUP))
        sigaddset(&ending, SIGHUP);
    if (sigtimedwait(&ending, NULL, &pause) > 0)
        main_end(0);
}

/* The session ends before it has worked for a while: so may the next. */
static bool was_in_vain(const struct worker_process *w)
{
    return !w->open || uv_now(&w->loop) - w->opened_ms < MOST_RETRY_MS;
}

/* The pause before the next session: twice as long after each that was in vain. */
static long pause_of(const struct worker_process *w)
{
    const long ms = (long)MOST_RETRY_MS << (w->in_vain < 8 ? w->in_vain : 8);

    return !was_in_vain(w) ? 0 : ms < MOST_PAUSE_MS ? ms : MOST_PAUSE_MS;
}

/* The compute thread may be in the middle of a layer, and the device's memory is the old job's. So the process begins
 * anew. Signals that come from now on are kept; the loop takes in one that came before. */
static int seek_successor(struct worker_process *w, struct error *err)
{
    char n[16];

    process_hold_signals();
    uv_run(&w->loop, UV_RUN_NOWAIT);
    if (pause_of(w) > 0)
        main_rest(pause_of(w));
    snprintf(n, sizeof n, "%u", was_in_vain(w) ? w->in_vain + 1 : 0);
    int rc = setenv(successor_of, w->daemon, 1) || setenv(n_in_vain, n, 1) ? -errno : 0;
    if (!rc)
        rc = process_restart(w->argv);
    return error_set(err, rc, "this worker could not begin anew: %s", strerror(-rc));
}

static void main_on_closed(struct session *s, const char *reason)
{
    struct worker_process *w = session_data(s);

    if (*w->lost) {
        log_error("%s", w->lost);
        main_end(1);
    }
    if (w->leaving)
        main_end(0);
    switch (session_end(s)) {
    case END_CLOSED:
        log_line("the daemon has ended this session");
        main_end(0);
        break;
    case END_SILENT: /* it lives, and this worker was cut off or stopped */
    case END_UNREAD:
        if (w->daemon)
            log_warning("the daemon at %s has given this worker up, %s; coming again", w->daemon, reason);
        w->gone = w->daemon != NULL;
        break;
    case END_LOST:
    case END_UNANSWERED:
        w->gone = w->daemon != NULL;
        if (w->gone && w->open)
            log_line("the daemon at %s is gone: %s; waiting for the next one there", w->daemon, reason);
        break;
    case END_BROKEN: /* it may have died between two attempts; or this process can open no link */
        w->gone = w->daemon && !w->open && w->in_vain + 1 < HANDSHAKES;
        break;
    case END_FAULT:
    case END_TURNED_AWAY:
    case END_DISMISSED:
        break;
    }
    if (w->gone && !w->open && session_end(s) != END_SILENT && session_end(s) != END_UNREAD)
        log_warning("no session with the daemon at %s: %s; trying again in %ld s", w->daemon, reason,
                    pause_of(w) / 1000);
    if (w->gone) {
        uv_stop(&w->loop);
        return;
    }
    log_error("the session with the daemon has ended: %s", reason);
    main_end(1);
}

/* A lost device is lost for this process only: a new process may be able to use it. The failure is sent first, so
 * that the daemon knows why this worker ends. */
static void main_leave(struct worker_process *w, const struct error *err)
{
    snprintf(w->lost, sizeof w->lost, "%s", err->text);
    session_close(w->session);
}

static void main_on_outgoing(uv_async_t *async)
{
    struct worker_process *w = async->data;
    struct message m;

    while (!w->gone && mailbox_collect(&w->box, &m)) {
        session_send(w->session, &m);
        if (m.kind == MESSAGE_FAILED && m.failed.code == -EIO)
            main_leave(w, &m.failed.error);
        if (m.kind == MESSAGE_REFUSED && m.refused.code == -EIO)
            main_leave(w, &m.refused.error);
    }
}

static void main_wake(void *context)
{
    struct worker_process *w = context;

    uv_async_send(&w->outgoing);
}

/* The first signal asks the daemon to be let go, once the share is done; the second ends at once. */
static void main_on_signal(uv_signal_t *handle, int number)
{
    struct worker_process *w = handle->data;

    (void)number;
    if (!w->open || w->gone)
        main_end(0);
    if (w->leaving)
        session_close(w->session);
    else
        session_send(w->session, &(struct message){.kind = MESSAGE_DRAIN});
    w->leaving = true;
}

static void main_watch_signals(struct worker_process *w)
{
    uv_signal_init(&w->loop, &w->sigterm);
    uv_signal_init(&w->loop, &w->sigint);
    uv_signal_init(&w->loop, &w->sighup);
    w->sigterm.data = w->sigint.data = w->sighup.data = w;
    if (!process_ignores(SIGTERM)) /* eps up has it so: it ends its workers itself */
        uv_signal_start(&w->sigterm, main_on_signal, SIGTERM);
    uv_signal_start(&w->sigint, main_on_signal, SIGINT);
    if (!process_ignores(SIGHUP))
        uv_signal_start(&w->sighup, main_on_signal, SIGHUP);
    process_take_signals();
}

static void on_early_signal(int number)
{
    (void)number;
    main_end(0);
}

/* Until main_watch_signals, which replaces this: no daemon knows of the worker yet. */
static void handle_signals_early(void)
{
    static const int numbers[] = {SIGTERM, SIGINT, SIGHUP};

    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++)
        if (!process_ignores(numbers[i]))
            sigaction(numbers[i], &(struct sigaction){.sa_handler = on_early_signal}, NULL);
}

/* Where the daemon is. */
struct place {
    const char *directory;            /* of one on this host; */
    const struct dial_options *other; /* or NULL: of one on another */
    bool is_private;
};

/* Where a worker may end at once: dialling may last. */
static void begin_to_dial(void)
{
    handle_signals_early();
    process_take_signals();
}

/* A daemon of another host is dialled here, and then looks like one of this host: a proxy in this process stands for
 * it. */
static int try_to_attach(struct worker_process *w, const struct place *place, const struct message *hello,
                         struct error *err)
{
    static const struct session_events events = {main_on_open, main_on_message, main_on_closed};
    int connection;

    if (!place->other)
        return session_connect(&w->session, &w->loop, place->directory, hello, &events, w, err);
    struct dial_options other = *place->other;
    other.progress = &w->box.progress;
    other.reached = &w->reached;
    begin_to_dial();
    const int rc = dial(&connection, &w->loop, &other, err);
    process_hold_signals();
    return rc ? rc : session_connect_by(&w->session, &w->loop, connection, hello, &events, w, err);
}

/* The pause after one of ms. */
static long slower(long ms)
{
    return 2 * ms < MOST_RETRY_MS ? 2 * ms : MOST_RETRY_MS;
}

/* True if trying again may help: nobody listens there yet; or, where a daemon was reached before, its host or the
 * network is down, it is stopped or died, or its port is busy. Anything else says that waiting is of no use. */
static bool may_come(int rc, bool was_there)
{
    static const int passing[] = {
        EAGAIN,    ETIMEDOUT,   ECONNRESET, ECONNABORTED,  EPIPE, EHOSTUNREACH,
        EHOSTDOWN, ENETUNREACH, ENETDOWN,   EADDRNOTAVAIL, EDOM /* the name of its host, which was found before */};
    bool may = rc == -ENOENT || rc == -ECONNREFUSED;

    for (size_t i = 0; was_there && i < sizeof passing / sizeof *passing; i++)
        may |= rc == -passing[i];
    return may;
}

/* Another key, version or --plain-bulk; a byte that was damaged on its way looks the same. */
static bool is_handshake(const struct worker_process *w, int rc)
{
    return w->reached && (rc == -EACCES || rc == -EPROTO || rc == -EPROTONOSUPPORT);
}

/* A handshake failed, as the n_failed-th in a row. False: the worker ends. */
static bool shakes_again(unsigned n_failed, struct error *err)
{
    const long ms = 250L << n_failed;

    if (n_failed == HANDSHAKES) {
        error_append(err, "; tried %d times", HANDSHAKES);
        return false;
    }
    log_warning("%s; trying again in %.1f s, as a byte damaged on its way looks the same", err->text, (double)ms / 1e3);
    main_rest(ms);
    return true;
}

static void say_waiting(const struct worker_process *w, const struct place *place, int rc, const struct error *err)
{
    if (rc == -EAGAIN)
        log_warning("%s; coming again until it has a place", err->text);
    else if (w->reached)
        log_warning("%s; trying again, after pauses of up to %d s", err->text, MOST_RETRY_MS / 1000);
    else
        log_line("waiting for the daemon at %s", place->other ? place->other->address : place->directory);
}

/* A daemon started together with this worker may not have opened its listener yet. A private one has, for its client. A
 * worker that lost its daemon, or has reached it, waits for the next one without end, ever more slowly; so does one
 * that is cut off. */
static int main_attach(struct worker_process *w, const struct place *place, const struct message *hello,
                       struct error *err)
{
    long pause_ms = RETRY_MS, waited_ms = 0;
    unsigned n_failed = 0;
    bool is_said = w->seeks;

    for (;;) {
        const int rc = try_to_attach(w, place, hello, err);
        const bool was_there = w->seeks || w->reached;
        const bool is_patient = was_there || rc == -EAGAIN; /* it is there, but others crowd its port */
        n_failed = is_handshake(w, rc) ? n_failed + 1 : 0;
        if (n_failed > 0 && !place->is_private && shakes_again(n_failed, err))
            continue;
        const bool is_passing =
            may_come(rc, was_there) || rc == -EAGAIN || (w->seeks && rc == -EBUSY); /* with the session that was lost */
        if (!is_passing || place->is_private)
            return rc;
        if (waited_ms >= ATTACH_MS && !is_patient) {
            error_append(err, "; tried for %d s", ATTACH_MS / 1000);
            return rc;
        }
        if (!is_said)
            say_waiting(w, place, rc, err);
        is_said = true;
        main_rest(pause_ms);
        waited_ms += is_patient ? 0 : pause_ms;
        if (is_patient)
            pause_ms = slower(pause_ms);
    }
}

/* Until somebody listens there again. */
static void await_listener(const char *address)
{
    struct error err;
    int rc;

    for (long ms = RETRY_MS;; ms = slower(ms)) {
        begin_to_dial();
        rc = dial_knock(address, &err);
        process_hold_signals();
        if (!may_come(rc, true)) /* dial says what is wrong */
            return;
        main_rest(ms);
    }
}

/* Until a daemon holds the directory's lock again: the device is claimed only then. Whoever may not read the lock, as
 * it is another user's, finds out at the listener. */
static void await_successor(const char *directory)
{
    char lock[4096];

    if (port_is_address(directory)) {
        await_listener(directory);
        return;
    }
    if ((size_t)snprintf(lock, sizeof lock, "%s/lock", directory) >= sizeof lock)
        return;
    for (long ms = RETRY_MS; !session_is_live(directory); ms = slower(ms)) {
        if (access(lock, R_OK) && errno == EACCES)
            return;
        main_rest(ms);
    }
}

static void main_do_nothing(uv_work_t *work)
{
    (void)work;
}

/* Starts libuv's threads while signals are blocked, so that they inherit the mask: one of them could take a signal
 * while seek_successor begins anew, and it would be lost. */
static void main_start_pool(void *process)
{
    struct worker_process *w = process;

    uv_queue_work(&w->loop, &w->nothing, main_do_nothing, NULL); /* fails without a callback only */
}

static int main_run(const struct place *place, const struct compute_options *options, bool seeks, char **argv,
                    struct error *err)
{
    struct message hello = {.kind = MESSAGE_HELLO};
    const struct device_claim *device = &options->device;
    struct worker_process *w = calloc(1, sizeof *w);
    pthread_t thread;
    bool measured;
    int rc;

    if (!w)
        return error_memory(err);
    w->options = *options;
    w->seeks = seeks;
    /* What a process must know of its predecessor comes in the environment, as it begins by exec. */
    w->in_vain = seeks && getenv(n_in_vain) ? (unsigned)strtoul(getenv(n_in_vain), NULL, 10) : 0;
    w->daemon = place->is_private ? NULL : place->other ? place->other->address : place->directory;
    w->argv = argv;
    w->options.box = &w->box;
    notify_open(&w->notify);
    rc = uv_loop_init(&w->loop);
    if (rc)
        return error_set(err, rc, "no event loop: %s", uv_strerror(rc));
    uv_async_init(&w->loop, &w->outgoing, main_on_outgoing);
    w->outgoing.data = w;
    mailbox_init(&w->box, main_wake, w);
    hello.hello.role = ROLE_WORKER;
    hello.hello.budget = device->budget;
    process_host_name(hello.hello.host, sizeof hello.hello.host);
    hello.hello.library_bytes = device->facts.library_bytes;
    hello.hello.attention = device->facts.attention;
    hello.hello.convolution = device->facts.convolution;
    if (profile_find(&hello.hello.profile, &measured, device->ops->name, err))
        log_warning("%s; it is taken to be as fast as most", err->text);
    if (!measured) /* the daemon knows the default, too */
        hello.hello.profile = (struct profile){0};
    snprintf(hello.hello.device, sizeof hello.hello.device, "%s", device->name);
    memcpy(hello.hello.bus, device->facts.bus, sizeof hello.hello.bus);
    snprintf(hello.hello.model, sizeof hello.hello.model, "%s", device->facts.model);
    /* All threads are made before anything is promised to the daemon. */
    rc = process_check_threads(compute_threads(&w->options) + 1 + (place->other ? POOL : 0), err);
    if (!rc)
        rc = session_hold_thread(&w->messages_held, err);
    if (rc)
        return rc;
    if (place->other)
        process_end_if_aborted(main_start_pool, w);
    rc = -pthread_create(&thread, NULL, compute_run, &w->options);
    if (rc)
        return error_set(err, rc, "the compute thread did not start: %s", strerror(-rc));
    pthread_setname_np(thread, "compute"); /* for top -H and debuggers */
    rc = main_attach(w, place, &hello, err);
    if (rc)
        return rc;
    session_share_progress(w->session, &w->box.progress);
    main_watch_signals(w);
    uv_run(&w->loop, UV_RUN_DEFAULT); /* unless the daemon is lost, main_on_closed ends the process */
    return seek_successor(w, err);
}

static int main_measure(const char *path, const struct device_claim *device, struct error *err)
{
    const long n_cores = sysconf(_SC_NPROCESSORS_ONLN);
    struct profile profile;
    int rc;

    process_take_signals();
    rc = profile_may_write(path, err);
    if (!rc)
        rc = device_profile(&profile, device->ops, device->index, n_cores > 0 ? (unsigned)n_cores : 1, NULL, err);
    return rc ? rc : profile_write(&profile, path, device->ops->name, err);
}

/* Does what was requested, on the requested device. */
static int main_work(const struct device_arguments *arguments, char **argv, struct error *err)
{
    const char *lost = getenv(successor_of);
    const bool seeks = lost && *lost && !arguments->is_private && !arguments->profile &&
                       port_is_address(lost) == port_is_address(arguments->address);
    struct compute_options compute = {.box = NULL};
    struct dial_options other = {.address = arguments->address, .plain_bulk = arguments->plain_bulk};
    uint8_t *key = NULL;
    char directory[4096];
    struct place place = {.directory = directory, .is_private = arguments->is_private};
    if (seeks) {
        snprintf(directory, sizeof directory, "%s", lost);
        await_successor(directory);
    }
    int rc = device_claim_find(&compute.device, &arguments->device, err);

    if (!rc && arguments->profile)
        return main_measure(arguments->profile, &compute.device, err);
    if (!rc)
        rc = device_claim_budget(&compute.device, arguments->budget, (uint32_t)arguments->n_sharers, err);
    if (!rc && arguments->key) {
        place.other = &other;
        rc = key_read(&key, arguments->key, err);
        other.key = key;
    } else if (!rc && !seeks) {
        rc = session_directory(directory, sizeof directory, arguments->address, err);
    }
    if (!rc)
        /* Before any thread is made: all of them inherit where this one may run. */
        near_bind(compute.device.facts.bus);
    if (!rc)
        rc = main_run(&place, &compute, seeks, argv, err);
    key_free(key);
    return rc;
}

/* A private worker ends with its daemon, which may save for some time after the process that started both has ended.
 * One that makes a profile has no daemon. */
static bool main_follow(const struct device_arguments *arguments)
{
    return arguments->profile      ? process_follow_parent(arguments->parent)
           : arguments->parent > 0 ? process_is_child_of(arguments->parent)
                                   : true;
}

/* Apart from main, whose frame must be small: process_check_stack. */
static __attribute__((noinline)) int device_main_serve(int argc, char **argv)
{
    struct device_arguments arguments;
    struct error err = {""};
    char name[32];

    process_bound_spinning(argv);
    log_name("eps-worker");
    if (process_check_descriptors(&err)) {
        log_error("%s", err.text);
        return 1;
    }
    if (!device_arguments_parse(&arguments, argc, argv))
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
    if (arguments.is_private && !main_follow(&arguments)) {
        log_error("whoever started this worker is gone");
        return 1;
    }
    const int rc = main_work(&arguments, argv, &err);
    if (rc == 0)
        return 0;
    log_error("%s", err.text);
    return rc == -ENOSYS ? 2 : 1; /* 2: a service manager does not start it again */
}

int main(int argc, char **argv)
{
    process_hold_signals();
    return process_check_stack("eps-worker") ? device_main_serve(argc, argv) : 1;
}

/* Every way out unlistens, also those that end in _exit: a socket that is left behind looks like a daemon. Threads
 * that hang are never joined: with a job that is set aside or stuck, the process ends without freeing what they may
 * come back to. */
#include "eps/daemon.h"

#include "eps/drain.h"
#include "eps/store/team.h"
#include "proto/base/process.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    TICK_MS = 1000,
    MOST_QUIET = 60, /* ticks */
    MOST_LATE = 600, /* ticks */
    MOST_AWAY = 300, /* ticks */
};

static void on_wake(uv_async_t *async)
{
    drain_events(async->data);
}

static void daemon_on_tick(uv_timer_t *timer)
{
    struct daemon *d = timer->data;

    if (watch_tick(&d->watch)) {
        if (!d->stopping)
            session_unlisten(d->listener, NULL); /* its files at least */
        _exit(1);
    }
    if (!d->watch.hung && !d->stuck)
        notify_alive(d->notify);
    if (!d->stopping)
        session_refill(d->listener);
    save_tick(&d->saves, d->watch.most_quiet);
    daemon_tick(d);
    drain_events(d);
}

static const char *name_signal(int number)
{
    return number == SIGTERM  ? "by SIGTERM"
           : number == SIGINT ? "by SIGINT"
           : number == SIGHUP ? "by SIGHUP"
                              : "by eps up";
}

/* Slurm and systemd may send SIGTERM to all processes of a job, eps up and its daemon among them. eps up then passes
 * its own on as SIGUSR1, which is counted apart: it is no second request. */
static void daemon_on_signal(uv_signal_t *handle, int number)
{
    struct daemon *d = handle->data;
    bool *const asked = number == SIGUSR1 ? &d->told_by_up : &d->signalled;

    if (number == SIGHUP && !d->peers.is_private) {
        log_reopen();
        return;
    }
    if (d->sharded && (number == SIGTERM || number == SIGUSR1)) {
        daemon_on_launcher(d);
    } else {
        const bool again = *asked;
        *asked = true;
        daemon_ask_to_stop(d, name_signal(number), again);
    }
    drain_events(d);
}

static int listen_at(struct daemon *d, const struct daemon_options *options, struct error *err)
{
    int rc = session_listen(&d->listener, d->peers.loop, options->directory, &dispatch_events, d, err);

    if (rc)
        return rc;
    if (options->shared)
        rc = session_admit_group(d->listener, options->group, err);
    if (!rc && options->shared)
        session_limit_group(d->listener, options->users);
    if (!rc && options->network)
        rc = port_listen(&d->port, d->peers.loop, options->network, d->listener, err);
    if (rc)
        session_unlisten(d->listener, NULL); /* its files at least: the process ends */
    return rc;
}

static void daemon_watch_signals(struct daemon *d)
{
    uv_signal_init(d->peers.loop, &d->sigterm);
    uv_signal_init(d->peers.loop, &d->sigint);
    uv_signal_init(d->peers.loop, &d->sighup);
    uv_signal_init(d->peers.loop, &d->sigusr1);
    d->sigterm.data = d->sigint.data = d->sighup.data = d->sigusr1.data = d;
    uv_signal_start(&d->sigterm, daemon_on_signal, SIGTERM);
    uv_signal_start(&d->sigint, daemon_on_signal, SIGINT);
    uv_signal_start(&d->sigusr1, daemon_on_signal, SIGUSR1);
    if (!d->peers.is_private || !process_ignores(SIGHUP))
        uv_signal_start(&d->sighup, daemon_on_signal, SIGHUP);
    process_take_signals();
}

static void daemon_do_nothing(uv_work_t *work)
{
    (void)work;
}

static void on_nothing(uv_work_t *work, int status)
{
    (void)work, (void)status;
}

/* libuv's own variable: the number of threads that write files. */
static unsigned pool_size(void)
{
    const char *text = getenv("UV_THREADPOOL_SIZE");
    const int n = text ? atoi(text) : 4;

    return n < 1 ? 1 : n > 1024 ? 1024 : (unsigned)n;
}

static void daemon_start_pool(void *daemon)
{
    struct daemon *d = daemon;

    uv_queue_work(d->peers.loop, &d->first_work, daemon_do_nothing, on_nothing);
}

/* Makes every thread of the process before the daemon promises anything to anybody: the optimizer's thread and its
 * team, libuv's, nanomsg's. */
static int start_threads(struct daemon *d, struct error *err)
{
    d->observer.n_threads = team_size();
    int rc = process_check_threads(d->observer.n_threads + pool_size() + 1, err);

    if (!rc)
        rc = session_hold_thread(&d->messages_held, err);
    if (rc)
        return rc;
    process_end_if_aborted(daemon_start_pool, d);
    rc = updater_start(&d->peers.updater, &d->job->store, d->observer.n_threads, daemon_wake, d);
    return rc ? error_set(err, rc, "the optimizer thread did not start: %s", strerror(-rc)) : 0;
}

static void daemon_start_clocks(struct daemon *d, const struct daemon_options *options)
{
    uv_loop_t *loop = d->peers.loop;

    uv_async_init(loop, &d->peers.wake, on_wake);
    uv_timer_init(loop, &d->judge);
    uv_timer_init(loop, &d->tick);
    d->peers.wake.data = d->judge.data = d->tick.data = d;
    uv_timer_start(&d->tick, daemon_on_tick, TICK_MS, TICK_MS);
    d->watch.most_quiet = options->most_quiet ? options->most_quiet : MOST_QUIET;
    d->most_away = options->most_away ? options->most_away : MOST_AWAY;
    d->watch.most_late = options->most_late ? options->most_late : MOST_LATE;
}

/* Each part knows the parts below it. -ENOMEM. */
static int join_parts(struct daemon *d)
{
    struct job *job = calloc(1, sizeof *job);

    if (!job)
        return -ENOMEM;
    daemon_use_job(d, job);
    steps_start(&d->steps, &d->saves);
    d->observer.peers = &d->peers;
    d->observer.steps = &d->steps;
    d->observer.saves = &d->saves;
    d->observer.queue = &d->queue;
    return 0;
}

static int daemon_start(struct daemon *d, uv_loop_t *loop, const struct daemon_options *options, struct error *err)
{
    int rc;

    d->peers.loop = loop;
    d->peers.is_private = options->is_private;
    d->parent = options->parent;
    d->peers.host_mem = options->host_mem;
    d->peers.shares_workers = options->share_workers;
    d->notify = options->notify;
    d->queue.most = options->queue;
    d->patience = PATIENCE_TICKS;
    d->messages_held = -1;
    rc = join_parts(d) ? error_memory(err) : start_threads(d, err);
    if (!rc)
        rc = listen_at(d, options, err);
    if (rc)
        return rc;
    daemon_start_clocks(d, options);
    daemon_watch_signals(d);
    if (options->sharded)
        rc = sharded_start(&d->sharded, options->sharded, &d->steps, err);
    if (rc)
        session_unlisten(d->listener, NULL); /* its files at least: the process ends */
    return rc;
}

static void close_any(uv_handle_t *handle, void *data)
{
    (void)data;
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

int daemon_run(const struct daemon_options *options, struct error *err)
{
    struct daemon *d = calloc(1, sizeof *d);
    uv_loop_t loop;
    int rc;

    if (!d)
        return error_memory(err);
    rc = uv_loop_init(&loop);
    if (rc) {
        free(d);
        return error_set(err, rc, "no event loop: %s", uv_strerror(rc));
    }
    rc = daemon_start(d, &loop, options, err);
    if (!rc) {
        log_line("listening at %s, pid %d", options->directory, (int)getpid());
        notify_ready(d->notify, options->directory);
        uv_run(&loop, UV_RUN_DEFAULT);
        rc = d->exit_code;
        if (rc)
            *err = d->why;
    } else { /* what was begun */
        uv_walk(&loop, close_any, NULL);
        uv_run(&loop, UV_RUN_DEFAULT);
    }
    if (d->asides || d->stuck) { /* their threads hang, and may come back to what is freed below */
        if (rc)
            log_error("%s", err->text);
        _exit(rc ? 1 : 0);
    }
    sharded_close(d->sharded);
    updater_stop(d->peers.updater);
    if (d->messages_held >= 0)
        session_release_thread(d->messages_held);
    const int left = uv_loop_close(&loop);
    assert(left == 0);
    (void)left;
    free(d->job);
    free(d);
    return rc;
}

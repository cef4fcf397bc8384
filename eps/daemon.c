#include "eps/daemon.h"

#include "eps/store/team.h"
#include "proto/base/process.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
    LONELY_S = 60, /* a private daemon's wait for its client, which started it and may be slow to come */
    TICK_MS = 1000,
    PATIENCE_TICKS = 60, /* counted here, so that a machine that slept does not cost a run its checkpoint */
};

static const char *role_name(enum message_role role)
{
    return role == ROLE_CLIENT ? "client" : role == ROLE_WORKER ? "worker" : "viewer";
}

unsigned daemon_count_workers(const struct daemon *d)
{
    unsigned n = 0;

    for (const struct peer *p = d->peers; p; p = p->next)
        n += p->role == ROLE_WORKER && !p->refused;
    return n;
}

void peer_refuse(struct peer *peer, const char *reason)
{
    log_line("%s %u refused: %s", role_name(peer->role), peer->id, reason);
    peer->refused = true;
    session_refuse(peer->session, reason);
}

static struct peer *find_peer(struct session *s)
{
    struct daemon *d = session_data(s);
    struct peer *peer = d->peers;

    while (peer && peer->session != s)
        peer = peer->next;
    return peer;
}

/* From the first worker with a device of its own on, and for good: the team never grows, as the system may have no thread
 * left by then. */
static void leave_cores(struct daemon *d, const struct peer *worker)
{
    if (!worker->backend || worker->backend->takes_turns)
        return;
    d->n_threads = eps_team_beside_device(d->n_threads, (unsigned)sysconf(_SC_NPROCESSORS_ONLN));
    eps_updater_set_threads(d->updater, d->n_threads);
}

static void on_peer_open(struct session *s, const struct message *hello)
{
    struct daemon *d = session_data(s);
    struct peer *peer = d->stopping ? NULL : calloc(1, sizeof *peer);

    if (!peer) {
        session_refuse(s, d->stopping ? "the daemon is stopping" : "the daemon is out of memory");
        return;
    }
    peer->daemon = d;
    peer->session = s;
    peer->role = hello->hello.role;
    peer->id = session_id(s);
    peer->budget = hello->hello.budget;
    memcpy(peer->device, hello->hello.device, sizeof peer->device);
    memcpy(peer->model, hello->hello.model, sizeof peer->model);
    peer->backend = plan_backend_find(peer->device);
    peer->library_bytes = hello->hello.library_bytes;
    peer->attention =
        hello->hello.attention < PLAN_ATTENTIONS ? (enum plan_attention)hello->hello.attention : PLAN_ATTENTION_OWN;
    peer->profile = hello->hello.profile;
    if (profile_check(&peer->profile, NULL) && profile_default(peer->device))
        peer->profile = *profile_default(peer->device);
    struct peer **end = &d->peers; /* kept in order of id */
    while (*end)
        end = &(*end)->next;
    *end = peer;
    if (peer->role == ROLE_WORKER) {
        const char *model = peer->model;
        char budget[PROCESS_BYTES_TEXT];
        log_line("worker %u attached: %s%s%s%s, %s, pid %d", peer->id, peer->device, *model ? " (" : "", model,
                 *model ? ")" : "", process_format_bytes(budget, peer->budget), session_peer_pid(s));
        leave_cores(d, peer);
        look_on_worker(d);
    } else if (peer->role == ROLE_CLIENT) {
        log_line("client %u attached: pid %d", peer->id, session_peer_pid(s));
        uv_timer_stop(&d->lonely);
        if (!d->first_client)
            d->first_client = peer->id;
    }
}

static void on_client_message(struct peer *peer, const struct message *m, const int *fds, unsigned n_fds)
{
    struct daemon *d = peer->daemon;

    if (m->kind == MESSAGE_JOB) {
        job_open(d, peer, m, fds, n_fds);
        return;
    }
    if (d->job.client != peer) { /* its job has ended, and it has been told; these were under way */
        job_close_fds(fds, n_fds);
        return;
    }
    if (m->kind == MESSAGE_OUTPUT_DONE) {
        save_on_output_done(d, m, fds, n_fds);
        return;
    }
    const enum job_state state = d->job.state;
    if (m->kind == MESSAGE_OPEN_STEP && (state == JOB_RESTING || (state == JOB_STEPPING && steps_may_open(&d->job))))
        steps_open(d, m);
    else if (m->kind == MESSAGE_GENERATE && state == JOB_RESTING && d->job.request.job.generate)
        generate_start(d, m);
    else if (m->kind == MESSAGE_EVALUATE && state == JOB_RESTING && !d->job.request.job.generate)
        steps_evaluate(d, m);
    else if (m->kind == MESSAGE_SAVE && steps_are_on(&d->job) && d->job.request.job.train && job_has_output(&d->job))
        save_on_client(d, m);
    else if (m->kind == MESSAGE_CLOSE)
        job_end(d, 0, "closed");
    else
        peer_refuse(peer, "a request that does not fit the state of its job");
}

static void on_worker_message(struct peer *peer, const struct message *m)
{
    struct daemon *d = peer->daemon;

    if (m->kind == MESSAGE_LEDGER)
        peer->ledger = m->ledger;
    else if (m->kind == MESSAGE_RELEASE && peer->state == PEER_RELEASING)
        job_on_released(d, peer);
    else if (peer->state == PEER_RELEASING)
        return; /* said before it heard that the job has ended */
    else if ((m->kind == MESSAGE_ASSIGNED || m->kind == MESSAGE_REFUSED) && peer->state == PEER_ASSIGNING)
        job_on_assigned(d, peer, m);
    else if (m->kind == MESSAGE_FAILED && peer->state == PEER_ASSIGNED)
        job_end(d, m->failed.code ? m->failed.code : -EIO, "worker %u (%s): %s", peer->id, peer->device,
                m->failed.error.text);
    else if (peer->state == PEER_ASSIGNED)
        steps_on_worker(d, peer, m);
    else
        peer_refuse(peer, "a message that does not fit its state");
}

static void refuse_request(struct peer *peer, int code, const struct error *err)
{
    const struct message m = {.kind = MESSAGE_REFUSED, .refused = {.code = code, .error = *err}};

    session_send(peer->session, &m);
}

static void on_stop(struct peer *peer)
{
    struct error err;
    int rc = rights_stop(peer, &err);

    if (rc)
        refuse_request(peer, rc, &err);
    else
        daemon_ask(peer->daemon, "by request");
}

static void on_viewer_message(struct peer *peer, const struct message *m, const int *fds, unsigned n_fds)
{
    struct daemon *d = peer->daemon;
    struct error err;
    int rc = rights_save(d, peer, &err);

    for (unsigned i = 0; rc && i < n_fds; i++)
        close(fds[i]);
    if (rc)
        refuse_request(peer, rc, &err);
    else if (m->kind == MESSAGE_SNAPSHOT)
        save_on_snapshot(d, peer, fds, n_fds);
    else
        save_on_viewer(d, peer, m);
}

/* A client's job comes with descriptors, its checkpoints' files and a viewer's snapshot; whatever else does, they are
 * closed and not looked at. */
static void on_peer_message(struct session *s, const struct message *m, const int *fds, unsigned n_fds)
{
    struct peer *peer = find_peer(s);
    const bool is_job = (m->kind == MESSAGE_JOB || m->kind == MESSAGE_OUTPUT_DONE) && peer->role == ROLE_CLIENT;
    const bool is_snapshot = m->kind == MESSAGE_SNAPSHOT && peer->role == ROLE_VIEWER;

    if (!is_job && !is_snapshot) {
        job_close_fds(fds, n_fds);
        n_fds = 0;
    }
    if (m->kind == MESSAGE_STATUS)
        look_status(peer, m->status.n_workers);
    else if (m->kind == MESSAGE_MEMORY)
        look_memory(peer, m->memory.pages);
    else if (m->kind == MESSAGE_UNITS)
        look_units(peer, m->units.first);
    else if (m->kind == MESSAGE_WORKERS)
        look_workers(peer);
    else if (m->kind == MESSAGE_RECENT)
        look_recent(peer);
    else if (m->kind == MESSAGE_STOP && peer->role != ROLE_WORKER)
        on_stop(peer);
    else if (is_snapshot || (m->kind == MESSAGE_SAVE && peer->role == ROLE_VIEWER))
        on_viewer_message(peer, m, fds, n_fds);
    else if (peer->role == ROLE_CLIENT)
        on_client_message(peer, m, fds, n_fds);
    else if (peer->role == ROLE_WORKER && m->kind != MESSAGE_JOB)
        on_worker_message(peer, m);
    else
        peer_refuse(peer, "a message that its role does not send");
}

static void on_client_gone(struct daemon *d, struct peer *peer, const char *reason)
{
    log_line("client %u gone: %s", peer->id, reason ? reason : "closed");
    job_forget_waiting(d, peer);
    if (d->job.client == peer) {
        d->job.client = NULL;
        job_end(d, -ECANCELED, "its client is gone");
    }
    if (d->is_private && peer->id == d->first_client)
        daemon_stop(d, "its client is gone");
}

/* A worker that has parts takes the job with it: redoing them elsewhere needs replay, which this daemon has not got. */
static void on_worker_gone(struct daemon *d, struct peer *peer, const char *reason)
{
    struct job *job = &d->job;
    uint32_t i = 0;

    if (!reason)
        reason = "released";
    log_line("worker %u (%s) gone: %s", peer->id, peer->device, reason);
    while (i < job->n_workers && job->workers[i] != peer)
        i++;
    if (i == job->n_workers)
        return;
    job->workers[i] = job->workers[--job->n_workers];
    if (job->state == JOB_STEPPING)
        job_end(d, -EIO,
                "worker %u (%s) was lost in step %" PRIu64
                ": %s; its part of the step cannot be redone, so the run ends here",
                peer->id, peer->device, job->step + 1, reason);
    else
        job_end(d, -EIO, "worker %u (%s) was lost after %" PRIu64 " steps: %s; the run ends here", peer->id,
                peer->device, job->step, reason);
}

static void on_peer_closed(struct session *s, const char *reason)
{
    struct daemon *d = session_data(s);
    struct peer **place = &d->peers, *peer;

    while (*place && (*place)->session != s)
        place = &(*place)->next;
    peer = *place;
    if (!peer) /* it never opened */
        return;
    *place = peer->next;
    if (peer->role == ROLE_WORKER)
        on_worker_gone(d, peer, reason);
    if (peer->role == ROLE_CLIENT)
        on_client_gone(d, peer, reason);
    free(peer);
    job_finish(d);
}

static void close_handle(uv_handle_t *handle)
{
    if (!uv_is_closing(handle))
        uv_close(handle, NULL);
}

static void on_patience(uv_timer_t *timer)
{
    struct daemon *d = timer->data;

    if (++d->n_ticks == PATIENCE_TICKS)
        daemon_stop(d, d->asked);
}

void daemon_ask(struct daemon *d, const char *why)
{
    struct job *job = &d->job;

    if (d->stopping)
        return;
    const bool can_save = job->client && job->request.job.train && (steps_are_on(job) || job->state == JOB_ENDING);
    if (d->asked || !can_save) {
        daemon_stop(d, why);
        return;
    }
    d->asked = why;
    log_line("asked to stop %s: the run is told, and has %d s to save what it promised", why, PATIENCE_TICKS);
    if (job->state != JOB_ENDING)
        session_send(job->client->session, &(struct message){.kind = MESSAGE_STOP});
    uv_timer_start(&d->patience, on_patience, TICK_MS, TICK_MS);
}

void daemon_stop(struct daemon *d, const char *why)
{
    if (d->stopping)
        return;
    d->stopping = true;
    log_line("stopping: %s", why);
    job_end(d, -ECANCELED, "the daemon was stopped %s", why);
    for (struct peer *p = d->peers; p; p = p->next)
        session_close(p->session);
    session_unlisten(d->listener, NULL);
    close_handle((uv_handle_t *)&d->sigterm);
    close_handle((uv_handle_t *)&d->sigint);
    close_handle((uv_handle_t *)&d->sighup);
    close_handle((uv_handle_t *)&d->lonely);
    close_handle((uv_handle_t *)&d->patience);
    daemon_end(d);
}

/* To the last, somebody may keep it waiting. */
void daemon_end(struct daemon *d)
{
    if (!d->stopping || d->peers || d->job.state != JOB_NONE || eps_updater_pending(d->updater))
        return;
    close_handle((uv_handle_t *)&d->optimizer_done);
    close_handle((uv_handle_t *)&d->watch);
}

static void on_signal(uv_signal_t *handle, int number)
{
    daemon_ask(handle->data, number == SIGTERM ? "by SIGTERM" : number == SIGINT ? "by SIGINT" : "by SIGHUP");
}

static void on_lonely(uv_timer_t *timer)
{
    struct daemon *d = timer->data;

    d->exit_code = -ETIMEDOUT;
    daemon_stop(d, "its client did not come");
}

static void on_optimizer_done(uv_async_t *async)
{
    steps_on_optimizer(async->data);
}

static void wake_loop(void *context)
{
    struct daemon *d = context;

    uv_async_send(&d->optimizer_done);
}

static const struct session_events peer_events = {on_peer_open, on_peer_message, on_peer_closed};

static int daemon_listen(struct daemon *d, const struct daemon_options *options, struct error *err)
{
    int rc = session_listen(&d->listener, d->loop, options->directory, &peer_events, d, err);

    if (!rc && options->shared) {
        rc = session_admit_group(d->listener, options->group, err);
        if (rc)
            session_unlisten(d->listener, NULL); /* its files at least: the process ends */
    }
    return rc;
}

static void watch_signals(struct daemon *d)
{
    struct sigaction hangup;

    uv_signal_init(d->loop, &d->sigterm);
    uv_signal_init(d->loop, &d->sigint);
    uv_signal_init(d->loop, &d->sighup);
    d->sigterm.data = d->sigint.data = d->sighup.data = d;
    uv_signal_start(&d->sigterm, on_signal, SIGTERM);
    uv_signal_start(&d->sigint, on_signal, SIGINT);
    if (sigaction(SIGHUP, NULL, &hangup) == 0 && hangup.sa_handler != SIG_IGN) /* else: nohup */
        uv_signal_start(&d->sighup, on_signal, SIGHUP);
    process_take_signals();
}

static void do_nothing(uv_work_t *work)
{
    (void)work;
}

static void on_nothing(uv_work_t *work, int status)
{
    (void)work, (void)status;
}

/* As libuv reads it: how many threads files are written by. */
static unsigned pool_size(void)
{
    const char *text = getenv("UV_THREADPOOL_SIZE");
    const int n = text ? atoi(text) : 4;

    return n < 1 ? 1 : n > 1024 ? 1024 : (unsigned)n;
}

/* Every thread that there will ever be is made before anything is promised to anybody: the optimizer's with its team,
 * libuv's, nanomsg's. */
static int start_threads(struct daemon *d, struct error *err)
{
    d->n_threads = eps_team_size();
    int rc = process_check_threads(d->n_threads + pool_size() + 1, err);

    if (!rc)
        rc = session_hold_thread(&d->messages_held, err);
    if (rc)
        return rc;
    uv_queue_work(d->loop, &d->first_work, do_nothing, on_nothing);
    rc = eps_updater_start(&d->updater, &d->job.store, d->n_threads, wake_loop, d);
    return rc ? error_set(err, rc, "the optimizer thread did not start: %s", strerror(-rc)) : 0;
}

static int daemon_init(struct daemon *d, uv_loop_t *loop, const struct daemon_options *options, struct error *err)
{
    int rc;

    d->loop = loop;
    d->is_private = options->is_private;
    d->messages_held = -1;
    d->host_mem = options->host_mem;
    job_init(&d->job);
    rc = start_threads(d, err);
    if (!rc)
        rc = daemon_listen(d, options, err);
    if (rc)
        return rc;
    uv_async_init(loop, &d->optimizer_done, on_optimizer_done);
    uv_timer_init(loop, &d->lonely);
    uv_timer_init(loop, &d->patience);
    d->optimizer_done.data = d->lonely.data = d->patience.data = d;
    if (d->is_private)
        uv_timer_start(&d->lonely, on_lonely, LONELY_S * 1000, 0);
    watch_start(d, options->most_quiet);
    watch_signals(d);
    return 0;
}

static void close_any(uv_handle_t *handle, void *data)
{
    (void)data;
    close_handle(handle);
}

int daemon_run(const struct daemon_options *options, struct error *err)
{
    struct daemon *d = calloc(1, sizeof *d);
    uv_loop_t loop;
    int rc;

    if (!d)
        return error_set(err, -ENOMEM, "out of memory");
    rc = uv_loop_init(&loop);
    if (rc) {
        free(d);
        return error_set(err, rc, "no event loop: %s", uv_strerror(rc));
    }
    rc = daemon_init(d, &loop, options, err);
    if (!rc) {
        log_line("listening at %s, pid %d", options->directory, (int)getpid());
        uv_run(&loop, UV_RUN_DEFAULT);
        rc = d->exit_code;
        if (rc)
            error_set(err, rc, "no client came within %d s", LONELY_S);
    } else { /* what was begun */
        uv_walk(&loop, close_any, NULL);
        uv_run(&loop, UV_RUN_DEFAULT);
    }
    eps_updater_stop(d->updater);
    if (d->messages_held >= 0)
        session_let_thread_go(d->messages_held);
    const int left = uv_loop_close(&loop);
    assert(left == 0);
    (void)left;
    free(d);
    return rc;
}

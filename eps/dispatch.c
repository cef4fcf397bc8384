/* Peers attach, send messages, and leave. */
#include "eps/job/damage.h"
#include "eps/job/evaluate.h"
#include "eps/base/rights.h"
#include "eps/drain.h"
#include "eps/step/membership.h"
#include "eps/takeover.h"
#include "eps/store/team.h"
#include "proto/base/process.h"

#include <errno.h>
#include <inttypes.h>
#include <unistd.h>

static struct peer *find_peer(struct session *s)
{
    struct daemon *d = session_data(s);
    struct peer *peer = d->peers.first;

    while (peer && peer->session != s)
        peer = peer->next;
    return peer;
}

/* ---- attached --------------------------------------------------------------------------------------------------- */

/* Leaves cores to the devices once the first worker with a device attaches, and for good. The team never grows again:
 * the system may have no thread left by then. */
static void leave_cores(struct daemon *d, const struct peer *worker)
{
    if (!worker->backend || worker->backend->takes_turns)
        return;
    d->observer.n_threads = team_beside_device(d->observer.n_threads, (unsigned)sysconf(_SC_NPROCESSORS_ONLN));
    updater_set_threads(d->peers.updater, d->observer.n_threads);
}

static void on_open(struct session *s, const struct message *hello)
{
    struct daemon *d = session_data(s);
    struct peer *peer = d->stopping ? NULL : peer_add(&d->peers.first, s, hello);

    if (!peer) {
        session_turn_away(s, d->stopping ? "the daemon is stopping" : "the daemon is out of memory");
        return;
    }
    if (peer->role == ROLE_WORKER) {
        const char *model = peer->model;
        char budget[PROCESS_BYTES_TEXT];
        log_line("worker %u attached: %s%s%s%s, %s, pid %d", peer->id, peer->device, *model ? " (" : "", model,
                 *model ? ")" : "", process_format_bytes(budget, peer->budget), session_peer_pid(s));
        leave_cores(d, peer);
        observe_on_worker(&d->observer);
    } else if (peer->role == ROLE_CLIENT) {
        log_line("client %u attached: pid %d", peer->id, session_peer_pid(s));
    }
}

/* ---- messages --------------------------------------------------------------------------------------------------- */

static void refuse_role(struct peer *peer)
{
    peer_refuse(peer, "a message that its role does not send");
}

/* True if a client's request must be carried out. It is ignored if its job ended while it was in transfer, and also
 * until the job's workers are released. */
static bool client_may(const struct daemon *d, struct peer *peer, bool fits)
{
    if (peer->role != ROLE_CLIENT)
        refuse_role(peer);
    else if (d->job->client == peer && d->job->state != JOB_ENDING && !fits)
        peer_refuse(peer, "a request that does not fit the state of its job");
    return peer->role == ROLE_CLIENT && d->job->client == peer && fits;
}

/* True if a worker's message must be carried out. It is ignored if sent before the worker heard of the job's end. */
static bool worker_may(struct peer *peer, bool fits)
{
    if (peer->role != ROLE_WORKER)
        refuse_role(peer);
    else if (peer->state != PEER_RELEASING && !fits)
        peer_refuse(peer, "a message that does not fit its state");
    return peer->role == ROLE_WORKER && fits;
}

/* Only host 0 has a client that saves: another host that ended by request would lose the steps since the last save. */
static void on_stop(struct daemon *d, struct peer *peer, uint32_t job)
{
    struct error err;
    int rc = 0;

    if (d->peers.host > 0)
        rc = error_set(&err, -EBUSY, "this is host %u of a daemon on %u hosts: stop host 0, which saves for all",
                       d->peers.host, d->peers.n_hosts);
    if (!rc && job) {
        takeover_stop(d, peer, job);
        return;
    }
    if (!rc)
        rc = rights_stop(peer, &err);
    if (!rc && !d->asked)
        rc = takeover_warn(d, peer, &err);
    if (rc) {
        peer_decline(peer, rc, &err);
        return;
    }
    const bool again = peer->stops_daemon;
    peer->stops_daemon = true;
    daemon_ask_to_stop(d, "by eps stop", again);
}

/* True if a viewer may have the weights of the job. If not, it has been told why. */
static bool viewer_may(const struct daemon *d, struct peer *peer)
{
    struct error err;
    int rc = d->job->state == JOB_NONE ? 0 : rights_job(peer, d->job->uid, &err); /* without a job, the save says so */

    if (rc)
        peer_decline(peer, rc, &err);
    return rc == 0;
}

static void on_drain(struct daemon *d, struct peer *peer, const struct message *m)
{
    struct peer *worker = peer_find(d->peers.first, m->drain.worker);
    struct error err;
    int rc = rights_stop(peer, &err);

    if (!rc && (!worker || worker->role != ROLE_WORKER || worker->refused))
        rc = error_set(&err, -ENOENT, "there is no worker %u: eps top lists them", m->drain.worker);
    if (rc) {
        peer_decline(peer, rc, &err);
        return;
    }
    membership_on_leaving(&d->steps, worker);
    session_send(peer->session, m);
}

/* The peer will serve its files, instead of those that it serves so far, unless a job or a snapshot has these.
 * Descriptors that it leaves unread would be taken from all others. */
static void on_files(struct peer *peer, bool trace)
{
    const struct message m = {.kind = MESSAGE_FILES, .files.trace = trace};
    const unsigned n = trace ? FILES_SENT + 1 : FILES_SENT;
    int fds[FILES_SENT + 1];
    struct files *files;
    struct error err;
    int rc = session_is_behind(peer->session) ? error_set(&err, -EBUSY, "answers wait to be read: read them first")
                                              : files_open(&files, fds, trace, &err);

    if (!rc && !session_leaves_fds(fds[n - 1], SESSION_SPARE_FDS)) {
        rc = error_set(&err, -EMFILE, "the daemon has no descriptors left for these files");
        job_close_fds(fds, n);
        files_release(files);
    }
    if (rc) {
        peer_decline(peer, rc, &err);
        return;
    }
    files_release(peer->files);
    peer->files = files;
    session_send_fds(peer->session, &m, fds, n);
    job_close_fds(fds, n);
}

/* The weights of a job that rests, for its client to read: all of them are of one version. Descriptors that it leaves
 * unread would be taken from all others. */
static void send_map(struct peer *peer, const struct job *job, uint32_t first)
{
    const uint32_t n_units = job->model.n_units, left = first < n_units ? n_units - first : 0;
    struct message m = {.kind = MESSAGE_MAPPED,
                        .mapped = {.step = job->step,
                                   .weights_bytes = job->store.weights.bytes,
                                   .n_units = n_units,
                                   .first = first,
                                   .n = left < MESSAGE_MAP_UNITS ? left : MESSAGE_MAP_UNITS}};
    struct error err;
    int rc = 0;

    if (!job->facts.has_masters)
        rc = error_set(&err, -EINVAL,
                       "no host has all of this job's weights, so they cannot be looked at: save a checkpoint instead");
    else if (session_is_behind(peer->session))
        rc = error_set(&err, -EBUSY, "answers wait to be read: read them first");
    if (rc) {
        peer_decline(peer, rc, &err);
        return;
    }
    for (uint32_t i = 0; i < m.mapped.n; i++)
        m.mapped.second[i / 8] |= (uint8_t)(store_buffer(&job->store, first + i, false) << i % 8);
    session_send_fds(peer->session, &m, &job->store.weights.fd, 1);
}

/* The weights are whole; but the client may have gone, or have opened a step. */
static void on_looked_at(struct job *job)
{
    if (!job->client || job->client->id != job->verdict.reader)
        return;
    if (job->state == JOB_RESTING)
        send_map(job->client, job, 0);
    else
        peer_decline(job->client, -EBUSY, &(struct error){"a step was opened meanwhile"});
}

static void on_map(struct peer *peer, struct job *job, uint32_t first)
{
    job->verdict.reader = peer->id;
    if (first > 0 || !job->facts.has_masters || !damage_look_at_weights(job, on_looked_at))
        send_map(peer, job, first);
}

static void dispatch(struct daemon *d, struct peer *peer, const struct message *m, const int *fds, unsigned n_fds)
{
    struct job *job = d->job;
    const struct message *request = &job->request;
    const bool rests = job->state == JOB_RESTING && job->aligned;

    switch (m->kind) {
    case MESSAGE_STATUS:
        observe_status(&d->observer, peer, m->status.n_workers);
        break;
    case MESSAGE_MEMORY:
        observe_memory(&d->observer, peer, m->memory.pages);
        break;
    case MESSAGE_UNITS:
        observe_units(&d->observer, peer, m->units.first);
        break;
    case MESSAGE_WORKERS:
        observe_workers(&d->observer, peer);
        break;
    case MESSAGE_RECENT:
        observe_recent(&d->observer, peer);
        break;
    case MESSAGE_STOP:
        if (peer->role == ROLE_WORKER)
            refuse_role(peer);
        else
            on_stop(d, peer, m->stop.job);
        break;
    case MESSAGE_DRAIN:
        if (peer->role == ROLE_WORKER)
            membership_on_leaving(&d->steps, peer);
        else
            on_drain(d, peer, m);
        break;
    case MESSAGE_SAVE:
        if (peer->role != ROLE_VIEWER) {
            if (client_may(d, peer, job_is_open(job) && request->job.goal.purpose == PLAN_TRAIN && job_has_output(job)))
                save_on_client(&d->saves, m);
        } else if (viewer_may(d, peer)) {
            save_on_viewer(&d->saves, peer, m);
        }
        break;
    case MESSAGE_SNAPSHOT:
        if (peer->role != ROLE_VIEWER)
            refuse_role(peer);
        else if (viewer_may(d, peer))
            save_on_snapshot(&d->saves, peer, fds, n_fds);
        else
            job_close_fds(fds, n_fds);
        break;
    case MESSAGE_JOB:
        if (peer->role != ROLE_CLIENT)
            refuse_role(peer);
        else
            daemon_open_job(d, peer, m, fds, n_fds);
        break;
    case MESSAGE_DESCRIBE:
    case MESSAGE_TAKE:
        if (peer->role != ROLE_CLIENT)
            refuse_role(peer);
        else if (m->kind == MESSAGE_DESCRIBE)
            takeover_describe(d, peer, m->describe.job);
        else
            takeover_take(d, peer, m->take.job);
        break;
    case MESSAGE_QUEUE:
        observe_queue(&d->observer, peer);
        break;
    case MESSAGE_FILES:
        if (peer->role == ROLE_WORKER)
            refuse_role(peer);
        else
            on_files(peer, m->files.trace);
        break;
    case MESSAGE_OUTPUT_DONE:
        if (client_may(d, peer, true))
            save_on_output_done(&d->saves, m);
        break;
    case MESSAGE_OPEN_STEP:
        if (client_may(d, peer, steps_may_open(&d->steps)))
            steps_open(&d->steps, m);
        break;
    case MESSAGE_MAP:
        if (client_may(d, peer, rests && job_trains(job)))
            on_map(peer, job, m->map.first);
        break;
    case MESSAGE_EVALUATE:
        if (client_may(d, peer, rests && request->job.goal.purpose != PLAN_GENERATE))
            evaluate_start(job, m);
        break;
    case MESSAGE_GENERATE:
        if (client_may(d, peer, rests && request->job.goal.purpose == PLAN_GENERATE))
            evaluate_generate(job, m);
        break;
    case MESSAGE_CLOSE:
        if (client_may(d, peer, true))
            job_end(job, 0, "closed");
        break;
    case MESSAGE_LEDGER:
        if (worker_may(peer, true))
            peer->ledger = m->ledger;
        break;
    case MESSAGE_ASSIGNED:
    case MESSAGE_REFUSED:
        if (worker_may(peer, peer->state == PEER_ASSIGNING))
            membership_on_assigned(&d->steps, peer, m);
        break;
    case MESSAGE_RELEASE:
        if (worker_may(peer, peer->state == PEER_RELEASING))
            job_on_released(peer);
        break;
    case MESSAGE_FAILED:
        if (worker_may(peer, peer->state == PEER_ASSIGNED))
            membership_on_failed(&d->steps, peer, m);
        break;
    case MESSAGE_PULL:
    case MESSAGE_READ:
    case MESSAGE_LOSS:
    case MESSAGE_CONTRIBUTION:
    case MESSAGE_DIGEST:
    case MESSAGE_EVALUATED:
    case MESSAGE_GENERATED:
        if (worker_may(peer, peer->state == PEER_ASSIGNED))
            steps_on_worker(&d->steps, peer, m);
        break;
    case MESSAGE_HELLO: /* the session's, or the daemon's own */
    case MESSAGE_WELCOME:
    case MESSAGE_GREETING:
    case MESSAGE_PING:
    case MESSAGE_PONG:
    case MESSAGE_JOB_OPENED:
    case MESSAGE_ASSIGN:
    case MESSAGE_SHARE:
    case MESSAGE_WEIGHTS:
    case MESSAGE_VOID:
    case MESSAGE_FREE:
    case MESSAGE_GRANT:
    case MESSAGE_ARRIVED:
    case MESSAGE_COVERED:
    case MESSAGE_DONE:
    case MESSAGE_SAVED:
    case MESSAGE_SAVE_FAILED:
    case MESSAGE_OUTPUT:
    case MESSAGE_STATUS_REPLY:
    case MESSAGE_MEMORY_REPLY:
    case MESSAGE_UNITS_REPLY:
    case MESSAGE_WORKERS_REPLY:
    case MESSAGE_RECENT_REPLY:
    case MESSAGE_DISMISSED:
    case MESSAGE_LOST:
    case MESSAGE_QUEUED:
    case MESSAGE_QUEUE_REPLY:
    case MESSAGE_DESCRIPTION:
    case MESSAGE_TAKEN:
    case MESSAGE_FILE: /* not by a session */
    case MESSAGE_FILE_DONE:
    case MESSAGE_MAPPED:
    case MESSAGE_BYE:
    case MESSAGE_KINDS:
        refuse_role(peer);
        break;
    }
}

/* A message of the protocol of the present job, by its client or a worker that has memory in it: a step takes as many
 * as it takes, and nobody else can send one without a fault. */
static bool is_of_job(const struct daemon *d, const struct peer *peer, enum message_kind kind)
{
    const bool is_client = d->job->client == peer, is_worker = peer->role == ROLE_WORKER && peer->state != PEER_IDLE;

    if (kind == MESSAGE_OPEN_STEP || kind == MESSAGE_EVALUATE || kind == MESSAGE_GENERATE ||
        kind == MESSAGE_OUTPUT_DONE || kind == MESSAGE_CLOSE)
        return is_client;
    return is_worker &&
           (kind == MESSAGE_PULL || kind == MESSAGE_READ || kind == MESSAGE_LOSS || kind == MESSAGE_CONTRIBUTION ||
            kind == MESSAGE_DIGEST || kind == MESSAGE_EVALUATED || kind == MESSAGE_GENERATED ||
            kind == MESSAGE_LEDGER || kind == MESSAGE_ASSIGNED || kind == MESSAGE_RELEASE);
}

/* Messages that are read and sent for this one, for the budget of the peer's user. */
static unsigned cost_of(const struct daemon *d, const struct peer *peer, enum message_kind kind)
{
    if (is_of_job(d, peer, kind))
        return 0;
    if (kind == MESSAGE_MEMORY || kind == MESSAGE_WORKERS)
        return 2 + peer_count_workers(d->peers.first);
    return kind == MESSAGE_QUEUE ? 2 + d->queue.n : 2;
}

/* Descriptors come with a client's JOB and with a viewer's snapshot. Those of any other message are closed unread. */
static void on_message(struct session *s, const struct message *m, const int *fds, unsigned n_fds)
{
    struct daemon *d = session_data(s);
    struct peer *peer = find_peer(s);
    const unsigned cost = cost_of(d, peer, m->kind);

    if (!(m->kind == MESSAGE_JOB && peer->role == ROLE_CLIENT) &&
        !(m->kind == MESSAGE_SNAPSHOT && peer->role == ROLE_VIEWER)) {
        job_close_fds(fds, n_fds);
        n_fds = 0;
    }
    if (cost > 0)
        session_charge(s, cost);
    if (peer->role == ROLE_CLIENT && !d->first_client) /* one that says nothing may come again: its machine is slow */
        d->first_client = peer->id;
    if (d->job->client == peer)
        takeover_on_client_heard(d);
    dispatch(d, peer, m, fds, n_fds);
    drain_events(d);
}

/* ---- gone ------------------------------------------------------------------------------------------------------- */

static void on_client_gone(struct daemon *d, struct peer *peer, const char *reason)
{
    log_line("client %u gone: %s", peer->id, reason ? reason : "closed");
    struct queue_entry *entry = queue_find_client(&d->queue, peer);
    if (entry)
        queue_drop(&d->queue, entry);
    if (d->job->client == peer)
        takeover_on_client_gone(d, peer, session_end(peer->session));
    if (d->peers.is_private && peer->id == d->first_client)
        daemon_lose_client(d);
}

static void on_closed(struct session *s, const char *reason)
{
    struct daemon *d = session_data(s);
    struct peer *peer = find_peer(s);

    if (!peer) /* it never opened */
        return;
    if (peer->role == ROLE_WORKER) {
        log_line("worker %u (%s) gone: %s", peer->id, peer->device, reason ? reason : "released");
        membership_leave(&d->steps, peer, reason ? reason : "released");
    }
    if (peer->role == ROLE_CLIENT)
        on_client_gone(d, peer, reason);
    peer_remove(&d->peers.first, peer);
    drain_events(d);
}

const struct session_events dispatch_events = {on_open, on_message, on_closed};

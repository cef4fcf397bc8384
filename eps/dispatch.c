/* Peers attach, send messages, and leave.
 *
 * A message passes the same gates in the same order: it is charged to its user, so that a refused one costs as much;
 * its role must send it; the state of the job or of the worker must fit (requests, may). Rights are judged behind the
 * table, where the request is known. None of its functions drains: dispatch_on_message does, once, when the message has
 * had its effect. */
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

static struct peer *dispatch_find_peer(struct session *s)
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

/* A session that is turned away never gets a peer, so dispatch_on_closed finds none and does nothing. */
static void dispatch_on_open(struct session *s, const struct message *hello)
{
    struct daemon *d = session_data(s);
    const bool works = hello->hello.role == ROLE_WORKER;
    const uint32_t id = works ? d->peers.n_attached + 1 : session_id(s);
    struct peer *peer = d->stopping ? NULL : peer_add(&d->peers.first, s, hello, id);

    if (!peer) {
        session_turn_away(s, d->stopping ? "the daemon is stopping" : "the daemon is out of memory");
        return;
    }
    if (works) {
        const char *model = peer->model;
        char budget[PROCESS_BYTES_TEXT];
        d->peers.n_attached = id;
        log_line("worker %u attached: %s%s%s%s, %s, pid %d", peer->id, peer->device, *model ? " (" : "", model,
                 *model ? ")" : "", process_format_bytes(budget, peer->budget), session_peer_pid(s));
        leave_cores(d, peer);
        observe_on_worker(&d->observer);
    } else if (peer->role == ROLE_CLIENT) {
        log_line("client %u attached: pid %d", peer->id, session_peer_pid(s));
    }
}

/* ---- messages --------------------------------------------------------------------------------------------------- */

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
    struct peer *worker = peer_find_worker(d->peers.first, m->drain.worker);
    struct error err;
    int rc = rights_stop(peer, &err);

    if (!rc && (!worker || worker->refused))
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
    /* A bit for each unit: its weights lie in the second of the buffers that replay alternates between. */
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

/* ---- requests --------------------------------------------------------------------------------------------------- */

/* Requests that are about the job wait for its state. The job is known to be the client's (may). */
static bool is_any(const struct daemon *d, const struct peer *peer)
{
    (void)d, (void)peer;
    return true;
}

static bool may_save(const struct daemon *d, const struct peer *peer)
{
    (void)peer;
    return job_is_open(d->job) && job_goal(d->job)->purpose == PLAN_TRAIN && job_has_output(d->job);
}

static bool may_open_step(const struct daemon *d, const struct peer *peer)
{
    (void)peer;
    return steps_may_open(&d->steps);
}

/* At a step's boundary, when all units are of one version (`aligned`), and no step or evaluation is under way. */
static bool dispatch_rests(const struct daemon *d)
{
    return d->job->state == JOB_RESTING && d->job->aligned;
}

static bool may_map(const struct daemon *d, const struct peer *peer)
{
    (void)peer;
    return dispatch_rests(d) && job_trains(d->job);
}

static bool may_evaluate(const struct daemon *d, const struct peer *peer)
{
    (void)peer;
    return dispatch_rests(d) && job_goal(d->job)->purpose != PLAN_GENERATE;
}

static bool may_generate(const struct daemon *d, const struct peer *peer)
{
    (void)peer;
    return dispatch_rests(d) && job_goal(d->job)->purpose == PLAN_GENERATE;
}

static bool is_assigning(const struct daemon *d, const struct peer *peer)
{
    (void)d;
    return peer->state == PEER_ASSIGNING;
}

static bool is_assigned(const struct daemon *d, const struct peer *peer)
{
    (void)d;
    return peer->state == PEER_ASSIGNED;
}

static bool is_releasing(const struct daemon *d, const struct peer *peer)
{
    (void)d;
    return peer->state == PEER_RELEASING;
}

/* A message as it came. */
struct call {
    struct daemon *d;
    struct peer *peer;
    const struct message *m;
    const int *fds;
    unsigned n_fds;
};

static void status(const struct call *c)
{
    observe_status(&c->d->observer, c->peer, c->m->status.n_workers);
}

static void memory(const struct call *c)
{
    observe_memory(&c->d->observer, c->peer, c->m->memory.pages);
}

static void units(const struct call *c)
{
    observe_units(&c->d->observer, c->peer, c->m->units.first);
}

static void workers(const struct call *c)
{
    observe_workers(&c->d->observer, c->peer);
}

static void recent(const struct call *c)
{
    observe_recent(&c->d->observer, c->peer);
}

static void dispatch_queued(const struct call *c)
{
    observe_queue(&c->d->observer, c->peer);
}

static void dispatch_stop(const struct call *c)
{
    on_stop(c->d, c->peer, c->m->stop.job);
}

static void dispatch_serve_files(const struct call *c)
{
    on_files(c->peer, c->m->files.trace);
}

static void dispatch_leave(const struct call *c)
{
    membership_on_leaving(&c->d->steps, c->peer);
}

static void dispatch_drain(const struct call *c)
{
    on_drain(c->d, c->peer, c->m);
}

static void save_for_client(const struct call *c)
{
    save_on_client(&c->d->saves, c->m);
}

static void save_for_viewer(const struct call *c)
{
    if (viewer_may(c->d, c->peer))
        save_on_viewer(&c->d->saves, c->peer, c->m);
}

static void snapshot(const struct call *c)
{
    if (viewer_may(c->d, c->peer))
        save_on_snapshot(&c->d->saves, c->peer, c->fds, c->n_fds);
    else
        job_close_fds(c->fds, c->n_fds);
}

static void dispatch_open_job(const struct call *c)
{
    daemon_open_job(c->d, c->peer, c->m, c->fds, c->n_fds);
}

static void dispatch_describe(const struct call *c)
{
    takeover_describe(c->d, c->peer, c->m->describe.job);
}

static void dispatch_take(const struct call *c)
{
    takeover_take(c->d, c->peer, c->m->take.job);
}

static void dispatch_output_done(const struct call *c)
{
    save_on_output_done(&c->d->saves, c->m);
}

static void dispatch_open_step(const struct call *c)
{
    steps_open(&c->d->steps, c->m);
}

static void dispatch_map(const struct call *c)
{
    on_map(c->peer, c->d->job, c->m->map.first);
}

static void dispatch_evaluate(const struct call *c)
{
    evaluate_start(c->d->job, c->m);
}

static void dispatch_generate(const struct call *c)
{
    evaluate_generate(c->d->job, c->m);
}

static void close_job(const struct call *c)
{
    job_end(c->d->job, 0, "closed");
}

static void ledger(const struct call *c)
{
    c->peer->ledger = c->m->ledger;
}

static void dispatch_assigned(const struct call *c)
{
    membership_on_assigned(&c->d->steps, c->peer, c->m);
}

static void released(const struct call *c)
{
    job_on_released(c->peer);
}

static void failed(const struct call *c)
{
    membership_on_failed(&c->d->steps, c->peer, c->m);
}

static void dispatch_work(const struct call *c)
{
    steps_on_worker(&c->d->steps, c->peer, c->m);
}

/* What is asked of the daemon, by whom, in which state, and what carries it out. A kind that nobody sends to it
 * (proto/wire/message.c), or that the session takes, has no row. */
static const struct request {
    enum message_kind kind;
    enum message_role role; /* whose row it is; 0: of each other role that sends the kind */
    void (*run)(const struct call *call);
    /* Of the job's client, or a worker: the state in which it is carried out (may). NULL: any, and any job. */
    bool (*fits)(const struct daemon *d, const struct peer *peer);
    bool of_job; /* of the present job's protocol: a step takes as many as it takes, so they cost nothing */
    bool fds;    /* descriptors that come with it are read */
} requests[] = {
    {MESSAGE_PULL, .run = dispatch_work, .fits = is_assigned, .of_job = true},
    {MESSAGE_READ, .run = dispatch_work, .fits = is_assigned, .of_job = true},
    {MESSAGE_LOSS, .run = dispatch_work, .fits = is_assigned, .of_job = true},
    {MESSAGE_CONTRIBUTION, .run = dispatch_work, .fits = is_assigned, .of_job = true},
    {MESSAGE_DIGEST, .run = dispatch_work, .fits = is_assigned, .of_job = true},
    {MESSAGE_EVALUATED, .run = dispatch_work, .fits = is_assigned, .of_job = true},
    {MESSAGE_GENERATED, .run = dispatch_work, .fits = is_assigned, .of_job = true},
    {MESSAGE_LEDGER, .run = ledger, .of_job = true},
    {MESSAGE_ASSIGNED, .run = dispatch_assigned, .fits = is_assigning, .of_job = true},
    {MESSAGE_REFUSED, .run = dispatch_assigned, .fits = is_assigning},
    {MESSAGE_RELEASE, .run = released, .fits = is_releasing, .of_job = true},
    {MESSAGE_FAILED, .run = failed, .fits = is_assigned},
    {MESSAGE_DRAIN, ROLE_WORKER, .run = dispatch_leave},
    {MESSAGE_DRAIN, .run = dispatch_drain},
    {MESSAGE_OPEN_STEP, .run = dispatch_open_step, .fits = may_open_step, .of_job = true},
    {MESSAGE_EVALUATE, .run = dispatch_evaluate, .fits = may_evaluate, .of_job = true},
    {MESSAGE_GENERATE, .run = dispatch_generate, .fits = may_generate, .of_job = true},
    {MESSAGE_OUTPUT_DONE, .run = dispatch_output_done, .fits = is_any, .of_job = true},
    {MESSAGE_MAP, .run = dispatch_map, .fits = may_map},
    {MESSAGE_CLOSE, .run = close_job, .fits = is_any, .of_job = true},
    {MESSAGE_SAVE, ROLE_CLIENT, .run = save_for_client, .fits = may_save},
    {MESSAGE_SAVE, .run = save_for_viewer},
    {MESSAGE_SNAPSHOT, .run = snapshot, .fds = true},
    {MESSAGE_JOB, .run = dispatch_open_job, .fds = true},
    {MESSAGE_DESCRIBE, .run = dispatch_describe},
    {MESSAGE_TAKE, .run = dispatch_take},
    {MESSAGE_STOP, .run = dispatch_stop},
    {MESSAGE_FILES, .run = dispatch_serve_files},
    {MESSAGE_STATUS, .run = status},
    {MESSAGE_MEMORY, .run = memory},
    {MESSAGE_UNITS, .run = units},
    {MESSAGE_WORKERS, .run = workers},
    {MESSAGE_RECENT, .run = recent},
    {MESSAGE_QUEUE, .run = dispatch_queued},
};

/* NULL: no peer of this role sends it. */
static const struct request *find_request(const struct peer *peer, enum message_kind kind)
{
    const struct request *const end = requests + sizeof requests / sizeof *requests;

    if (!message_is_sent_by(kind, peer->role))
        return NULL;
    for (const struct request *r = requests; r < end; r++)
        if (r->kind == kind && (!r->role || r->role == peer->role))
            return r;
    return NULL;
}

/* True if it must be carried out. It is ignored if its job ended while it was in transfer, and also until the job's
 * workers are released; by a worker, if it was sent before that heard of the job's end. */
static bool may(const struct daemon *d, struct peer *peer, const struct request *request)
{
    const bool is_worker = peer->role == ROLE_WORKER, is_of_client = d->job->client == peer;

    if (!request->fits)
        return true;
    const bool fits = request->fits(d, peer);
    if (is_worker && !fits && peer->state != PEER_RELEASING)
        peer_refuse(peer, "a message that does not fit its state");
    if (!is_worker && !fits && is_of_client && d->job->state != JOB_ENDING)
        peer_refuse(peer, "a request that does not fit the state of its job");
    return fits && (is_worker || is_of_client);
}

/* A message of the protocol of the present job, by its client or a worker that has memory in it. */
static bool is_of_job(const struct daemon *d, const struct peer *peer, const struct request *request)
{
    return request && request->of_job &&
           (peer->role == ROLE_WORKER ? peer->state != PEER_IDLE : d->job->client == peer);
}

/* Messages that are read and sent for this one, for the budget of the peer's user. */
static unsigned cost_of(const struct daemon *d, const struct peer *peer, const struct request *request,
                        enum message_kind kind)
{
    if (is_of_job(d, peer, request))
        return 0;
    if (kind == MESSAGE_MEMORY || kind == MESSAGE_WORKERS)
        return 2 + peer_count_workers(d->peers.first);
    return kind == MESSAGE_QUEUE ? 2 + d->queue.n : 2;
}

/* Descriptors of a message with which none should come are closed unread. */
static void dispatch_on_message(struct session *s, const struct message *m, const int *fds, unsigned n_fds)
{
    struct daemon *d = session_data(s);
    struct peer *peer = dispatch_find_peer(s);
    const struct request *request = find_request(peer, m->kind);
    const unsigned cost = cost_of(d, peer, request, m->kind);

    if (!request || !request->fds) {
        job_close_fds(fds, n_fds);
        n_fds = 0;
    }
    if (cost > 0)
        session_charge(s, cost);
    if (peer->role == ROLE_CLIENT && !d->first_client) /* one that says nothing may come again: its machine is slow */
        d->first_client = peer->id;
    if (d->job->client == peer)
        takeover_on_client_heard(d);
    if (!request)
        peer_refuse(peer, "a message that its role does not send");
    else if (may(d, peer, request))
        request->run(&(struct call){d, peer, m, fds, n_fds});
    drain_events(d);
}

/* ---- gone ------------------------------------------------------------------------------------------------------- */

/* A queued job goes with its client. One that runs may be detached instead, and wait for another client (takeover). */
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

/* A worker leaves the step before its peer is freed: the relay and the seats know it by the peer's id. */
static void dispatch_on_closed(struct session *s, const char *reason)
{
    struct daemon *d = session_data(s);
    struct peer *peer = dispatch_find_peer(s);

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

const struct session_events dispatch_events = {dispatch_on_open, dispatch_on_message, dispatch_on_closed};

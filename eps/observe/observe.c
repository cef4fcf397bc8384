/* Every answer is made of what the loop has at hand and sent at once, so watching never makes training wait. Two
 * exceptions: a viewer that waits for workers, and the system's figures on pages, which a thread reads; whoever asks
 * meanwhile is answered with that reading. Steps and saves keep the last job's figures, so what is told of them (loss,
 * audits, what was saved) is told only while there is a job. */
#include "eps/observe/observe.h"

#include "eps/base/rights.h"
#include "proto/base/process.h"
#include "proto/model/output.h"

#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

/* Workers that the job has no seat for. */
static uint32_t count_idle(const struct observer *observer)
{
    uint32_t n = 0;

    for (const struct peer *p = peer_first_worker(observer->peers->first); p && job_is_open(observer->job);
         p = peer_first_worker(p->next))
        n += p->state == PEER_IDLE;
    return n;
}

/* Workers that may not compute this client's jobs. A viewer is shown all alike. */
static uint32_t count_foreign(const struct observer *observer, const struct peer *client)
{
    const uid_t uid = session_peer_uid(client->session);
    struct error none;
    uint32_t n = 0;

    for (const struct peer *p = peer_first_worker(observer->peers->first); p && client->role == ROLE_CLIENT;
         p = peer_first_worker(p->next))
        n += rights_compute(observer->peers, p, uid, &none) != 0;
    return n;
}

static void send_status(const struct observer *observer, struct peer *peer)
{
    static const enum message_state states[] = {
        [JOB_NONE] = STATE_IDLE,        [JOB_LOADING] = STATE_LOADING,       [JOB_ASSIGNING] = STATE_LOADING,
        [JOB_RESTING] = STATE_TRAINING, [JOB_STEPPING] = STATE_TRAINING,     [JOB_EVALUATING] = STATE_EVALUATING,
        [JOB_ENDING] = STATE_ENDING,    [JOB_GENERATING] = STATE_GENERATING,
    };
    const struct job *job = observer->job;
    struct message m = {.kind = MESSAGE_STATUS_REPLY};
    char title[MODEL_TITLE_BYTES];

    m.status_reply.state = observer->stopping ? STATE_STOPPING : states[job->state];
    if (job->state == JOB_RESTING && job_goal(job)->purpose == PLAN_GENERATE) /* between two tokens */
        m.status_reply.state = STATE_GENERATING;
    else if (job_is_open(job) && job_trains(job) && job_waits(job) && !observer->stopping)
        m.status_reply.state = STATE_WAITING;
    if (job->detached && job_is_open(job) && !observer->stopping)
        m.status_reply.state = STATE_DETACHED;
    m.status_reply.waits = steps_wait(observer->steps);
    m.status_reply.n_audits = job->state == JOB_NONE ? 0 : observer->steps->n_audits;
    m.status_reply.n_redone = job->state == JOB_NONE ? 0 : observer->steps->n_redone;
    m.status_reply.step = job->step;
    m.status_reply.n_steps = job->request.job.n_steps;
    m.status_reply.n_parameters = job->model.n_parameters;
    m.status_reply.n_foreign = count_foreign(observer, peer);
    m.status_reply.n_workers = peer_count_workers(observer->peers->first) - m.status_reply.n_foreign;
    m.status_reply.n_elsewhere = observer->peers->n_elsewhere;
    m.status_reply.lacks = m.status_reply.n_workers == 0 ? 1 : observer->peers->lacks ? observer->peers->lacks + 1 : 0;
    m.status_reply.n_idle = count_idle(observer);
    m.status_reply.n_threads = observer->n_threads;
    m.status_reply.pid = (uint32_t)getpid();
    m.status_reply.uid = job->state == JOB_NONE ? geteuid() : job->uid;
    m.status_reply.job = job->state == JOB_NONE ? 0 : job->id;
    m.status_reply.n_queued = observer->queue->n;
    m.status_reply.loss = job->state == JOB_NONE ? NAN : observer->steps->loss;
    if (job->model.n_units)
        snprintf(m.status_reply.model, sizeof m.status_reply.model, "%.40s, vocabulary %u",
                 model_title(title, &job->model.config), job->model.config.vocabulary);
    m.status_reply.saved_step = job->state == JOB_NONE ? MESSAGE_NO_STEP : observer->saves->saved_step;
    m.status_reply.saving = observer->saves->first != NULL;
    m.status_reply.precision = job_goal(job)->precision;
    m.status_reply.fenced = job_is_fenced(job);
    m.status_reply.folded = job_is_folded(job);
    memcpy(m.status_reply.trouble, observer->saves->trouble, sizeof observer->saves->trouble);
    if (job->output >= 0)
        output_path(m.status_reply.out, sizeof m.status_reply.out, job->output);
    else if (job->state != JOB_NONE)
        memcpy(m.status_reply.out, job->request.job.out, sizeof m.status_reply.out);
    session_send(peer->session, &m);
}

void observe_status(struct observer *observer, struct peer *peer, uint32_t n_workers)
{
    peer->n_awaited =
        peer_count_workers(observer->peers->first) - count_foreign(observer, peer) < n_workers ? n_workers : 0;
    if (!peer->n_awaited)
        send_status(observer, peer);
}

/* Those that wait for a number of workers are answered once there are as many. */
void observe_on_worker(struct observer *observer)
{
    for (struct peer *p = observer->peers->first; p; p = p->next)
        if (p->n_awaited)
            observe_status(observer, p, p->n_awaited);
}

/* The system's figures on one side; worker 0 is the host. */
static struct pages find_pages(const struct observer *observer, uint32_t worker)
{
    for (unsigned i = 0; i < observer->pages.n; i++)
        if (observer->pages.sides[i].worker == worker)
            return observer->pages.sides[i].pages;
    return (struct pages){0};
}

static void send_memory(const struct observer *observer, struct peer *peer, bool pages)
{
    const struct peers *peers = observer->peers;
    const struct peer *p = peer_first_worker(peers->first);
    struct message m = {.kind = MESSAGE_MEMORY_REPLY, .memory_reply = {.last = !p}};

    snprintf(m.memory_reply.device, sizeof m.memory_reply.device, "host");
    process_host_name(m.memory_reply.host, sizeof m.memory_reply.host);
    m.memory_reply.pid = (uint32_t)getpid();
    m.memory_reply.budget = job_host_cap(observer->job) < UINT64_MAX ? job_host_cap(observer->job) : 0;
    m.memory_reply.ledger = peers->ledger;
    memcpy(m.memory_reply.planned, observer->job->host.bytes, sizeof m.memory_reply.planned);
    if (pages)
        m.memory_reply.pages = find_pages(observer, 0);
    session_send(peer->session, &m);
    for (; p; p = peer_first_worker(p->next)) {
        m.memory_reply.last = !peer_first_worker(p->next);
        m.memory_reply.worker = p->id;
        m.memory_reply.pid = (uint32_t)session_peer_pid(p->session);
        memcpy(m.memory_reply.host, p->host, sizeof p->host);
        m.memory_reply.budget = p->budget;
        m.memory_reply.ledger = p->ledger;
        memcpy(m.memory_reply.planned, p->plan.bytes, sizeof m.memory_reply.planned);
        memcpy(m.memory_reply.device, p->device, sizeof p->device);
        if (pages)
            m.memory_reply.pages = find_pages(observer, p->id);
        session_send(peer->session, &m);
    }
}

/* On a thread of its own: the time it takes grows with the page tables. */
static void read_pages(uv_work_t *work)
{
    struct observer *observer = work->data;
    struct observe_pages *pages = &observer->pages;

    for (unsigned i = 0; i < pages->n; i++)
        pages_read(&pages->sides[i].pages, pages->sides[i].pid, pages->sides[i].worker == 0);
}

/* Each question gets an answer of its own, as a session is read in sequence. */
static void on_pages(uv_work_t *work, int status)
{
    struct observer *observer = work->data;

    (void)status; /* it is never cancelled */
    observer->pages.busy = false;
    observer->pages.read_ms = uv_now(observer->peers->loop);
    for (struct peer *p = observer->peers->first; p; p = p->next)
        for (; p->n_asked > 0; p->n_asked--)
            send_memory(observer, p, true);
}

/* Frequent viewers get the same answer again: reading must not become work. */
static bool are_fresh(const struct observer *observer)
{
    enum { FRESH_MS = 1000 };

    return observer->pages.n > 0 && uv_now(observer->peers->loop) - observer->pages.read_ms < FRESH_MS;
}

/* Another host's process has a number that means nothing on this one. */
static bool has_pages(const struct peer *peer)
{
    return peer->role == ROLE_WORKER && session_peer_uid(peer->session) != SESSION_REMOTE_USER;
}

void observe_memory(struct observer *observer, struct peer *peer, bool with_pages)
{
    struct observe_pages *pages = &observer->pages;

    if (with_pages && (pages->busy || !are_fresh(observer))) {
        peer->n_asked++;
        if (pages->busy)
            return;
        pages->sides[0] = (struct observe_side){.worker = 0, .pid = getpid()};
        pages->n = 1;
        for (const struct peer *p = observer->peers->first; p; p = p->next)
            if (has_pages(p) && pages->n < OBSERVE_MAX_SIDES)
                pages->sides[pages->n++] = (struct observe_side){.worker = p->id, .pid = session_peer_pid(p->session)};
        pages->work.data = observer;
        pages->busy = uv_queue_work(observer->peers->loop, &pages->work, read_pages, on_pages) == 0;
        if (pages->busy)
            return;
        pages->n = 0; /* no thread could be made: answers without the figures */
        peer->n_asked = 0;
    }
    send_memory(observer, peer, with_pages);
}

static bool is_at_work(const struct job *job)
{
    return job->state == JOB_STEPPING || job->state == JOB_EVALUATING || job->state == JOB_GENERATING;
}

/* The home of the layer that a visit runs now. */
static uint32_t home_of(const struct job *job, uint32_t visit)
{
    return model_order_home(job_homes(job), visit);
}

/* Workers that have a unit's weights now. The daemon knows only which unit each was given last. */
static void mark_relayed(const struct job *job, struct message *m)
{
    for (uint32_t i = 0; i < job->n_workers && is_at_work(job); i++) {
        const struct progress *progress = &job->workers[i]->progress;
        if (progress->phase == PHASE_RESTING || progress->visit >= job->model.n_visits)
            continue;
        const uint32_t unit = job->model.visits[home_of(job, progress->visit)];
        if (unit < m->units_reply.first || unit - m->units_reply.first >= m->units_reply.n)
            continue;
        uint8_t *byte = &m->units_reply.units[unit - m->units_reply.first];
        if ((*byte & ~UNIT_AHEAD) == UNIT_WAITING)
            *byte = (uint8_t)(*byte | UNIT_RELAYING);
    }
}

void observe_units(struct observer *observer, struct peer *peer, uint32_t first)
{
    static const enum message_unit states[] = {
        [RELAY_AT_REST] = UNIT_WAITING,
        [RELAY_AT_INBOX] = UNIT_RELAYING,
        [RELAY_AT_FOLD] = UNIT_FOLDING,
        [RELAY_AT_UPDATE] = UNIT_UPDATING,
    };
    const struct job *job = observer->job;
    struct message m = {.kind = MESSAGE_UNITS_REPLY};
    struct relay_view views[MESSAGE_PAGE_UNITS];
    const uint32_t n_units = job->model.n_units, left = first < n_units ? n_units - first : 0;

    m.units_reply.first = first;
    m.units_reply.n_units = n_units;
    m.units_reply.version = job->step;
    m.units_reply.n = left < MESSAGE_PAGE_UNITS ? left : MESSAGE_PAGE_UNITS;
    if (job->relay) {
        relay_observe(job->relay, first, m.units_reply.n, views);
        for (uint32_t i = 0; i < m.units_reply.n; i++)
            m.units_reply.units[i] = (uint8_t)(states[views[i].at] | (views[i].version > job->step ? UNIT_AHEAD : 0));
    }
    mark_relayed(job, &m);
    session_send(peer->session, &m);
}

static void fill_worker(struct message *m, const struct job *job, const struct peer *p)
{
    const struct progress *progress = &p->progress;

    m->workers_reply.worker = p->id;
    m->workers_reply.pid = (uint32_t)session_peer_pid(p->session);
    memcpy(m->workers_reply.host, p->host, sizeof p->host);
    memcpy(m->workers_reply.device, p->device, sizeof p->device);
    memcpy(m->workers_reply.model, p->model, sizeof p->model);
    m->workers_reply.budget = p->budget;
    m->workers_reply.current = p->ledger.total.current;
    m->workers_reply.peak = p->ledger.total.peak;
    m->workers_reply.down_bytes = progress->down_bytes;
    m->workers_reply.up_bytes = progress->up_bytes;
    if (p->unfit && job->state != JOB_NONE)
        m->workers_reply.unfit = p->why_unfit;
    else if (job->state != JOB_NONE) /* the job has not looked at it yet, and will not have it */
        rights_compute(job->peers, p, job->uid, &m->workers_reply.unfit);
    if (p->state != PEER_ASSIGNED)
        return;
    m->workers_reply.microbatch = p->plan.choice.microbatch;
    if (!is_at_work(job) || progress->phase == PHASE_RESTING || progress->visit >= job->model.n_visits)
        return;
    m->workers_reply.phase = progress->phase;
    m->workers_reply.visit = progress->visit;
    m->workers_reply.n_visits = job->model.n_visits;
    m->workers_reply.part = progress->part;
    m->workers_reply.n_parts = progress->n_parts;
    model_visit_name(m->workers_reply.unit, &job->model, home_of(job, progress->visit));
}

void observe_workers(struct observer *observer, struct peer *peer)
{
    const struct peer *p = peer_first_worker(observer->peers->first);
    struct message m = {.kind = MESSAGE_WORKERS_REPLY, .workers_reply = {.last = true}};

    if (!p)
        session_send(peer->session, &m);
    for (; p; p = peer_first_worker(p->next)) {
        m = (struct message){.kind = MESSAGE_WORKERS_REPLY, .workers_reply = {.last = !peer_first_worker(p->next)}};
        fill_worker(&m, observer->job, p);
        session_send(peer->session, &m);
    }
}

void observe_queue(struct observer *observer, struct peer *peer)
{
    struct message m = {.kind = MESSAGE_QUEUE_REPLY, .queue_reply.last = true};

    if (!observer->queue->first)
        session_send(peer->session, &m);
    for (const struct queue_entry *entry = observer->queue->first; entry; entry = entry->next) {
        m.queue_reply.last = !entry->next;
        m.queue_reply.job = entry->job;
        m.queue_reply.pid = (uint32_t)session_peer_pid(entry->client->session);
        m.queue_reply.uid = session_peer_uid(entry->client->session);
        m.queue_reply.purpose = entry->request.job.goal.purpose;
        m.queue_reply.step = entry->request.job.step;
        m.queue_reply.n_steps = entry->request.job.n_steps;
        memcpy(m.queue_reply.out, entry->request.job.out, sizeof m.queue_reply.out);
        session_send(peer->session, &m);
    }
}

/* Times of clocks that count milliseconds: two steps within one are taken to be half of it apart. */
void observe_recent(struct observer *observer, struct peer *peer)
{
    enum { N_TIMED = 16 }; /* few enough steps to follow a change, enough that one slow step does not count */
    const struct steps_recent *recent = &observer->steps->recent;
    const uint64_t n = recent->n < MESSAGE_RECENT_STEPS ? recent->n : MESSAGE_RECENT_STEPS;
    struct message m = {.kind = MESSAGE_RECENT_REPLY, .recent_reply = {.tokens_per_s = NAN, .step_ms = NAN, .lr = NAN}};

    m.recent_reply.step = observer->job->request.job.step + recent->n;
    m.recent_reply.tokens = recent->tokens;
    m.recent_reply.n = (uint32_t)n;
    for (uint64_t i = 0; i < n; i++)
        m.recent_reply.losses[i] = recent->steps[(recent->n - n + i) % MESSAGE_RECENT_STEPS].loss;
    if (n > 0)
        m.recent_reply.lr = recent->steps[(recent->n - 1) % MESSAGE_RECENT_STEPS].lr;
    if (n > 1) {
        const uint64_t timed = n - 1 < N_TIMED ? n - 1 : N_TIMED;
        const struct steps_covered *b = &recent->steps[(recent->n - 1) % MESSAGE_RECENT_STEPS];
        const struct steps_covered *a = &recent->steps[(recent->n - 1 - timed) % MESSAGE_RECENT_STEPS];
        const double ms = b->covered_ms > a->covered_ms ? (double)(b->covered_ms - a->covered_ms) : 0.5;
        m.recent_reply.step_ms = ms / (double)timed;
        m.recent_reply.tokens_per_s = 1e3 * (double)(b->tokens - a->tokens) / ms;
    }
    session_send(peer->session, &m);
}

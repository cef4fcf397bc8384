/* What those who look are told: the job's state, its units and last steps, where workers are, the memory of both
 * sides. */
#include "eps/daemon.h"

#include "proto/model/output.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void send_status(struct peer *peer)
{
    static const enum message_state states[] = {
        [JOB_NONE] = STATE_IDLE,        [JOB_LOADING] = STATE_LOADING,       [JOB_ASSIGNING] = STATE_LOADING,
        [JOB_RESTING] = STATE_TRAINING, [JOB_STEPPING] = STATE_TRAINING,     [JOB_EVALUATING] = STATE_EVALUATING,
        [JOB_ENDING] = STATE_STOPPING,  [JOB_GENERATING] = STATE_GENERATING,
    };
    const struct daemon *d = peer->daemon;
    const struct job *job = &d->job;
    struct message m = {.kind = MESSAGE_STATUS_REPLY};

    m.status_reply.state = d->stopping || d->asked ? STATE_STOPPING : states[job->state];
    if (job->state == JOB_RESTING && job->request.job.generate) /* between two tokens */
        m.status_reply.state = STATE_GENERATING;
    m.status_reply.step = job->step;
    m.status_reply.n_steps = job->request.job.n_steps;
    m.status_reply.n_parameters = job->model.n_parameters;
    m.status_reply.n_workers = daemon_count_workers(d);
    m.status_reply.n_threads = d->n_threads;
    m.status_reply.pid = (uint32_t)getpid();
    m.status_reply.uid = job->client ? session_peer_uid(job->client->session) : geteuid();
    m.status_reply.loss = job->state == JOB_NONE ? NAN : job->loss;
    if (job->model.n_units)
        snprintf(m.status_reply.model, sizeof m.status_reply.model, "gpt2 %ux%u, vocabulary %u",
                 job->model.config.n_layers, job->model.config.width, job->model.config.vocabulary);
    m.status_reply.saved_step = job->state == JOB_NONE ? MESSAGE_NO_STEP : job->saved_step;
    m.status_reply.saving = job->saves != NULL;
    m.status_reply.precision = job->request.job.precision;
    m.status_reply.fenced = job_is_fenced(&job->request);
    memcpy(m.status_reply.trouble, job->trouble, sizeof job->trouble);
    if (job->output >= 0)
        output_path(m.status_reply.out, sizeof m.status_reply.out, job->output);
    else if (job->state != JOB_NONE)
        memcpy(m.status_reply.out, job->request.job.out, sizeof m.status_reply.out);
    session_send(peer->session, &m);
}

void look_status(struct peer *peer, uint32_t n_workers)
{
    peer->n_awaited = daemon_count_workers(peer->daemon) < n_workers ? n_workers : 0;
    if (!peer->n_awaited)
        send_status(peer);
}

void look_on_worker(struct daemon *d)
{
    for (struct peer *p = d->peers; p; p = p->next)
        if (p->n_awaited)
            look_status(p, p->n_awaited);
}

/* What the system said of a side; worker 0 is the host. */
static struct pages find_pages(const struct daemon *d, uint32_t worker)
{
    for (unsigned i = 0; i < d->pages.n; i++)
        if (d->pages.sides[i].worker == worker)
            return d->pages.sides[i].pages;
    return (struct pages){0};
}

static void send_memory(struct peer *peer, bool pages)
{
    const struct daemon *d = peer->daemon;
    struct message m = {.kind = MESSAGE_MEMORY_REPLY};
    unsigned left = daemon_count_workers(d);

    snprintf(m.memory_reply.device, sizeof m.memory_reply.device, "host");
    m.memory_reply.last = left == 0;
    m.memory_reply.ledger = d->ledger;
    memcpy(m.memory_reply.planned, d->job.host.bytes, sizeof m.memory_reply.planned);
    if (pages)
        m.memory_reply.pages = find_pages(d, 0);
    session_send(peer->session, &m);
    for (const struct peer *p = d->peers; p; p = p->next) {
        if (p->role != ROLE_WORKER)
            continue;
        m.memory_reply.last = --left == 0;
        m.memory_reply.worker = p->id;
        m.memory_reply.budget = p->budget;
        m.memory_reply.ledger = p->ledger;
        memcpy(m.memory_reply.planned, p->plan.bytes, sizeof m.memory_reply.planned);
        memcpy(m.memory_reply.device, p->device, sizeof p->device);
        if (pages)
            m.memory_reply.pages = find_pages(d, p->id);
        session_send(peer->session, &m);
    }
}

/* On a thread of its own: it can take as long as the page tables are large. */
static void read_pages(uv_work_t *work)
{
    struct look_pages *pages = work->data;

    for (unsigned i = 0; i < pages->n; i++)
        pages_read(&pages->sides[i].pages, pages->sides[i].pid, pages->sides[i].worker == 0);
}

static void on_pages(uv_work_t *work, int status)
{
    struct look_pages *pages = work->data;
    struct daemon *d = (struct daemon *)((char *)pages - offsetof(struct daemon, pages));

    (void)status; /* it is never cancelled */
    pages->busy = false;
    pages->read_ms = uv_now(d->loop);
    for (struct peer *p = d->peers; p; p = p->next)
        for (; p->n_asked > 0; p->n_asked--)
            send_memory(p, true);
}

/* Who looks often is told the same again: reading must not become work. */
static bool are_fresh(const struct daemon *d)
{
    enum { FRESH_MS = 1000 };

    return d->pages.n > 0 && uv_now(d->loop) - d->pages.read_ms < FRESH_MS;
}

void look_memory(struct peer *peer, bool pages)
{
    struct daemon *d = peer->daemon;

    if (pages && (d->pages.busy || !are_fresh(d))) {
        peer->n_asked++;
        if (d->pages.busy)
            return;
        d->pages.sides[0] = (struct look_side){.worker = 0, .pid = getpid()};
        d->pages.n = 1;
        for (const struct peer *p = d->peers; p; p = p->next)
            if (p->role == ROLE_WORKER && d->pages.n < LOOK_MAX_SIDES)
                d->pages.sides[d->pages.n++] = (struct look_side){.worker = p->id, .pid = session_peer_pid(p->session)};
        d->pages.work.data = &d->pages;
        d->pages.busy = uv_queue_work(d->loop, &d->pages.work, read_pages, on_pages) == 0;
        if (d->pages.busy)
            return;
        d->pages.n = 0; /* no thread to be had: it is said without */
        peer->n_asked = 0;
    }
    send_memory(peer, pages);
}

static bool is_at_work(const struct job *job)
{
    return job->state == JOB_STEPPING || job->state == JOB_EVALUATING || job->state == JOB_GENERATING;
}

/* Those whose weights a worker has now: all that is known is which it was given last. */
static void mark_relayed(const struct job *job, struct message *m)
{
    for (uint32_t i = 0; i < job->n_workers && is_at_work(job); i++) {
        const struct place *place = &job->workers[i]->place;
        if (place->phase == PHASE_RESTING || place->visit >= job->model.n_visits)
            continue;
        const uint32_t unit = job->model.visits[place->visit];
        if (unit < m->units_reply.first || unit - m->units_reply.first >= m->units_reply.n)
            continue;
        uint8_t *byte = &m->units_reply.units[unit - m->units_reply.first];
        if ((*byte & ~UNIT_AHEAD) == UNIT_WAITING)
            *byte = (uint8_t)(*byte | UNIT_RELAYING);
    }
}

void look_units(struct peer *peer, uint32_t first)
{
    static const enum message_unit states[] = {
        [RELAY_AT_REST] = UNIT_WAITING,
        [RELAY_AT_INBOX] = UNIT_RELAYING,
        [RELAY_AT_FOLD] = UNIT_FOLDING,
        [RELAY_AT_UPDATE] = UNIT_UPDATING,
    };
    const struct job *job = &peer->daemon->job;
    struct message m = {.kind = MESSAGE_UNITS_REPLY};
    struct relay_view views[MESSAGE_PAGE_UNITS];
    const uint32_t n_units = job->model.n_units, left = first < n_units ? n_units - first : 0;

    m.units_reply.first = first;
    m.units_reply.n_units = n_units;
    m.units_reply.version = job->step;
    m.units_reply.n = left < MESSAGE_PAGE_UNITS ? left : MESSAGE_PAGE_UNITS;
    if (job->relay) {
        relay_look(job->relay, first, m.units_reply.n, views);
        for (uint32_t i = 0; i < m.units_reply.n; i++)
            m.units_reply.units[i] = (uint8_t)(states[views[i].at] | (views[i].version > job->step ? UNIT_AHEAD : 0));
    }
    mark_relayed(job, &m);
    session_send(peer->session, &m);
}

static void fill_worker(struct message *m, const struct daemon *d, const struct peer *p)
{
    const struct job *job = &d->job;
    const struct place *place = &p->place;

    m->workers_reply.worker = p->id;
    m->workers_reply.pid = (uint32_t)session_peer_pid(p->session);
    memcpy(m->workers_reply.device, p->device, sizeof p->device);
    memcpy(m->workers_reply.model, p->model, sizeof p->model);
    m->workers_reply.budget = p->budget;
    m->workers_reply.current = p->ledger.total.current;
    m->workers_reply.peak = p->ledger.total.peak;
    m->workers_reply.down_bytes = place->down_bytes;
    m->workers_reply.up_bytes = place->up_bytes;
    if (p->state != PEER_ASSIGNED)
        return;
    m->workers_reply.microbatch = p->plan.choice.microbatch;
    if (!is_at_work(job) || place->phase == PHASE_RESTING || place->visit >= job->model.n_visits)
        return;
    m->workers_reply.phase = place->phase;
    m->workers_reply.visit = place->visit;
    m->workers_reply.n_visits = job->model.n_visits;
    m->workers_reply.part = place->part;
    m->workers_reply.n_parts = place->n_parts;
    model_visit_name(m->workers_reply.unit, &job->model, place->visit);
}

void look_workers(struct peer *peer)
{
    const struct daemon *d = peer->daemon;
    unsigned left = daemon_count_workers(d);
    struct message m = {.kind = MESSAGE_WORKERS_REPLY, .workers_reply = {.last = left == 0}};

    if (left == 0)
        session_send(peer->session, &m);
    for (const struct peer *p = d->peers; p; p = p->next) {
        if (p->role != ROLE_WORKER)
            continue;
        m = (struct message){.kind = MESSAGE_WORKERS_REPLY, .workers_reply = {.last = --left == 0}};
        fill_worker(&m, d, p);
        session_send(peer->session, &m);
    }
}

void look_on_covered(struct daemon *d)
{
    struct look_recent *recent = &d->job.recent;

    recent->tokens += d->job.n_valid;
    recent->steps[recent->n++ % MESSAGE_RECENT_STEPS] =
        (struct look_step){(float)d->job.loss, uv_now(d->loop), recent->tokens};
}

void look_recent(struct peer *peer)
{
    enum { N_TIMED = 16 }; /* few enough to follow a change, enough for one slow step not to count */
    const struct job *job = &peer->daemon->job;
    const struct look_recent *recent = &job->recent;
    const uint64_t n = recent->n < MESSAGE_RECENT_STEPS ? recent->n : MESSAGE_RECENT_STEPS;
    struct message m = {.kind = MESSAGE_RECENT_REPLY, .recent_reply = {.tokens_per_s = NAN, .step_ms = NAN}};

    m.recent_reply.step = job->request.job.step + recent->n;
    m.recent_reply.tokens = recent->tokens;
    m.recent_reply.n = (uint32_t)n;
    for (uint64_t i = 0; i < n; i++)
        m.recent_reply.losses[i] = recent->steps[(recent->n - n + i) % MESSAGE_RECENT_STEPS].loss;
    if (n > 1) {
        const uint64_t timed = n - 1 < N_TIMED ? n - 1 : N_TIMED;
        const struct look_step *b = &recent->steps[(recent->n - 1) % MESSAGE_RECENT_STEPS];
        const struct look_step *a = &recent->steps[(recent->n - 1 - timed) % MESSAGE_RECENT_STEPS];
        const double ms = b->covered_ms > a->covered_ms ? (double)(b->covered_ms - a->covered_ms) : 0.5;
        m.recent_reply.step_ms = ms / (double)timed;
        m.recent_reply.tokens_per_s = 1e3 * (double)(b->tokens - a->tokens) / ms;
    }
    session_send(peer->session, &m);
}

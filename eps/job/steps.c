#include "eps/daemon.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

static struct peer *find_worker(const struct job *job, uint32_t id)
{
    for (uint32_t i = 0; i < job->n_workers; i++)
        if (job->workers[i]->id == id)
            return job->workers[i];
    return NULL;
}

static void send_share(struct daemon *d, struct peer *worker, const struct relay_action *a)
{
    struct message m = {.kind = MESSAGE_SHARE};

    m.share.step = a->step;
    m.share.buffer = d->job.buffer;
    m.share.n_valid = d->job.n_valid;
    m.share.n = a->n_parts;
    place_begin(&worker->place, PHASE_FORWARD, a->parts[0].part, a->n_parts);
    for (uint32_t i = 0; i < a->n_parts; i++) {
        m.share.parts[i].part = a->parts[i].part;
        m.share.parts[i].attempt = a->parts[i].attempt;
    }
    session_send(worker->session, &m);
}

void steps_send_weights(struct peer *worker, uint64_t version, uint32_t unit)
{
    const struct message m = {.kind = MESSAGE_WEIGHTS, .weights = {.version = version, .unit = unit}};
    const struct model *model = &worker->daemon->job.model;

    worker->n_pulls--;
    place_pull(&worker->place, model, unit,
               model->units[unit].n * number_bytes(worker->daemon->job.request.job.precision));
    session_send(worker->session, &m);
}

static void submit(struct daemon *d, const struct relay_action *a)
{
    struct job *job = &d->job;

    if (a->kind == RELAY_UPDATE)
        fence_commit(job);
    struct eps_job work = {
        .kind = a->kind == RELAY_FOLD ? EPS_JOB_FOLD : EPS_JOB_UPDATE,
        .unit = a->unit,
        .slice = a->slice,
        .how = eps_store_fold_kind(&job->store, a->unit, job->request.job.n_parts,
                                   job->request.job.optimizer == OPTIMIZER_ADAMW),
        .hyper = job->hyper,
        .trace = job_trace(job, &d->job.optimizer_trace),
        .step = relay_version(job->relay, a->unit),
        .visit = a->visit,
    };

    if (a->kind == RELAY_FOLD) {
        const struct peer *worker = find_worker(job, a->worker);
        assert(worker); /* a job without one of its workers has ended */
        work.contribution =
            (struct eps_contribution){.g = (const char *)worker->inbox->base + a->slot * job->host.slot_bytes,
                                      .type = job->request.job.grad,
                                      .first = a->first,
                                      .part = a->part};
        work.squares = fence_note_fold(job, a->unit);
    }
    eps_updater_submit(d->updater, &work);
}

static void send_step(struct daemon *d, enum message_kind kind, uint64_t step)
{
    struct job *job = &d->job;
    struct message m = {.kind = kind};

    m.done.step = step;
    m.done.loss = job->loss;
    m.done.host_bytes = d->ledger.total.current;
    m.done.grad_norm = job->grad_norm;
    m.done.skipped = job->skipped;
    for (uint32_t i = 0; i < job->n_workers; i++)
        if (m.done.device_peak < job->workers[i]->ledger.total.peak)
            m.done.device_peak = job->workers[i]->ledger.total.peak;
    session_send(job->client->session, &m);
}

static void on_covered(struct daemon *d, uint64_t step)
{
    struct job *job = &d->job;

    job->covered = true;
    job->loss = fence_loss(job);
    job->grad_norm = job->fence.norm;
    job->skipped = job->fence.skipped;
    look_on_covered(d);
    send_step(d, MESSAGE_COVERED, step);
}

static void on_done(struct daemon *d, uint64_t step)
{
    struct job *job = &d->job;

    job->step = step + 1;
    for (uint32_t i = 0; i < job->n_workers; i++)
        job->workers[i]->not_finite = false;
    send_step(d, MESSAGE_DONE, step);
    if (job->n_opened == job->step)
        job->state = JOB_RESTING;
}

static void send_slot(struct peer *worker, const struct relay_action *a)
{
    struct message m = {.kind = a->kind == RELAY_FREE ? MESSAGE_FREE : MESSAGE_GRANT};

    if (m.kind == MESSAGE_FREE) {
        m.free.slot = a->slot;
        m.free.visit = a->visit;
        m.free.part = a->part;
        m.free.slice = a->slice;
    } else {
        m.grant.visit = a->visit;
        m.grant.part = a->part;
        m.grant.slice = a->slice;
    }
    session_send(worker->session, &m);
}

/* Ends the job, and the session of the worker at fault, so that it is not in the next one. A gradient that is not finite
 * is mostly the fault of the run's rate; only a worker that has it in two jobs in a row is to blame. */
static void blame(struct daemon *d, struct peer *worker, const struct relay_action *a)
{
    const bool not_finite = a->not_finite, at_fault = !not_finite || worker->not_finite;

    assert(worker); /* a job without one of its workers has ended */
    worker->not_finite = not_finite;
    if (not_finite)
        job_end(d, -EDOM, "the gradient of step %" PRIu64 " is not finite, as worker %u (%s) has it: try a lower --lr",
                d->job.step + 1, worker->id, worker->device);
    else
        job_end(d, -EIO, "worker %u (%s) was at fault in step %" PRIu64 ": %s", worker->id, worker->device,
                d->job.step + 1, a->why);
    if (at_fault)
        peer_refuse(worker, not_finite ? "its gradient is not finite in two jobs in a row" : a->why);
}

/* Carries one action out. The job may have ended when this returns. */
static void act(struct daemon *d, const struct relay_action *a)
{
    struct peer *worker = find_worker(&d->job, a->worker);

    switch (a->kind) {
    case RELAY_SHARE:
        if (a->step != d->job.told_ahead)
            send_share(d, worker, a);
        break;
    case RELAY_ANSWER:
        steps_send_weights(worker, a->step, a->unit);
        break;
    case RELAY_FOLD:
    case RELAY_UPDATE:
        submit(d, a);
        break;
    case RELAY_FREE:
    case RELAY_GRANT:
        send_slot(worker, a);
        break;
    case RELAY_COVERED:
        on_covered(d, a->step);
        break;
    case RELAY_DONE:
        on_done(d, a->step);
        break;
    case RELAY_REFUSE:
        assert(!a->to_reader); /* none comes too early, twice, or as one of too many */
        if (a->to_client)
            job_end(d, -EPROTO, "step refused: %s", a->why);
        else
            blame(d, worker, a);
        break;
    case RELAY_SKIPPED:
        if (job_is_fenced(&d->job.request)) {
            fence_skip(&d->job, a->step);
            break;
        }
        job_end(d, -EDOM,
                "the loss of step %" PRIu64 " is not finite; nothing of that step was applied: try a lower --lr",
                a->step + 1);
        break;
    case RELAY_TORN:
        job_end(d, -EDOM, "step %" PRIu64 " was begun and could not be finished; the weights in memory are void",
                a->step + 1);
        break;
    case RELAY_CAPTURE:
        save_on_capture(d, a);
        break;
    case RELAY_SAVED:   /* all units were released: known */
    case RELAY_ABANDON: /* the job ends with the next action */
        break;
    }
}

bool steps_are_on(const struct job *job)
{
    return job->state == JOB_RESTING || job->state == JOB_STEPPING || job->state == JOB_EVALUATING;
}

static void begin_step(struct daemon *d, const struct message *m);

/* The rest of the step is the optimizer's: workers may go on to the next one, if that is all they do meanwhile. With fenced
 * commit nothing is updated before the end. */
static void note_arrival(struct daemon *d)
{
    struct job *job = &d->job;
    struct message m = {.kind = MESSAGE_ARRIVED};

    if (job->state != JOB_STEPPING || job->covered || job->arrived || job_is_fenced(&job->request) ||
        !relay_has_all(job->relay))
        return;
    for (uint32_t i = 0; i < job->n_workers; i++)
        if (job->workers[i]->backend->takes_turns)
            return;
    job->arrived = true;
    m.arrived.step = job->n_opened - 1;
    session_send(job->client->session, &m);
}

void steps_feed(struct daemon *d, const struct relay_event *event)
{
    const struct relay_action *actions;
    int n = relay_feed(d->job.relay, event, &actions);

    if (n < 0)
        job_end(d, -ENOMEM, "out of memory");
    for (int i = 0; i < n && steps_are_on(&d->job); i++)
        act(d, &actions[i]); /* once the job has ended, the actions are gone with the relay */
    save_release(d);
    note_arrival(d);
    if (d->job.state == JOB_STEPPING && d->job.covered && d->job.has_ahead) {
        d->job.has_ahead = false;
        begin_step(d, &d->job.ahead);
    }
}

/* The job has ended, but what the optimizer thread still finishes may be the last that a checkpoint waits for. */
static void feed_saves(struct daemon *d, const struct relay_event *event)
{
    const struct relay_action *actions;
    int n = d->job.saves ? relay_feed(d->job.relay, event, &actions) : 0;

    for (int i = 0; i < n; i++)
        if (actions[i].kind == RELAY_CAPTURE)
            save_on_capture(d, &actions[i]);
}

static struct peer *owner_of(const struct job *job, uint32_t part)
{
    return job->workers[(uint64_t)part * job->n_workers / job->request.job.n_parts];
}

static void begin_step(struct daemon *d, const struct message *m)
{
    struct job *job = &d->job;
    uint32_t owners[MESSAGE_MAX_PARTS];
    const uint32_t n_parts = job->request.job.n_parts;
    const struct relay_event event = {
        .kind = RELAY_OPEN,
        .step = m->open_step.step,
        .visits = job->model.visits,
        .n_slices = job->slices,
        .n_visits = job->model.n_visits,
        .owners = owners,
        .n_owners = n_parts,
    };

    for (uint32_t p = 0; p < n_parts; p++)
        owners[p] = owner_of(job, p)->id;
    job->buffer = m->open_step.buffer;
    job->n_valid = m->open_step.n_valid;
    job->hyper = (struct eps_hyper){.lr = m->open_step.lr,
                                    .beta1 = job->request.job.beta1,
                                    .beta2 = job->request.job.beta2,
                                    .epsilon = job->request.job.epsilon,
                                    .weight_decay = job->request.job.weight_decay,
                                    .grad_scale = 1};
    for (uint32_t p = 0; p < n_parts; p++)
        job->part_loss[p] = NAN;
    fence_begin(job);
    job->state = JOB_STEPPING;
    job->covered = job->arrived = false;
    steps_feed(d, &event);
}

/* The step before is not covered yet: its folds, and what the relay and the optimizer have of it, go on undisturbed, while
 * workers begin this one. Their pulls wait for its weights; they have no loss to tell before they have had them all, and
 * then the step before is done. */
static void begin_ahead(struct daemon *d, const struct message *m)
{
    struct job *job = &d->job;

    job->ahead = *m;
    job->has_ahead = true;
    job->told_ahead = m->open_step.step;
    for (uint32_t i = 0; i < job->n_workers; i++) {
        struct message share = {.kind = MESSAGE_SHARE};
        share.share.step = m->open_step.step;
        share.share.buffer = m->open_step.buffer;
        share.share.n_valid = m->open_step.n_valid;
        for (uint32_t p = 0; p < job->request.job.n_parts; p++)
            if (owner_of(job, p) == job->workers[i])
                share.share.parts[share.share.n++].part = p;
        place_begin(&job->workers[i]->place, PHASE_FORWARD, share.share.parts[0].part, share.share.n);
        session_send(job->workers[i]->session, &share);
    }
}

bool steps_may_open(const struct job *job)
{
    return job->covered || (job->arrived && !job->has_ahead);
}

void steps_open(struct daemon *d, const struct message *m)
{
    struct job *job = &d->job;

    if (!job->request.job.train || m->open_step.step != job->n_opened || m->open_step.buffer > 1 ||
        m->open_step.n_valid < 1 || m->open_step.n_valid > (uint64_t)job->request.job.batch * job->request.job.seq ||
        !(m->open_step.lr >= 0)) {
        peer_refuse(job->client, "a step that cannot be");
        return;
    }
    const bool is_first = job->n_opened++ == job->request.job.step;
    if (job->state == JOB_STEPPING && !job->covered)
        begin_ahead(d, m);
    else
        begin_step(d, m);
    if (is_first)
        save_on_first_step(d);
}

void steps_evaluate(struct daemon *d, const struct message *m)
{
    struct job *job = &d->job;
    const uint32_t n_rows = m->evaluate.n_rows, n = job->n_workers;

    if (m->evaluate.buffer > 1 || m->evaluate.first_row != 0 || n_rows < 1 || n_rows > job->request.job.batch) {
        peer_refuse(job->client, "an evaluation that cannot be");
        return;
    }
    job->state = JOB_EVALUATING;
    for (uint32_t i = 0; i < n; i++) {
        struct message out = *m;
        const uint32_t first = (uint32_t)((uint64_t)n_rows * i / n), end = (uint32_t)((uint64_t)n_rows * (i + 1) / n);
        out.evaluate.first_row = first;
        out.evaluate.n_rows = end - first;
        job->workers[i]->evaluating = end > first;
        job->workers[i]->evaluated = 0;
        place_begin(&job->workers[i]->place, end > first ? PHASE_EVALUATING : PHASE_RESTING, 0, 0);
        if (end > first)
            session_send(job->workers[i]->session, &out);
    }
}

static void on_evaluated(struct daemon *d, struct peer *worker, const struct message *m)
{
    struct job *job = &d->job;
    struct message out = {.kind = MESSAGE_EVALUATED};

    if (!isfinite(m->evaluated.sum)) {
        job_end(
            d, -EDOM,
            "the model's loss is %s, as worker %u (%s) has it: its weights are damaged, or its training has diverged",
            isnan(m->evaluated.sum) ? "not a number" : "infinite", worker->id, worker->device);
        return;
    }
    worker->evaluating = false;
    worker->evaluated = m->evaluated.sum;
    for (uint32_t i = 0; i < job->n_workers; i++) {
        if (job->workers[i]->evaluating)
            return;
        out.evaluated.sum += job->workers[i]->evaluated;
    }
    job->state = JOB_RESTING;
    session_send(job->client->session, &out);
}

/* Weights stand still during an evaluation: whatever version is asked for, it is the one there is. */
static void on_evaluating_worker(struct daemon *d, struct peer *worker, const struct message *m)
{
    if (m->kind == MESSAGE_PULL && m->pull.unit < d->job.model.n_units)
        steps_send_weights(worker, m->pull.version, m->pull.unit);
    else if (m->kind == MESSAGE_EVALUATED && worker->evaluating)
        on_evaluated(d, worker, m);
    else
        peer_refuse(worker, "a message that does not fit an evaluation");
}

/* For those who look; what cannot be is refused by the relay. */
static void note_contribution(struct peer *worker, const struct message *m)
{
    const struct model *model = &worker->daemon->job.model;
    const uint32_t visit = m->contribution.visit, slice = m->contribution.slice;

    if (visit >= model->n_visits || slice >= model->units[model->visits[visit]].n_slices)
        return;
    const uint64_t left = model->units[model->visits[visit]].n - (uint64_t)slice * MODEL_SLICE;
    place_contribution(&worker->place, visit, m->contribution.part,
                       (left < MODEL_SLICE ? left : MODEL_SLICE) * number_bytes(worker->daemon->job.request.job.grad));
}

void steps_on_worker(struct daemon *d, struct peer *worker, const struct message *m)
{
    struct job *job = &d->job;
    struct relay_event event = {.worker = worker->id};

    if (m->kind == MESSAGE_PULL && worker->n_pulls++ == DAEMON_MAX_PULLS) {
        peer_refuse(worker, "more pulls than a worker can have buffers for");
        return;
    }
    if (m->kind == MESSAGE_PULL && job->state == JOB_STEPPING && m->pull.version >= job->n_opened) {
        peer_refuse(worker, "a pull for a step that is not open"); /* it could wait for it for ever */
        return;
    }
    if (fence_on_worker(d, worker, m))
        return;
    if (job->state == JOB_EVALUATING) {
        on_evaluating_worker(d, worker, m);
        return;
    }
    if (job->state == JOB_GENERATING) {
        generate_on_worker(d, worker, m);
        return;
    }
    if (job->state != JOB_STEPPING) {
        peer_refuse(worker, "a message that does not fit the state of its job");
        return;
    }
    if (m->kind == MESSAGE_PULL) {
        event.kind = RELAY_PULL;
        event.step = m->pull.version;
        event.unit = m->pull.unit;
    } else if (m->kind == MESSAGE_LOSS && m->loss.part < job->request.job.n_parts) {
        event.kind = RELAY_LOSS;
        event.step = m->loss.step;
        event.part = m->loss.part;
        event.attempt = m->loss.attempt;
        event.ok = m->loss.finite && isfinite(m->loss.sum);
        job->part_loss[m->loss.part] = event.ok ? m->loss.sum : NAN;
        place_loss(&worker->place, &job->model, m->loss.part);
    } else if (m->kind == MESSAGE_CONTRIBUTION) {
        event.kind = RELAY_CONTRIBUTION;
        event.step = m->contribution.step;
        event.visit = m->contribution.visit;
        event.part = m->contribution.part;
        event.slice = m->contribution.slice;
        event.attempt = m->contribution.attempt;
        event.slot = m->contribution.slot;
        note_contribution(worker, m);
    } else {
        peer_refuse(worker, "a message that does not fit a step");
        return;
    }
    steps_feed(d, &event);
}

/* What no later step can mend. The relay never hears of this unit, so no reader captures it: nothing of it is saved. */
static void end_not_finite(struct daemon *d, const struct eps_job *work)
{
    char unit[MODEL_NAME_BYTES];

    job_end(d, -EDOM,
            "step %" PRIu64 " made weights of %s that are not finite, and void: try a lower --lr, or --clip-norm",
            work->step + 1, model_unit_name(unit, &d->job.model, work->unit));
}

void steps_on_optimizer(struct daemon *d)
{
    struct eps_job work;

    while (eps_updater_take(d->updater, &work)) {
        struct relay_event event = {.kind = RELAY_FOLDED,
                                    .unit = work.unit,
                                    .slice = work.slice,
                                    .ok = work.result == 0};
        if (work.kind == EPS_JOB_CALL) {
            job_on_called(d, &work);
            continue;
        }
        if (work.result == -ERANGE) {
            end_not_finite(d, &work);
            continue;
        }
        if (work.kind == EPS_JOB_UPDATE)
            event.kind = RELAY_UPDATED;
        if (steps_are_on(&d->job)) /* a skipped step is done while folds of it are under way */
            steps_feed(d, &event);
        else if (d->job.state == JOB_ENDING)
            feed_saves(d, &event);
    }
    job_finish(d);
}

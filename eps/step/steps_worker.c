/* What the workers of a step say: a pull, a loss or a contribution becomes an event of the relay, unless the step or
 * the share that it belongs to is past. */
#include "eps/job/damage.h"
#include "eps/job/evaluate.h"
#include "eps/step/audits.h"
#include "eps/step/commit.h"
#include "proto/model/norms.h"

#include <math.h>

/* For observers only; the relay refuses what is invalid. */
static void note_contribution(const struct job *job, struct peer *worker, const struct message *m)
{
    const struct model *model = &job->model;
    const uint32_t visit = m->contribution.name.visit, slice = m->contribution.name.slice, *homes = job_homes(job);

    if (visit >= model->n_visits)
        return;
    const struct model_unit *unit = &model->units[model->visits[model_order_home(homes, visit)]];
    if (slice < unit->n_slices)
        progress_contribution(&worker->progress, visit, m->contribution.name.part,
                              model_slice_of(unit, slice).n * number_bytes(job_goal(job)->grad));
}

/* What the slot must still have when it is folded. A slot that does not exist is the relay's to refuse. */
static void note_sum(struct job *job, const struct peer *worker, const struct message *m)
{
    const struct job_seat *seat = job_find_seat(job, worker->id);

    if (seat && seat->sums && m->contribution.slot <= job->host.n_slots)
        seat->sums[m->contribution.slot] = m->contribution.sum;
}

/* True if a part's message belongs to a share that is not the worker's any more: shares changed while it was under way,
 * as another worker left or joined. */
static bool is_outdated(const struct steps *steps, const struct peer *worker, uint64_t step, uint32_t part,
                        uint32_t attempt)
{
    if (steps->n_changes == 0 || part >= steps->job->n_parts)
        return false;
    if (steps->has_ahead && step == steps->ahead.open_step.step)
        return true;
    return step == steps->open.open_step.step && !relay_is_current(steps->job->relay, worker->id, part, attempt);
}

/* True if the part's loss has not been taken. A worker that was told of the step ahead sends it first, but it was
 * outdated if the step could not begin then. Once the step has begun, the worker computes its share again. */
static bool lacks_loss(const struct steps *steps, const struct contribution_name *name)
{
    return steps->n_changes > 0 && name->step == steps->open.open_step.step && name->part < steps->job->n_parts &&
           !relay_has_loss(steps->job->relay, name->part);
}

/* True if the message belongs to a step that was skipped, or covered, while the worker was still in it, or to an
 * outdated share. If so, it has been answered. */
static bool is_past(struct steps *steps, struct peer *worker, const struct message *m)
{
    const struct contribution_name *name = &m->contribution.name;
    const uint64_t n_past = steps->fence.n_past;
    struct message reply = {.kind = MESSAGE_FREE};

    if (m->kind == MESSAGE_CONTRIBUTION &&
        (name->step < n_past || is_outdated(steps, worker, name->step, name->part, name->attempt) ||
         lacks_loss(steps, name))) {
        reply.free.slot = m->contribution.slot;
        reply.free.name = m->contribution.name;
        reply.free.name.part += steps->job->first_part;
        session_send(worker->session, &reply);
        return true;
    }
    return m->kind == MESSAGE_LOSS &&
           (m->loss.step < n_past || is_outdated(steps, worker, m->loss.step, m->loss.part, m->loss.attempt));
}

/* A part in a message of a worker, as the relay numbers it: beyond all if it is another host's. */
static struct message renumber(const struct job *job, const struct message *m)
{
    struct message out = *m;

    if (m->kind == MESSAGE_LOSS)
        out.loss.part -= job->first_part;
    else if (m->kind == MESSAGE_CONTRIBUTION)
        out.contribution.name.part -= job->first_part;
    return out;
}

/* Other hosts hear of a part's loss once this host's relay knows it, or has skipped the step for it. */
static void note_loss(struct steps *steps, const struct relay_event *event)
{
    const struct job *job = steps->job;
    const uint32_t part = event->name.part;
    const bool known = relay_has_loss(job->relay, part);

    steps_feed(steps, event);
    if (job_is_open(job) && !known && (relay_has_loss(job->relay, part) || steps->fence.skipped))
        steps->commit->loss(steps, job->first_part + part);
}

/* Its last contributions are those of the lowest visit that contributes. */
static void note_share_done(const struct steps *steps, struct peer *worker, const struct message *m)
{
    const struct job *job = steps->job;
    struct relay_part parts[MESSAGE_MAX_PARTS];

    if (m->kind == MESSAGE_CONTRIBUTION && job_is_open(job) && m->contribution.name.visit == steps->lowest_visit &&
        relay_missing(job->relay, worker->id, parts) == 0)
        deadline_meet(&worker->deadline);
}

/* True if nothing that the worker would make of the weights is taken: its step is over, or the rows are others'. In a
 * step that is open, the relay says which versions are gone. */
static bool is_stale(const struct steps *steps, const struct peer *worker, const struct message *m)
{
    if (m->pull.version == MESSAGE_NO_STEP)
        return !evaluate_has(steps->job, worker);
    return m->pull.version < steps->n_over;
}

/* A pull of a step that nobody has opened would wait for ever. One of a unit that there is none of is the relay's to
 * refuse, as all else that breaks its rules. */
static void steps_worker_on_pull(struct steps *steps, struct peer *worker, const struct message *m)
{
    const struct job *job = steps->job;
    const uint64_t version = m->pull.version;
    const uint32_t unit = m->pull.unit;
    const bool known = unit < job->model.n_units, evaluates = version == MESSAGE_NO_STEP;

    if (worker->n_pulls++ == STEPS_MAX_PULLS) {
        peer_refuse(worker, "more pulls than a worker can have buffers for");
    } else if (known && is_stale(steps, worker, m)) {
        job_send_void(worker, version, unit);
    } else if (evaluates ? !known : job->state != JOB_STEPPING || version >= steps->n_opened) {
        peer_refuse(worker, known ? "a pull for a step that is not open" : "a pull of no unit of its job");
    } else {
        if (known)
            steps->commit->pull(steps, worker, version, unit);
        if (evaluates)
            steps->commit->answer(steps, worker, version, unit, COMMIT_NOW);
        else
            steps_feed(steps,
                       &(struct relay_event){.kind = RELAY_PULL, .worker = worker->id, .step = version, .unit = unit});
    }
}

void steps_on_worker(struct steps *steps, struct peer *worker, const struct message *from)
{
    struct job *job = steps->job;
    struct relay_event event = {.worker = worker->id};

    if (damage_is_pending(job)) /* it ends, one way or the other */
        return;
    if (from->kind == MESSAGE_READ) {
        steps->commit->read(steps, worker, from->read.version, from->read.unit);
        return;
    }
    if (from->kind == MESSAGE_PULL) {
        steps_worker_on_pull(steps, worker, from);
        return;
    }
    if (from->kind == MESSAGE_DIGEST) {
        if (job->state == JOB_STEPPING)
            audits_on_digest(steps, worker, from);
        return;
    }
    const struct message renumbered = renumber(job, from), *m = &renumbered;
    if (is_past(steps, worker, m))
        return;
    if (job->state == JOB_EVALUATING || job->state == JOB_GENERATING) {
        evaluate_on_worker(job, worker, m);
        return;
    }
    if (job->state != JOB_STEPPING) {
        peer_refuse(worker, "a message that does not fit the state of its job");
        return;
    }
    if (m->kind == MESSAGE_LOSS && m->loss.part < job->n_parts) {
        event.kind = RELAY_LOSS;
        event.name = (struct contribution_name){.step = m->loss.step, .part = m->loss.part, .attempt = m->loss.attempt};
        event.ok = m->loss.finite && isfinite(m->loss.sum);
        steps->part_loss[job->first_part + m->loss.part] = event.ok ? m->loss.sum : NAN;
        steps->part_rewards[job->first_part + m->loss.part] = m->loss.rewards;
        progress_loss(&worker->progress, &job->model, m->loss.part);
        throughput_on_loss(&worker->throughput, (double)uv_now(job->peers->loop));
        note_loss(steps, &event);
        return;
    } else if (m->kind == MESSAGE_CONTRIBUTION) {
        event.kind = RELAY_CONTRIBUTION;
        event.name = m->contribution.name;
        event.slot = m->contribution.slot;
        event.digest = m->contribution.digest;
        note_sum(job, worker, m);
        note_contribution(job, worker, m);
    } else {
        peer_refuse(worker, "a message that does not fit a step");
        return;
    }
    steps_feed(steps, &event);
    note_share_done(steps, worker, m);
}

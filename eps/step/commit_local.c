/* A job on one host: the optimizer thread folds and updates what the relay says. */
#include "eps/step/commit.h"

#include "eps/job/damage.h"
#include "eps/store/norms.h"
#include "proto/plan/memory/data.h"

#include <assert.h>
#include <errno.h>
#include <math.h>

struct updater_task commit_task(struct steps *steps, const struct relay *relay, const struct relay_action *a)
{
    struct job *job = steps->job;
    const struct plan_goal *goal = job_goal(job);
    const struct model_unit *unit = &job->model.units[a->unit];
    struct updater_task work = {
        .kind = a->kind == RELAY_FOLD ? UPDATER_FOLD : UPDATER_UPDATE,
        .unit = a->unit,
        .slice = a->name.slice,
        .how = store_fold_kind(&job->store, a->unit, goal->n_parts, plan_sums_parts(goal)),
        .trace = job_trace(job, &job->optimizer_trace),
        .step = relay_version(relay, a->unit),
        .visit = a->name.visit,
    };

    if (a->kind == RELAY_FOLD) {
        work.contribution = (struct store_contribution){.type = goal->grad,
                                                        .first = a->first,
                                                        .part = a->name.part,
                                                        .visit = a->name.visit};
        work.squares = fence_note_fold(&steps->fence, a->unit, unit->n_visits * unit->n_slices * goal->n_parts);
    }
    return work;
}

struct relay_event commit_event(const struct updater_task *work)
{
    return (struct relay_event){.kind = work->kind == UPDATER_UPDATE ? RELAY_UPDATED : RELAY_FOLDED,
                                .unit = work->unit,
                                .name.slice = work->slice,
                                .ok = work->result == 0,
                                .damaged = work->result == -EBADMSG};
}

/* ---- the table -------------------------------------------------------------------------------------------------- */

static void commit_local_begin(struct steps *steps)
{
    (void)steps;
}

static void commit_local_ready(struct steps *steps)
{
    job_announce_opened(steps->job);
}

static void commit_local_request(struct steps *steps, const struct message *open)
{
    (void)steps, (void)open;
}

static void commit_local_loss(struct steps *steps, uint32_t part)
{
    (void)steps, (void)part;
}

static void commit_local_fold(struct steps *steps, const struct relay_action *a)
{
    struct job *job = steps->job;
    struct job_seat *seat = job_find_seat(job, a->worker); /* its worker may be gone */
    struct updater_task work = commit_task(steps, job->relay, a);

    assert(seat && seat->worker == a->worker);
    seat->n_folds++;
    work.context = seat;
    work.hyper = steps->hyper;
    work.contribution.g = (const char *)seat->inbox.base + a->slot * job->host.slot_bytes;
    work.contribution.has_sum = seat->sums != NULL;
    if (seat->sums)
        work.contribution.sum = seat->sums[a->slot];
    updater_submit(job->peers->updater, &work);
}

static void commit_local_update(struct steps *steps, const struct relay_action *a)
{
    struct job *job = steps->job;
    struct updater_task work = commit_task(steps, job->relay, a);

    if (job->facts.fenced && isnan(steps->fence.norm)) /* the step's first */
        steps->hyper.grad_scale = fence_commit(&steps->fence, fence_norm(&steps->fence), job->request.job.clip_norm);
    /* The last update follows all folds, so all parts have been read by now. If damaged weights were, the step is not
     * done. */
    if (steps->reads_before && relay_is_covered(job->relay))
        damage_look_before(job);
    work.hyper = steps->hyper;
    updater_submit(job->peers->updater, &work);
}

static void commit_local_optimized(struct steps *steps, const struct updater_task *work)
{
    const struct relay_event event = commit_event(work);

    steps_feed(steps, &event);
}

static void commit_local_pull(struct steps *steps, const struct peer *worker, uint64_t version, uint32_t unit)
{
    (void)steps, (void)worker, (void)version, (void)unit;
}

/* The pull may be ahead of the step's turn (begin_ahead). Evaluations get none. */
void commit_give_norms(struct steps *steps, uint64_t version, uint32_t unit)
{
    struct job *job = steps->job;
    const struct model_unit *u = &job->model.units[unit];
    const struct message *open = steps_opened(steps, version);

    if (u->n_norm_maps > 0 && version == open->open_step.step)
        norms_gather(&job->store.norms, &job->model, unit, version,
                     (uint16_t *)(void *)((char *)job->data.base + plan_data_norms_at(job_goal(job), &job->model,
                                                                                      open->open_step.buffer,
                                                                                      u->first_norm_map)));
}

static void commit_local_answer(struct steps *steps, struct peer *worker, uint64_t version, uint32_t unit,
                                enum commit_weights which)
{
    struct store *store = &steps->job->store;

    if (which == COMMIT_NOW)
        commit_give_norms(steps, version, unit);
    steps->reads_before = steps->reads_before || which == COMMIT_BEFORE;
    if (which == COMMIT_VOID)
        job_send_void(worker, version, unit);
    else
        job_send_weights(steps->job, worker, version, unit,
                         (struct job_weights){.at = store_weights_at(store, &store->own, unit,
                                                                     store_buffer(store, unit, which == COMMIT_BEFORE)),
                                              .frozen_at = store_weights_at(store, &store->own, unit, 0)});
}

static void commit_local_on_read(struct steps *steps, struct peer *worker, uint64_t version, uint32_t unit)
{
    (void)steps, (void)version, (void)unit;
    peer_refuse(worker, "weights that were not lent are read");
}

static void commit_local_leave(struct steps *steps, const struct peer *worker)
{
    (void)steps, (void)worker;
}

static void commit_local_lost(struct steps *steps, const struct message *m)
{
    job_announce(steps->job, m);
}

const struct commit_ops commit_local = {
    .begin = commit_local_begin,
    .ready = commit_local_ready,
    .request = commit_local_request,
    .begin_step = steps_clear,
    .loss = commit_local_loss,
    .fold = commit_local_fold,
    .update = commit_local_update,
    .optimized = commit_local_optimized,
    .covered = steps_on_covered,
    .done = steps_on_done,
    .pull = commit_local_pull,
    .answer = commit_local_answer,
    .read = commit_local_on_read,
    .feed_reader = steps_feed,
    .leave = commit_local_leave,
    .lost = commit_local_lost,
    .end = commit_local_begin,
};

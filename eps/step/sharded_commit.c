/* A job on several hosts: what each call of the table is here. */
#include "eps/step/commit.h"
#include "eps/step/sharded_state.h"

/* Host 0 has the client, and has planned the job. */
static void sharded_commit_begin(struct steps *steps)
{
    if (steps->sharded->host == 0)
        sharded_forward(steps->sharded);
}

static void sharded_commit_ready(struct steps *steps)
{
    sharded_get_ready(steps->sharded);
}

static void sharded_commit_request(struct steps *steps, const struct message *open)
{
    sharded_open_step(steps->sharded, open);
}

/* Other hosts may be in the step already, and their losses known: all was cleared when it was asked for. */
static void sharded_commit_begin_step(struct steps *steps)
{
    (void)steps;
}

static void sharded_commit_loss(struct steps *steps, uint32_t part)
{
    sharded_on_loss(steps->sharded, part, steps->part_loss[part]);
}

static void sharded_commit_fold(struct steps *steps, const struct relay_action *a)
{
    sharded_on_fold(steps->sharded, a);
}

static void sharded_commit_update(struct steps *steps, const struct relay_action *a)
{
    sharded_on_update(steps->sharded, a->unit);
}

static void sharded_commit_optimized(struct steps *steps, const struct updater_task *work)
{
    sharded_on_optimizer(steps->sharded, work);
}

static void sharded_commit_covered(struct steps *steps, uint64_t step)
{
    (void)step;
    steps->sharded->local_covered = true;
}

static void sharded_commit_done(struct steps *steps, uint64_t step)
{
    sharded_on_done(steps->sharded, step);
}

static void sharded_commit_pull(struct steps *steps, const struct peer *worker, uint64_t version, uint32_t unit)
{
    if (!store_keeps(&steps->job->store, unit))
        ring_pull(&steps->sharded->ring, worker->id, version, unit);
}

static void sharded_commit_answer(struct steps *steps, struct peer *worker, uint64_t version, uint32_t unit,
                                  enum commit_weights which)
{
    const bool kept = store_keeps(&steps->job->store, unit);

    if (!kept && which == COMMIT_VOID)
        ring_drop(&steps->sharded->ring, worker->id, version, unit);
    if (kept || which == COMMIT_VOID)
        commit_local.answer(steps, worker, version, unit, which);
    else
        sharded_on_answer(steps->sharded, worker, version, unit, which == COMMIT_BEFORE);
}

static void sharded_commit_on_read(struct steps *steps, struct peer *worker, uint64_t version, uint32_t unit)
{
    ring_read(&steps->sharded->ring, worker->id, version, unit);
}

static void feed_reader(struct steps *steps, const struct relay_event *event)
{
    sharded_feed(steps->sharded, event);
}

static void sharded_commit_leave(struct steps *steps, const struct peer *worker)
{
    ring_forget(&steps->sharded->ring, worker->id);
}

static void sharded_commit_lost(struct steps *steps, const struct message *m)
{
    sharded_on_lost(steps->sharded, m);
}

static void sharded_commit_end(struct steps *steps)
{
    sharded_free_tables(steps->sharded);
}

const struct commit_ops commit_sharded = {
    .begin = sharded_commit_begin,
    .ready = sharded_commit_ready,
    .request = sharded_commit_request,
    .begin_step = sharded_commit_begin_step,
    .loss = sharded_commit_loss,
    .fold = sharded_commit_fold,
    .update = sharded_commit_update,
    .optimized = sharded_commit_optimized,
    .covered = sharded_commit_covered,
    .done = sharded_commit_done,
    .pull = sharded_commit_pull,
    .answer = sharded_commit_answer,
    .read = sharded_commit_on_read,
    .feed_reader = feed_reader,
    .leave = sharded_commit_leave,
    .lost = sharded_commit_lost,
    .end = sharded_commit_end,
};

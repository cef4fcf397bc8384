/* A job on several hosts: what each call of the table is here. */
#include "eps/step/commit.h"
#include "eps/step/sharded_state.h"

/* Host 0 has the client, and has planned the job. */
static void begin(struct steps *steps)
{
    if (steps->sharded->host == 0)
        sharded_forward(steps->sharded);
}

static void ready(struct steps *steps)
{
    sharded_get_ready(steps->sharded);
}

static void request(struct steps *steps, const struct message *open)
{
    sharded_open_step(steps->sharded, open);
}

/* Other hosts may be in the step already, and their losses known: all was cleared when it was asked for. */
static void begin_step(struct steps *steps)
{
    (void)steps;
}

static void loss(struct steps *steps, uint32_t part)
{
    sharded_on_loss(steps->sharded, part, steps->part_loss[part]);
}

static void fold(struct steps *steps, const struct relay_action *a)
{
    sharded_on_fold(steps->sharded, a);
}

static void update(struct steps *steps, const struct relay_action *a)
{
    sharded_on_update(steps->sharded, a->unit);
}

static void optimized(struct steps *steps, const struct updater_task *work)
{
    sharded_on_optimizer(steps->sharded, work);
}

static void covered(struct steps *steps, uint64_t step)
{
    (void)step;
    steps->sharded->local_covered = true;
}

static void done(struct steps *steps, uint64_t step)
{
    sharded_on_done(steps->sharded, step);
}

static void pull(struct steps *steps, const struct peer *worker, uint64_t version, uint32_t unit)
{
    if (!store_keeps(&steps->job->store, unit))
        ring_pull(&steps->sharded->ring, worker->id, version, unit);
}

static void answer(struct steps *steps, struct peer *worker, uint64_t version, uint32_t unit, enum commit_weights which)
{
    const bool kept = store_keeps(&steps->job->store, unit);

    if (!kept && which == COMMIT_VOID)
        ring_drop(&steps->sharded->ring, worker->id, version, unit);
    if (kept || which == COMMIT_VOID)
        commit_local.answer(steps, worker, version, unit, which);
    else
        sharded_on_answer(steps->sharded, worker, version, unit, which == COMMIT_BEFORE);
}

static void on_read(struct steps *steps, struct peer *worker, uint64_t version, uint32_t unit)
{
    ring_read(&steps->sharded->ring, worker->id, version, unit);
}

static void feed_reader(struct steps *steps, const struct relay_event *event)
{
    sharded_feed(steps->sharded, event);
}

static void leave(struct steps *steps, const struct peer *worker)
{
    ring_forget(&steps->sharded->ring, worker->id);
}

static void lost(struct steps *steps, const struct message *m)
{
    sharded_on_lost(steps->sharded, m);
}

static void end(struct steps *steps)
{
    sharded_free_tables(steps->sharded);
}

const struct commit_ops commit_sharded = {
    .begin = begin,
    .ready = ready,
    .request = request,
    .begin_step = begin_step,
    .loss = loss,
    .fold = fold,
    .update = update,
    .optimized = optimized,
    .covered = covered,
    .done = done,
    .pull = pull,
    .answer = answer,
    .read = on_read,
    .feed_reader = feed_reader,
    .leave = leave,
    .lost = lost,
    .end = end,
};

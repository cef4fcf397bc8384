#include "eps/job/evaluate.h"

#include <errno.h>
#include <math.h>

/* One range of rows for each seat, whoever computes it: the sum has the same bits however many workers there are. */
void evaluate_start(struct job *job, const struct message *m)
{
    const uint32_t n_rows = m->evaluate.n_rows, n = job->n_seats;

    if (m->evaluate.buffer > 1 || m->evaluate.first_row != 0 || n_rows < 1 || n_rows > job_goal(job)->batch ||
        m->evaluate.n_tokens < 1 || m->evaluate.n_tokens > job_goal(job)->seq) {
        peer_refuse(job->client, "an evaluation that cannot be");
        return;
    }
    job_enter(job, JOB_EVALUATING);
    job->evaluation = *m;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t first = (uint32_t)((uint64_t)n_rows * i / n), end = (uint32_t)((uint64_t)n_rows * (i + 1) / n);
        job->ranges[i] = (struct job_range){.first = first, .n = end - first, .done = end == first};
    }
    for (uint32_t i = 0; i < job->n_workers; i++)
        progress_begin(&job->workers[i]->progress, PHASE_RESTING, 0, 0);
    evaluate_go_on(job);
}

static bool next_range(struct job *job, struct peer *worker)
{
    struct message out = job->evaluation;

    for (uint32_t i = 0; i < job->n_seats; i++) {
        struct job_range *range = &job->ranges[i];
        if (range->done || range->worker)
            continue;
        range->worker = worker;
        out.evaluate.first_row = range->first;
        out.evaluate.n_rows = range->n;
        progress_begin(&worker->progress, PHASE_EVALUATING, 0, 0);
        session_send(worker->session, &out);
        return true;
    }
    return false;
}

void evaluate_go_on(struct job *job)
{
    for (uint32_t i = 0; i < job->n_workers; i++)
        if (!job->workers[i]->evaluating)
            job->workers[i]->evaluating = next_range(job, job->workers[i]);
}

void evaluate_on_left(struct job *job, const struct peer *worker)
{
    for (uint32_t i = 0; i < job->n_seats; i++)
        if (job->ranges[i].worker == worker)
            job->ranges[i].worker = NULL;
    evaluate_go_on(job);
}

static void on_evaluated(struct job *job, struct peer *worker, const struct message *m)
{
    struct message out = {.kind = MESSAGE_EVALUATED};
    bool all = true;

    if (!isfinite(m->evaluated.sum)) {
        job_end(
            job, -EDOM,
            "the model's loss is %s, as worker %u (%s) has it: its weights are damaged, or its training has diverged",
            isnan(m->evaluated.sum) ? "not a number" : "infinite", worker->id, worker->device);
        return;
    }
    worker->evaluating = false;
    for (uint32_t i = 0; i < job->n_seats; i++) {
        struct job_range *range = &job->ranges[i];
        if (range->worker == worker)
            *range = (struct job_range){.sum = m->evaluated.sum, .done = true};
        all = all && range->done;
        out.evaluated.sum += range->sum;
    }
    if (!all) {
        evaluate_go_on(job);
        return;
    }
    job_enter(job, JOB_RESTING);
    session_send(job->client->session, &out);
}

void evaluate_generate(struct job *job, const struct message *m)
{
    if (m->generate.first > job->n_generated || m->generate.n < 1 ||
        m->generate.n > job_goal(job)->seq - m->generate.first) {
        peer_refuse(job->client, "tokens that do not follow those that were run");
        return;
    }
    job_enter(job, JOB_GENERATING);
    job->n_generated = m->generate.first + m->generate.n;
    progress_begin(&job->workers[0]->progress, PHASE_GENERATING, 0, 0);
    session_send(job->workers[0]->session, m);
}

void evaluate_on_worker(struct job *job, struct peer *worker, const struct message *m)
{
    if (m->kind == MESSAGE_PULL && m->pull.unit < job->model.n_units) {
        job_send_weights(job, worker, m->pull.version, m->pull.unit, false);
    } else if (m->kind == MESSAGE_EVALUATED && job->state == JOB_EVALUATING && worker->evaluating) {
        on_evaluated(job, worker, m);
    } else if (m->kind == MESSAGE_GENERATED && job->state == JOB_GENERATING) {
        job_enter(job, JOB_RESTING);
        session_send(job->client->session, m);
    } else {
        peer_refuse(worker, job->state == JOB_EVALUATING ? "a message that does not fit an evaluation"
                                                         : "a message that does not fit a generation");
    }
}

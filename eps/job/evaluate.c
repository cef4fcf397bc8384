#include "eps/job/evaluate.h"

#include <errno.h>
#include <math.h>

void evaluate_start(struct job *job, const struct message *m)
{
    const uint32_t n_rows = m->evaluate.n_rows, n = job->n_workers;

    if (m->evaluate.buffer > 1 || m->evaluate.first_row != 0 || n_rows < 1 || n_rows > job_goal(job)->batch ||
        m->evaluate.n_tokens < 1 || m->evaluate.n_tokens > job_goal(job)->seq) {
        peer_refuse(job->client, "an evaluation that cannot be");
        return;
    }
    job_enter(job, JOB_EVALUATING);
    for (uint32_t i = 0; i < n; i++) {
        struct message out = *m;
        const uint32_t first = (uint32_t)((uint64_t)n_rows * i / n), end = (uint32_t)((uint64_t)n_rows * (i + 1) / n);
        out.evaluate.first_row = first;
        out.evaluate.n_rows = end - first;
        job->workers[i]->evaluating = end > first;
        job->workers[i]->evaluated = 0;
        progress_begin(&job->workers[i]->progress, end > first ? PHASE_EVALUATING : PHASE_RESTING, 0, 0);
        if (end > first)
            session_send(job->workers[i]->session, &out);
    }
}

static void on_evaluated(struct job *job, struct peer *worker, const struct message *m)
{
    struct message out = {.kind = MESSAGE_EVALUATED};

    if (!isfinite(m->evaluated.sum)) {
        job_end(
            job, -EDOM,
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

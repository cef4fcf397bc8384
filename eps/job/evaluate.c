#include "eps/job/evaluate.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* One range of rows for each seat, whoever computes it: the sum has the same bits however many workers there are. */
void evaluate_start(struct job *job, const struct message *m)
{
    const uint32_t n_rows = m->evaluate.n_rows, n = job->n_ranges;

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

/* The range that is not done and is this worker's; worker NULL: nobody's. NULL: there is none. */
static struct job_range *find_range(struct job *job, const struct peer *worker)
{
    for (uint32_t i = 0; i < job->n_ranges; i++)
        if (!job->ranges[i].done && job->ranges[i].worker == worker)
            return &job->ranges[i];
    return NULL;
}

bool evaluate_has(struct job *job, const struct peer *worker)
{
    return (job->state == JOB_EVALUATING && find_range(job, worker)) ||
           (job->state == JOB_GENERATING && job->generator == worker);
}

static void give_rows(struct job *job)
{
    struct message out = job->evaluation;

    for (uint32_t i = 0; i < job->n_workers; i++) {
        struct peer *worker = job->workers[i];
        struct job_range *range = find_range(job, NULL);
        if (!range || find_range(job, worker) || worker->leaves)
            continue;
        range->worker = worker;
        out.evaluate.first_row = range->first;
        out.evaluate.n_rows = range->n;
        progress_begin(&worker->progress, PHASE_EVALUATING, 0, 0);
        deadline_begin(&worker->deadline, 0, 0, 0);
        session_send(worker->session, &out);
    }
}

/* ---- generation ------------------------------------------------------------------------------------------------- */

/* How many tokens the piece that begins here had. */
static uint32_t piece_at(const struct job *job, uint32_t first)
{
    for (uint32_t i = 0; i < job->n_pieces; i++)
        if (job->pieces[i].first == first)
            return job->pieces[i].n;
    return 1;
}

/* Tokens from `first` on, if any were run, are forgotten. Only pieces of several tokens are noted. */
static void note_piece(struct job *job, uint32_t first, uint32_t n)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < job->n_pieces; i++) {
        struct job_piece piece = job->pieces[i];
        if (piece.first >= first)
            continue;
        if (piece.n > first - piece.first)
            piece.n = first - piece.first;
        job->pieces[kept++] = piece;
    }
    if (n > 1 && kept == JOB_MAX_PIECES) /* the oldest will be run token by token */
        memmove(job->pieces, job->pieces + 1, --kept * sizeof *job->pieces);
    if (n > 1)
        job->pieces[kept++] = (struct job_piece){first, n};
    job->n_pieces = kept;
}

/* A worker that follows one that was lost runs all tokens, cut into the same pieces: so it rounds alike. */
static void run_tokens(struct job *job)
{
    struct message out = {.kind = MESSAGE_GENERATE};

    if (!job->generator) {
        job->generator = job->workers[0];
        job->n_run = 0;
    }
    out.generate.first = job->n_run;
    out.generate.n = piece_at(job, job->n_run);
    job->n_run += out.generate.n;
    progress_begin(&job->generator->progress, PHASE_GENERATING, 0, 0);
    deadline_begin(&job->generator->deadline, 0, 0, 0);
    session_send(job->generator->session, &out);
}

/* ---- both ------------------------------------------------------------------------------------------------------- */

void evaluate_go_on(struct job *job)
{
    if (job->state == JOB_EVALUATING)
        give_rows(job);
    else if (job->state == JOB_GENERATING && !job->generator && job->n_workers)
        run_tokens(job);
}

void evaluate_on_left(struct job *job, const struct peer *worker)
{
    struct job_range *range = job->state == JOB_EVALUATING ? find_range(job, worker) : NULL;

    if (range)
        range->worker = NULL;
    if (job->generator == worker)
        job->generator = NULL;
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
    *find_range(job, worker) = (struct job_range){.sum = m->evaluated.sum, .done = true};
    for (uint32_t i = 0; i < job->n_ranges; i++) {
        all = all && job->ranges[i].done;
        out.evaluated.sum += job->ranges[i].sum;
    }
    if (!all) {
        evaluate_go_on(job);
        return;
    }
    job_enter(job, JOB_RESTING);
    job_tell(job, &out);
}

void evaluate_generate(struct job *job, const struct message *m)
{
    if (m->generate.first > job->n_generated || m->generate.n < 1 ||
        m->generate.n > job_goal(job)->seq - m->generate.first) {
        peer_refuse(job->client, "tokens that do not follow those that were run");
        return;
    }
    job_enter(job, JOB_GENERATING);
    note_piece(job, m->generate.first, m->generate.n);
    job->n_generated = m->generate.first + m->generate.n;
    if (job->n_run > m->generate.first)
        job->n_run = m->generate.first;
    if (job->n_workers)
        run_tokens(job);
}

static void on_generated(struct job *job, const struct message *m)
{
    if (job->n_run < job->n_generated) {
        run_tokens(job);
        return;
    }
    job_enter(job, JOB_RESTING);
    job_tell(job, m);
}

void evaluate_on_worker(struct job *job, struct peer *worker, const struct message *m)
{
    if (m->kind == MESSAGE_EVALUATED && evaluate_has(job, worker)) {
        on_evaluated(job, worker, m);
    } else if (m->kind == MESSAGE_GENERATED && job->state == JOB_GENERATING && evaluate_has(job, worker)) {
        on_generated(job, m);
    } else {
        peer_refuse(worker, job->state == JOB_EVALUATING ? "a message that does not fit an evaluation"
                                                         : "a message that does not fit a generation");
    }
}

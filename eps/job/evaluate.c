/* What is computed is cut before it is known who computes it, and sums are added in the order of cuts, not of
 * arrival. So the loss of a worker changes no bit, but for tokens whose pieces were forgotten (JOB_MAX_PIECES): they
 * run one by one, and may be rounded otherwise. */
#include "eps/job/evaluate.h"

#include "eps/job/damage.h"
#include "proto/base/size.h"

#include <errno.h>
#include <math.h>
#include <string.h>

/* Where range i of n_rows begins. If a layer joins the rows of a part, ranges have whole parts; else whole pairs of
 * texts. */
static uint32_t range_begin(const struct job *job, uint32_t n_rows, uint32_t i)
{
    const struct plan_goal *goal = job_goal(job);
    const uint32_t each = job->model.n_finishes ? goal->batch / goal->n_parts : plan_whole_rows(goal);
    const uint64_t n = (n_rows + each - 1) / each;

    return (uint32_t)size_smaller(n * i / job->n_ranges * each, n_rows);
}

/* One range of rows for each seat, whoever computes it: the sum has the same bits however many workers there are. */
void evaluate_start(struct job *job, const struct message *m)
{
    const uint32_t first_row = m->evaluate.first_row, n_rows = m->evaluate.n_rows, n = job->n_ranges;

    if (m->evaluate.buffer > 1 || n_rows < 1 || (uint64_t)first_row + n_rows > job_goal(job)->batch ||
        (first_row | n_rows) % plan_whole_rows(job_goal(job)) != 0 || m->evaluate.n_tokens < 1 ||
        m->evaluate.n_tokens > job_goal(job)->seq) {
        peer_refuse(job->client, "an evaluation that cannot be");
        return;
    }
    job_enter(job, JOB_EVALUATING);
    job->evaluation = *m;
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t first = range_begin(job, n_rows, i), end = range_begin(job, n_rows, i + 1);
        job->ranges[i] = (struct job_range){.first = first_row + first, .n = end - first, .done = end == first};
    }
    for (uint32_t i = 0; i < job->n_workers; i++)
        progress_begin(&job->workers[i]->progress, PHASE_RESTING, 0, 0);
    evaluate_go_on(job);
}

/* The range that is not done and is this worker's; worker NULL: nobody's. NULL: there is none. */
static struct job_range *evaluate_find_range(struct job *job, const struct peer *worker)
{
    for (uint32_t i = 0; i < job->n_ranges; i++)
        if (!job->ranges[i].done && job->ranges[i].worker == worker)
            return &job->ranges[i];
    return NULL;
}

bool evaluate_has(struct job *job, const struct peer *worker)
{
    return (job->state == JOB_EVALUATING && evaluate_find_range(job, worker)) ||
           (job->state == JOB_GENERATING && job->generator == worker);
}

/* A worker has one range at a time, so it is known by the worker. */
static void give_rows(struct job *job)
{
    struct message out = job->evaluation;

    for (uint32_t i = 0; i < job->n_workers; i++) {
        struct peer *worker = job->workers[i];
        struct job_range *range = evaluate_find_range(job, NULL);
        if (!range || evaluate_find_range(job, worker) || worker->leaves)
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
static uint32_t piece_at(const struct job_text *text, uint32_t first)
{
    for (uint32_t i = 0; i < text->n_pieces; i++)
        if (text->pieces[i].first == first)
            return text->pieces[i].n;
    return 1;
}

/* Tokens from `first` on, if any were run, are forgotten. Only pieces of several tokens are noted. */
static void note_piece(struct job_text *text, uint32_t first, uint32_t n)
{
    uint32_t kept = 0;

    for (uint32_t i = 0; i < text->n_pieces; i++) {
        struct job_piece piece = text->pieces[i];
        if (piece.first >= first)
            continue;
        if (piece.n > first - piece.first)
            piece.n = first - piece.first;
        text->pieces[kept++] = piece;
    }
    if (n > 1 && kept == JOB_MAX_PIECES) /* the oldest will be run token by token */
        memmove(text->pieces, text->pieces + 1, --kept * sizeof *text->pieces);
    if (n > 1)
        text->pieces[kept++] = (struct job_piece){first, n};
    text->n_pieces = kept;
}

/* A row that goes on after another's tokens has them, in the same pieces, before either gets new ones. */
static void note_tokens(struct job *job, const struct message *m)
{
    for (uint32_t i = 0; i < m->generate.n_rows; i++)
        if (m->generate.rows[i].n > 0 && m->generate.rows[i].from != i)
            job->texts[i] = job->texts[m->generate.rows[i].from];
    for (uint32_t i = 0; i < m->generate.n_rows; i++) {
        const struct plan_tokens *row = &m->generate.rows[i];
        struct job_text *text = &job->texts[i];
        if (row->n == 0)
            continue;
        text->n_source = row->source > 0 ? row->source : text->n_source;
        note_piece(text, row->first, row->n);
        text->n_run = text->n_generated = row->first + row->n;
    }
}

static void give_tokens(struct job *job, const struct message *m)
{
    progress_begin(&job->generator->progress, PHASE_GENERATING, 0, 0);
    deadline_begin(&job->generator->deadline, 0, 0, 0);
    session_send(job->generator->session, m);
}

/* A worker that follows one that was lost runs all tokens of all texts, cut into the same pieces: so it rounds alike. A
 * row that went on after another's tokens runs them too. */
static void run_again(struct job *job)
{
    struct message out = {.kind = MESSAGE_GENERATE, .generate.n_rows = job->microbatch};

    for (uint32_t i = 0; i < job->microbatch; i++) {
        struct job_text *text = &job->texts[i];
        if (!job->generator)
            text->n_run = 0;
        out.generate.rows[i] =
            (struct plan_tokens){.from = i,
                                 .first = text->n_run,
                                 .n = text->n_run < text->n_generated ? piece_at(text, text->n_run) : 0,
                                 .source = text->n_run == 0 ? text->n_source : 0};
        text->n_run += out.generate.rows[i].n;
    }
    job->generator = job->generator ? job->generator : job->workers[0];
    give_tokens(job, &out);
}

/* ---- both ------------------------------------------------------------------------------------------------------- */

void evaluate_go_on(struct job *job)
{
    if (job->state == JOB_EVALUATING)
        give_rows(job);
    else if (job->state == JOB_GENERATING && !job->generator && job->n_workers)
        run_again(job);
}

/* What it had goes to whoever is free. */
void evaluate_on_left(struct job *job, const struct peer *worker)
{
    struct job_range *range = job->state == JOB_EVALUATING ? evaluate_find_range(job, worker) : NULL;

    if (range)
        range->worker = NULL;
    if (job->generator == worker)
        job->generator = NULL;
    evaluate_go_on(job);
}

static void announce_sum(struct job *job)
{
    struct message out = {.kind = MESSAGE_EVALUATED};

    for (uint32_t i = 0; i < job->n_ranges; i++)
        out.evaluated.sum += job->ranges[i].sum;
    job_enter(job, JOB_RESTING);
    job_announce(job, &out);
}

/* Weights that memory has damaged since their last update have nobody but an evaluation to read them before the next
 * one: so they are looked through before its sum is told. */
static void evaluate_on_evaluated(struct job *job, struct peer *worker, const struct message *m)
{
    bool all = true;

    if (!isfinite(m->evaluated.sum)) {
        damage_end_otherwise(
            job, -EDOM,
            "the model's loss is %s, as worker %u (%s) has it: its weights are damaged, or its training has diverged",
            isnan(m->evaluated.sum) ? "not a number" : "infinite", worker->id, worker->device);
        return;
    }
    *evaluate_find_range(job, worker) = (struct job_range){.sum = m->evaluated.sum, .done = true};
    for (uint32_t i = 0; i < job->n_ranges; i++)
        all = all && job->ranges[i].done;
    if (!all)
        evaluate_go_on(job);
    else if (!damage_look_at_weights(job, announce_sum))
        announce_sum(job);
}

/* A target has a source: one that comes with its first token, or one that it, or the row named, has. */
static bool evaluate_has_source(const struct job *job, const struct plan_tokens *row, uint32_t index)
{
    const struct plan_goal *goal = job_goal(job);

    if (goal->source == 0 || row->source > goal->seq)
        return goal->source == 0 && row->source == 0;
    return row->source > 0 ? row->first == 0 && row->from == index : job->texts[row->from].n_source > 0;
}

/* Each row's new tokens come after some of those that it, or the row named, has run, and end within the row. */
static bool evaluate_follow(const struct job *job, const struct message *m)
{
    bool ok = m->generate.n_rows <= job->microbatch;

    for (uint32_t i = 0; ok && i < m->generate.n_rows; i++) {
        const struct plan_tokens *row = &m->generate.rows[i];
        ok = row->n == 0 ||
             (m->generate.rows[row->from].from == row->from && row->first <= job->texts[row->from].n_generated &&
              row->n <= job_goal(job)->seq - row->first && evaluate_has_source(job, row, i));
    }
    return ok;
}

void evaluate_generate(struct job *job, const struct message *m)
{
    if (!evaluate_follow(job, m)) {
        peer_refuse(job->client, "tokens that do not follow those that were run");
        return;
    }
    job_enter(job, JOB_GENERATING);
    note_tokens(job, m);
    if (job->generator)
        give_tokens(job, m);
    else if (job->n_workers)
        run_again(job);
}

/* After a loss the pieces are run one by one, and the client hears of the last alone. */
static void on_generated(struct job *job, const struct message *m)
{
    bool all = true;

    for (uint32_t i = 0; i < job->microbatch; i++)
        all = all && job->texts[i].n_run == job->texts[i].n_generated;
    if (!all) {
        run_again(job);
        return;
    }
    job_enter(job, JOB_RESTING);
    job_announce(job, m);
}

void evaluate_on_worker(struct job *job, struct peer *worker, const struct message *m)
{
    if (m->kind == MESSAGE_EVALUATED && evaluate_has(job, worker)) {
        evaluate_on_evaluated(job, worker, m);
    } else if (m->kind == MESSAGE_GENERATED && job->state == JOB_GENERATING && evaluate_has(job, worker)) {
        on_generated(job, m);
    } else {
        peer_refuse(worker, job->state == JOB_EVALUATING ? "a message that does not fit an evaluation"
                                                         : "a message that does not fit a generation");
    }
}

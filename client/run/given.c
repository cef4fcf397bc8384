/* The callback writes into the buffer that the device will read, and into a copy of the question: pointers and sizes of
 * the copy are never used again. So an answer is checked in full before the step opens: a device takes ids for rows of
 * a table. Answers that neither train nor score leave rows alone, as they will be read again. */
#include "client/run/given.h"

#include "proto/model/family.h"
#include "proto/plan/memory/data.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>

int client_given_check(const struct client_run *run, struct error *err)
{
    const unsigned known = 1u << PLAN_FIELD_IDS | 1u << PLAN_FIELD_LABELS | 1u << PLAN_FIELD_ENTRIES;
    const struct model_config *c = &run->model.config;

    if (!run->options.on_rows || (run->source->ops->fields & ~known) == 0)
        return 0;
    return error_set(err, -EDOM,
                     "on_rows is for models that predict tokens, in rows of one document; these are of the %s model",
                     c->family->model_type);
}

/* What the callback was asked, and of what it wrote those fields alone that are its answer: it may have written into
 * any of them. */
static struct eps_step_rows given_take_answer(struct eps_step_rows asked, const struct eps_step_rows *answered)
{
    asked.lr = answered->lr;
    asked.first_scored = answered->first_scored, asked.n_scored = answered->n_scored;
    asked.drops = answered->drops, asked.base = answered->base;
    return asked;
}

/* Refuses tokens that the model does not know, and weights that are none. Counts labels. */
static int given_check_rows(uint64_t *n_valid, const struct eps_step_rows *rows, struct error *err)
{
    const size_t n = (size_t)rows->n_rows * rows->n_tokens;

    *n_valid = 0;
    for (size_t i = 0; i < n; i++) {
        const bool is_label = rows->ids[i] < rows->vocabulary;
        const uint32_t id = is_label ? rows->labels[i] : rows->ids[i];
        *n_valid += rows->labels[i] != PLAN_NO_LABEL;
        if (id >= rows->vocabulary && !(is_label && id == PLAN_NO_LABEL))
            return error_set(err, -EINVAL,
                             "on_rows of step %" PRIu64 ": row %zu, token %zu: the %s %" PRIu32
                             " is not below the vocabulary's %" PRIu32,
                             rows->step, i / rows->n_tokens, i % rows->n_tokens, is_label ? "label" : "id", id,
                             rows->vocabulary);
        if (!isfinite(rows->weights[i]))
            return error_set(err, -EINVAL,
                             "on_rows of step %" PRIu64 ": row %zu, token %zu: the weight %g is not finite", rows->step,
                             i / rows->n_tokens, i % rows->n_tokens, (double)rows->weights[i]);
    }
    return 0;
}

int client_given_ask(struct client_minibatch *minibatch, struct client_given *given, const struct client_buffer *buffer,
                     const struct client_run *run, uint64_t step, struct error *err)
{
    const struct eps_train_options *o = &run->options;
    const uint32_t n_tokens = minibatch->n_tokens;
    uint32_t *entries = buffer->at[PLAN_FIELD_ENTRIES];
    struct eps_step_rows rows = {.step = step + 1,
                                 .n_rows = buffer->n_rows,
                                 .n_tokens = n_tokens,
                                 .vocabulary = run->model.config.vocabulary,
                                 .adapts = run->model.config.adapter.rank > 0,
                                 .ids = buffer->at[PLAN_FIELD_IDS],
                                 .labels = buffer->at[PLAN_FIELD_LABELS],
                                 .weights = buffer->at[PLAN_FIELD_WEIGHTS],
                                 .lr = given->lr,
                                 .n_scored = buffer->n_rows,
                                 .log_p = given->log_p};

    for (size_t i = 0; i < (size_t)buffer->n_rows * n_tokens; i++)
        rows.weights[i] = 1;
    struct eps_step_rows answered = rows;
    const enum eps_rows answer = o->on_rows(o->rows_user, &answered);
    rows = given_take_answer(rows, &answered);
    given->log_p = NULL;
    if (answer > EPS_ROWS_WEIGHTS)
        return error_set(err, -EINVAL, "on_rows of step %" PRIu64 ": the answer %d is none", step + 1, (int)answer);
    if (answer == EPS_ROWS_WEIGHTS && !o->on_weights)
        return error_set(err, -EINVAL, "on_rows of step %" PRIu64 ": it asks for weights, and there is no on_weights",
                         step + 1);
    if (answer == EPS_ROWS_SAVE && o->no_save)
        return error_set(err, -EINVAL, "on_rows of step %" PRIu64 ": it asks for a save, and no_save is set", step + 1);
    if (answer == EPS_ROWS_DROP)
        return error_set(err, -EINTR, "interrupted");
    if (answer != EPS_ROWS_TRAIN && answer != EPS_ROWS_SCORE)
        return (int)answer;
    for (size_t i = 0; entries && i < (size_t)buffer->n_rows * n_tokens; i++)
        entries[i] = PLAN_NO_ENTRY; /* they are other tokens */
    given->lr = rows.lr, given->drops = rows.drops, given->base = rows.base, given->first = rows.first_scored,
    given->n = rows.n_scored;
    if (!isfinite(rows.lr) || rows.lr < 0)
        return error_set(err, -EINVAL, "on_rows of step %" PRIu64 ": the rate %g is no rate", step + 1, rows.lr);
    const bool scores = answer == EPS_ROWS_SCORE;
    if (scores && (rows.n_scored < 1 || (uint64_t)rows.first_scored + rows.n_scored > buffer->n_rows))
        return error_set(err, -EINVAL,
                         "on_rows of step %" PRIu64 ": %" PRIu32 " rows to score from row %" PRIu32
                         " on: the minibatch has %" PRIu32,
                         step + 1, rows.n_scored, rows.first_scored, buffer->n_rows);
    if (scores && rows.base && !rows.adapts)
        return error_set(err, -EINVAL, "on_rows of step %" PRIu64 ": the model has no adapters to score rows without",
                         step + 1);
    const int rc = given_check_rows(&minibatch->n_valid, &rows, err);
    if (!rc && !scores && minibatch->n_valid == 0)
        return error_set(err, -EINVAL, "on_rows of step %" PRIu64 ": no token has a label", step + 1);
    return rc ? rc : (int)answer;
}

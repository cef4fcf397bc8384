/* A share's rows on their way to the device: the client can write this memory at any time, so each number is read once,
 * and what was read is checked and used. */
#include "proto/step/pass.h"

#include "proto/plan/memory/data.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum { CHUNK_BYTES = 16 << 10 }; /* numbers that are uploaded at a time */

/* ---- how long a microbatch's rows are ---- */

/* Rows of the minibatch that pass the model together, of which the first n tokens of source and of target are
 * loaded. */
struct block {
    size_t first;        /* in the minibatch */
    size_t at;           /* in the pass */
    size_t token, label; /* of the pass, as packed on the device */
    uint32_t n_rows, n_tokens;
};

/* The index in the minibatch of the block's token i. */
static size_t rows_token_of(const struct device_pass *pass, const struct block *block, size_t i)
{
    const struct model *model = &pass->worker->model;
    const uint32_t source = model_first_predicted(model, block->n_tokens);
    const size_t t = i % block->n_tokens;

    return (block->first + i / block->n_tokens) * pass->n_tokens +
           (t < source ? t : t - source + model_first_predicted(model, pass->n_tokens));
}

/* The longest source, or classified text, and how many tokens up to the last label of any row. */
static void rows_measure(uint32_t *longest, uint32_t *labelled, const struct device_pass *pass,
                         const struct device_rows *rows, const struct block *block)
{
    const struct model *model = &pass->worker->model;
    const uint32_t begin = model_first_predicted(model, pass->n_tokens), most = model_predicted(model, pass->n_tokens);

    *longest = *labelled = 1;
    for (size_t row = block->first; row < block->first + block->n_rows; row++) {
        const uint32_t *labels = rows->labels + row * pass->n_tokens + begin;
        uint32_t n = most, label = PLAN_NO_LABEL;
        for (; n > *labelled && label == PLAN_NO_LABEL; n -= label == PLAN_NO_LABEL)
            memcpy(&label, &labels[n - 1], sizeof label);
        *labelled = n > *labelled ? n : *labelled;
        if (model_has_lengths(&model->config)) {
            struct plan_row r;
            memcpy(&r, &rows->rows[row], sizeof r);
            *longest = r.n_tokens > *longest ? r.n_tokens : *longest;
        }
    }
}

/* True if rows of n tokens have room for these. */
static bool have_room(const struct model *model, uint32_t n, uint32_t longest, uint32_t labelled)
{
    if (model_has_source(&model->config))
        return model_first_predicted(model, n) >= longest && model_predicted(model, n) >= labelled;
    return n >= labelled && (!model_has_lengths(&model->config) || n >= longest);
}

/* As few tokens as the block's rows need, in eights; all of rows that are not cut. */
static uint32_t rows_find_tokens(const struct device_pass *pass, const struct device_rows *rows,
                                 const struct block *block)
{
    const struct model *model = &pass->worker->model;
    uint32_t n = (model->least_tokens + PLAN_ROW_ROUND - 1) / PLAN_ROW_ROUND * PLAN_ROW_ROUND, longest, labelled;

    if (!plan_cuts_rows(&pass->worker->plan.setting, model))
        return pass->n_tokens;
    rows_measure(&longest, &labelled, pass, rows, block);
    for (n = n ? n : PLAN_ROW_ROUND; n < pass->n_tokens && !have_room(model, n, longest, labelled); n += PLAN_ROW_ROUND)
        ;
    return n < pass->n_tokens ? n : pass->n_tokens;
}

/* ---- numbers ---- */

/* Numbers on their way to the device, in order. */
struct outgoing {
    const struct device_pass *pass;
    uint32_t *to, chunk[CHUNK_BYTES / sizeof(uint32_t)];
    size_t n;
};

/* Waits, so that the chunk may be filled again. */
static int rows_flush(struct outgoing *out)
{
    const struct device_worker *w = out->pass->worker;
    const size_t n = out->n;

    if (n == 0)
        return 0;
    w->ops->upload(w->dev, out->to, out->chunk, n * sizeof *out->chunk);
    out->to += n;
    out->n = 0;
    return device_pass_finish(out->pass, DEVICE_PULL, w->ops->mark(w->dev, DEVICE_PULL));
}

static int rows_put(struct outgoing *out, uint32_t value)
{
    out->chunk[out->n++] = value;
    return out->n == sizeof out->chunk / sizeof *out->chunk ? rows_flush(out) : 0;
}

static struct outgoing to_array(const struct device_pass *pass, uint64_t array, size_t first)
{
    return (struct outgoing){.pass = pass, .to = (uint32_t *)device_pass_address(pass, array) + first};
}

static uint32_t rows_bits_of(float x)
{
    uint32_t bits;

    memcpy(&bits, &x, sizeof bits);
    return bits;
}

/* ---- ids and labels ---- */

enum field { IDS, LABELS };

/* A regression's label is a number in the same 32 bits. */
static bool is_label(const struct model_config *config, uint32_t label)
{
    float number;

    memcpy(&number, &label, sizeof number);
    return label == PLAN_NO_LABEL || (config->regression ? isfinite(number) : label < model_outputs(config));
}

/* Ids from here on are no token, at this place of the minibatch. */
static uint32_t vocabulary_at(const struct device_pass *pass, enum field field, size_t at)
{
    const struct model *m = &pass->worker->model;
    const bool is_apart = field == IDS && m->config.source_vocabulary > 0;

    return is_apart && at % pass->n_tokens < model_first_predicted(m, pass->n_tokens) ? m->config.source_vocabulary
                                                                                      : m->config.vocabulary;
}

static int rows_refuse(const struct device_pass *pass, enum field field, uint32_t value, size_t at)
{
    const struct model_config *config = &pass->worker->model.config;
    const size_t row = at / pass->n_tokens, position = at % pass->n_tokens;

    if (field == LABELS && config->regression)
        return error_set(pass->err, -EINVAL, "the label in row %zu, position %zu is no finite number", row, position);
    if (field == LABELS && config->n_labels)
        return error_set(pass->err, -EINVAL, "label %u in row %zu, position %zu: the model has %u labels", value, row,
                         position, config->n_labels);
    return error_set(pass->err, -EINVAL, "%s %u in row %zu, position %zu: the vocabulary has %u",
                     field == LABELS ? "label" : "token id", value, row, position, vocabulary_at(pass, field, at));
}

static int rows_load_ids(const struct device_pass *pass, const uint32_t *ids, const struct block *block)
{
    struct outgoing out = to_array(pass, pass->worker->plan.ids, block->token);
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < (size_t)block->n_rows * block->n_tokens; i++) {
        const size_t at = rows_token_of(pass, block, i);
        uint32_t id;
        memcpy(&id, &ids[at], sizeof id);
        rc = id < vocabulary_at(pass, IDS, at) ? rows_put(&out, id) : rows_refuse(pass, IDS, id, at);
    }
    return rc ? rc : rows_flush(&out);
}

/* Of each row those of the tokens that are predicted. */
static int load_labels(const struct device_pass *pass, const uint32_t *labels, const struct block *block)
{
    const struct model *model = &pass->worker->model;
    const uint32_t n = model_predicted(model, block->n_tokens), begin = model_first_predicted(model, block->n_tokens);
    struct outgoing out = to_array(pass, pass->worker->plan.labels, block->label);
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < (size_t)block->n_rows * n; i++) {
        const size_t at = rows_token_of(pass, block, i / n * block->n_tokens + begin + i % n);
        uint32_t label;
        memcpy(&label, &labels[at], sizeof label);
        rc = is_label(&model->config, label) ? rows_put(&out, label) : rows_refuse(pass, LABELS, label, at);
    }
    return rc ? rc : rows_flush(&out);
}

/* ---- lengths and segments ---- */

static uint32_t count_segments(const struct model *model)
{
    const struct model_embedding *e = &model->embedding;

    for (uint32_t i = 0; i < e->n_tables; i++)
        if (e->tables[i].by == MODEL_BY_SEGMENT)
            return (uint32_t)model->tensors[e->tables[i].tensor].shape[0];
    return 1;
}

static int check_row(const struct device_pass *pass, const struct plan_row *row, const struct block *block,
                     size_t number)
{
    const struct model *model = &pass->worker->model;
    const uint32_t source = model_first_predicted(model, block->n_tokens);

    if (model_has_source(&model->config) &&
        (row->n_tokens < 1 || row->n_tokens > source || row->second != row->n_tokens))
        return error_set(pass->err, -EINVAL, "row %zu has a source of %u tokens, not 1 to %u", number, row->n_tokens,
                         source);
    if (row->n_tokens < 1 || row->n_tokens > block->n_tokens || row->second > row->n_tokens)
        return error_set(pass->err, -EINVAL,
                         "row %zu has %u tokens, and its second segment begins at %u: rows here have 1 to %u tokens",
                         number, row->n_tokens, row->second, block->n_tokens);
    if (row->second < row->n_tokens && count_segments(model) < 2)
        return error_set(pass->err, -EINVAL, "row %zu has a second segment: the model has embeddings for one", number);
    return 0;
}

static int load_lengths(const struct device_pass *pass, const struct plan_row *rows, const struct block *block)
{
    const struct plan *plan = &pass->worker->plan;
    const bool has_segments = model_has_segments(&pass->worker->model.config);
    struct outgoing lengths = to_array(pass, plan->lengths, block->at),
                    segments = to_array(pass, plan->segments, block->token);
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < block->n_rows; i++) {
        struct plan_row row;
        memcpy(&row, &rows[block->first + i], sizeof row);
        rc = check_row(pass, &row, block, block->first + i);
        if (rc == 0)
            rc = rows_put(&lengths, row.n_tokens);
        for (uint32_t t = 0; rc == 0 && has_segments && t < block->n_tokens; t++)
            rc = rows_put(&segments, t >= row.second && t < row.n_tokens);
    }
    if (rc == 0)
        rc = rows_flush(&lengths);
    return rc ? rc : rows_flush(&segments);
}

/* ---- what some jobs have besides ---- */

/* What the kernels rely on: each document of a row begins at 0 and counts up. */
static int load_positions(const struct device_pass *pass, const uint32_t *positions, const struct block *block)
{
    struct outgoing out = to_array(pass, pass->worker->plan.positions, block->token);
    uint32_t last = 0;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < (size_t)block->n_rows * block->n_tokens; i++) {
        const size_t at = rows_token_of(pass, block, i);
        uint32_t position;
        memcpy(&position, &positions[at], sizeof position);
        if (position != 0 && (i % block->n_tokens == 0 || position != last + 1))
            return error_set(pass->err, -EINVAL,
                             "position %u in row %zu, token %zu: it is neither 0 nor one more than the position before",
                             position, at / pass->n_tokens, at % pass->n_tokens);
        rc = rows_put(&out, position);
        last = position;
    }
    return rc ? rc : rows_flush(&out);
}

/* The reference model's log p of the rows. */
static int load_references(const struct device_pass *pass, const float *references, const struct block *block)
{
    struct outgoing out = to_array(pass, pass->worker->plan.references, block->at);
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < block->n_rows; i++) {
        float log_p;
        memcpy(&log_p, &references[block->first + i], sizeof log_p);
        rc = isfinite(log_p)
                 ? rows_put(&out, rows_bits_of(log_p))
                 : error_set(pass->err, -EINVAL, "the reference model's log p of row %zu is no finite number",
                             block->first + i);
    }
    return rc ? rc : rows_flush(&out);
}

/* What the gradients of the tokens are multiplied by. */
static int rows_load_weights(const struct device_pass *pass, const float *weights, const struct block *block)
{
    struct outgoing out = to_array(pass, pass->worker->plan.scales, block->token);
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < (size_t)block->n_rows * block->n_tokens; i++) {
        const size_t at = rows_token_of(pass, block, i);
        float weight;
        memcpy(&weight, &weights[at], sizeof weight);
        rc = isfinite(weight) ? rows_put(&out, rows_bits_of(weight * pass->loss_scale))
                              : error_set(pass->err, -EINVAL, "the weight in row %zu, position %zu is no finite number",
                                          at / pass->n_tokens, at % pass->n_tokens);
    }
    return rc ? rc : rows_flush(&out);
}

/* ---- a microbatch ---- */

static int rows_load(const struct device_pass *pass, const struct device_rows *rows, const struct block *block)
{
    const struct device_worker *w = pass->worker;
    int rc = rows_load_ids(pass, rows->ids, block);

    if (rc == 0)
        rc = load_labels(pass, rows->labels, block);
    if (rc == 0 && w->plan.setting.goal.packs)
        rc = load_positions(pass, rows->positions, block);
    if (rc == 0 && model_has_lengths(&w->model.config))
        rc = load_lengths(pass, rows->rows, block);
    if (rc == 0 && plan_has_pairs(&w->plan.setting.goal))
        rc = load_references(pass, rows->references, block);
    if (rc == 0 && pass->token_weights)
        rc = rows_load_weights(pass, pass->token_weights, block);
    return rc;
}

int device_pass_load_rows(struct device_pass *pass, const struct device_rows *rows)
{
    int rc = 0;

    for (uint32_t run = 0; run < pass->n_runs; run++)
        for (uint32_t row = 0; rc == 0 && row < pass->run_rows; row += device_pass_rows(pass, row)) {
            struct block block = {.first = device_pass_first_row(pass, run) + row,
                                  .at = (size_t)run * pass->run_rows + row,
                                  .token = device_pass_token(pass, run, row),
                                  .label = device_pass_predicted(pass, run, row),
                                  .n_rows = device_pass_rows(pass, row)};
            block.n_tokens = pass->worker->row_tokens[block.at] = rows_find_tokens(pass, rows, &block);
            rc = rows_load(pass, rows, &block);
        }
    return rc;
}

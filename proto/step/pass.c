#include "proto/step/pass.h"

#include "proto/plan/memory/data.h"

#include <errno.h>
#include <math.h>
#include <string.h>

enum { CHUNK_BYTES = 16 << 10 }; /* bytes copied through the stack between host and device */

void device_pass_record(const struct device_pass *pass, uint64_t since, const char *what, uint32_t visit,
                        const struct trace_arg *args)
{
    char name[MODEL_NAME_BYTES];

    if (pass->worker->trace)
        trace_end(pass->worker->trace, since, what,
                  model_visit_name(name, &pass->worker->model, device_pass_home(pass, visit)), args);
}

int device_pass_finish(const struct device_pass *pass, enum device_queue queue, uint64_t mark)
{
    const struct device_worker *w = pass->worker;

    return w->ops->finish(w->dev, queue, mark) ? w->ops->fault(w->dev, pass->err) : 0;
}

enum field { IDS, LABELS };

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

static int refuse(const struct device_pass *pass, enum field field, uint32_t value, size_t at)
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

/* Waits, so that the caller may overwrite `from`. */
static int upload(const struct device_pass *pass, uint32_t *to, const uint32_t *from, size_t n)
{
    const struct device_worker *w = pass->worker;

    w->ops->upload(w->dev, to, from, n * sizeof *from);
    return device_pass_finish(pass, DEVICE_PULL, w->ops->mark(w->dev, DEVICE_PULL));
}

/* Loads one field (n tokens from the minibatch's token `first` on) to the device. The client can write this memory at
 * any time, so a copy is checked and used. */
static int load_field(const struct device_pass *pass, uint32_t *to, const uint32_t *from, size_t first, size_t n,
                      enum field field)
{
    const struct model_config *config = &pass->worker->model.config;
    uint32_t chunk[CHUNK_BYTES / sizeof(uint32_t)];
    const size_t most = sizeof chunk / sizeof *chunk;
    int rc = 0;

    for (size_t at = 0; rc == 0 && at < n; at += most) {
        const size_t here = n - at < most ? n - at : most;
        memcpy(chunk, from + first + at, here * sizeof *chunk);
        for (size_t i = 0; i < here; i++)
            if (field == IDS ? chunk[i] >= vocabulary_at(pass, field, first + at + i) : !is_label(config, chunk[i]))
                return refuse(pass, field, chunk[i], first + at + i);
        rc = upload(pass, to + at, chunk, here);
    }
    return rc;
}

/* Numbers on their way to the device, in order. */
struct outgoing {
    const struct device_pass *pass;
    uint32_t *to, chunk[CHUNK_BYTES / sizeof(uint32_t)];
    size_t n;
};

static int flush(struct outgoing *out)
{
    const int rc = out->n == 0 ? 0 : upload(out->pass, out->to, out->chunk, out->n);

    out->to += out->n;
    out->n = 0;
    return rc;
}

static int put(struct outgoing *out, uint32_t value)
{
    out->chunk[out->n++] = value;
    return out->n == sizeof out->chunk / sizeof *out->chunk ? flush(out) : 0;
}

static uint32_t count_segments(const struct model *model)
{
    const struct model_embedding *e = &model->embedding;

    for (uint32_t i = 0; i < e->n_tables; i++)
        if (e->tables[i].by == MODEL_BY_SEGMENT)
            return (uint32_t)model->tensors[e->tables[i].tensor].shape[0];
    return 1;
}

static int check_row(const struct device_pass *pass, const struct plan_row *row, size_t number)
{
    const struct model *model = &pass->worker->model;
    const uint32_t source = model_first_predicted(model, pass->n_tokens);

    if (model_has_source(&model->config) &&
        (row->n_tokens < 1 || row->n_tokens > source || row->second != row->n_tokens))
        return error_set(pass->err, -EINVAL, "row %zu has a source of %u tokens, not 1 to %u", number, row->n_tokens,
                         source);
    if (row->n_tokens < 1 || row->n_tokens > pass->n_tokens || row->second > row->n_tokens)
        return error_set(pass->err, -EINVAL,
                         "row %zu has %u tokens, and its second segment begins at %u: rows here have 1 to %u tokens",
                         number, row->n_tokens, row->second, pass->n_tokens);
    if (row->second < row->n_tokens && count_segments(&pass->worker->model) < 2)
        return error_set(pass->err, -EINVAL, "row %zu has a second segment: the model has embeddings for one", number);
    return 0;
}

/* Loads lengths and segments of a run, from the minibatch's row `first` on; `at` is its first row on the device. Each
 * row is read once, as the client can write it at any time. */
static int load_lengths(const struct device_pass *pass, const struct plan_row *rows, size_t first, size_t at)
{
    const struct plan *plan = &pass->worker->plan;
    struct outgoing lengths = {.pass = pass, .to = (uint32_t *)device_pass_address(pass, plan->lengths) + at};
    const bool has_segments = model_has_segments(&pass->worker->model.config);
    struct outgoing segments = {.pass = pass,
                                .to = (uint32_t *)device_pass_address(pass, plan->segments) + at * pass->n_tokens};
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < pass->run_rows; i++) {
        struct plan_row row;
        memcpy(&row, &rows[first + i], sizeof row);
        rc = check_row(pass, &row, first + i);
        if (rc == 0)
            rc = put(&lengths, row.n_tokens);
        for (uint32_t t = 0; rc == 0 && has_segments && t < pass->n_tokens; t++)
            rc = put(&segments, t >= row.second && t < row.n_tokens);
    }
    if (rc == 0)
        rc = flush(&lengths);
    return rc ? rc : flush(&segments);
}

/* Loads positions of a run (n tokens from the minibatch's token `first` on), each read once as above. */
static int load_positions(const struct device_pass *pass, const uint32_t *positions, size_t first, size_t n, size_t at)
{
    struct outgoing out = {.pass = pass,
                           .to = (uint32_t *)device_pass_address(pass, pass->worker->plan.positions) + at};
    uint32_t last = 0;
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < n; i++) {
        uint32_t position;
        memcpy(&position, &positions[first + i], sizeof position);
        if (position != 0 && (i % pass->n_tokens == 0 || position != last + 1))
            return error_set(pass->err, -EINVAL,
                             "position %u in row %zu, token %zu: it is neither 0 nor one more than the position before",
                             position, (first + i) / pass->n_tokens, i % pass->n_tokens);
        rc = put(&out, position);
        last = position;
    }
    return rc ? rc : flush(&out);
}

/* Loads the reference model's log p of a run's rows, from the minibatch's row `first` on; `at` is the first one on the
 * device. */
static int load_references(const struct device_pass *pass, const float *references, size_t first, size_t at)
{
    struct outgoing out = {.pass = pass,
                           .to = (uint32_t *)device_pass_address(pass, pass->worker->plan.references) + at};
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < pass->run_rows; i++) {
        float log_p;
        uint32_t bits;
        memcpy(&log_p, &references[first + i], sizeof log_p);
        memcpy(&bits, &log_p, sizeof bits);
        rc = isfinite(log_p) ? put(&out, bits)
                             : error_set(pass->err, -EINVAL,
                                         "the reference model's log p of row %zu is no finite number", first + i);
    }
    return rc ? rc : flush(&out);
}

/* Loads what the gradients of a run's tokens (n, from the minibatch's token `first` on) are multiplied by; `at` is the first
 * one on the device. */
static int load_weights(const struct device_pass *pass, const float *weights, size_t first, size_t n, size_t at)
{
    struct outgoing out = {.pass = pass, .to = (uint32_t *)device_pass_address(pass, pass->worker->plan.scales) + at};
    int rc = 0;

    for (size_t i = 0; rc == 0 && i < n; i++) {
        float weight;
        uint32_t bits;
        memcpy(&weight, &weights[first + i], sizeof weight);
        const bool ok = isfinite(weight);
        weight *= pass->loss_scale;
        memcpy(&bits, &weight, sizeof bits);
        rc = ok ? put(&out, bits)
                : error_set(pass->err, -EINVAL, "the weight in row %zu, position %zu is no finite number",
                            (first + i) / pass->n_tokens, (first + i) % pass->n_tokens);
    }
    return rc ? rc : flush(&out);
}

/* Loads the labels of a run, from the minibatch's token `first` on: of each row those of the tokens that are predicted,
 * each read once as above. */
static int load_labels(const struct device_pass *pass, const uint32_t *labels, size_t first, uint32_t run)
{
    const struct model *model = &pass->worker->model;
    const uint32_t n = model_predicted(model, pass->n_tokens), begin = model_first_predicted(model, pass->n_tokens);
    uint32_t *to =
        (uint32_t *)device_pass_address(pass, pass->worker->plan.labels) + device_pass_predicted(pass, run, 0);
    int rc = 0;

    if (n == pass->n_tokens)
        return load_field(pass, to, labels, first, (size_t)pass->run_rows * n, LABELS);
    struct outgoing out = {.pass = pass, .to = to};
    for (size_t i = 0; rc == 0 && i < (size_t)pass->run_rows * n; i++) {
        const size_t at = first + i / n * pass->n_tokens + begin + i % n;
        uint32_t label;
        memcpy(&label, &labels[at], sizeof label);
        rc = is_label(&model->config, label) ? put(&out, label) : refuse(pass, LABELS, label, at);
    }
    return rc ? rc : flush(&out);
}

int device_pass_load_rows(struct device_pass *pass, const struct device_rows *rows)
{
    const struct plan *plan = &pass->worker->plan;
    const size_t n = (size_t)pass->run_rows * pass->n_tokens;
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && i < pass->n_runs; i++) {
        const size_t row = device_pass_first_row(pass, i), first = row * pass->n_tokens;
        rc = load_field(pass, (uint32_t *)device_pass_address(pass, plan->ids) + i * n, rows->ids, first, n, IDS);
        if (rc == 0)
            rc = load_labels(pass, rows->labels, first, i);
        if (rc == 0 && plan->setting.goal.packs)
            rc = load_positions(pass, rows->positions, first, n, i * n);
        if (rc == 0 && model_has_lengths(&pass->worker->model.config))
            rc = load_lengths(pass, rows->rows, row, (size_t)i * pass->run_rows);
        if (rc == 0 && plan_has_pairs(&plan->setting.goal))
            rc = load_references(pass, rows->references, row, (size_t)i * pass->run_rows);
        if (rc == 0 && pass->token_weights)
            rc = load_weights(pass, pass->token_weights, first, n, i * n);
    }
    return rc;
}

/* Bytes of the device, which forward has written. */
static int download(const struct device_pass *pass, void *to, const void *from, size_t bytes)
{
    const struct device_worker *w = pass->worker;

    w->ops->download(w->dev, to, from, bytes);
    return device_pass_finish(pass, DEVICE_PUSH, w->ops->mark(w->dev, DEVICE_PUSH));
}

/* Adds the losses of the pairs in a run, whose first row is row `first` of the pass. */
static int add_pairs(struct device_pass *pass, size_t first, double *sum, struct preference_rewards *rewards)
{
    enum { MOST = CHUNK_BYTES / sizeof(double) / 2 };
    const struct plan *plan = &pass->worker->plan;
    const double *log_p = (const double *)device_pass_address(pass, plan->log_p) + first;
    const float *references = (const float *)device_pass_address(pass, plan->references) + first;
    double sums[MOST] = {0}; /* a clock downloads nothing (proto/step/clock.h) */
    float given[MOST] = {0};
    int rc = 0;

    for (size_t at = 0; rc == 0 && at < pass->run_rows; at += MOST) {
        const size_t n = pass->run_rows - at < MOST ? pass->run_rows - at : MOST;
        rc = download(pass, sums, log_p + at, n * sizeof *sums);
        if (rc == 0)
            rc = download(pass, given, references + at, n * sizeof *given);
        for (size_t i = 0; rc == 0 && i < n; i += 2)
            *sum += preference_judge(rewards, &plan->setting.goal.preference, sums + i, given + i);
    }
    return rc;
}

int device_pass_add_losses(struct device_pass *pass, uint32_t run, double *sum, struct preference_rewards *rewards)
{
    struct device_worker *w = pass->worker;
    const size_t n = device_pass_predicted(pass, 1, 0);
    const double *losses = (const double *)device_pass_address(pass, w->plan.losses) + run * n;
    const float *weights =
        pass->token_weights ? pass->token_weights + device_pass_first_row(pass, run) * pass->n_tokens : NULL;
    double chunk[CHUNK_BYTES / sizeof(double)] = {0}; /* a clock downloads nothing (proto/step/clock.h) */
    const size_t most = sizeof chunk / sizeof *chunk;
    int rc = 0;

    w->ops->follow(w->dev, DEVICE_PUSH, DEVICE_COMPUTE, pass->forward);
    if (plan_has_pairs(&w->plan.setting.goal))
        return add_pairs(pass, (size_t)run * pass->run_rows, sum, rewards);
    for (size_t at = 0; rc == 0 && at < n; at += most) {
        const size_t here = n - at < most ? n - at : most;
        rc = download(pass, chunk, losses + at, here * sizeof *chunk);
        for (size_t i = 0; rc == 0 && i < here; i++)
            *sum += weights ? chunk[i] * (double)weights[at + i] : chunk[i];
    }
    return rc;
}

int device_pass_take_log_p(struct device_pass *pass, float *out)
{
    const double *log_p = device_pass_address(pass, pass->worker->plan.log_p);
    double chunk[CHUNK_BYTES / sizeof(double)] = {0};
    const size_t n = pass->run_rows, most = sizeof chunk / sizeof *chunk;
    int rc = 0;

    for (size_t at = 0; rc == 0 && at < n; at += most) {
        const size_t here = n - at < most ? n - at : most;
        rc = download(pass, chunk, log_p + at, here * sizeof *chunk);
        for (size_t i = 0; rc == 0 && i < here; i++)
            out[at + i] = (float)chunk[i];
    }
    return rc;
}

int device_pass_take_token_log_p(struct device_pass *pass, float *out)
{
    const double *losses = device_pass_address(pass, pass->worker->plan.losses);
    double chunk[CHUNK_BYTES / sizeof(double)] = {0};
    const uint32_t most = sizeof chunk / sizeof *chunk, seq = pass->worker->plan.setting.goal.seq;
    int rc = 0;

    for (size_t row = 0; row < pass->run_rows; row++)
        for (uint32_t at = 0; rc == 0 && at < pass->n_tokens; at += most) {
            const uint32_t here = pass->n_tokens - at < most ? pass->n_tokens - at : most;
            rc = download(pass, chunk, losses + row * pass->n_tokens + at, here * sizeof *chunk);
            for (uint32_t i = 0; rc == 0 && i < here; i++)
                out[row * seq + at + i] = (float)(0 - chunk[i]);
        }
    return rc;
}

int device_pass_tell_losses(struct device_pass *pass)
{
    int rc = 0;

    for (uint32_t i = 0; rc == 0 && !pass->told && i < pass->n_runs; i++) {
        struct preference_rewards rewards = {0};
        double sum = 0;
        rc = device_pass_add_losses(pass, i, &sum, &rewards);
        if (rc == 0)
            rc = pass->link->loss(pass->context, pass->parts[i], sum, &rewards, isfinite(sum));
    }
    pass->told = true;
    return rc;
}

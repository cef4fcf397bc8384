#include "proto/plan/work.h"

#include "proto/plan/units.h"

#include <math.h>

/* A microbatch. */
struct batch {
    const struct plan_work *work;
    double tokens, rows;
    bool fresh; /* the first of a part */
};

static double value_bytes(const struct batch *b)
{
    return (double)number_bytes(b->work->plan->setting.goal.precision);
}

static double moved(const struct batch *b, double bytes)
{
    return bytes / b->work->profile->memory_bytes_per_s;
}

/* Seconds to move n values of the device's type. */
static double values(const struct batch *b, double n)
{
    return moved(b, n * value_bytes(b));
}

/* (rows, in) times (in, out), or summed over `rows`. bytes: of the three matrices. */
static double product(const struct batch *b, double rows, double in, double out, double bytes)
{
    const double computed =
        2 * rows * in * out / profile_flops(b->work->profile, b->work->plan->setting.goal.precision, rows);

    return fmax(computed, moved(b, bytes));
}

/* y = x W, and the gradient of x. */
static double linear(const struct batch *b, double in, double out)
{
    return product(b, b->tokens, in, out, (b->tokens * (in + out) + in * out) * value_bytes(b));
}

/* The gradients of W and the bias, in fp32, summed over microbatches. */
static double linear_contribution(const struct batch *b, double in, double out)
{
    const double sum = in * out * sizeof(float) * (b->fresh ? 1 : 2);

    return product(b, b->tokens, in, out, b->tokens * (in + out) * value_bytes(b) + sum) + values(b, b->tokens * out) +
           moved(b, 8 * out);
}

static double norm(const struct batch *b, double width)
{
    return values(b, 2 * width * (b->tokens + 1)) + moved(b, 8 * b->tokens);
}

/* arrays: of (tokens, width), read and written. */
static double norm_backward(const struct batch *b, double width, double arrays)
{
    return values(b, (arrays * b->tokens + 1) * width) + moved(b, 8 * b->tokens + 16 * width);
}

/* Keys that a query sees, on average over a row of n tokens: all, half of them, or with a window, which the first
 * queries do not fill. */
static double keys_seen(const struct program_attention_options *attention, double n)
{
    const double window = attention->window;

    if (attention->full)
        return n;
    return window > 0 && window < n ? window * (1 - window / (2 * n)) : n / 2;
}

/* columns: of all arrays read and written. */
static double attention(const struct batch *b, const struct program_operation *op, double width,
                        enum profile_attention direction, double columns, double times)
{
    const struct plan_setting *s = &b->work->plan->setting;
    const double operations = times * 4 * b->tokens * keys_seen(&op->attention, s->goal.seq) * width;

    return fmax(operations / b->work->profile->attention_flops[direction][s->goal.precision],
                values(b, b->tokens * columns) + moved(b, 4 * b->tokens * op->attention.n_heads));
}

/* A linear map's parts, in one of its three products. */
static double each_part(const struct batch *b, const struct program *p, const struct program_operation *op,
                        double (*product_of)(const struct batch *b, double in, double out))
{
    double seconds = 0;

    for (int i = 0; i < op->linear.n_parts; i++)
        seconds += product_of(b, p->values[op->inputs[0]].columns, op->linear.columns[i]);
    return seconds;
}

static double dropped(const struct batch *b, double p)
{
    return p > 0 ? values(b, 2 * b->tokens * b->work->model->config.width) : 0;
}

/* ---- programs ---- */

/* True if a product's epilogue computes it: the backend's choice (device/cuda/matmul.c). */
static bool is_slope_fused(const struct batch *b, enum model_activation activation, uint32_t columns)
{
    return b->work->plan->setting.goal.precision == NUMBER_BF16 && activation == MODEL_GELU_NEW && columns % 8 == 0;
}

static double forward_of(const struct batch *b, const struct program *p, const struct schedule_step *step)
{
    const struct program_operation *op = &p->operations[step->operation];
    const double in = p->values[op->inputs[0]].columns, out = p->values[op->outputs[0]].columns;

    if (op->kind == &operation_norm)
        return norm(b, in);
    if (op->kind == &operation_linear)
        return each_part(b, p, op, linear) + (step->absorbed != SCHEDULE_NONE ? values(b, 3 * b->tokens * out) : 0);
    if (op->kind == &operation_head_norm)
        return norm(b, in);
    if (op->kind == &operation_rope)
        return values(b, 2 * b->tokens * op->rope.n_heads * op->rope.n_rotated);
    if (op->kind == &operation_attention)
        return attention(b, op, out, PROFILE_FORWARD, in + out, 1);
    if (op->kind == &operation_glu)
        return values(b, 3 * b->tokens * out);
    if (op->kind == &operation_activation)
        return values(b, 2 * b->tokens * out);
    if (op->kind == &operation_add)
        return values(b, 3 * b->tokens * out);
    if (op->kind == &operation_dropout)
        return values(b, 2 * b->tokens * out);
    return 0;
}

static double backward_of(const struct batch *b, const struct program *p, const struct schedule_step *step)
{
    const struct program_operation *op = &p->operations[step->operation];
    const double in = p->values[op->inputs[0]].columns, out = p->values[op->outputs[0]].columns;
    double seconds;

    if (op->kind == &operation_norm)
        return norm_backward(b, in, step->accumulate ? 4 : 3);
    if (op->kind == &operation_linear) {
        seconds = each_part(b, p, op, linear) + values(b, (op->linear.n_parts - 1 + step->accumulate) * b->tokens * in);
        if (step->absorbed != SCHEDULE_NONE &&
            !is_slope_fused(b, p->operations[step->absorbed].activation.function, p->values[op->inputs[0]].columns))
            seconds += values(b, 3 * b->tokens * in);
        return seconds;
    }
    if (op->kind == &operation_head_norm)
        return norm_backward(b, in, 3);
    if (op->kind == &operation_rope)
        return values(b, 2 * b->tokens * op->rope.n_heads * op->rope.n_rotated);
    if (op->kind == &operation_attention)
        return attention(b, op, out, PROFILE_BACKWARD, 2 * (in + out), 2.5);
    if (op->kind == &operation_glu)
        return values(b, 5 * b->tokens * out);
    if (op->kind == &operation_activation)
        return values(b, 3 * b->tokens * in);
    if (op->kind == &operation_add || op->kind == &operation_dropout)
        return values(b, 2 * b->tokens * out);
    return 0;
}

/* A fresh contribution is zeroed where no product writes it. */
static double cleared(const struct batch *b, const struct program *p)
{
    double n = 0;

    for (int i = 0; i < p->n_tensors; i++)
        if (p->tensors[i].columns == 0)
            n += p->tensors[i].rows;
    return b->fresh ? moved(b, sizeof(float) * n) : 0;
}

static double schedule_of(const struct batch *b, const struct program *p, const struct schedule *schedule)
{
    double seconds = 0;

    for (const struct schedule_step *step = schedule->steps; step < schedule->steps + schedule->n_steps; step++) {
        const struct program_operation *op = &p->operations[step->operation];
        switch (step->action) {
        case SCHEDULE_FORWARD:
            seconds += forward_of(b, p, step);
            break;
        case SCHEDULE_CONTRIBUTE:
            seconds += each_part(b, p, op, linear_contribution);
            break;
        case SCHEDULE_BACKWARD:
            seconds += backward_of(b, p, step);
            break;
        }
    }
    return seconds;
}

/* The gradients of weights and biases. */
static double contribution_of(const struct batch *b, const struct program *p)
{
    double seconds = cleared(b, p);

    for (const struct program_operation *op = p->operations; op < p->operations + p->n_operations; op++)
        if (op->kind == &operation_linear)
            seconds += each_part(b, p, op, linear_contribution);
    return seconds;
}

static double layer_backward(const struct batch *b, const struct model_program *p, uint32_t keeping)
{
    return schedule_of(b, &p->program, &p->backward[model_keeping(p, keeping)]) + cleared(b, &p->program);
}

static struct plan_work_layer layer_of(const struct batch *b, const struct model_program *p, uint32_t kept_below,
                                       uint32_t kept)
{
    return (struct plan_work_layer){
        .forward = schedule_of(b, &p->program, &p->forward[MODEL_KEEPS_NOTHING]),
        .backward = {layer_backward(b, p, kept_below), layer_backward(b, p, kept)},
        .contribution = contribution_of(b, &p->program),
    };
}

/* ---- the embedding ---- */

struct table {
    enum model_lookup by;
    double rows; /* rows that a token may look up; for positions, those within a sequence */
};

static struct table table_of(const struct batch *b, const struct model_unit *unit)
{
    const struct model *model = b->work->model;
    const struct model_piece *piece = &model->pieces[unit->first_piece];
    const struct model_table *table = model_table_of(model, piece->tensor);
    const double first = (double)piece->first_row, n = (double)piece->n_rows;
    const double end = table->first + (double)b->work->plan->setting.goal.seq;

    if (table->by != MODEL_BY_POSITION)
        return (struct table){table->by, n};
    return (struct table){table->by, fmax(fmin(end, first + n) - fmax(table->first, first), 0)};
}

/* Values of (tokens, width) for which a unit's rows are looked up: for positions, the table's own; for tokens, those
 * expected to be in this unit. */
static double looked_up(const struct batch *b, const struct table *table)
{
    const struct model_config *c = &b->work->model->config;

    switch (table->by) {
    case MODEL_BY_TOKEN:
        return b->tokens * (table->rows / c->vocabulary) * c->width;
    case MODEL_BY_POSITION:
        return table->rows * c->width;
    case MODEL_BY_SEGMENT:
        break;
    }
    return c->width;
}

static double embedding_forward(const struct batch *b, const struct model_unit *unit, bool top)
{
    const struct table table = table_of(b, unit);
    const double n = looked_up(b, &table), link = b->work->profile->link_bytes_per_s;
    const double gathered = b->work->gathers ? n * value_bytes(b) / link : 0;
    const double dropout = top ? dropped(b, b->work->model->embedding.dropout.p) : 0;

    switch (table.by) {
    case MODEL_BY_TOKEN:
        break;
    case MODEL_BY_POSITION:
        return b->rows * fmax(values(b, 3 * n), gathered) + dropout;
    case MODEL_BY_SEGMENT:
        return fmax(values(b, 2 * b->tokens * n + n), gathered) + dropout;
    }
    return fmax(values(b, 2 * n) + moved(b, 4 * b->tokens), gathered) + dropout;
}

static double embedding_backward(const struct batch *b, const struct model_unit *unit, bool top)
{
    const struct table table = table_of(b, unit);
    const double width = b->work->model->config.width, n = looked_up(b, &table);
    const double seconds = (top ? dropped(b, b->work->model->embedding.dropout.p) : 0) +
                           (b->fresh ? moved(b, 4 * (double)unit->n_trained) : 0);

    if (unit->n_trained == 0)
        return seconds;
    switch (table.by) {
    case MODEL_BY_TOKEN:
        break;
    case MODEL_BY_POSITION:
        return seconds + b->rows * (values(b, n) + moved(b, 8 * n));
    case MODEL_BY_SEGMENT:
        return seconds + values(b, b->tokens * n) + moved(b, 8 * n);
    }
    return seconds + (values(b, b->tokens * width) + moved(b, 4 * b->tokens + 8 * fmin(b->tokens, table.rows) * width));
}

/* ---- the head ---- */

/* Labels of one visit, without and with padding. */
struct chunk {
    double n, padded;
    bool bottom, top;
};

static struct chunk chunk_of(const struct batch *b, uint32_t visit)
{
    const struct model *model = b->work->model;
    const struct model_layer *head = plan_head(model);
    const uint64_t n = model->pieces[model->units[model->visits[visit]].first_piece].n_rows;

    return (struct chunk){(double)n, (double)plan_head_pad(n, b->work->plan->head_pad), visit == head->first_visit,
                          visit == head->first_visit + head->n_visits - 1};
}

static double logits(const struct batch *b, const struct chunk *chunk, double m)
{
    const double width = b->work->model->config.width, n = chunk->padded;

    return product(b, m, width, n, (m * width + n * width) * value_bytes(b) + m * n * sizeof(float)) +
           (b->work->model->logit_cap > 0 ? moved(b, 8 * m * n) : 0);
}

static double log_sum_exp(const struct batch *b, const struct chunk *chunk, double m)
{
    return moved(b, 4 * m * chunk->n + (chunk->bottom ? 16 : 28) * m);
}

/* Backward from existing logits: their gradient, and its contribution. */
static double tile_backward(const struct batch *b, const struct chunk *chunk, double m, bool first)
{
    const double width = b->work->model->config.width, n = chunk->padded;
    const double dh_bytes = b->work->plan->head_sums ? sizeof(float) : value_bytes(b);
    const double input =
        product(b, m, n, width, (m * n + n * width) * value_bytes(b) + m * width * dh_bytes * (chunk->top ? 1 : 2));
    const double weights =
        product(b, m, n, width,
                (m * n + m * width) * value_bytes(b) + n * width * sizeof(float) * (b->fresh && first ? 1 : 2));

    const struct model *model = b->work->model;
    const bool trained = model_contributes(model, plan_head(model)->first_visit);
    const bool lowest = model->lowest_trained == model->n_layers - 1;

    const bool biased = model->logit_bias && !model->logit_bias->frozen;

    return moved(b, 4 * m * chunk->n + 16 * m) + values(b, m * chunk->n) + (lowest ? 0 : input) +
           (trained ? weights : 0) + (biased ? values(b, m * chunk->n) + moved(b, 8 * chunk->n) : 0);
}

/* m tokens: logits, then forward, backward or both. */
static double tile(const struct batch *b, const struct chunk *chunk, double m, bool first, bool forward, bool backward)
{
    return logits(b, chunk, m) + (forward ? log_sum_exp(b, chunk, m) : 0) +
           (backward ? tile_backward(b, chunk, m, first) : 0);
}

/* All tiles of a microbatch. */
static double tiles(const struct batch *b, const struct chunk *chunk, bool forward, bool backward)
{
    const double most = b->work->plan->head_tile, first = fmin(most, b->tokens);
    const double n = floor((b->tokens - first) / most), rest = b->tokens - first - n * most;
    double seconds = tile(b, chunk, first, true, forward, backward);

    if (n > 0)
        seconds += n * tile(b, chunk, most, false, forward, backward);
    return rest > 0 ? seconds + tile(b, chunk, rest, false, forward, backward) : seconds;
}

/* Rounding of the input's gradient, if it is summed in fp32. */
static double rounding(const struct batch *b)
{
    return b->work->plan->head_sums ? moved(b, 6 * b->tokens * b->work->model->config.width) : 0;
}

static double head_in_one_pass(const struct batch *b)
{
    const struct model_layer *head = plan_head(b->work->model);
    double seconds = rounding(b);

    for (uint32_t i = 0; i < head->n_visits; i++) {
        const struct chunk chunk = chunk_of(b, head->first_visit + i);
        seconds += tiles(b, &chunk, true, true);
    }
    return seconds;
}

static double head_of(const struct batch *b, uint32_t visit, bool backward)
{
    const struct chunk chunk = chunk_of(b, visit);
    const double loss = chunk.top ? moved(b, 24 * b->tokens) : 0;
    const double rounded = chunk.bottom ? rounding(b) : 0;

    if (b->work->plan->one_pass)
        return backward || !chunk.top ? 0 : head_in_one_pass(b) + loss;
    return backward ? tiles(b, &chunk, false, true) + rounded : tiles(b, &chunk, true, false) + loss;
}

/* ---- */

static struct batch batch_of(const struct plan_work *work, enum plan_work_kind kind)
{
    return (struct batch){.work = work,
                          .rows = work->rows[kind],
                          .tokens = (double)work->rows[kind] * work->plan->setting.goal.seq,
                          .fresh = kind == PLAN_WORK_FIRST};
}

static struct plan_work work_of(const struct plan *plan, const struct model *model, const struct profile *profile)
{
    const uint32_t rows = plan->choice.microbatch, all = plan->setting.part_rows;

    return (struct plan_work){.plan = plan,
                              .model = model,
                              .profile = profile,
                              .rows = {rows, rows, all % rows},
                              .n = {1, all / rows - 1, all % rows ? 1 : 0}};
}

void plan_work_init(struct plan_work *work, const struct plan *plan, const struct model *model,
                    const struct profile *profile)
{
    const struct plan_choice *choice = &plan->choice;

    *work = work_of(plan, model, profile);
    for (enum plan_work_kind kind = 0; kind < PLAN_WORK_KINDS; kind++)
        if (work->n[kind] > 0) {
            const struct batch b = batch_of(work, kind);
            for (uint32_t i = 0; i < model->n_programs; i++) {
                const struct model_program *p = &model->programs[i];
                if (p->n_layers > 0)
                    work->layers[kind][i] = model_runs_in_blocks(model, i)
                                                ? layer_of(&b, p, choice->kept_below, choice->kept)
                                                : layer_of(&b, p, 0, 0);
            }
        }
}

/* A partly trained unit takes the same part of the contribution's time. */
static double program_backward(const struct plan_work_layer *layer, const struct model_unit *unit, bool is_top)
{
    const double frozen = (double)(unit->n - unit->n_trained) / (double)unit->n;

    return layer->backward[is_top] - frozen * layer->contribution;
}

double plan_work_keeping(const struct plan *plan, const struct model *model, const struct profile *profile,
                         uint32_t keeping)
{
    const struct plan_work work = work_of(plan, model, profile);
    const struct model_program *block = &model->programs[model->block];
    double seconds = 0;

    for (enum plan_work_kind kind = 0; kind < PLAN_WORK_KINDS; kind++)
        if (work.n[kind] > 0) {
            const struct batch b = batch_of(&work, kind);
            for (const struct model_program *p = block; p < block + model->n_kinds; p++) {
                const double share = (double)p->n_layers / model->config.n_layers;
                seconds += share > 0 ? share * work.n[kind] * layer_backward(&b, p, keeping) : 0;
            }
        }
    return seconds;
}

double plan_work_visit(const struct plan_work *work, uint32_t visit, bool backward, enum plan_work_kind kind)
{
    const struct model *model = work->model;
    const struct model_layer *layer = &model->layers[model->visit_layers[visit]];
    const struct model_unit *unit = &model->units[model->visits[visit]];
    const bool top_blocks =
        layer->kind == MODEL_BLOCK && layer->index + work->plan->choice.n_kept >= model->config.n_layers;
    const struct plan_work_layer *programmed;
    const struct batch b = batch_of(work, kind);
    const bool top = visit == layer->first_visit + layer->n_visits - 1;

    switch (layer->kind) {
    case MODEL_EMBEDDING:
        return backward ? embedding_backward(&b, unit, top) : embedding_forward(&b, unit, top);
    case MODEL_BLOCK:
    case MODEL_SINGLE:
        programmed = &work->layers[kind][layer->program - model->programs];
        return backward ? program_backward(programmed, unit, top_blocks) : programmed->forward;
    case MODEL_HEAD:
        break;
    }
    return head_of(&b, visit, backward);
}

double plan_work_round(const struct plan_work *work, uint32_t visit)
{
    const double n = (double)work->model->units[work->model->visits[visit]].n_trained;

    return work->plan->setting.goal.grad == NUMBER_BF16 && !work->plan->setting.backend->takes_turns
               ? 6 * n / work->profile->memory_bytes_per_s
               : 0;
}

struct plan_work_update plan_work_update(const struct plan_host_setting *h, const struct model_unit *unit)
{
    const double grad = (double)number_bytes(h->goal.grad), moments = 2.0 * (double)number_bytes(h->goal.moments);
    const double whole = 8 + 2 * moments; /* weights and moments, read and written */

    if (unit->n_visits > 1 || h->goal.fenced || (h->goal.adamw && h->goal.n_parts > 1))
        return (struct plan_work_update){grad + 8, whole + 4};
    if (h->goal.n_parts == 1)
        return (struct plan_work_update){grad + whole, 0};
    return (struct plan_work_update){grad + 2 * moments, 8 + moments};
}

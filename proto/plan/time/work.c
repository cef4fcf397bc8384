/* Embedding and head are no programs, so their formulas follow proto/step/embedding.c and head.c: what changes there
 * changes here. */
#include "proto/plan/time/work.h"

#include "proto/operation/operation.h"
#include "proto/plan/time/meter.h"
#include "proto/plan/memory/data.h"
#include "proto/plan/memory/units.h"

#include <math.h>

/* A microbatch. */
struct batch {
    const struct plan_work *work;
    double tokens, rows;
    uint32_t row_tokens; /* of each */
    bool fresh;          /* the first of a part */
};

static double work_value_bytes(const struct batch *b)
{
    return (double)number_bytes(b->work->plan->setting.goal.precision);
}

static double moving(const struct batch *b, double bytes)
{
    return bytes / b->work->profile->memory_bytes_per_s;
}

/* Seconds to move n values of the device's type. */
static double values(const struct batch *b, double n)
{
    return moving(b, n * work_value_bytes(b));
}

/* (rows, in) times (in, out), or summed over `rows`. bytes: of the three matrices. */
static double work_product(const struct batch *b, double rows, double in, double out, double bytes)
{
    const struct plan_setting *s = &b->work->plan->setting;
    const enum number_type type = profile_type(s->backend, s->goal.precision);
    const double computed = 2 * rows * in * out / profile_flops(b->work->profile, type, rows, sqrt(in * out));

    return fmax(computed, moving(b, bytes));
}

static double dropped(const struct batch *b, double p)
{
    return p > 0 ? values(b, 2 * b->tokens * b->work->model->config.width) : 0;
}

/* ---- programs ---- */

/* A fresh contribution is zeroed where no product writes it. */
static double cleared(const struct batch *b, const struct program *p, uint64_t frozen)
{
    double n = 0;

    for (int i = 0; i < p->n_tensors; i++)
        if (p->tensors[i].columns == 0 && !(frozen >> i & 1))
            n += p->tensors[i].rows;
    return b->fresh ? moving(b, sizeof(float) * n) : 0;
}

/* Addresses that differ where buffers do; nothing is read or written there. */
static const uint32_t nowhere[SCHEDULE_BUFFERS];

/* unwanted: the set of inputs whose gradients nobody wants. */
static void work_place(struct operation_run *r, uint64_t frozen, uint32_t unwanted)
{
    for (int i = 0; i < r->schedule->n_buffers; i++) {
        const struct schedule_buffer *buffer = &r->schedule->buffers[i];
        const bool is_wanted = buffer->place != SCHEDULE_INPUT_GRADIENT || !(unwanted >> buffer->boundary & 1);
        r->at[i] = is_wanted ? (void *)&nowhere[i] : NULL;
    }
    for (int i = 0; i < r->program->n_tensors; i++) {
        r->weights[i] = nowhere;
        r->gradients[i] = frozen >> i & 1 ? NULL : (float *)(uintptr_t)nowhere;
    }
}

/* What prices calls of this plan. */
static struct plan_meter meter_of(const struct plan_work *work)
{
    return plan_meter_of(&work->plan->setting, work->profile);
}

/* A visit of a layer with a program. */
struct visit {
    uint32_t program, keeping; /* of the program's first n_keepings */
    uint64_t frozen;           /* as in struct model_unit */
    bool backward, is_lowest;
    uint32_t unwanted; /* as in place */
};

/* Runs its operations on a meter. */
static double work_run(const struct batch *b, const struct visit *v)
{
    const struct plan_setting *s = &b->work->plan->setting;
    const struct model_program *p = &b->work->model->programs[v->program];
    struct plan_meter meter = meter_of(b->work);
    struct operation_run r = {.ops = &plan_meter_ops,
                              .dev = plan_meter_device(&meter),
                              .type = s->goal.precision,
                              .program = &p->program,
                              .schedule = v->backward ? &p->backward[v->keeping] : &p->forward[v->keeping],
                              .fresh = b->fresh,
                              .n_rows = (uint32_t)b->rows,
                              .n_tokens = b->row_tokens,
                              .lengths = model_has_lengths(&b->work->model->config) ? nowhere : NULL,
                              .positions = s->goal.packs ? nowhere : NULL,
                              .sampling = s->goal.sampling,
                              .drops = s->goal.purpose == PLAN_TRAIN};

    work_place(&r, v->frozen, v->unwanted);
    operation_run_steps(&r, 0, operation_count_steps(&r, v->is_lowest));
    return meter.seconds + (v->backward ? cleared(b, &p->program, v->frozen) : 0);
}

/* The price's place: a few are tried, then the first is taken over. */
static struct plan_price *find_price(struct plan_prices *prices, uint64_t frozen, uint64_t visit)
{
    enum { TRIES = 8 };
    const uint64_t first = (visit + frozen * 31) * UINT64_C(0x9e3779b97f4a7c15) >> 32;

    for (uint64_t i = 0; i < TRIES; i++) {
        struct plan_price *price = &prices->of[(first + i) % PLAN_PRICES];
        if (price->visit == 0 || (price->visit == visit && price->frozen == frozen))
            return price;
    }
    return &prices->of[first % PLAN_PRICES];
}

static double work_price(const struct batch *b, const struct visit *v)
{
    const bool is_once = b->work->model->programs[v->program].program.n_outputs > 1; /* it may give a part something */
    const uint64_t ways = 8u * v->backward + 4u * (b->fresh && (v->backward || is_once)) + 2u * v->is_lowest + 1;
    const uint64_t visit = (uint64_t)v->program << 48 | (uint64_t)v->unwanted << 44 | (uint64_t)v->keeping << 40 |
                           (uint64_t)b->rows << 4 | ways;
    struct plan_price *known = find_price(b->work->prices, v->frozen, visit);

    if (known->visit != visit || known->frozen != v->frozen)
        *known = (struct plan_price){v->frozen, visit, work_run(b, v)};
    return known->seconds;
}

/* Inputs of a layer that are made of frozen tensors alone. */
static uint32_t unwanted_of(const struct model *model, const struct model_layer *layer)
{
    uint32_t unwanted = 0;

    for (uint32_t i = 0; i < layer->edges.n_reads; i++)
        unwanted |= (uint32_t)!model->values.of[layer->edges.reads[i]].trained << i;
    return unwanted;
}

/* Small gradients that a layer is the first to add to are zeroed before. */
static double begun(const struct batch *b, const struct model_layer *layer, uint32_t unwanted)
{
    const struct model_values *values = &b->work->model->values;
    const struct model_passage *passage = &values->passages[layer->edges.passage];
    double n = 0;

    for (uint32_t i = 0; i < passage->n[1]; i++) {
        const struct model_operand *o = &passage->operands[1][i];
        const struct model_shape *shape = &values->shapes[o->shape];
        if (o->role != MODEL_INPUT_GRADIENT || !o->begins || !model_is_small(shape) || unwanted >> o->index & 1)
            continue;
        n += shape->columns * (shape->domain == PROGRAM_PART ? b->fresh : b->rows);
    }
    return moving(b, sizeof(float) * n);
}

/* Once a part, over all its rows. */
static double work_finish(const struct batch *b, const struct model_program *of, bool backward)
{
    const struct plan_setting *s = &b->work->plan->setting;
    const struct batch part = {b->work, (double)s->part_rows * s->goal.seq, s->part_rows, s->goal.seq, true};

    if (!of->finish || !b->fresh)
        return 0;
    return work_price(&part, &(struct visit){.program = (uint32_t)(of->finish - b->work->model->programs),
                                             .backward = backward});
}

/* ---- the embedding ---- */

struct table {
    enum model_lookup by;
    double rows; /* rows that a token may look up; for positions, those within a sequence */
};

static struct table work_table_of(const struct batch *b, const struct model_unit *unit)
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
    case MODEL_BY_SOURCE:
        return b->tokens * (table->rows / c->source_vocabulary) * c->width;
    case MODEL_BY_POSITION:
        return table->rows * c->width;
    case MODEL_BY_SEGMENT:
        break;
    }
    return c->width;
}

/* Seconds to read n values of a table, which may be bf16 whatever the device's type. */
static double work_read_table(const struct batch *b, const struct model_unit *unit, double n)
{
    const bool narrow = b->work->model->pieces[unit->first_piece].form == FORM_BF16;

    return narrow ? moving(b, 2 * n) : values(b, n);
}

/* A classifier's tokens have segments; others are of the first. */
static double segments(const struct batch *b)
{
    return b->work->model->config.n_labels ? moving(b, 4 * b->tokens) : 0;
}

static double embedding_forward(const struct batch *b, const struct model_unit *unit, bool top)
{
    const struct table table = work_table_of(b, unit);
    const double n = looked_up(b, &table);
    const double dropout = top ? dropped(b, b->work->model->embedding.dropout.p) : 0;

    switch (table.by) {
    case MODEL_BY_TOKEN:
    case MODEL_BY_SOURCE:
        break;
    case MODEL_BY_POSITION:
        return b->rows * (values(b, 2 * n) + work_read_table(b, unit, n)) + dropout;
    case MODEL_BY_SEGMENT:
        return segments(b) + values(b, 2 * b->tokens * n) + work_read_table(b, unit, n) + dropout;
    }
    return values(b, n) + work_read_table(b, unit, n) + moving(b, 4 * b->tokens) + dropout;
}

/* Zeros for the row of padding, if the unit has it. */
static double padding_row(const struct batch *b, const struct model_unit *unit)
{
    const struct model_config *c = &b->work->model->config;
    const struct model_piece *piece = &b->work->model->pieces[unit->first_piece];
    const bool has = c->has_padding && c->padding >= piece->first_row && c->padding - piece->first_row < piece->n_rows;

    return has ? moving(b, 4.0 * c->width) : 0;
}

static double embedding_backward(const struct batch *b, const struct model_unit *unit, bool top)
{
    const struct table table = work_table_of(b, unit);
    const double width = b->work->model->config.width, n = looked_up(b, &table);
    const double seconds = (top ? dropped(b, b->work->model->embedding.dropout.p) : 0) +
                           (b->fresh ? moving(b, 4 * (double)unit->n_trained) : 0);
    const double touched = fmin(b->tokens, table.rows) * width; /* numbers that ids look up in a table */

    if (unit->n_trained == 0)
        return seconds;
    switch (table.by) {
    case MODEL_BY_TOKEN:
    case MODEL_BY_SOURCE:
        break;
    case MODEL_BY_POSITION:
        return seconds + b->rows * (values(b, n) + moving(b, 8 * n));
    case MODEL_BY_SEGMENT:
        return seconds + segments(b) + values(b, b->tokens * n) +
               moving(b, 8 * (b->work->model->config.n_labels ? touched : n));
    }
    return seconds + values(b, b->tokens * width) + moving(b, 4 * b->tokens + 8 * touched) + padding_row(b, unit);
}

double plan_work_found(const struct model *model, const struct model_unit *unit, size_t tokens)
{
    const struct model_piece *piece = &model->pieces[unit->first_piece];

    switch (model_table_of(model, piece->tensor)->by) {
    case MODEL_BY_TOKEN:
        return (double)piece->n_rows / model->config.vocabulary;
    case MODEL_BY_SOURCE:
        return (double)piece->n_rows / model->config.source_vocabulary;
    case MODEL_BY_SEGMENT:
        return 1 / (double)tokens;
    case MODEL_BY_POSITION:
        break;
    }
    return 1;
}

/* ---- the head ---- */

/* Tokens that have a prediction. */
static double predicted(const struct batch *b)
{
    return b->rows * model_predicted(b->work->model, b->row_tokens);
}

/* Labels of one visit, without and with padding. */
struct chunk {
    double n, padded;
    bool bottom, top;
};

static struct chunk work_chunk_of(const struct batch *b, uint32_t visit)
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

    return work_product(b, m, width, n, (m * width + n * width) * work_value_bytes(b) + m * n * sizeof(float));
}

/* Bytes of the bias of a chunk's logits, read wherever they are. */
static double bias_bytes(const struct batch *b, const struct chunk *chunk)
{
    return b->work->model->logit_bias ? 4 * chunk->n : 0;
}

/* What forward takes from the logits: their log-sum-exp, or a regression's loss. */
static double work_read_logits(const struct batch *b, const struct chunk *chunk, double m)
{
    const double bias = bias_bytes(b, chunk);

    if (b->work->model->config.regression)
        return moving(b, 16 * m + bias);
    return moving(b, 4 * m * chunk->n + (chunk->bottom ? 16 : 28) * m + bias);
}

/* Logits become their gradient: a regression's with the padding. */
static double work_differentiate(const struct batch *b, const struct chunk *chunk, double m)
{
    const double bias = bias_bytes(b, chunk);

    if (b->work->model->config.regression)
        return moving(b, 8 * m + bias) + values(b, m * chunk->padded);
    return moving(b, 4 * m * chunk->n + 16 * m + bias) + values(b, m * chunk->n);
}

/* The bias's gradient; in a part's first tile all of it is zeroed before. */
static double work_sum_bias(const struct batch *b, const struct chunk *chunk, double m, bool first)
{
    const double zeroed = b->fresh && first && chunk->top ? model_outputs(&b->work->model->config) : 0;

    return values(b, m * chunk->n) + moving(b, 8 * chunk->n + 4 * zeroed);
}

/* True if nobody reads the gradient of the head's input. */
static bool is_lowest(const struct batch *b)
{
    const struct model *model = b->work->model;

    return model->lowest_trained == model->n_layers - 1;
}

/* Backward from existing logits: their gradient, and its contribution. */
static double work_tile_backward(const struct batch *b, const struct chunk *chunk, double m, bool first)
{
    const struct model *model = b->work->model;
    const double width = model->config.width, n = chunk->padded;
    const double dh_bytes = b->work->plan->head_sums ? sizeof(float) : work_value_bytes(b);
    const double input =
        work_product(b, m, n, width,
                     (m * n + n * width) * work_value_bytes(b) + m * width * dh_bytes * (chunk->top ? 1 : 2));
    const double weights = work_product(b, m, n, width,
                                        (m * n + m * width) * work_value_bytes(b) +
                                            n * width * sizeof(float) * (b->fresh && first ? 1 : 2));
    const bool trained = model_contributes(model, plan_head(model)->first_visit);
    const bool biased = model->logit_bias && !model->logit_bias->frozen;

    return work_differentiate(b, chunk, m) + (is_lowest(b) ? 0 : input) + (trained ? weights : 0) +
           (biased ? work_sum_bias(b, chunk, m, first) : 0);
}

/* m tokens: logits, then forward, backward or both. */
static double tile(const struct batch *b, const struct chunk *chunk, double m, bool first, bool forward, bool backward)
{
    return logits(b, chunk, m) + (forward ? work_read_logits(b, chunk, m) : 0) +
           (backward ? work_tile_backward(b, chunk, m, first) : 0);
}

/* All tiles of a microbatch. */
static double tiles(const struct batch *b, const struct chunk *chunk, bool forward, bool backward)
{
    const double tokens = predicted(b), most = b->work->plan->head_tile, first = fmin(most, tokens);
    const double n = floor((tokens - first) / most), rest = tokens - first - n * most;
    double seconds = tile(b, chunk, first, true, forward, backward);

    if (n > 0)
        seconds += n * tile(b, chunk, most, false, forward, backward);
    return rest > 0 ? seconds + tile(b, chunk, rest, false, forward, backward) : seconds;
}

/* Rounding of the input's gradient, if it is summed in fp32. */
static double rounding(const struct batch *b)
{
    return b->work->plan->head_sums && !is_lowest(b) ? moving(b, 6 * predicted(b) * b->work->model->config.width) : 0;
}

static double head_in_one_pass(const struct batch *b)
{
    const struct model_layer *head = plan_head(b->work->model);
    double seconds = rounding(b);

    for (uint32_t i = 0; i < head->n_visits; i++) {
        const struct chunk chunk = work_chunk_of(b, head->first_visit + i);
        seconds += tiles(b, &chunk, true, true);
    }
    return seconds;
}

static double head_of(const struct batch *b, uint32_t visit, bool backward)
{
    const struct chunk chunk = work_chunk_of(b, visit);
    const double loss = chunk.top && !b->work->model->config.regression ? moving(b, 24 * predicted(b)) : 0;
    const double rounded = chunk.bottom ? rounding(b) : 0;

    if (b->work->plan->one_pass)
        return backward || !chunk.top ? 0 : head_in_one_pass(b) + loss;
    return backward ? tiles(b, &chunk, false, true) + rounded : tiles(b, &chunk, true, false) + loss;
}

/* ---- */

static struct batch work_batch_of(const struct plan_work *work, enum plan_work_kind kind)
{
    const uint32_t rows = work->rows[kind], each = plan_row_tokens(&work->plan->setting, work->model, rows);

    return (struct batch){work, (double)rows * each, rows, each, kind == PLAN_WORK_FIRST};
}

void plan_work_init(struct plan_work *work, const struct plan *plan, const struct model *model,
                    const struct profile *profile, struct plan_prices *prices)
{
    const uint32_t rows = plan->choice.microbatch, all = plan->setting.part_rows;

    *work = (struct plan_work){.plan = plan,
                               .model = model,
                               .profile = profile,
                               .rows = {rows, rows, all % rows},
                               .n = {1, all / rows - 1, all % rows ? 1 : 0},
                               .prices = prices};
}

double plan_work_keeping(const struct plan_work *work, uint32_t class, uint32_t keeping)
{
    const struct model *model = work->model;
    double seconds = 0;

    for (enum plan_work_kind kind = 0; kind < PLAN_WORK_KINDS; kind++)
        if (work->n[kind] > 0) {
            const struct batch b = work_batch_of(work, kind);
            for (uint32_t p = model->block; p < model->block + model->n_block_programs; p++) {
                const struct visit v = {p, model_keeping(&model->programs[p], keeping), 0, true, false, 0};
                const double share = (double)model->programs[p].n_layers / model->classes[class].n_blocks;
                seconds +=
                    share > 0 && model->programs[p].class == class ? share * work->n[kind] * work_price(&b, &v) : 0;
            }
        }
    return seconds;
}

/* wide: as in struct device_sparse. */
static double price_sparse(const struct plan_work *work, const struct model_piece *piece, enum call_kind kind,
                           bool wide)
{
    const struct plan_meter meter = meter_of(work);
    struct call call = {
        .kind = kind,
        .scatter = {.rows = piece->n_rows, .columns = piece->dense / piece->n_rows, .n = piece->n, .wide = wide}};

    return plan_meter_price(&meter, &call);
}

/* Gradients of sparse pieces, from the contribution into their places, and back. */
static double gathered(const struct plan_work *work, const struct model_unit *unit, enum plan_work_kind kind)
{
    double seconds = 0;

    for (uint32_t i = 0; unit->sparse && i < unit->n_pieces; i++) {
        const struct model_piece *piece = &work->model->pieces[unit->first_piece + i];
        if (unit->sparse >> piece->slot & 1)
            seconds += price_sparse(work, piece, CALL_gather, false) +
                       (kind != PLAN_WORK_FIRST ? price_sparse(work, piece, CALL_scatter, true) : 0);
    }
    return seconds;
}

/* Sparse pieces that are decoded singly: once for forward, and once for the gradient of what they multiply. Once more
 * where backward makes results of theirs again: taken to be all of them if nothing is kept, else none. */
static double decoded_singly(const struct plan_work *work, uint32_t visit, const struct model_layer *layer,
                             bool backward)
{
    const bool again = backward && plan_keeping_of(work->plan, layer) == MODEL_KEEPS_NOTHING;

    return work->plan->choice.sparse_singly ? (again ? 2 : 1) * plan_work_decode(work, visit) : 0;
}

double plan_work_visit(const struct plan_work *work, uint32_t visit, bool backward, enum plan_work_kind kind)
{
    const struct model *model = work->model;
    const struct model_layer *layer = &model->layers[model->visit_layers[visit]];
    const struct model_unit *unit = &model->units[model->visits[visit]];
    const struct batch b = work_batch_of(work, kind);
    const bool top = visit == layer->first_visit + layer->n_visits - 1;
    struct visit v = {.frozen = unit->frozen, .backward = backward};

    switch (layer->kind) {
    case MODEL_EMBEDDING:
        return backward ? embedding_backward(&b, unit, top) : embedding_forward(&b, unit, top);
    case MODEL_BLOCK:
    case MODEL_SINGLE:
        v.program = (uint32_t)(layer->program - model->programs);
        v.is_lowest = backward && model->visit_layers[visit] == model->lowest_trained;
        v.keeping = model_keeping(layer->program, plan_keeping_of(work->plan, layer));
        if (!backward)
            v.frozen = 0;
        v.unwanted = backward ? unwanted_of(model, layer) : 0;
        return work_price(&b, &v) + (backward ? begun(&b, layer, v.unwanted) + gathered(work, unit, kind) : 0) +
               decoded_singly(work, visit, layer, backward) + work_finish(&b, layer->program, backward);
    case MODEL_HEAD:
        break;
    }
    return head_of(&b, visit, backward);
}

double plan_work_decode(const struct plan_work *work, uint32_t visit)
{
    const struct model *model = work->model;
    const uint32_t index = model->visits[visit];
    const struct model_unit *unit = &model->units[index];
    const struct plan_setting *s = &work->plan->setting;
    const struct plan_meter meter = meter_of(work);
    const uint64_t padding = plan_unit_room(model, index, work->plan->head_pad) - unit->n;
    double seconds = (double)(padding * number_bytes(s->goal.precision)) / work->profile->memory_bytes_per_s;

    for (uint32_t i = 0; i < unit->n_pieces; i++) {
        const struct model_piece *piece = &model->pieces[unit->first_piece + i];
        struct call call = {.kind = CALL_decode,
                            .decode = {.form = piece->form,
                                       .rows = piece->n_rows,
                                       .columns = piece->n / piece->n_rows}};
        if (unit->sparse >> piece->slot & 1)
            seconds += price_sparse(work, piece, CALL_scatter, false);
        if (!(unit->coded >> piece->slot & 1) || piece->form == FORM_FP32)
            continue;
        call.decode.scales = piece->form == FORM_BF16 ? NULL : (const float *)(uintptr_t)nowhere;
        seconds += plan_meter_price(&meter, &call);
    }
    return unit->n_decoded > 0 ? seconds : 0;
}

double plan_work_finish(const struct plan_work *work, uint32_t visit)
{
    const struct model_unit *unit = &work->model->units[work->model->visits[visit]];

    return work->plan->setting.goal.grad != NUMBER_FP32
               ? 6 * (double)unit->n_trained / work->profile->memory_bytes_per_s
               : 0;
}

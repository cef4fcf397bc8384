/* x[r][t] = dropout(sum of the tables' rows): tokens[id] + positions[t] in GPT-2, tokens[id] * scale in Gemma.
 *
 * Long tables come in several units. The table of tokens is visited first: each token finds its row in exactly one of
 * its units, so the first write of a row is plain and nothing need be zeroed. In packed rows positions are looked up as
 * tokens are. */
#include "proto/step/layers.h"

/* Rows first .. first+n-1 of one of the tables. */
struct table {
    const struct model_table *of;
    uint64_t first, n;
};

static struct table embedding_table_of(const struct layer_pass *pass)
{
    const struct model_piece *piece = &pass->model->pieces[pass->unit->first_piece];

    return (struct table){model_table_of(pass->model, piece->tensor), piece->first_row, piece->n_rows};
}

/* The tokens of one row, or of one text that is generated. */
static struct operation_span span_of(const struct layer_pass *pass, uint32_t i)
{
    return pass->spans ? pass->spans[i] : (struct operation_span){.at = i * pass->n_tokens, .n = pass->n_tokens};
}

/* The row of the span's first token in a table of positions. */
static uint64_t first_row(const struct operation_span *span, const struct table *table)
{
    return (uint64_t)table->of->first + span->position;
}

/* The table's rows for the span's positions: n of them, from `first` on. */
static struct table reached(const struct operation_span *span, const struct table *table)
{
    const uint64_t begin = first_row(span, table), end = begin + span->n, table_end = table->first + table->n;
    const uint64_t first = begin > table->first ? begin : table->first;
    const uint64_t last = end < table_end ? end : table_end;

    return (struct table){table->of, first, last > first ? last - first : 0};
}

/* In the weights' type, as in transformers. */
static float embedding_scale_of(const struct layer_pass *pass)
{
    const float scale = pass->model->embedding.scale;
    const enum number_type type = pass->setting->goal.precision;

    return type == NUMBER_FP32 ? scale : number_from_half(type, number_to_half(type, scale));
}

/* True if the table is in the host's memory in bf16, whatever the device's type. */
static bool is_narrow(const struct layer_pass *pass)
{
    return pass->model->pieces[pass->unit->first_piece].form == FORM_BF16;
}

static struct device_embed embed_of(const struct layer_pass *pass, const struct table *table)
{
    return (struct device_embed){.m = layer_tokens(pass),
                                 .n = pass->model->config.width,
                                 .first = (uint32_t)table->first,
                                 .n_table = (uint32_t)table->n,
                                 .ids = pass->ids,
                                 .table = pass->weights,
                                 .narrow = is_narrow(pass),
                                 .y = pass->at[MODEL_OUTPUT][0],
                                 .scale = embedding_scale_of(pass),
                                 .y_gradient = pass->at[MODEL_OUTPUT_GRADIENT][0],
                                 .table_gradient = pass->contribution};
}

/* Drops elements of x, or of its gradient, in place. */
static void embedding_drop(const struct layer_pass *pass, void *x)
{
    const struct program_dropout *dropout = &pass->model->embedding.dropout;
    const struct operation_run r = {.drops = pass->dropout,
                                    .seed = pass->seed,
                                    .step = pass->step,
                                    .unit = pass->unit->id,
                                    .first_row = pass->first_row};
    const struct device_dropout_add op = {.n_rows = pass->n_rows,
                                          .n_tokens = pass->n_tokens,
                                          .n = pass->model->config.width,
                                          .h = x,
                                          .y = x,
                                          .dropout = operation_dropout_of(&r, dropout)};

    if (op.dropout.p > 0)
        pass->ops->dropout_add(pass->dev, &op);
}

/* Forward or backward for the positions in use, row by row. */
static void each_row(const struct layer_pass *pass, const struct table *table, bool is_backward)
{
    const uint32_t n = pass->spans ? pass->n_spans : pass->n_rows;
    const size_t width = pass->model->config.width;

    for (uint32_t row = 0; row < n; row++) {
        const struct operation_span span = span_of(pass, row);
        const struct table reach = reached(&span, table);
        const size_t token = span.at + reach.first - first_row(&span, table), in_table = reach.first - table->first;
        struct device_position op = {.n_rows = 1, .n_tokens = reach.n, .n = width};
        if (reach.n == 0)
            continue;
        if (is_backward) {
            op.y_gradient = layer_element(pass, pass->at[MODEL_OUTPUT_GRADIENT][0], token * width);
            op.table_gradient = pass->contribution + in_table * width;
            pass->ops->position_backward(pass->dev, &op);
        } else {
            op.narrow = is_narrow(pass);
            op.table = device_element(op.narrow ? NUMBER_BF16 : pass->setting->goal.precision, pass->weights,
                                      in_table * width);
            op.y = layer_element(pass, pass->at[MODEL_OUTPUT][0], token * width);
            pass->ops->position(pass->dev, &op);
        }
    }
}

/* The table's row for each token: its segment's, or the first. A table is short: one unit has all of it. */
static void each_token(const struct layer_pass *pass, const struct table *table, bool is_backward)
{
    const struct device_position op = {.n_rows = layer_tokens(pass),
                                       .n_tokens = 1,
                                       .n = pass->model->config.width,
                                       .table = pass->weights,
                                       .narrow = is_narrow(pass),
                                       .y = pass->at[MODEL_OUTPUT][0],
                                       .y_gradient = pass->at[MODEL_OUTPUT_GRADIENT][0],
                                       .table_gradient = pass->contribution};

    struct device_embed by_segment = embed_of(pass, table);

    by_segment.ids = pass->segments;
    by_segment.accumulate = true;
    by_segment.scale = 0;
    if (pass->segments && is_backward)
        pass->ops->embed_backward(pass->dev, &by_segment);
    else if (pass->segments)
        pass->ops->embed(pass->dev, &by_segment);
    else if (is_backward)
        pass->ops->position_backward(pass->dev, &op);
    else
        pass->ops->position(pass->dev, &op);
}

/* The table's row for the position of each token, of those that the table has. */
static void each_position(const struct layer_pass *pass, const struct table *table, bool is_backward)
{
    const size_t width = pass->model->config.width;
    const uint64_t first = table->of->first > table->first ? table->of->first - table->first : 0; /* of position 0 */
    struct device_embed op = embed_of(pass, table);

    if (first >= table->n)
        return;
    op.ids = pass->positions;
    op.first = (uint32_t)(table->first + first - table->of->first);
    op.n_table = (uint32_t)(table->n - first);
    op.accumulate = true;
    op.scale = 0;
    op.table = pass->weights ? device_element(op.narrow ? NUMBER_BF16 : pass->setting->goal.precision, pass->weights,
                                              first * width)
                             : NULL;
    op.table_gradient = pass->contribution ? pass->contribution + first * width : NULL;
    if (is_backward)
        pass->ops->embed_backward(pass->dev, &op);
    else
        pass->ops->embed(pass->dev, &op);
}

static void by_position(const struct layer_pass *pass, const struct table *table, bool is_backward)
{
    if (pass->positions)
        each_position(pass, table, is_backward);
    else
        each_row(pass, table, is_backward);
}

/* Looks up tokens by their ids: all of them, or of each row those of the table's side, where source and target have
 * tables of their own. */
static void each_id(const struct layer_pass *pass, const struct table *table, bool is_backward)
{
    const struct model *m = pass->model;
    const bool is_apart = m->config.source_vocabulary > 0, is_source = table->of->by == MODEL_BY_SOURCE;
    const uint32_t n_source = pass->side == PROGRAM_SOURCE ? pass->n_tokens : model_first_predicted(m, pass->n_tokens);
    const size_t first = is_apart && !is_source ? n_source : 0;
    const size_t n = !is_apart ? layer_tokens(pass) : is_source ? n_source : pass->n_tokens - n_source;

    for (uint32_t row = 0; n > 0 && row < (is_apart ? pass->n_rows : 1); row++) {
        const size_t token = row * (size_t)pass->n_tokens + first;
        struct device_embed op = embed_of(pass, table);

        op.m = n;
        op.ids += token;
        if (is_backward) {
            op.y_gradient = layer_element(pass, op.y_gradient, token * op.n);
            pass->ops->embed_backward(pass->dev, &op);
        } else {
            op.y = layer_element(pass, op.y, token * op.n);
            pass->ops->embed(pass->dev, &op);
        }
    }
}

static void forward(const struct layer_pass *pass)
{
    const struct table table = embedding_table_of(pass);

    switch (table.of->by) {
    case MODEL_BY_TOKEN:
    case MODEL_BY_SOURCE:
        each_id(pass, &table, false);
        break;
    case MODEL_BY_POSITION:
        by_position(pass, &table, false);
        break;
    case MODEL_BY_SEGMENT:
        each_token(pass, &table, false);
        break;
    }
    if (pass->top)
        embedding_drop(pass, pass->at[MODEL_OUTPUT][0]);
}

/* The row of padding gets no gradient from here. A tied head's is a contribution of its own. */
static void leave_padding_out(const struct layer_pass *pass, const struct table *table)
{
    const struct model_config *c = &pass->model->config;

    if (c->has_padding && c->padding >= table->first && c->padding - table->first < table->n)
        pass->ops->zero(pass->dev, &(struct device_zero){pass->contribution + (c->padding - table->first) * c->width,
                                                         c->width * sizeof(float)});
}

static void backward(const struct layer_pass *pass)
{
    const struct table table = embedding_table_of(pass);

    if (pass->top)
        embedding_drop(pass, pass->at[MODEL_OUTPUT_GRADIENT][0]);
    if (!pass->contribution)
        return;
    if (pass->fresh)
        pass->ops->zero(pass->dev, &(struct device_zero){pass->contribution, pass->unit->n * sizeof(float)});
    switch (table.of->by) {
    case MODEL_BY_TOKEN:
    case MODEL_BY_SOURCE:
        each_id(pass, &table, true);
        leave_padding_out(pass, &table);
        break;
    case MODEL_BY_POSITION:
        by_position(pass, &table, true);
        break;
    case MODEL_BY_SEGMENT:
        each_token(pass, &table, true);
        break;
    }
}

const struct layer_ops layer_embedding = {forward, backward};

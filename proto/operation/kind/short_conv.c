/* The products before the convolution and after it are part of it: unfused they would be two more values of a block to
 * write, read and keep, for one multiplication each. Backward makes the sums again from x.
 *
 * In generation a text keeps what sums read of its last n_taps-1 tokens: of gated ones both factors, as a product would
 * be rounded where it is kept, and a token gets the same bits whether its neighbours ran with it or before it. */
#include "proto/operation/kind/short_conv.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"

#include <assert.h>

int program_short_convs(struct program *p, int x, const struct program_part *parts, int n_parts,
                        const struct program_short_conv_options *conv)
{
    struct program_operation *op = program_append(p, &operation_short_conv);
    uint32_t columns = 0;

    assert(conv->n_taps > 0 && conv->n_taps <= DEVICE_SHORT_TAPS && !(conv->gated && conv->silu));
    assert(n_parts > 0 && n_parts <= PROGRAM_PARTS && !(conv->gated && n_parts > 1));
    op->short_conv = (struct program_short_conv_parts){.of = *conv, .n_parts = n_parts};
    program_add_input(p, op, x);
    for (int i = 0; i < n_parts; i++) {
        columns += op->short_conv.columns[i] = parts[i].columns;
        program_add_tensor(p, op, parts[i].stem, "weight",
                           (struct program_tensor){.rows = 1,
                                                   .columns = conv->n_taps * parts[i].columns,
                                                   .height = 1,
                                                   .width = conv->n_taps,
                                                   .over_tokens = true,
                                                   .init = MODEL_INIT_NORMAL,
                                                   .deviation = conv->deviation});
    }
    for (int i = 0; i < n_parts && conv->bias; i++)
        program_add_tensor(p, op, parts[i].stem, "bias",
                           (struct program_tensor){.rows = parts[i].columns, .init = MODEL_INIT_ZERO});
    assert(p->values[x].columns == (conv->gated ? 3 : 1) * columns);
    return program_add_output(p, op, PROGRAM_VALUE, columns);
}

int program_short_conv(struct program *p, int x, const char *stem, const struct program_short_conv_options *conv)
{
    return program_short_convs(p, x, &(struct program_part){stem, p->values[x].columns / (conv->gated ? 3 : 1)}, 1,
                               conv);
}

/* A token of a tail has as many columns for each of y. */
static uint32_t short_conv_held(const struct program_operation *op)
{
    return op->short_conv.of.gated ? 2 : 1;
}

static uint64_t short_conv_cache(const struct program *p, const struct program_operation *op,
                                 const struct operation_texts *texts)
{
    return (uint64_t)(op->short_conv.of.n_taps - 1) * short_conv_held(op) * p->values[op->outputs[0]].columns *
           number_bytes(texts->type);
}

/* Backward: gradients of the sums. */
static uint64_t short_conv_scratch(const struct program *p, const struct program_operation *op,
                                   const struct operation_setting *s)
{
    if (s->action != SCHEDULE_BACKWARD)
        return 0;
    return program_elements(p, op->inputs[0], s->n_rows, s->n_tokens) * p->values[op->outputs[0]].columns *
           sizeof(float);
}

static void short_conv_run_backward(const struct operation_run *r, const struct schedule_step *step, int part,
                                    uint32_t first, struct device_short_conv *conv)
{
    const struct program_operation *op = operation_of(r, step);
    const struct program_short_conv_parts *parts = &op->short_conv;

    assert(!step->accumulate); /* no other operation reads x */
    conv->y_gradient = operation_element(r, r->at[step->y_gradient], first);
    conv->x_gradient = operation_element(r, r->at[step->x_gradient], first);
    conv->weight_gradient = r->gradients[op->tensor + part];
    conv->bias_gradient = parts->of.bias ? r->gradients[op->tensor + parts->n_parts + part] : NULL;
    conv->beta = r->fresh ? 0 : 1;
    conv->slopes = r->at[step->scratch];
    r->ops->short_conv_backward(r->dev, conv);
}

/* A text's tail has those of all parts, one behind the other. */
static void short_conv_run_cached(const struct operation_run *r, const struct program_operation *op, uint32_t first,
                                  struct device_short_conv conv, const struct operation_span *span)
{
    conv.n_tokens = span->n;
    conv.first = span->position;
    conv.x = operation_element(r, conv.x, span->at * device_short_conv_x_stride(&conv));
    conv.y = operation_element(r, conv.y, span->at * device_short_conv_y_stride(&conv));
    conv.tail = operation_element(r, operation_cache(r, op, span), (conv.n_taps - 1) * short_conv_held(op) * first);
    r->ops->short_conv_cached(r->dev, &conv);
}

/* One part: its channels begin at the first. */
static void short_conv_run_part(const struct operation_run *r, const struct schedule_step *step, int part,
                                uint32_t first)
{
    const struct program_operation *op = operation_of(r, step);
    const struct program_short_conv_parts *parts = &op->short_conv;
    struct device_short_conv conv = {.n_rows = r->n_rows,
                                     .n_tokens = operation_row_elements(r, op->inputs[0]),
                                     .n = parts->columns[part],
                                     .n_taps = parts->of.n_taps,
                                     .gated = parts->of.gated,
                                     .silu = parts->of.silu,
                                     .stride = parts->n_parts > 1 ? operation_columns(r, op->outputs[0]) : 0,
                                     .positions = operation_positions(r, op->inputs[0]),
                                     .x = operation_element(r, r->at[step->inputs[0]], first),
                                     .weight = r->weights[op->tensor + part],
                                     .bias = parts->of.bias ? r->weights[op->tensor + parts->n_parts + part] : NULL};

    if (step->action != SCHEDULE_FORWARD) {
        short_conv_run_backward(r, step, part, first, &conv);
        return;
    }
    conv.y = operation_element(r, r->at[step->outputs[0]], first);
    if (!r->spans)
        r->ops->short_conv(r->dev, &conv);
    for (uint32_t i = 0; i < r->n_spans; i++)
        short_conv_run_cached(r, op, first, conv, &r->spans[i]);
}

static void short_conv_run(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_short_conv_parts *parts = &operation_of(r, step)->short_conv;
    uint32_t first = 0;

    for (int i = 0; i < parts->n_parts; first += parts->columns[i++])
        short_conv_run_part(r, step, i, first);
}

const struct operation operation_short_conv = {.name = "short convolution",
                                               .reads_inputs = OPERATION_FIRST,
                                               .cheap = true,
                                               .scratch = short_conv_scratch,
                                               .cache = short_conv_cache,
                                               .run = short_conv_run};

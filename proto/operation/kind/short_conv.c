/* The products before the convolution and after it are part of it: unfused they would be two more values of a block to
 * write, read and keep, for one multiplication each. Backward makes the sums again from x.
 *
 * In generation a text keeps what sums read of its last n_taps-1 tokens: of gated ones both factors, as a product would
 * be rounded where it is kept, and a token gets the same bits whether its neighbours ran with it or before it. */
#include "proto/operation/kind/short_conv.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"

#include <assert.h>

enum { WEIGHT, BIAS };

int program_short_conv(struct program *p, int x, const char *stem, const struct program_short_conv_options *conv)
{
    struct program_operation *op = program_append(p, &operation_short_conv);
    const uint32_t columns = p->values[x].columns, n = conv->gated ? columns / 3 : columns;

    assert(conv->n_taps > 0 && conv->n_taps <= DEVICE_SHORT_TAPS && !(conv->gated && conv->silu));
    assert(!conv->gated || columns % 3 == 0);
    op->short_conv = *conv;
    program_add_input(p, op, x);
    program_add_tensor(p, op, stem, "weight",
                       (struct program_tensor){.rows = 1,
                                               .columns = conv->n_taps * n,
                                               .height = 1,
                                               .width = conv->n_taps,
                                               .over_tokens = true,
                                               .init = MODEL_INIT_NORMAL,
                                               .deviation = conv->deviation});
    if (conv->bias)
        program_add_tensor(p, op, stem, "bias", (struct program_tensor){.rows = n, .init = MODEL_INIT_ZERO});
    return program_add_output(p, op, PROGRAM_VALUE, n);
}

static uint64_t short_conv_cache(const struct program *p, const struct program_operation *op,
                                 const struct operation_texts *texts)
{
    return (uint64_t)(op->short_conv.n_taps - 1) * (op->short_conv.gated ? 2 : 1) * p->values[op->outputs[0]].columns *
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

static void short_conv_run_backward(const struct operation_run *r, const struct schedule_step *step,
                                    struct device_short_conv *conv)
{
    const struct program_operation *op = operation_of(r, step);

    assert(!step->accumulate); /* no other operation reads x */
    conv->y_gradient = r->at[step->y_gradient];
    conv->x_gradient = r->at[step->x_gradient];
    conv->weight_gradient = r->gradients[op->tensor + WEIGHT];
    conv->bias_gradient = op->short_conv.bias ? r->gradients[op->tensor + BIAS] : NULL;
    conv->beta = r->fresh ? 0 : 1;
    conv->slopes = r->at[step->scratch];
    r->ops->short_conv_backward(r->dev, conv);
}

static void short_conv_run_cached(const struct operation_run *r, const struct program_operation *op,
                                  struct device_short_conv conv, const struct operation_span *span)
{
    conv.n_tokens = span->n;
    conv.first = span->position;
    conv.x = operation_element(r, conv.x, span->at * device_short_conv_columns(&conv));
    conv.y = operation_element(r, conv.y, span->at * conv.n);
    conv.tail = operation_cache(r, op, span);
    r->ops->short_conv_cached(r->dev, &conv);
}

static void short_conv_run(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    struct device_short_conv conv = {.n_rows = r->n_rows,
                                     .n_tokens = operation_row_elements(r, op->inputs[0]),
                                     .n = operation_columns(r, op->outputs[0]),
                                     .n_taps = op->short_conv.n_taps,
                                     .gated = op->short_conv.gated,
                                     .silu = op->short_conv.silu,
                                     .positions = operation_positions(r, op->inputs[0]),
                                     .x = r->at[step->inputs[0]],
                                     .weight = r->weights[op->tensor + WEIGHT],
                                     .bias = op->short_conv.bias ? r->weights[op->tensor + BIAS] : NULL};

    if (step->action != SCHEDULE_FORWARD) {
        short_conv_run_backward(r, step, &conv);
        return;
    }
    conv.y = r->at[step->outputs[0]];
    if (!r->spans)
        r->ops->short_conv(r->dev, &conv);
    for (uint32_t i = 0; i < r->n_spans; i++)
        short_conv_run_cached(r, op, conv, &r->spans[i]);
}

const struct operation operation_short_conv = {.name = "short convolution",
                                               .reads_inputs = OPERATION_FIRST,
                                               .cheap = true,
                                               .scratch = short_conv_scratch,
                                               .cache = short_conv_cache,
                                               .run = short_conv_run};

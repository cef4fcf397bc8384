/* In generation a text's cache holds x, not products: the filter belongs to the element convolved, so what is computed
 * of earlier elements serves no later one. This call's x are copied behind the earlier ones before anything is read.
 * The kernel then reads one array without a gap, and begins n_earlier elements before the first new one.
 *
 * The scores are a map of x. Backward runs from the last operation to the first, so the gradient of x is first written
 * here, and that map adds to it. */
#include "proto/operation/kind/dynamic_conv.h"

#include "proto/base/size.h"
#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"
#include "proto/operation/schedule_internal.h"

#include <assert.h>

enum { X, SCORES }; /* inputs */

int program_dynamic_conv(struct program *p, int x, int scores, const struct program_dynamic_conv_options *conv)
{
    struct program_operation *op = program_append(p, &operation_dynamic_conv);

    assert(p->values[x].columns % conv->n_heads == 0 && p->values[scores].columns == conv->n_heads * conv->n_taps);
    assert(p->values[x].domain == p->values[scores].domain && conv->n_taps <= DEVICE_MOST_TAPS);
    assert(conv->causal || conv->n_taps % 2 == 1);
    op->dynamic_conv = *conv;
    program_add_input(p, op, x);
    program_add_input(p, op, scores);
    return program_add_output(p, op, PROGRAM_VALUE, p->values[x].columns);
}

static void dynamic_conv_differentiate(struct schedule_builder *b, int operation)
{
    struct schedule_step *step = schedule_begin_derivative(b, operation);

    schedule_write_gradient(b, step, X);
    schedule_write_other_gradient(b, step);
    schedule_end_step(b);
}

/* The filters of all elements, in fp32: enough for forward and backward. */
static uint64_t dynamic_conv_scratch(const struct program *p, const struct program_operation *op,
                                     const struct operation_setting *s)
{
    return program_elements(p, op->inputs[SCORES], s->n_rows, s->n_tokens) * p->values[op->inputs[SCORES]].columns *
           sizeof(float);
}

static uint64_t dynamic_conv_cache(const struct program *p, const struct program_operation *op,
                                   const struct operation_texts *texts)
{
    return op->dynamic_conv.causal
               ? (uint64_t)texts->n_positions * p->values[op->inputs[X]].columns * number_bytes(texts->type)
               : 0;
}

/* A text's cache holds x of all its tokens; this call's are added first. */
static void dynamic_conv_run_cached(const struct operation_run *r, const struct program_operation *op,
                                    struct device_dynamic_conv conv, const struct operation_span *span)
{
    const size_t n_scores = conv.n_heads * conv.n_taps;
    void *const cache = operation_cache(r, op, span);
    const struct device_dropout_add copy = {.n_rows = 1,
                                            .n_tokens = span->n,
                                            .n = conv.n,
                                            .h = operation_element(r, conv.x, span->at * conv.n),
                                            .y = operation_element(r, cache, span->position * conv.n)};

    r->ops->dropout_add(r->dev, &copy);
    conv.n_tokens = span->n;
    conv.n_earlier = size_smaller(span->position, conv.n_before);
    conv.x = operation_element(r, cache, (span->position - conv.n_earlier) * conv.n);
    conv.scores = operation_element(r, conv.scores, span->at * n_scores);
    conv.y = operation_element(r, conv.y, span->at * conv.n);
    r->ops->dynamic_conv(r->dev, &conv);
}

static void dynamic_conv_run(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    const struct program_dynamic_conv_options *how = &op->dynamic_conv;
    const bool backward = step->action == SCHEDULE_BACKWARD;
    const struct device_dynamic_conv conv = {
        .n_rows = r->n_rows,
        .n_tokens = operation_row_elements(r, op->inputs[X]),
        .n = operation_columns(r, op->inputs[X]),
        .n_heads = how->n_heads,
        .n_taps = how->n_taps,
        .n_before = how->causal ? how->n_taps - 1 : how->n_taps / 2,
        .lengths = how->causal ? NULL : r->lengths,
        .x = r->at[step->inputs[X]],
        .scores = r->at[step->inputs[SCORES]],
        .y = backward ? NULL : r->at[step->outputs[0]],
        .y_gradient = backward ? r->at[step->y_gradient] : NULL,
        .x_gradient = backward ? r->at[step->x_gradient] : NULL,
        .scores_gradient = backward ? r->at[step->other_gradient] : NULL,
        .filters = r->at[step->scratch],
        .dropout = operation_dropout_of(r, &how->dropout),
    };

    assert(!step->accumulate && !step->accumulate_other); /* what else reads x was written before: its scores */
    if (backward)
        r->ops->dynamic_conv_backward(r->dev, &conv);
    else if (!r->spans)
        r->ops->dynamic_conv(r->dev, &conv);
    for (uint32_t i = 0; i < r->n_spans; i++)
        dynamic_conv_run_cached(r, op, conv, &r->spans[i]);
}

const struct operation operation_dynamic_conv = {.name = "dynamic convolution",
                                                 .reads_inputs = OPERATION_FIRST | OPERATION_SECOND,
                                                 .mixes_tokens = true,
                                                 .differentiate = dynamic_conv_differentiate,
                                                 .scratch = dynamic_conv_scratch,
                                                 .cache = dynamic_conv_cache,
                                                 .run = dynamic_conv_run};

/* In generation a text's source has been run before, and its keys and values lie in the span as the encoder left them.
 * Nothing is appended, so the plain kernel serves, where self-attention needs one that reads a cache. It runs once a
 * text, as each has its own source and its own number of keys; the log-sum-exp of all is written to one place, since
 * nothing reads it there.
 *
 * One step makes both gradients, because both come from the same probabilities. Neither is added to what is there: the
 * projections that made the inputs are read here alone. */
#include "proto/operation/kind/cross_attention.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"
#include "proto/operation/schedule_internal.h"

#include <assert.h>

int program_cross_attention(struct program *p, int q, int kv, const struct program_cross_attention_options *attention)
{
    const uint32_t n_heads = attention->n_heads, width = p->values[q].columns;
    const uint32_t n_kv_heads = attention->n_kv_heads ? attention->n_kv_heads : n_heads;
    struct program_operation *op = program_append(p, &operation_cross_attention);

    assert(width % n_heads == 0 && n_heads % n_kv_heads == 0);
    assert(p->values[kv].columns == 2 * (width / n_heads) * n_kv_heads);
    op->cross_attention = *attention;
    op->cross_attention.n_kv_heads = n_kv_heads;
    program_add_input(p, op, q);
    program_add_input(p, op, kv);
    const int a = program_add_output(p, op, PROGRAM_VALUE, width);
    program_add_output(p, op, PROGRAM_STATISTIC, n_heads);
    return a;
}

static void cross_attention_differentiate(struct schedule_builder *b, int operation)
{
    struct schedule_step *step = schedule_begin_derivative(b, operation);

    schedule_write_gradient(b, step, 0);
    schedule_write_other_gradient(b, step);
    schedule_end_step(b);
}

/* Enough for forward and backward; backward also for the choice of queries. */
static uint64_t cross_attention_scratch(const struct program *p, const struct program_operation *op,
                                        const struct operation_setting *s)
{
    const uint32_t n_tokens = program_row_elements(p, op->inputs[0], s->n_tokens);
    const size_t n_chosen = s->action == SCHEDULE_BACKWARD ? sampling_queries(&s->sampling, n_tokens) : 0;
    const struct plan_attention_sizes sizes = {.n_rows = s->n_rows,
                                               .n_tokens = n_tokens,
                                               .n_keys = program_row_elements(p, op->inputs[1], s->n_tokens),
                                               .n_heads = op->cross_attention.n_heads,
                                               .n_kv_heads = op->cross_attention.n_kv_heads,
                                               .width = p->values[op->outputs[0]].columns,
                                               .n_chosen = n_chosen};

    return sampling_queries_bytes(s->n_rows, sizes.n_heads, n_tokens, n_chosen) +
           s->backend->scratch_bytes(&sizes, s->n_threads);
}

/* Each text's queries see the whole of its source. */
static void cross_attention_run_spans(const struct operation_run *r, const struct device_attention *all)
{
    for (const struct operation_span *span = r->spans; span < r->spans + r->n_spans; span++) {
        struct device_attention one = *all;
        one.n_tokens = span->n;
        one.n_keys = span->n_source;
        one.qkv = operation_element(r, all->qkv, span->at * all->width);
        one.kv = span->source;
        one.out = operation_element(r, all->out, span->at * all->width);
        r->ops->attention(r->dev, &one);
    }
}

static void cross_attention_run(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    const bool backward = step->action == SCHEDULE_BACKWARD;
    struct device_attention attention = {
        .n_rows = r->n_rows,
        .n_tokens = operation_row_elements(r, op->inputs[0]),
        .n_keys = operation_row_elements(r, op->inputs[1]),
        .n_heads = op->cross_attention.n_heads,
        .n_kv_heads = op->cross_attention.n_kv_heads,
        .full = true,
        .lengths = r->lengths,
        .width = operation_columns(r, op->outputs[0]),
        .scale = op->cross_attention.scale,
        .qkv = r->at[step->inputs[0]],
        .kv = r->at[step->inputs[1]],
        .out = r->at[step->outputs[0]],
        .log_sum_exp = r->at[step->outputs[1]],
        .scratch = r->at[step->scratch],
        .out_gradient = backward ? r->at[step->y_gradient] : NULL,
        .qkv_gradient = backward ? r->at[step->x_gradient] : NULL,
        .kv_gradient = backward ? r->at[step->other_gradient] : NULL,
        .n_chosen = backward ? sampling_queries(&r->sampling, operation_row_elements(r, op->inputs[0])) : 0,
        .dropout = operation_dropout_of(r, &op->cross_attention.dropout),
    };

    assert(!step->accumulate && !step->accumulate_other); /* no other operation reads queries, keys and values */
    sampling_choose_queries(r, op->outputs[0], &attention);
    if (backward)
        r->ops->attention_backward(r->dev, &attention);
    else if (r->spans)
        cross_attention_run_spans(r, &attention);
    else
        r->ops->attention(r->dev, &attention);
}

const struct operation operation_cross_attention = {.name = "cross attention",
                                                    .reads_inputs = OPERATION_FIRST | OPERATION_SECOND,
                                                    .reads_outputs = OPERATION_FIRST | OPERATION_SECOND,
                                                    .aligned = true,
                                                    .mixes_tokens = true,
                                                    .differentiate = cross_attention_differentiate,
                                                    .scratch = cross_attention_scratch,
                                                    .run = cross_attention_run};

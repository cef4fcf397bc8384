/* Whose kernels compute a job's gradients follows from its setting alone, never from the memory that is free or the
 * rows at hand: the ways differ in their bits, and scratch is laid out before anything runs. The choice of queries lies
 * in front of the kernels' own scratch, in the same buffer.
 *
 * Forward's log-sum-exp is an output like any other, so that the schedule stores it from forward to backward. A run
 * with spans generates: each text has a cache and a position of its own, so each has a call, and all use one scratch in
 * turn. */
#include "proto/operation/kind/attention.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"
#include "proto/operation/schedule_internal.h"

#include <assert.h>

enum { QKV, BIAS, NONE = -1 }; /* inputs */

static int attention_append(struct program *p, int qkv, int bias, const struct program_attention_options *attention)
{
    const uint32_t n_kv_heads = attention->n_kv_heads ? attention->n_kv_heads : attention->n_heads;
    const uint32_t n_heads = attention->n_heads, head_width = p->values[qkv].columns / (n_heads + 2 * n_kv_heads);
    struct program_operation *op = program_append(p, &operation_attention);

    assert(p->values[qkv].columns % (n_heads + 2 * n_kv_heads) == 0 && n_heads % n_kv_heads == 0);
    assert(bias == NONE || attention->cap == 0);
    assert(!attention->alibi || (bias == NONE && attention->cap == 0 && !attention->full));
    op->attention = *attention;
    op->attention.n_kv_heads = n_kv_heads;
    program_add_input(p, op, qkv);
    if (bias != NONE)
        program_add_input(p, op, bias);
    const int a = program_add_output(p, op, PROGRAM_VALUE, n_heads * head_width);
    program_add_output(p, op, PROGRAM_STATISTIC, n_heads);
    return a;
}

int program_attention(struct program *p, int qkv, const struct program_attention_options *attention)
{
    assert(attention->buckets.n == 0 && !attention->sinks);
    return attention_append(p, qkv, NONE, attention);
}

int program_sinking_attention(struct program *p, int qkv, const char *stem,
                              const struct program_attention_options *attention)
{
    const struct program_tensor sinks = {.rows = attention->n_heads, .init = MODEL_INIT_ZERO};

    assert(attention->buckets.n == 0 && attention->sinks);
    const int a = attention_append(p, qkv, NONE, attention);
    program_add_tensor(p, &p->operations[p->n_operations - 1], stem, "sinks", sinks);
    return a;
}

int program_biased_attention(struct program *p, int qkv, int bias, const struct program_attention_options *attention)
{
    assert(p->values[bias].domain == PROGRAM_PART);
    assert(p->values[bias].columns == attention->buckets.n * attention->n_heads && !attention->sinks);
    return attention_append(p, qkv, bias, attention);
}

static bool is_biased(const struct program_operation *op)
{
    return op->n_inputs > BIAS;
}

static void attention_differentiate(struct schedule_builder *b, int operation)
{
    struct schedule_step *step = schedule_begin_derivative(b, operation);

    schedule_write_gradient(b, step, QKV);
    if (is_biased(&b->program->operations[operation]))
        schedule_write_other_gradient(b, step);
    schedule_end_step(b);
}

uint32_t program_kv_columns(const struct program *p, const struct program_operation *attention)
{
    return (p->values[attention->inputs[0]].columns - p->values[attention->outputs[0]].columns) / 2;
}

enum plan_attention operation_attention_way(const struct program_attention_options *attention,
                                            const struct operation_setting *setting)
{
    const bool suits = setting->trains && setting->type == NUMBER_BF16 && attention->dropout.p == 0 &&
                       !setting->packs && attention->buckets.n == 0 && attention->cap == 0 && !attention->alibi &&
                       !attention->sinks && !(attention->full && attention->window > 0) &&
                       sampling_queries(&setting->sampling, setting->n_tokens) == 0;

    return suits || setting->attention == PLAN_ATTENTION_OWN ? setting->attention : PLAN_ATTENTION_FORWARD;
}

/* Enough for forward and backward; backward also for the choice of queries. */
static uint64_t attention_scratch(const struct program *p, const struct program_operation *op,
                                  const struct operation_setting *s)
{
    const uint32_t n_heads = op->attention.n_heads, width = p->values[op->outputs[0]].columns;
    const uint32_t n_tokens = program_row_elements(p, op->inputs[0], s->n_tokens);
    const size_t n_chosen = s->action == SCHEDULE_BACKWARD ? sampling_queries(&s->sampling, n_tokens) : 0;
    const struct plan_attention_sizes sizes = {.n_rows = s->n_rows,
                                               .n_tokens = n_tokens,
                                               .n_heads = n_heads,
                                               .n_kv_heads = op->attention.n_kv_heads,
                                               .width = width,
                                               .n_buckets = op->attention.buckets.n,
                                               .n_chosen = n_chosen,
                                               .is_sliding = device_window(op->attention.window, n_tokens) < n_tokens};
    const enum plan_attention way = operation_attention_way(&op->attention, s);
    struct plan_attention_scratch scratch;

    if (way == PLAN_ATTENTION_OWN || way == PLAN_ATTENTION_FORWARD)
        return sampling_queries_bytes(s->n_rows, n_heads, n_tokens, n_chosen) +
               s->backend->scratch_bytes(&sizes, s->n_threads);
    plan_attention_lay_out(&scratch, way, &sizes);
    return scratch.bytes;
}

struct device_attention operation_attention_call(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    const struct program_attention_options *how = &op->attention;
    const bool backward = step->action == SCHEDULE_BACKWARD;

    return (struct device_attention){
        .n_rows = r->n_rows,
        .n_tokens = operation_row_elements(r, op->inputs[0]),
        .n_heads = how->n_heads,
        .n_kv_heads = how->n_kv_heads,
        .full = how->full,
        .window = how->window,
        .lengths = how->full ? r->lengths : NULL,
        .positions = operation_positions(r, op->inputs[0]),
        .width = operation_columns(r, op->outputs[0]),
        .scale = how->scale_by_layer ? how->scale / (float)(r->layer + 1) : how->scale,
        .cap = how->cap,
        .alibi = how->alibi,
        .qkv = r->at[step->inputs[QKV]],
        .bias = is_biased(op) ? r->at[step->inputs[BIAS]] : NULL,
        .buckets = how->buckets,
        .sinks = how->sinks ? r->weights[op->tensor] : NULL,
        .out = r->at[step->outputs[0]],
        .log_sum_exp = r->at[step->outputs[1]],
        .scratch = r->at[step->scratch],
        .out_gradient = backward ? r->at[step->y_gradient] : NULL,
        .qkv_gradient = backward ? r->at[step->x_gradient] : NULL,
        .bias_gradient = backward && is_biased(op) ? r->at[step->other_gradient] : NULL,
        .sinks_gradient = backward && how->sinks ? r->gradients[op->tensor] : NULL,
        .n_chosen = backward ? sampling_queries(&r->sampling, operation_row_elements(r, op->inputs[0])) : 0,
        .dropout = operation_dropout_of(r, &how->dropout),
    };
}

static uint64_t attention_cache(const struct program *p, const struct program_operation *op,
                                const struct operation_texts *texts)
{
    return op->attention.full ? 0
                              : texts->backend->cache_bytes(texts->type, texts->n_positions, op->attention.n_kv_heads,
                                                            program_kv_columns(p, op));
}

/* The text's cache holds keys and values of its tokens before this pass. */
static void attention_run_cached(const struct operation_run *r, const struct device_attention *attention,
                                 const struct schedule_step *step, const struct operation_span *span)
{
    const size_t qkv_width = operation_columns(r, operation_of(r, step)->inputs[0]);
    const struct device_attention_cached op = {.first = span->position,
                                               .n_tokens = span->n,
                                               .n_heads = attention->n_heads,
                                               .n_kv_heads = attention->n_kv_heads,
                                               .window = attention->window,
                                               .width = attention->width,
                                               .n_positions = r->n_positions,
                                               .scale = attention->scale,
                                               .cap = attention->cap,
                                               .alibi = attention->alibi,
                                               .qkv = operation_element(r, attention->qkv, span->at * qkv_width),
                                               .bias = attention->bias,
                                               .buckets = attention->buckets,
                                               .sinks = attention->sinks,
                                               .out = operation_element(r, attention->out, span->at * attention->width),
                                               .cache = operation_cache(r, operation_of(r, step), span),
                                               .scratch = attention->scratch};

    r->ops->attention_cached(r->dev, &op);
}

static void attention_run(const struct operation_run *r, const struct schedule_step *step)
{
    struct device_attention attention = operation_attention_call(r, step);

    sampling_choose_queries(r, operation_of(r, step)->outputs[0], &attention);
    if (step->action == SCHEDULE_BACKWARD)
        r->ops->attention_backward(r->dev, &attention);
    else if (!r->spans)
        r->ops->attention(r->dev, &attention);
    for (uint32_t i = 0; i < r->n_spans; i++)
        attention_run_cached(r, &attention, step, &r->spans[i]);
}

const struct operation operation_attention = {.name = "attention",
                                              .reads_inputs = OPERATION_FIRST | OPERATION_SECOND,
                                              .reads_outputs = OPERATION_FIRST | OPERATION_SECOND,
                                              .aligned = true,
                                              .differentiate = attention_differentiate,
                                              .scratch = attention_scratch,
                                              .cache = attention_cache,
                                              .run = attention_run};

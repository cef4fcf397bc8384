/* Normalisation of queries and keys, and what a and b become, are part of the operation: unfused they would be five more
 * values of a block to write, read and keep, for a few operations a number.
 *
 * Backward begins each chunk of tokens from the state before it. These states are a second output, which is kept like
 * any other or made again by a whole forward pass. Of documents' lengths no more is known before than that a row of n
 * tokens has at most (n - 1) / 64 such states, so the output has room for a state per 64 tokens. Generation has neither
 * use nor room for them: there a text's cache is the one state behind its last token. */
#include "proto/operation/kind/gated_delta.h"

#include "proto/operation/operation.h"
#include "proto/operation/program_internal.h"
#include "proto/operation/schedule_internal.h"

#include <assert.h>

enum { QKV, GATES };     /* inputs */
enum { Y, STATES };      /* outputs */
enum { A_LOG, DT_BIAS }; /* tensors */

/* Columns of one head of values. */
static uint32_t value_width_of(const struct program *p, const struct program_operation *op)
{
    return p->values[op->outputs[Y]].columns / op->gated_delta.n_heads;
}

static uint64_t gated_delta_state_of(const struct program *p, const struct program_operation *op)
{
    return (uint64_t)op->gated_delta.key_width * p->values[op->outputs[Y]].columns;
}

int program_gated_delta(struct program *p, int qkv, int gates, const char *stem,
                        const struct program_gated_delta_options *delta)
{
    const uint32_t of_keys = 2 * delta->n_key_heads * delta->key_width, columns = p->values[qkv].columns;
    struct program_operation *op = program_append(p, &operation_gated_delta);

    assert(delta->n_key_heads > 0 && delta->n_heads % delta->n_key_heads == 0 && columns > of_keys);
    assert((columns - of_keys) % delta->n_heads == 0 && p->values[gates].columns == 2 * delta->n_heads);
    assert(p->values[qkv].domain == p->values[gates].domain);
    op->gated_delta = *delta;
    program_add_input(p, op, qkv);
    program_add_input(p, op, gates);
    program_add_tensor(p, op, stem, "A_log",
                       (struct program_tensor){.rows = delta->n_heads,
                                               .init = MODEL_INIT_LOG_UNIFORM,
                                               .deviation = delta->largest,
                                               .least = delta->least});
    program_add_tensor(p, op, stem, "dt_bias",
                       (struct program_tensor){.rows = delta->n_heads,
                                               .init = delta->largest_step > 0 ? MODEL_INIT_STEP : MODEL_INIT_ONE,
                                               .deviation = delta->largest_step,
                                               .least = delta->least_step});
    const int y = program_add_output(p, op, PROGRAM_VALUE, columns - of_keys);
    program_add_output(p, op, PROGRAM_STATISTIC,
                       (uint32_t)((gated_delta_state_of(p, op) + DEVICE_DELTA_CHUNK - 1) / DEVICE_DELTA_CHUNK));
    return y;
}

static void gated_delta_differentiate(struct schedule_builder *b, int operation)
{
    struct schedule_step *step = schedule_begin_derivative(b, operation);

    schedule_write_gradient(b, step, QKV);
    schedule_write_other_gradient(b, step);
    schedule_end_step(b);
}

static uint64_t gated_delta_scratch(const struct program *p, const struct program_operation *op,
                                    const struct operation_setting *s)
{
    const struct plan_delta_sizes sizes = {.action = s->generates                     ? PLAN_DELTA_CACHED
                                                     : s->action == SCHEDULE_BACKWARD ? PLAN_DELTA_BACKWARD
                                                                                      : PLAN_DELTA_FORWARD,
                                           .n_rows = s->n_rows,
                                           .n_tokens = program_row_elements(p, op->inputs[QKV], s->n_tokens),
                                           .n_heads = op->gated_delta.n_heads,
                                           .n_key_heads = op->gated_delta.n_key_heads,
                                           .key_width = op->gated_delta.key_width,
                                           .value_width = value_width_of(p, op)};

    return s->backend->delta_bytes(&sizes, s->n_threads);
}

static uint64_t gated_delta_cache(const struct program *p, const struct program_operation *op,
                                  const struct operation_texts *texts)
{
    (void)texts;
    return gated_delta_state_of(p, op) * sizeof(float);
}

static void gated_delta_run_backward(const struct operation_run *r, const struct schedule_step *step,
                                     struct device_gated_delta *delta)
{
    const struct program_operation *op = operation_of(r, step);

    assert(!step->accumulate && !step->accumulate_other); /* no other operation reads the inputs */
    delta->y_gradient = r->at[step->y_gradient];
    delta->qkv_gradient = r->at[step->x_gradient];
    delta->gates_gradient = r->at[step->other_gradient];
    delta->a_log_gradient = r->gradients[op->tensor + A_LOG];
    delta->dt_bias_gradient = r->gradients[op->tensor + DT_BIAS];
    r->ops->gated_delta_backward(r->dev, delta);
}

static void gated_delta_run_cached(const struct operation_run *r, const struct program_operation *op,
                                   struct device_gated_delta delta, const struct operation_span *span)
{
    delta.n_tokens = span->n;
    delta.first = span->position;
    delta.qkv = operation_element(r, delta.qkv, span->at * device_gated_delta_columns(&delta));
    delta.gates = operation_element(r, delta.gates, span->at * 2 * delta.n_heads);
    delta.y = operation_element(r, delta.y, span->at * delta.n_heads * delta.value_width);
    delta.state = operation_cache(r, op, span);
    r->ops->gated_delta_cached(r->dev, &delta);
}

static void gated_delta_run(const struct operation_run *r, const struct schedule_step *step)
{
    const struct program_operation *op = operation_of(r, step);
    struct device_gated_delta delta = {.n_rows = r->n_rows,
                                       .n_tokens = operation_row_elements(r, op->inputs[QKV]),
                                       .n_heads = op->gated_delta.n_heads,
                                       .n_key_heads = op->gated_delta.n_key_heads,
                                       .key_width = op->gated_delta.key_width,
                                       .value_width = value_width_of(r->program, op),
                                       .doubled = op->gated_delta.doubled,
                                       .positions = operation_positions(r, op->inputs[QKV]),
                                       .qkv = r->at[step->inputs[QKV]],
                                       .gates = r->at[step->inputs[GATES]],
                                       .a_log = r->weights[op->tensor + A_LOG],
                                       .dt_bias = r->weights[op->tensor + DT_BIAS],
                                       .scratch = r->at[step->scratch]};

    if (!r->spans)
        delta.states = r->at[step->outputs[STATES]];
    if (step->action != SCHEDULE_FORWARD) {
        gated_delta_run_backward(r, step, &delta);
        return;
    }
    delta.y = r->at[step->outputs[Y]];
    if (!r->spans)
        r->ops->gated_delta(r->dev, &delta);
    for (uint32_t i = 0; i < r->n_spans; i++)
        gated_delta_run_cached(r, op, delta, &r->spans[i]);
}

const struct operation operation_gated_delta = {.name = "gated delta rule",
                                                .reads_inputs = OPERATION_FIRST | OPERATION_SECOND,
                                                .reads_outputs = OPERATION_SECOND,
                                                .for_backward = OPERATION_SECOND,
                                                .aligned = true,
                                                .differentiate = gated_delta_differentiate,
                                                .scratch = gated_delta_scratch,
                                                .cache = gated_delta_cache,
                                                .run = gated_delta_run};

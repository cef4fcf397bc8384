/* Priced at the rates of attention: like it, a chunk's tokens meet each other and a matrix as wide as a head. It has no
 * measured rates of its own. Counted is the triangle of a chunk's tokens, whatever a kernel computes beside it. On a CUDA
 * device backward is three launches, and a pair for each of the sums over tokens. */
#include "proto/operation/call/gated_delta.h"

#include "proto/base/size.h"
#include "proto/operation/call.h"

/* of_state: products of each token with a state; of_keys, of_values: with keys or values of half a chunk. */
static void gated_delta_count(struct call_work *out, const struct device_gated_delta *op, double of_state,
                              double of_keys, double of_values)
{
    const double chunk = (double)size_smaller(op->n_tokens, DEVICE_DELTA_CHUNK);
    const double k = (double)op->key_width, v = (double)op->value_width;
    const double tokens = (double)(op->n_rows * op->n_tokens * op->n_heads);

    out->operations = tokens * (2 * of_state * k * v + chunk * (of_keys * k + of_values * v));
    out->by_path[ATTENTION_PLAIN] = out->lasting[ATTENTION_PLAIN] = out->operations;
    out->attention =
        (struct attention_shape){.tokens = chunk, .head = op->value_width, .is_shared = op->n_key_heads < op->n_heads};
}

static void gated_delta_describe(struct call_work *out, struct device_gated_delta *op)
{
    const size_t tokens = op->n_rows * op->n_tokens;

    call_add_array(out, "qkv", &op->qkv, CALL_VALUES, CALL_READ, call_all(tokens * device_gated_delta_columns(op)));
    call_add_array(out, "gates", &op->gates, CALL_VALUES, CALL_READ, call_all(tokens * 2 * op->n_heads));
    call_add_array(out, "a_log", &op->a_log, CALL_VALUES, CALL_READ, call_all(op->n_heads));
    call_add_array(out, "dt_bias", &op->dt_bias, CALL_VALUES, CALL_READ, call_all(op->n_heads));
}

static void gated_delta_describe_scratch(struct call_work *out, struct device_gated_delta *op,
                                         enum plan_delta_action action)
{
    const struct plan_delta_sizes sizes = {.action = action,
                                           .n_rows = op->n_rows,
                                           .n_tokens = op->n_tokens,
                                           .n_heads = op->n_heads,
                                           .n_key_heads = op->n_key_heads,
                                           .key_width = op->key_width,
                                           .value_width = op->value_width};

    call_add_array(out, "scratch", &op->scratch, CALL_BYTES, 0,
                   call_all(out->on.backend->delta_bytes(&sizes, out->on.n_threads)));
}

static void gated_delta_describe_rows(struct call_work *out, struct device_gated_delta *op, unsigned use)
{
    const size_t tokens = op->n_rows * op->n_tokens, slots = device_gated_delta_slots(op->n_tokens);

    call_add_array(out, "positions", &op->positions, CALL_WORDS, CALL_READ | CALL_OPTIONAL, call_all(tokens));
    if (slots > 0)
        call_add_array(out, "states", &op->states, CALL_FP32, use,
                       call_all(op->n_rows * slots * device_gated_delta_state(op)));
}

static struct call_extent gated_delta_values(const struct device_gated_delta *op)
{
    return call_all(op->n_rows * op->n_tokens * op->n_heads * op->value_width);
}

void device_gated_delta_describe(struct call_work *out, struct device_gated_delta *op)
{
    out->rate = CALL_RATE_ATTENTION;
    gated_delta_count(out, op, 3, 2, 2);
    gated_delta_describe(out, op);
    gated_delta_describe_rows(out, op, CALL_WRITTEN);
    call_add_array(out, "y", &op->y, CALL_VALUES, CALL_WRITTEN, gated_delta_values(op));
    gated_delta_describe_scratch(out, op, PLAN_DELTA_FORWARD);
}

void device_gated_delta_backward_describe(struct call_work *out, struct device_gated_delta *op)
{
    const size_t tokens = op->n_rows * op->n_tokens;
    const unsigned sums = CALL_READ | CALL_WRITTEN | CALL_OPTIONAL;
    const size_t n_sums = !!op->a_log_gradient + (size_t) !!op->dt_bias_gradient;

    out->rate = CALL_RATE_ATTENTION_BACKWARD;
    out->n_launches = 3 + 2 * n_sums;
    gated_delta_count(out, op, 7, 6, 5);
    gated_delta_describe(out, op);
    gated_delta_describe_rows(out, op, CALL_READ | CALL_FORWARD);
    call_add_array(out, "y_gradient", &op->y_gradient, CALL_VALUES, CALL_READ, gated_delta_values(op));
    call_add_array(out, "qkv_gradient", &op->qkv_gradient, CALL_VALUES, CALL_WRITTEN,
                   call_all(tokens * device_gated_delta_columns(op)));
    call_add_array(out, "gates_gradient", &op->gates_gradient, CALL_VALUES, CALL_WRITTEN,
                   call_all(tokens * 2 * op->n_heads));
    call_add_array(out, "a_log_gradient", &op->a_log_gradient, CALL_FP32, sums, call_all(op->n_heads));
    call_add_array(out, "dt_bias_gradient", &op->dt_bias_gradient, CALL_FP32, sums, call_all(op->n_heads));
    gated_delta_describe_scratch(out, op, PLAN_DELTA_BACKWARD);
}

/* A text's first tokens find no state, but that is one read of it. */
void device_gated_delta_cached_describe(struct call_work *out, struct device_gated_delta *op)
{
    out->rate = CALL_RATE_ATTENTION;
    gated_delta_count(out, op, 3, 2, 2);
    gated_delta_describe(out, op);
    call_add_array(out, "y", &op->y, CALL_VALUES, CALL_WRITTEN, gated_delta_values(op));
    call_add_array(out, "state", &op->state, CALL_FP32, CALL_READ | CALL_WRITTEN,
                   call_all(device_gated_delta_state(op)));
    gated_delta_describe_scratch(out, op, PLAN_DELTA_CACHED);
}

/* Moving its arrays takes the time: a token has fewer than twenty operations a channel. On a CUDA device sums for
 * weights and bias are a pair of launches for each tap, as each reads what it needs by itself. */
#include "proto/operation/call/short_conv.h"

#include "proto/operation/call.h"

static struct call_extent short_conv_x(const struct device_short_conv *op)
{
    return call_rows(op->n_rows * op->n_tokens, device_short_conv_columns(op), device_short_conv_x_stride(op));
}

static struct call_extent short_conv_y(const struct device_short_conv *op)
{
    return call_rows(op->n_rows * op->n_tokens, op->n, device_short_conv_y_stride(op));
}

static void short_conv_describe_inputs(struct call_work *out, struct device_short_conv *op)
{
    call_add_array(out, "x", &op->x, CALL_VALUES, CALL_READ, short_conv_x(op));
    call_add_array(out, "weight", &op->weight, CALL_VALUES, CALL_READ, call_all(op->n_taps * op->n));
    call_add_array(out, "bias", &op->bias, CALL_VALUES, CALL_READ | CALL_OPTIONAL, call_all(op->n));
}

static void short_conv_describe_positions(struct call_work *out, struct device_short_conv *op)
{
    call_add_array(out, "positions", &op->positions, CALL_WORDS, CALL_READ | CALL_OPTIONAL,
                   call_all(op->n_rows * op->n_tokens));
}

void device_short_conv_describe(struct call_work *out, struct device_short_conv *op)
{
    short_conv_describe_inputs(out, op);
    short_conv_describe_positions(out, op);
    call_add_array(out, "y", &op->y, CALL_VALUES, CALL_WRITTEN, short_conv_y(op));
}

void device_short_conv_backward_describe(struct call_work *out, struct device_short_conv *op)
{
    const size_t tokens = op->n_rows * op->n_tokens;
    const unsigned sums = CALL_READ | CALL_WRITTEN | CALL_OPTIONAL;
    const size_t n_sums = (op->weight_gradient ? op->n_taps : 0) + (op->bias_gradient ? 1 : 0);

    short_conv_describe_inputs(out, op);
    short_conv_describe_positions(out, op);
    call_add_array(out, "y_gradient", &op->y_gradient, CALL_VALUES, CALL_READ, short_conv_y(op));
    call_add_array(out, "x_gradient", &op->x_gradient, CALL_VALUES, CALL_WRITTEN, short_conv_x(op));
    call_add_array(out, "weight_gradient", &op->weight_gradient, CALL_FP32,
                   op->beta != 0 ? sums : CALL_WRITTEN | CALL_OPTIONAL, call_all(op->n_taps * op->n));
    call_add_array(out, "bias_gradient", &op->bias_gradient, CALL_FP32, sums, call_all(op->n));
    call_add_array(out, "slopes", &op->slopes, CALL_FP32, 0, call_all(tokens * op->n));
    out->n_launches = 2 + 2 * n_sums;
}

void device_short_conv_cached_describe(struct call_work *out, struct device_short_conv *op)
{
    short_conv_describe_inputs(out, op);
    call_add_array(out, "y", &op->y, CALL_VALUES, CALL_WRITTEN, short_conv_y(op));
    call_add_array(out, "tail", &op->tail, CALL_VALUES, CALL_READ | CALL_WRITTEN,
                   call_all((op->n_taps - 1) * device_short_conv_tail(op)));
}

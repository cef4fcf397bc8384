/* Bound by memory, but at rates of their own, which are measured: reducing a row before it can be written keeps a norm
 * below the speed of a copy. Statistics are marked as forward's: backward takes those that the same device made. */
#include "proto/operation/call/norm.h"

#include "proto/operation/call.h"

static struct call_extent norm_rows_of(const struct device_norm *op)
{
    return call_rows(op->m, device_norm_heads(op) * op->n, device_norm_stride(op));
}

static void norm_describe(struct call_work *out, struct device_norm *op, unsigned use_of_statistics)
{
    if (!op->bare)
        call_add_array(out, "weight", &op->weight, CALL_VALUES, CALL_READ, call_all(op->n));
    call_add_array(out, "statistics", &op->statistics, CALL_FP32, use_of_statistics,
                   call_all(2 * op->m * device_norm_heads(op)));
}

void device_norm_describe(struct call_work *out, struct device_norm *op)
{
    out->pass = CALL_PASS_NORM;
    if (op->add.h) {
        call_add_array(out, "add.x", &op->add.x, CALL_VALUES, CALL_READ, norm_rows_of(op));
        call_add_array(out, "add.h", &op->add.h, CALL_VALUES, CALL_READ, norm_rows_of(op));
        call_add_array(out, "add.y", &op->add.y, CALL_VALUES, CALL_WRITTEN | CALL_OPTIONAL, norm_rows_of(op));
    } else {
        call_add_array(out, "x", &op->x, CALL_VALUES, CALL_READ, norm_rows_of(op));
    }
    norm_describe(out, op, CALL_WRITTEN);
    call_add_array(out, "bias", &op->bias, CALL_VALUES, CALL_READ | CALL_OPTIONAL, call_all(op->n));
    call_add_array(out, "y", &op->y, CALL_VALUES, CALL_WRITTEN, norm_rows_of(op));
}

void device_norm_backward_describe(struct call_work *out, struct device_norm *op)
{
    const unsigned sums = CALL_READ | CALL_WRITTEN | CALL_OPTIONAL;

    out->pass = CALL_PASS_NORM_BACKWARD;
    call_add_array(out, "x", &op->x, CALL_VALUES, CALL_READ, norm_rows_of(op));
    norm_describe(out, op, CALL_READ | CALL_FORWARD);
    call_add_array(out, "y_gradient", &op->y_gradient, CALL_VALUES, CALL_READ, norm_rows_of(op));
    call_add_array(out, "x_gradient", &op->x_gradient, CALL_VALUES, CALL_WRITTEN | (op->accumulate ? CALL_READ : 0),
                   norm_rows_of(op));
    call_add_array(out, "add.y", &op->add.y, CALL_VALUES, CALL_WRITTEN | CALL_OPTIONAL, norm_rows_of(op));
    call_add_array(out, "weight_gradient", &op->weight_gradient, CALL_FP32, sums, call_all(op->n));
    call_add_array(out, "bias_gradient", &op->bias_gradient, CALL_FP32, sums, call_all(op->n));
}

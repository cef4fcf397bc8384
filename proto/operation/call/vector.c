/* None of these computes enough to matter beside the memory that it moves. round_half writes a type of its own, not the
 * device's, so `to` is described in bytes. */
#include "proto/operation/call/vector.h"

#include "proto/operation/call.h"

enum { UPDATED = CALL_READ | CALL_WRITTEN };

void device_zero_describe(struct call_work *out, struct device_zero *op)
{
    call_add_array(out, "x", &op->x, CALL_BYTES, CALL_WRITTEN, call_all(op->bytes));
}

void device_round_half_describe(struct call_work *out, struct device_round_half *op)
{
    call_add_array(out, "to", &op->to, CALL_BYTES, CALL_WRITTEN, call_all(op->n * sizeof *op->to));
    call_add_array(out, "from", &op->from, CALL_FP32, CALL_READ, call_all(op->n));
}

void device_activate_describe(struct call_work *out, struct device_activate *op)
{
    call_add_array(out, "y", &op->y, CALL_VALUES, CALL_WRITTEN, call_all(op->n));
    call_add_array(out, "x", &op->x, CALL_VALUES, CALL_READ, call_all(op->n));
}

void device_activate_backward_describe(struct call_work *out, struct device_activate *op)
{
    call_add_array(out, "gradient", &op->gradient, CALL_VALUES, UPDATED, call_all(op->n));
    call_add_array(out, "x", &op->x, CALL_VALUES, CALL_READ, call_all(op->n));
}

void device_add_describe(struct call_work *out, struct device_add *op)
{
    call_add_array(out, "sum", &op->sum, CALL_FP32, UPDATED, call_all(op->n));
    call_add_array(out, "x", &op->x, CALL_FP32, CALL_READ, call_all(op->n));
}

void device_reduce_rows_describe(struct call_work *out, struct device_reduce_rows *op)
{
    call_add_array(out, "sum", &op->sum, CALL_FP32, UPDATED, call_all(op->n));
    call_add_array(out, "x", &op->x, CALL_VALUES, CALL_READ, call_rows(op->m, op->n, op->stride));
}

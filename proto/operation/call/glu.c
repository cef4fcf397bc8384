/* Gate and up are columns of one array, side by side, in the layers that use this: the extent of each spans the other's
 * columns, and only its own are touched. */
#include "proto/operation/call/glu.h"

#include "proto/operation/call.h"

static void describe_inputs(struct call_work *out, struct device_glu *op)
{
    call_add_array(out, "gate", &op->gate, CALL_VALUES, CALL_READ, call_rows(op->m, op->n, op->stride));
    call_add_array(out, "up", &op->up, CALL_VALUES, CALL_READ, call_rows(op->m, op->n, op->stride));
}

void device_glu_describe(struct call_work *out, struct device_glu *op)
{
    describe_inputs(out, op);
    call_add_array(out, "y", &op->y, CALL_VALUES, CALL_WRITTEN, call_all(op->m * op->n));
}

void device_glu_backward_describe(struct call_work *out, struct device_glu *op)
{
    const struct call_extent gradient = call_rows(op->m, op->n, op->gradient_stride);

    describe_inputs(out, op);
    call_add_array(out, "y_gradient", &op->y_gradient, CALL_VALUES, CALL_READ, call_all(op->m * op->n));
    call_add_array(out, "gate_gradient", &op->gate_gradient, CALL_VALUES, CALL_WRITTEN, gradient);
    call_add_array(out, "up_gradient", &op->up_gradient, CALL_VALUES, CALL_WRITTEN, gradient);
}

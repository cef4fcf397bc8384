/* Its time is that of the memory which it reads and writes. */
#include "proto/operation/call/xielu.h"

#include "proto/operation/call.h"

static void xielu_describe(struct call_work *out, struct device_xielu *op)
{
    call_add_array(out, "x", &op->x, CALL_VALUES, CALL_READ, call_all(op->n));
    call_add_array(out, "positive", &op->positive, CALL_VALUES, CALL_READ, call_all(1));
    call_add_array(out, "negative", &op->negative, CALL_VALUES, CALL_READ, call_all(1));
}

void device_xielu_describe(struct call_work *out, struct device_xielu *op)
{
    xielu_describe(out, op);
    call_add_array(out, "y", &op->y, CALL_VALUES, CALL_WRITTEN, call_all(op->n));
}

void device_xielu_backward_describe(struct call_work *out, struct device_xielu *op)
{
    const unsigned sums = CALL_READ | CALL_WRITTEN | CALL_OPTIONAL;

    xielu_describe(out, op);
    call_add_array(out, "y_gradient", &op->y_gradient, CALL_VALUES, CALL_READ, call_all(op->n));
    call_add_array(out, "x_gradient", &op->x_gradient, CALL_VALUES, CALL_WRITTEN, call_all(op->n));
    call_add_array(out, "of_positive", &op->of_positive, CALL_FP32, sums, call_all(1));
    call_add_array(out, "of_negative", &op->of_negative, CALL_FP32, sums, call_all(1));
}

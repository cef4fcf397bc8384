/* A row of logits has one number and its padding. The gradient also clears that padding, as the product that follows
 * reads whole rows. */
#include "proto/operation/call/squared_error.h"

#include "proto/operation/call.h"

static void squared_error_describe(struct call_work *out, struct device_squared_error *op)
{
    call_add_array(out, "labels", &op->labels, CALL_WORDS, CALL_READ, call_all(op->m));
    call_add_array(out, "logits", &op->logits, CALL_FP32, CALL_READ, call_some(op->m * op->logits_stride, op->m));
    call_add_array(out, "bias", &op->bias, CALL_FP32, CALL_READ | CALL_OPTIONAL, call_all(1));
}

void device_squared_error_describe(struct call_work *out, struct device_squared_error *op)
{
    squared_error_describe(out, op);
    call_add_array(out, "losses", &op->losses, CALL_FP64, CALL_WRITTEN, call_all(op->m));
}

void device_squared_error_gradient_describe(struct call_work *out, struct device_squared_error *op)
{
    const size_t stride = op->logits_stride;

    squared_error_describe(out, op);
    call_add_array(out, "gradient", &op->logits, CALL_VALUES, CALL_WRITTEN,
                   call_rows(op->m, stride, stride * device_wide(out->on.type)));
}

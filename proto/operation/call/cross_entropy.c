/* Logits are fp32 and their gradient lies in the same memory in the device's type, so it is described as an array of
 * its own, with rows as far apart as those of the logits. In 16 bits a row's stride doubles, in elements. */
#include "proto/operation/call/cross_entropy.h"

#include "proto/operation/call.h"

static void cross_entropy_describe(struct call_work *out, struct device_cross_entropy *op, unsigned use_of_running)
{
    call_add_array(out, "labels", &op->labels, CALL_WORDS, CALL_READ, call_all(op->m));
    call_add_array(out, "running", &op->running, CALL_FP32, use_of_running, call_all(3 * op->m));
    call_add_array(out, "logits", &op->logits, CALL_FP32, CALL_READ,
                   call_some(op->m * op->logits_stride, op->m * op->n));
    call_add_array(out, "bias", &op->bias, CALL_FP32, CALL_READ | CALL_OPTIONAL, call_all(op->n));
}

void device_soft_cap_describe(struct call_work *out, struct device_soft_cap *op)
{
    call_add_array(out, "x", &op->x, CALL_FP32, CALL_READ | CALL_WRITTEN, call_all(op->n));
}

void device_log_sum_exp_describe(struct call_work *out, struct device_cross_entropy *op)
{
    cross_entropy_describe(out, op, CALL_WRITTEN | (op->start ? 0 : CALL_READ));
}

/* A gradient lies in the place of its logits, and zeros in that of what pads them. */
void device_cross_entropy_gradient_describe(struct call_work *out, struct device_cross_entropy *op)
{
    const size_t stride = op->logits_stride;

    cross_entropy_describe(out, op, CALL_READ);
    call_add_array(out, "scales", &op->scales, CALL_FP32, CALL_READ | CALL_OPTIONAL, call_all(op->m));
    call_add_array(out, "gradient", &op->logits, CALL_VALUES, CALL_WRITTEN,
                   call_some(call_rows(op->m, stride, stride * device_wide(out->on.type)).n, op->m * op->n));
}

void device_loss_describe(struct call_work *out, struct device_loss *op)
{
    call_add_array(out, "losses", &op->losses, CALL_FP64, CALL_WRITTEN, call_all(op->m));
    call_add_array(out, "running", &op->running, CALL_FP32, CALL_READ, call_all(3 * op->m));
    call_add_array(out, "labels", &op->labels, CALL_WORDS, CALL_READ, call_all(op->m));
}

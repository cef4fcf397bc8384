/* An operand's extent follows its transposition, as strides are between rows in memory. `rows` is what the rate depends
 * on: tokens, which are k in the products of weights' gradients. */
#include "proto/operation/call/matmul.h"

#include "proto/operation/call.h"

void device_matmul_describe(struct call_work *out, struct device_matmul *op)
{
    const struct call_extent a =
        op->transpose_a ? call_rows(op->k, op->m, op->a_stride) : call_rows(op->m, op->k, op->a_stride);
    const struct call_extent b =
        op->transpose_b ? call_rows(op->n, op->k, op->b_stride) : call_rows(op->k, op->n, op->b_stride);
    const struct call_extent c = call_rows(op->m, op->n, op->c_stride);
    const bool activates = op->epilogue == DEVICE_BIAS_ACTIVATION;

    out->rate = CALL_RATE_PRODUCT;
    out->operations = 2 * (double)op->m * (double)op->n * (double)op->k;
    out->rows = op->over_rows ? op->k : op->m;
    call_add_array(out, "a", &op->a, CALL_VALUES, CALL_READ, a);
    call_add_array(out, "b", &op->b, CALL_VALUES, CALL_READ, b);
    call_add_array(out, "c", &op->c, op->wide ? CALL_FP32 : CALL_VALUES, CALL_WRITTEN | (op->beta != 0 ? CALL_READ : 0),
                   c);
    if (op->epilogue == DEVICE_BIAS || activates)
        call_add_array(out, "bias", &op->bias, CALL_VALUES, CALL_READ, call_all(op->n));
    if (activates || op->epilogue == DEVICE_ACTIVATION_GRADIENT)
        call_add_array(out, "pre", &op->pre, CALL_VALUES, activates ? CALL_WRITTEN : CALL_READ, c);
    if (op->epilogue == DEVICE_ACTIVATION_GRADIENT)
        call_add_array(out, "bias_gradient", &op->bias_gradient, CALL_FP32, CALL_READ | CALL_WRITTEN | CALL_OPTIONAL,
                       call_all(op->n));
}

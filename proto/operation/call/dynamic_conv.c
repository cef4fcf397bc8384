/* Priced at the rates of attention: like it, each element meets a window of its neighbours, with factors that a softmax
 * made. It has no measured rates of its own. */
#include "proto/operation/call/dynamic_conv.h"

#include "proto/operation/call.h"

/* Each element of x meets each tap of its head's filter. */
static double dynamic_conv_products_of(const struct device_dynamic_conv *op)
{
    return 2 * (double)(op->n_rows * op->n_tokens * op->n) * (double)op->n_taps;
}

static void dynamic_conv_describe(struct call_work *out, struct device_dynamic_conv *op)
{
    const size_t tokens = op->n_rows * op->n_tokens;

    call_add_array(out, "x", &op->x, CALL_VALUES, CALL_READ, call_all((op->n_earlier + tokens) * op->n));
    call_add_array(out, "scores", &op->scores, CALL_VALUES, CALL_READ, call_all(tokens * op->n_heads * op->n_taps));
    call_add_array(out, "lengths", &op->lengths, CALL_WORDS, CALL_READ | CALL_OPTIONAL, call_all(op->n_rows));
    call_add_array(out, "filters", &op->filters, CALL_FP32, 0, call_all(tokens * op->n_heads * op->n_taps));
}

void device_dynamic_conv_describe(struct call_work *out, struct device_dynamic_conv *op)
{
    out->rate = CALL_RATE_ATTENTION;
    out->operations = dynamic_conv_products_of(op);
    dynamic_conv_describe(out, op);
    call_add_array(out, "y", &op->y, CALL_VALUES, CALL_WRITTEN, call_all(op->n_rows * op->n_tokens * op->n));
}

/* The gradients of x and of the filters take as much each. */
void device_dynamic_conv_backward_describe(struct call_work *out, struct device_dynamic_conv *op)
{
    const size_t tokens = op->n_rows * op->n_tokens;

    out->rate = CALL_RATE_ATTENTION_BACKWARD;
    out->operations = 2 * dynamic_conv_products_of(op);
    dynamic_conv_describe(out, op);
    call_add_array(out, "y_gradient", &op->y_gradient, CALL_VALUES, CALL_READ, call_all(tokens * op->n));
    call_add_array(out, "x_gradient", &op->x_gradient, CALL_VALUES, CALL_WRITTEN, call_all(tokens * op->n));
    call_add_array(out, "scores_gradient", &op->scores_gradient, CALL_VALUES, CALL_WRITTEN,
                   call_all(tokens * op->n_heads * op->n_taps));
}

/* With p = 0 this is also how columns are copied and sums made, so an absent x is no cost. */
#include "proto/operation/call/dropout.h"

#include "proto/operation/call.h"

void device_dropout_add_describe(struct call_work *out, struct device_dropout_add *op)
{
    const struct call_extent rows = call_rows(op->n_rows * op->n_tokens, op->n, device_dropout_stride(op));

    call_add_array(out, "y", &op->y, CALL_VALUES, CALL_WRITTEN, rows);
    call_add_array(out, "x", &op->x, CALL_VALUES, CALL_READ | CALL_OPTIONAL, rows);
    call_add_array(out, "h", &op->h, CALL_VALUES, CALL_READ, rows);
}

#include "proto/operation/call/rope.h"

#include "proto/operation/call.h"

void device_rope_describe(struct call_work *out, struct device_rope *op)
{
    call_add_array(out, "x", &op->x, CALL_VALUES, CALL_READ | CALL_WRITTEN,
                   call_rows(op->n_rows * op->n_tokens, op->n_heads * op->head_width, op->stride));
}

/* In place, so an array is read and written, and of a head only the rotated columns are touched. */
#include "proto/operation/call/rope.h"

#include "proto/operation/call.h"

void device_rope_describe(struct call_work *out, struct device_rope *op)
{
    const size_t tokens = op->n_rows * op->n_tokens;

    call_add_array(out, "x", &op->x, CALL_VALUES, CALL_READ | CALL_WRITTEN,
                   call_some(call_rows(tokens, op->n_heads * op->head_width, op->stride).n,
                             tokens * op->n_heads * op->n_rotated));
    call_add_array(out, "positions", &op->positions, CALL_WORDS, CALL_READ | CALL_OPTIONAL, call_all(tokens));
}

void device_sinusoid_describe(struct call_work *out, struct device_sinusoid *op)
{
    call_add_array(out, "y", &op->y, CALL_VALUES, CALL_READ | CALL_WRITTEN,
                   call_all(op->n_rows * op->n_tokens * op->n));
}

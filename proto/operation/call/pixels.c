/* Bytes in, values out: there is nothing to compute that would show beside the memory. */
#include "proto/operation/call/pixels.h"

#include "proto/operation/call.h"

void device_pixels_describe(struct call_work *out, struct device_pixels *op)
{
    call_add_array(out, "ids", &op->ids, CALL_WORDS, CALL_READ, call_all(op->m));
    call_add_array(out, "y", &op->y, CALL_VALUES, CALL_WRITTEN, call_all(op->m * op->n));
}

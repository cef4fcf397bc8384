/* These calls move memory and compute next to nothing, so their extents are their price. A row of codes includes its
 * scales and what pads it to 16 bytes: all of it is written. */
#include "proto/operation/call/compress.h"

#include "proto/operation/call.h"

/* Rows of codes are padded at their ends. */
static void add_codes(struct call_work *out, void *member, unsigned use, size_t n_rows, size_t n, unsigned bits)
{
    const size_t bytes = n_rows * compress_row_bytes(n, bits);

    call_add_array(out, "codes", member, CALL_BYTES, use, call_all(bytes));
}

void device_compress_describe(struct call_work *out, struct device_compress *op)
{
    call_add_array(out, "x", &op->x, CALL_VALUES, CALL_READ, call_all(op->n_rows * op->n));
    add_codes(out, &op->codes, CALL_WRITTEN, op->n_rows, op->n, op->bits);
}

void device_expand_describe(struct call_work *out, struct device_expand *op)
{
    add_codes(out, &op->codes, CALL_READ, op->n_rows, op->n, op->bits);
    call_add_array(out, "y", &op->y, CALL_VALUES, CALL_WRITTEN, call_all(op->n_rows * op->n));
}

void device_round_values_describe(struct call_work *out, struct device_round_values *op)
{
    call_add_array(out, "x", &op->x, CALL_VALUES, CALL_READ | CALL_WRITTEN, call_all(op->n_rows * op->n));
}

/* A decoded weight is read once and written once; there is no product in it, so its price is its bytes. Codes of 4 bits
 * are rounded up to whole bytes. */
#include "proto/operation/call/decode.h"

#include "proto/operation/call.h"

/* Bytes of the codes without their alignment. */
static size_t decode_codes_bytes(const struct device_decode *op)
{
    const size_t n = op->rows * op->columns;

    return op->form == FORM_BF16 ? 2 * n : op->form == FORM_INT8 ? n : (n + 1) / 2;
}

void device_decode_describe(struct call_work *out, struct device_decode *op)
{
    call_add_array(out, "y", &op->y, CALL_VALUES, CALL_WRITTEN, call_all(op->rows * op->columns));
    call_add_array(out, "codes", &op->codes, CALL_BYTES, CALL_READ, call_all(decode_codes_bytes(op)));
    call_add_array(out, "scales", &op->scales, CALL_FP32, CALL_READ | CALL_OPTIONAL,
                   call_all((size_t)form_scales(op->form, op->rows, op->columns)));
}

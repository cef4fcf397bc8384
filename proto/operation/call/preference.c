#include "proto/operation/call/preference.h"

#include "proto/operation/call.h"

void device_preference_describe(struct call_work *out, struct device_preference *op)
{
    const size_t n_rows = 2 * op->n_pairs;

    call_add_array(out, "losses", &op->losses, CALL_FP64, CALL_READ, call_all(n_rows * op->n_tokens));
    call_add_array(out, "references", &op->references, CALL_FP32, CALL_READ, call_all(n_rows));
    call_add_array(out, "sums", &op->sums, CALL_FP64, CALL_WRITTEN, call_all(n_rows));
    call_add_array(out, "scales", &op->scales, CALL_FP32, CALL_WRITTEN, call_all(n_rows * op->n_tokens));
}

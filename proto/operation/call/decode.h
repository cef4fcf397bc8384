/* proto/operation/call/decode.h - frozen weights in the device's type, from their form (proto/base/form.h). */
#ifndef PROTO_OPERATION_CALL_DECODE_H
#define PROTO_OPERATION_CALL_DECODE_H

#include "proto/base/form.h"

#include <stddef.h>

/* y = the weights that the codes stand for: form_decode, rounded to the device's type. */
struct device_decode {
    enum form form; /* not FORM_VALUES */
    size_t rows, columns;
    const void *codes;   /* aligned to FORM_ALIGNMENT, or more slowly read */
    const float *scales; /* (form_scales), aligned likewise; NULL for bf16 */
    void *y;             /* (rows, columns) */
};

#endif

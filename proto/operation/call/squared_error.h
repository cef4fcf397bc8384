/* proto/operation/call/squared_error.h - the loss of a regression on the device: squared_error,
 * squared_error_gradient. */
#ifndef PROTO_OPERATION_CALL_SQUARED_ERROR_H
#define PROTO_OPERATION_CALL_SQUARED_ERROR_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Squares of a predicted number's distance from its label. Elements from 1 up to the stride are padding: of any
 * content, and ignored.
 *
 * squared_error_gradient overwrites the logits by their gradient, 2 * (logit + bias - label) * scale, 0 in rows without
 * a label; in type and place as cross_entropy_gradient. Elements from 1 up to the stride become 0. */
struct device_squared_error {
    size_t m, logits_stride;
    float *logits;          /* (m, 1), read; squared_error_gradient overwrites them by their gradient */
    const float *bias;      /* (1): added to each as it is read. NULL: none */
    const uint32_t *labels; /* (m), the bits of floats; rows whose label is UINT32_MAX count for nothing */
    double *losses;         /* (m), written by squared_error: 0 without a label */
    float scale;            /* squared_error_gradient */
};

#endif

/* proto/operation/call/dropout.h - dropout on the device, with the residual addition. */
#ifndef PROTO_OPERATION_CALL_DROPOUT_H
#define PROTO_OPERATION_CALL_DROPOUT_H

#include "proto/base/random.h"

#include <stddef.h>
#include <stdint.h>

/* Element e of row r of the minibatch is kept if its Philox word (proto/base/random.h) >= random_threshold(p), then
 * scaled by scale/(1-p). p = 0 draws nothing. */
struct device_dropout {
    float p;
    struct random_key key;
    uint64_t first_row; /* minibatch row of the call's row 0 */
    float scale;        /* of activations alone; 0: 1 */
};

/* The factor of elements that are kept. */
static inline float device_dropout_factor(const struct device_dropout *dropout)
{
    return (float)((dropout->scale != 0 ? (double)dropout->scale : 1) / (1 - (double)dropout->p));
}

/* y = x + dropout(h), or dropout(h) without x. Element of a row: token*n + column. Dropout's backward is the same
 * operation without x, applied to the gradient of y. Without x, dropout and scale it copies columns. */
struct device_dropout_add {
    size_t n_rows, n_tokens, n;
    size_t stride; /* elements from a token to the next; 0: n */
    const void *x; /* (n_rows*n_tokens, n), or NULL */
    const void *h; /* (n_rows*n_tokens, n) */
    void *y;       /* (n_rows*n_tokens, n); may be x or h */
    struct device_dropout dropout;
};

static inline size_t device_dropout_stride(const struct device_dropout_add *op)
{
    return op->stride > 0 ? op->stride : op->n;
}

#endif

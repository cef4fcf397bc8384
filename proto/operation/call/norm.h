/* proto/operation/call/norm.h - normalisation on the device: norm, norm_backward. */
#ifndef PROTO_OPERATION_CALL_NORM_H
#define PROTO_OPERATION_CALL_NORM_H

#include "proto/operation/call/dropout.h"

#include <stdbool.h>
#include <stddef.h>

enum device_norm_kind {
    DEVICE_LAYER_NORM, /* (x - mean) / sqrt(variance + epsilon) * weight + bias. Ba, Kiros & Hinton, arXiv:1607.06450 */
    DEVICE_RMS_NORM,   /* x / sqrt(mean square + epsilon) * weight + bias. Zhang & Sennrich, arXiv:1910.07467 */
};

/* Normalisation of rows of n values; or of m rows of n_heads times n values, each head by itself with the same weight
 * and bias. All arrays of values have these rows, `stride` elements apart. */
struct device_norm {
    enum device_norm_kind kind;
    size_t m, n;
    size_t n_heads;         /* 0: 1 */
    size_t stride;          /* 0: n_heads * n */
    float epsilon;          /* forward */
    bool bare;              /* without a weight, as if it were 1; not with `offset` */
    bool offset;            /* heads are multiplied by 1 + weight, not by weight: Gemma */
    const void *x;          /* (m, n_heads * n), read by both directions */
    const void *weight;     /* (n), read by both; NULL if bare */
    const void *bias;       /* (n), forward; NULL: none */
    void *y;                /* shaped as x, written forward */
    float *statistics;      /* (m * n_heads, 2), mean (RMS_NORM: 0) and 1/sqrt(...): written forward, read backward */
    const void *y_gradient; /* shaped as x, backward */
    void *x_gradient;       /* shaped as x: written backward, or added to; may be y_gradient if not accumulating */
    bool accumulate;        /* x_gradient += */
    float *weight_gradient; /* (n), backward, +=; NULL: not computed */
    float *bias_gradient;   /* (n), backward, +=; NULL: not computed, or no bias */
    /* The residual addition before it, in the same pass and with the same bits; of single heads without gaps. Forward,
     * if add.h is set: the rows are add's result instead of x. It is written to add.y; NULL: nowhere, and y may then be
     * add.x or add.h. Backward, if add.y is set, and add.x and add.h are NULL: add.y = dropout(x_gradient). */
    struct device_dropout_add add;
};

/* Heads of a row, and elements from a row to the next. */
static inline size_t device_norm_heads(const struct device_norm *op)
{
    return op->n_heads > 0 ? op->n_heads : 1;
}

static inline size_t device_norm_stride(const struct device_norm *op)
{
    return op->stride > 0 ? op->stride : device_norm_heads(op) * op->n;
}

#endif

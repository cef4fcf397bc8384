/* proto/operation/call/short_conv.h - a short convolution over tokens, each channel by itself: short_conv,
 * short_conv_backward, short_conv_cached. */
#ifndef PROTO_OPERATION_CALL_SHORT_CONV_H
#define PROTO_OPERATION_CALL_SHORT_CONV_H

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DEVICE_SHORT_TAPS = 8 };

/* Causal and depthwise, as of Mamba (Gu & Dao, arXiv:2312.00752) and Gated DeltaNet (Yang et al., arXiv:2412.06464):
 *
 *     y[t][c] = act(bias[c] + sum over d < n_taps of weight[n_taps-1 - d][c] * u[t - d][c])
 *
 * where u is x, act is silu or nothing, and tokens before the document's first count as 0. Gated, as of LFM2 (Liquid
 * AI, arXiv:2511.23404), x has of each token three runs of n columns, B, C and x: u is B * x, and y is multiplied by C.
 *
 * What a token gets, and the gradient of its x, are the same bits wherever its document lies in a row and whatever lies
 * beside it: tokens of other documents are not read. Gradients of weight and bias are sums over all tokens, in an order
 * that the shape and the device alone decide. */
struct device_short_conv {
    size_t n_rows, n_tokens;   /* rows, and tokens of a row */
    size_t n, n_taps;          /* channels; taps, from 1 to DEVICE_SHORT_TAPS */
    bool gated, silu;          /* as above; not both */
    size_t stride;             /* from row to row of x, y and their gradients, which have other columns, too; 0: they
                                * have none. Not gated */
    const uint32_t *positions; /* (n_rows*n_tokens), on the device: each token's index in its document; NULL: a row is
                                * one document */
    const void *x;             /* (n_rows*n_tokens, n or 3n), rows `stride` apart, if it is given */
    const void *weight;        /* (n_taps, n) */
    const void *bias;          /* (n); NULL: none */
    void *y;                   /* (n_rows*n_tokens, n), rows likewise, forward and cached */
    const void *y_gradient;    /* shaped as y, backward */
    void *x_gradient;          /* shaped as x, backward, overwritten */
    float *weight_gradient;    /* shaped as weight, backward; NULL: not computed */
    float *bias_gradient;      /* (n), backward, +=; NULL: not computed */
    float beta;                /* weight_gradient = its sum + beta * weight_gradient: 0 or 1 */
    float *slopes;             /* (n_rows*n_tokens, n), backward's scratch: gradients of the sums before act */
    /* Cached: the tokens are those of one text from this position on. tail (n_taps-1, n), or (n_taps-1, 2n) of B and
     * then x, has what sums read of the tokens before them, undefined before position 0; then of the last ones. */
    uint32_t first;
    void *tail;
};

/* Columns of x. */
static inline size_t device_short_conv_columns(const struct device_short_conv *op)
{
    assert(op->n_taps > 0 && op->n_taps <= DEVICE_SHORT_TAPS && !(op->gated && op->silu));
    return op->gated ? 3 * op->n : op->n;
}

/* From row to row of x; of y. */
static inline size_t device_short_conv_x_stride(const struct device_short_conv *op)
{
    assert(op->stride == 0 || (op->stride >= op->n && !op->gated));
    return op->stride > 0 ? op->stride : device_short_conv_columns(op);
}

static inline size_t device_short_conv_y_stride(const struct device_short_conv *op)
{
    return op->stride > 0 ? op->stride : op->n;
}

/* Columns of tail. */
static inline size_t device_short_conv_tail(const struct device_short_conv *op)
{
    return op->gated ? 2 * op->n : op->n;
}

#endif

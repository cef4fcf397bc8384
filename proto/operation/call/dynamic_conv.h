/* proto/operation/call/dynamic_conv.h - convolution along a row with a filter of each element's own: dynamic_conv,
 * dynamic_conv_backward. */
#ifndef PROTO_OPERATION_CALL_DYNAMIC_CONV_H
#define PROTO_OPERATION_CALL_DYNAMIC_CONV_H

#include "proto/operation/call/dropout.h"

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

enum { DEVICE_MOST_TAPS = 128 };

/* Dynamic convolution - Wu et al., arXiv:1901.10430, section 4:
 *
 *     y[t][c] = sum over k of dropout(softmax(scores[t][h]))[k] * x[t + k - n_before][c],    h = c / (n / n_heads)
 *
 * All columns of a head share a filter of n_taps taps. The softmax is over all taps, also those that reach beyond the
 * row, where x counts as 0; dropout is of the filter (DropConnect), element token*n_heads*n_taps + head*n_taps + tap of
 * a row. With lengths, elements from a row's length on count as 0, and so do their results and gradients. Forward, x of
 * a single row may begin n_earlier elements before those that have scores and results. */
struct device_dynamic_conv {
    size_t n_rows, n_tokens; /* rows, and elements of a row */
    size_t n, n_heads;       /* columns; n_heads divides n */
    size_t n_taps,
        n_before; /* at most DEVICE_MOST_TAPS; how many of them lie before the element itself: n_taps-1: causal */
    const uint32_t *lengths; /* (n_rows), on the device, at most n_tokens each; NULL: all are n_tokens */
    size_t n_earlier;        /* 0 backward, of several rows, or with lengths */
    const void *x;           /* (n_rows*(n_earlier + n_tokens), n) */
    const void *scores;      /* (n_rows*n_tokens, n_heads*n_taps) */
    void *y;                 /* shaped as x, forward */
    const void *y_gradient;  /* shaped as x, backward */
    void *x_gradient;        /* shaped as x, backward, overwritten */
    void *scores_gradient;   /* shaped as scores, backward, overwritten */
    float *filters;          /* scratch, shaped as scores */
    struct device_dropout dropout;
};

/* Columns of a head. */
static inline size_t device_dynamic_conv_width(const struct device_dynamic_conv *op)
{
    assert(op->n_heads > 0 && op->n % op->n_heads == 0);
    assert(op->n_earlier == 0 || (op->n_rows == 1 && !op->lengths && !op->y_gradient));
    assert(op->n_taps > 0 && op->n_taps <= DEVICE_MOST_TAPS && op->n_before < op->n_taps);
    return op->n / op->n_heads;
}

#endif

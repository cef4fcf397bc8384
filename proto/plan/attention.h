/* proto/plan/attention.h - how a CUDA device computes attention's gradient, and what scratch each way takes.
 *
 * Our own kernels take two numbers a query and head. cuDNN has three ways that give the same bits every time; which of them a
 * device can is a fact of its kind and of the library's version (cuda_probe), told before there is a plan. So all sizes are
 * arithmetic; tests/gpu/test_dnn.c holds them against what the library itself says. */
#ifndef PROTO_PLAN_ATTENTION_H
#define PROTO_PLAN_ATTENTION_H

#include "proto/plan/backend.h"

enum plan_attention {
    PLAN_ATTENTION_OWN,     /* our kernels */
    PLAN_ATTENTION_SCORES,  /* the gradient of scores is kept in bf16, of as many heads at a time as there is room for:
                             * 8.0 to 9.0, from 9.10.2 on */
    PLAN_ATTENTION_TWICE,   /* scores are computed twice, and nothing is kept: compute capability 10, from 9.18.1 on */
    PLAN_ATTENTION_ORDERED, /* queries' gradient is added up in fp32 in the order of keys: 9.0, from 9.25 on */
    PLAN_ATTENTIONS,
};

/* Of the gradients of scores that are kept: as many heads as these bytes hold, by which some 256 blocks are at work; and a
 * single head may take twice as much, with which rows of 16 Ki tokens fit. */
enum { PLAN_SCORES_BYTES = 256 << 20, PLAN_SCORES_MOST_BYTES = 512 << 20 };

struct plan_attention_scratch {
    enum plan_attention way;
    size_t slice_rows, slice_heads; /* that are computed at a time */
    uint64_t sum, workspace; /* offsets: queries' gradient in fp32, behind delta; and what the library asks for */
    uint64_t workspace_bytes;
    uint64_t bytes;
};

/* Shapes that cuDNN takes, forward and backward: heads of whole 16 bytes, up to 128 values; and rows whose statistics begin
 * at whole 16 bytes. A single token it has no gradient for. */
static inline bool plan_attention_suits(size_t n_rows, size_t n_tokens, size_t n_heads, size_t width)
{
    const size_t head = width / n_heads;

    return head % 8 == 0 && head <= 128 && n_tokens > 1 && (n_rows == 1 || n_heads * n_tokens % 4 == 0);
}

static inline uint64_t plan_attention_round(uint64_t n, uint64_t whole)
{
    return (n + whole - 1) / whole * whole;
}

/* Heads, then rows, in slices of equal length, of which the last may lie over the one before. False: none can be. Rows of
 * whole 128 tokens alone: others were read beyond their end before 9.15.1. */
static inline bool plan_attention_slice(struct plan_attention_scratch *out, size_t n_rows, size_t n_tokens,
                                        size_t n_heads)
{
    const uint64_t head = (uint64_t)n_tokens * n_tokens * 2, fit = PLAN_SCORES_BYTES / head;

    if (n_tokens % 128 != 0 || head > PLAN_SCORES_MOST_BYTES)
        return false;
    if (fit >= n_heads) {
        const uint64_t rows = fit / n_heads;
        out->slice_rows = rows < n_rows ? (size_t)rows : n_rows;
        return true;
    }
    const size_t n_slices = fit ? (n_heads + (size_t)fit - 1) / (size_t)fit : n_heads;
    out->slice_rows = 1;
    out->slice_heads = (n_heads + n_slices - 1) / n_slices;
    return true;
}

/* The scratch of a way, or of our own kernels where it does not do for this shape: out->way says which. */
static inline void plan_attention_lay_out(struct plan_attention_scratch *out, enum plan_attention way, size_t n_rows,
                                          size_t n_tokens, size_t n_heads, size_t width)
{
    const uint64_t own = plan_cuda_attention_scratch(n_rows, n_tokens, n_heads), heads = (uint64_t)n_rows * n_heads;
    const uint64_t delta = plan_attention_round(heads * n_tokens * sizeof(float), 256);

    out->way = way;
    out->slice_rows = n_rows, out->slice_heads = n_heads;
    out->sum = out->workspace = delta;
    out->workspace_bytes = 0;
    if (!plan_attention_suits(n_rows, n_tokens, n_heads, width) ||
        (way == PLAN_ATTENTION_SCORES && !plan_attention_slice(out, n_rows, n_tokens, n_heads)))
        out->way = PLAN_ATTENTION_OWN;
    switch (out->way) {
    case PLAN_ATTENTION_OWN:
    case PLAN_ATTENTIONS:
        out->bytes = own;
        return;
    case PLAN_ATTENTION_SCORES:
        out->workspace_bytes = 2 * (uint64_t)n_tokens * n_tokens * out->slice_rows * out->slice_heads + 256;
        break;
    case PLAN_ATTENTION_TWICE:
        out->workspace_bytes = 256;
        break;
    case PLAN_ATTENTION_ORDERED: /* whose turn it is, of each 32 queries */
        out->workspace += plan_attention_round((uint64_t)n_rows * n_tokens * width * sizeof(float), 256);
        out->workspace_bytes = 256 + plan_attention_round(heads * ((n_tokens + 31) / 32) * sizeof(float), 256);
        break;
    }
    out->bytes = out->workspace + plan_attention_round(out->workspace_bytes, 256);
    out->bytes = out->bytes < own ? own : out->bytes;
}

#endif

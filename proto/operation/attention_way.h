/* proto/operation/attention_way.h - how a CUDA device computes attention, and what scratch each way takes.
 *
 * Our own kernels need two numbers per query and head. cuDNN has three deterministic algorithms of the gradient.
 * Compute capability and library version decide which of them a device supports, and cuda_probe reports it before
 * planning. So all sizes are computed; tests/gpu/test_dnn.c compares them with the library's own. A job has one way,
 * which proto/plan/attention_choice.h chooses. Of the stored gradients of scores and our own kernels the faster is
 * taken, as measured on an H100 (tests/gpu/RECORD.md). */
#ifndef PROTO_OPERATION_ATTENTION_WAY_H
#define PROTO_OPERATION_ATTENTION_WAY_H

#include "proto/operation/backend.h"

#include <string.h>

enum plan_attention {
    PLAN_ATTENTION_OWN,     /* our kernels, of both passes */
    PLAN_ATTENTION_FORWARD, /* cuDNN forward, our kernels backward. The others are cuDNN's of both passes: */
    PLAN_ATTENTION_SCORES,  /* the gradient of scores is stored in bf16, for as many heads at a time as fit: compute
                             * capability 8.0 to 9.0, cuDNN from 9.10.2 on */
    PLAN_ATTENTION_TWICE,   /* scores are computed twice and not stored: compute capability 10, cuDNN from 9.18.1 on */
    PLAN_ATTENTION_ORDERED, /* queries' gradient is summed in fp32 in key order: 9.0, cuDNN from 9.25 on */
    PLAN_ATTENTIONS,
};

/* What a job asks for. The names are those of --attention, of training.json and of a profile. */
enum plan_attention_wish {
    PLAN_ATTENTION_MEASURED, /* the fastest that the profile has figures of; without these, our own kernels */
    PLAN_ATTENTION_CUDNN,    /* cuDNN's, as far as the device can */
    PLAN_ATTENTION_EXACTLY,  /* + enum plan_attention: this one */
    PLAN_ATTENTION_WISHES = PLAN_ATTENTION_EXACTLY + PLAN_ATTENTIONS
};

static inline enum plan_attention_wish plan_attention_exactly(enum plan_attention way)
{
    return (enum plan_attention_wish)(PLAN_ATTENTION_EXACTLY + (int)way);
}

/* A constant string. */
static inline const char *plan_attention_name(enum plan_attention way)
{
    static const char *const names[PLAN_ATTENTIONS] = {[PLAN_ATTENTION_OWN] = "own",
                                                       [PLAN_ATTENTION_FORWARD] = "forward",
                                                       [PLAN_ATTENTION_SCORES] = "scores",
                                                       [PLAN_ATTENTION_TWICE] = "twice",
                                                       [PLAN_ATTENTION_ORDERED] = "ordered"};

    return names[way];
}

/* False: there is none of this name, which may be NULL. */
static inline bool plan_attention_named(enum plan_attention *out, const char *name)
{
    for (int way = 0; name && way < PLAN_ATTENTIONS; way++)
        if (strcmp(name, plan_attention_name((enum plan_attention)way)) == 0) {
            *out = (enum plan_attention)way;
            return true;
        }
    return false;
}

/* True if a device whose best way is `best`, as it reports, can compute attention in this one. */
static inline bool plan_attention_can(enum plan_attention best, enum plan_attention way)
{
    return way == PLAN_ATTENTION_OWN || way == best || (way == PLAN_ATTENTION_FORWARD && best != PLAN_ATTENTION_OWN);
}

/* Limits on stored gradients of scores: for several heads, enough for some 256 blocks at a time; for a single head,
 * enough for rows of 16 Ki tokens. */
enum { PLAN_SCORES_BYTES = 256 << 20, PLAN_SCORES_MOST_BYTES = 512 << 20 };

struct plan_attention_scratch {
    enum plan_attention way;
    size_t slice_rows, slice_heads; /* computed at a time */
    uint64_t sum, workspace;        /* offsets: queries' gradient in fp32, after delta; the library's workspace */
    uint64_t workspace_bytes;
    uint64_t bytes;
};

/* True for shapes that cuDNN supports forward: heads of up to 256 values and a multiple of 16 bytes, rows whose
 * statistics are aligned to 16 bytes, more than one token. */
static inline bool plan_attention_suits(const struct plan_attention_sizes *s)
{
    const size_t head = s->width / s->n_heads;

    return head % 8 == 0 && head <= 256 && s->n_tokens > 1 && (s->n_rows == 1 || s->n_heads * s->n_tokens % 4 == 0);
}

/* Neighbouring query heads that share keys and values. */
static inline size_t plan_attention_sharing(const struct plan_attention_sizes *s)
{
    return s->n_kv_heads ? s->n_heads / s->n_kv_heads : 1;
}

static inline uint64_t plan_attention_round(uint64_t n, uint64_t whole)
{
    return (n + whole - 1) / whole * whole;
}

/* True where our own kernels are better than stored gradients of scores. They take less time for heads of 64 values,
 * and of 128 in rows of more than 4 Ki tokens. Where heads share keys, they take at most a fifth more, and none of the
 * room. Of a window they store nothing outside. */
static inline bool plan_attention_own_is_better(const struct plan_attention_sizes *s)
{
    const size_t head = s->width / s->n_heads;

    return head == 64 || (head == 128 && s->n_tokens > 4096) || plan_attention_sharing(s) > 1 || s->is_sliding;
}

/* Values of the widest head whose gradients the library computes in this way. */
static inline size_t plan_attention_widest(enum plan_attention way)
{
    return way == PLAN_ATTENTION_ORDERED ? 256 : 128;
}

/* Where heads share keys, cuDNN keeps the gradients of keys and values of each head apart, and then sums them: bytes of
 * a number, which on Blackwell is in fp32, else in bf16. */
static inline uint64_t plan_attention_apart(enum plan_attention way)
{
    return way == PLAN_ATTENTION_TWICE ? 4 : 2;
}

/* Sizes slices of rows or, if one row is too much, of its heads. All are equal; the last may overlap the one before.
 * False if no slice fits, or if a row is not a multiple of 128 tokens: before 9.15.1 cuDNN read beyond the end of such
 * rows. */
static inline bool plan_attention_slice(struct plan_attention_scratch *out, const struct plan_attention_sizes *s)
{
    const uint64_t head = (uint64_t)s->n_tokens * s->n_tokens * 2, fit = PLAN_SCORES_BYTES / head;

    if (s->n_tokens % 128 != 0 || head > PLAN_SCORES_MOST_BYTES)
        return false;
    if (fit >= s->n_heads) {
        const uint64_t rows = fit / s->n_heads;
        out->slice_rows = rows < s->n_rows ? (size_t)rows : s->n_rows;
        return true;
    }
    const size_t n_slices = fit ? (s->n_heads + (size_t)fit - 1) / (size_t)fit : s->n_heads;
    out->slice_rows = 1;
    out->slice_heads = (s->n_heads + n_slices - 1) / n_slices;
    return true;
}

/* Rows at a time of the other ways: all, but of shared keys as many as keep heads' gradients apart in 256 MiB, or
 * one. */
static inline size_t plan_attention_slice_rows(const struct plan_attention_sizes *s, enum plan_attention way)
{
    const uint64_t row = 2 * (uint64_t)s->n_tokens * s->width * plan_attention_apart(way);
    const uint64_t fit = row < PLAN_SCORES_BYTES ? PLAN_SCORES_BYTES / row : 1;

    return plan_attention_sharing(s) == 1 || fit >= s->n_rows ? s->n_rows : (size_t)fit;
}

/* The gradient's scratch in `way`, or of our own kernels if they compute it for this shape; out->way is the one used:
 * never PLAN_ATTENTION_FORWARD. */
static inline void plan_attention_lay_out(struct plan_attention_scratch *out, enum plan_attention way,
                                          const struct plan_attention_sizes *s)
{
    const uint64_t own = plan_cuda_attention_scratch(s->n_rows, s->n_tokens, s->n_heads);
    const uint64_t delta = plan_attention_round((uint64_t)s->n_rows * s->n_heads * s->n_tokens * sizeof(float), 256);

    out->way = way;
    out->slice_rows = s->n_rows, out->slice_heads = s->n_heads;
    out->sum = out->workspace = delta;
    out->workspace_bytes = 0;
    if (way == PLAN_ATTENTION_FORWARD || !plan_attention_suits(s) ||
        s->width / s->n_heads > plan_attention_widest(way) ||
        (way == PLAN_ATTENTION_SCORES && (plan_attention_own_is_better(s) || !plan_attention_slice(out, s))))
        out->way = PLAN_ATTENTION_OWN;
    if (out->way == PLAN_ATTENTION_TWICE || out->way == PLAN_ATTENTION_ORDERED)
        out->slice_rows = plan_attention_slice_rows(s, way);
    const uint64_t heads = (uint64_t)out->slice_rows * out->slice_heads,
                   numbers = heads * s->n_tokens * (s->width / s->n_heads);
    switch (out->way) {
    case PLAN_ATTENTION_OWN:
    case PLAN_ATTENTION_FORWARD:
    case PLAN_ATTENTIONS:
        out->bytes = own;
        return;
    case PLAN_ATTENTION_SCORES:
        out->workspace_bytes = 2 * (uint64_t)s->n_tokens * s->n_tokens * heads + 256;
        break;
    case PLAN_ATTENTION_TWICE:
        out->workspace_bytes = 256;
        break;
    case PLAN_ATTENTION_ORDERED: /* a turn counter for each 32 queries */
        out->workspace += plan_attention_round(numbers * sizeof(float), 256);
        out->workspace_bytes = 256 + plan_attention_round(heads * ((s->n_tokens + 31) / 32) * sizeof(float), 256);
        break;
    }
    if (plan_attention_sharing(s) > 1)
        out->workspace_bytes += plan_attention_round(2 * numbers * plan_attention_apart(way), 256);
    out->bytes = out->workspace + plan_attention_round(out->workspace_bytes, 256);
    out->bytes = out->bytes < own ? own : out->bytes;
}

#endif

/* device/cpu/kernels/attention_head.h - one head of one row: where its values lie, and its scratch; rows packed for
 * products. */
#ifndef DEVICE_CPU_KERNELS_ATTENTION_HEAD_H
#define DEVICE_CPU_KERNELS_ATTENTION_HEAD_H

#include "device/cpu/cpu.h"
#include "device/cpu/kernels/alibi.h"
#include "device/cpu/kernels/value.h"

#include <string.h>

enum { TILE = PLAN_CPU_TILE };

/* One head of one row. */
struct head {
    const struct device_attention *op;
    size_t row, index;
    size_t n_tokens, n_keys, width, padded; /* tokens and keys of the row; head width, and rounded up to 16 */
    size_t q_stride, kv_stride;             /* from token to token of queries, and of keys */
    size_t kv_width;                        /* columns of all heads of keys */
    size_t n_counted;                       /* keys that count, at most n_keys */
    bool is_local;                          /* `full`, with a window on both sides */
    size_t window;                          /* keys that a query sees at most, or on each side */
    const uint32_t *positions;              /* (n_tokens) each token's index in its document; NULL: there is one */
    const value *q, *k, *v;
    float to_log2;  /* score * to_log2 is the exponent of 2 */
    float cap;      /* bound of scores before they are scaled; 0: none */
    float slope;    /* ALiBi's, of scores before they are scaled; 0: none */
    float *scratch; /* this thread's */
    /* With a bias, else NULL: what is added to the score of a key so many places after the query, before it is scaled;
     * and the sum of the gradients of such scores. From -(n_tokens - 1) up. */
    float *bias, *bias_gradient;
};

static size_t round_up(size_t n, size_t to)
{
    return (n + to - 1) / to * to;
}

/* Query heads per key head. */
static size_t group_of(const struct device_attention *op)
{
    return op->n_heads / device_kv_heads(op->n_heads, op->n_kv_heads);
}

/* Floats of scratch per thread. */
static size_t thread_scratch(const struct device_attention *op)
{
    const size_t n_keys = device_attention_keys(op), width = op->width / op->n_heads;

    return plan_cpu_attention_scratch(op->n_tokens, n_keys, width, group_of(op) > 1) +
           plan_cpu_chosen(op->chosen ? op->n_chosen : 0, width) +
           (op->bias ? 2 * plan_cpu_distances(op->n_tokens, n_keys) : 0);
}

static struct head find_head(const struct device_attention *op, size_t item, unsigned thread)
{
    const size_t width = op->width / op->n_heads, row = item / op->n_heads, index = item % op->n_heads;
    const size_t kv_width = device_kv_width(op->n_heads, op->n_kv_heads, op->width);
    const size_t n_keys = device_attention_keys(op), kv_stride = (op->kv ? 0 : op->width) + 2 * kv_width;
    const size_t q_stride = op->kv ? op->width : kv_stride;
    const value *k = op->kv ? op->kv : (const value *)op->qkv + op->width; /* the first row's and head's */

    k += row * n_keys * kv_stride + index / group_of(op) * width;

    return (struct head){
        .op = op,
        .row = row,
        .index = index,
        .n_tokens = op->n_tokens,
        .n_keys = n_keys,
        .width = width,
        .padded = round_up(width, 16),
        .q_stride = q_stride,
        .kv_stride = kv_stride,
        .kv_width = kv_width,
        .n_counted = op->full && op->lengths ? op->lengths[row] : n_keys,
        .is_local = device_attention_is_local(op),
        .window = device_window(op->window, op->n_tokens),
        .positions = op->positions ? op->positions + row * op->n_tokens : NULL,
        .q = (const value *)op->qkv + row * op->n_tokens * q_stride + index * width,
        .k = k,
        .v = k + kv_width,
        .to_log2 = (float)((double)op->scale * 1.4426950408889634),
        .cap = op->cap / op->scale,
        .slope = op->alibi ? alibi_slope(op->n_heads, index) / op->scale : 0,
        .scratch = (float *)op->scratch + thread * thread_scratch(op),
    };
}

/* to (n, padded) = from (n, width) at a stride, zeros behind each row. Rows of qkv lie in different pages, and hardware
 * prefetchers stop at a page's end. */
static void pack(const struct head *head, float *to, const value *from, size_t stride, size_t n)
{
    enum { AHEAD = 8, LINE = 16 };

    for (size_t i = 0; i < n; i++, to += head->padded, from += stride)
        for (size_t j = 0; j < head->padded; j += LINE) {
            __builtin_prefetch(from + AHEAD * stride + j);
            for (size_t v = j; v < j + LINE; v += VECTOR)
                vec_store(to + v, v < head->width ? value_load_n(from + v, head->width - v) : (vec){0});
        }
}

/* Packs up to TILE rows; to (TILE, padded) has zeros below them. */
static void pack_tile(const struct head *head, float *to, const value *from, size_t stride, size_t n)
{
    pack(head, to, from, stride, n);
    memset(to + n * head->padded, 0, (TILE - n) * head->padded * sizeof *to);
}

static void unpack(const struct head *head, value *to, size_t stride, const float *from, size_t n)
{
    for (size_t i = 0; i < n; i++, to += stride, from += head->padded)
        for (size_t j = 0; j < head->width; j += VECTOR)
            value_store_n(to + j, vec_load(from + j), head->width - j);
}

#endif

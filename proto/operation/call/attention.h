/* proto/operation/call/attention.h - attention on the device: attention, attention_backward, attention_cached. */
#ifndef PROTO_OPERATION_CALL_ATTENTION_H
#define PROTO_OPERATION_CALL_ATTENTION_H

#include "proto/operation/call/dropout.h"

#include <assert.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { DEVICE_BUCKETS = 64 };

/* Buckets of distances between a query and a key: T5's relative positions - Raffel et al., arXiv:1910.10683, section
 * 2.1. The buckets of one direction are runs of distances, from 0 up. */
struct device_buckets {
    uint32_t n; /* of both directions together, at most DEVICE_BUCKETS */
    bool both;  /* keys after the query have the upper half of the buckets; else they are at distance 0 */
    uint32_t starts[DEVICE_BUCKETS]; /* (n, or n/2 with both) the least distance of each, ascending from 0 */
};

/* Attention over n_rows sequences of n_tokens, heads side by side. Queries, keys and values are columns of one buffer
 * qkv: first `width` columns of queries, head h at h*width/n_heads; then keys, then values, n_kv_heads heads of the
 * same width each. With `kv`, cross attention: qkv holds queries alone, and each query sees all n_keys keys of its row
 * in kv. Every n_heads/n_kv_heads neighbouring query heads share a head of keys and values. Ainslie et al.,
 * arXiv:2305.13245. Scores are scaled by `scale`, and with `cap` become cap * tanh(score / cap); with `bias`, a number
 * by head and by the distance from query to key is added; with `alibi` a head's slope times that distance is taken off.
 * With `sinks` each query's softmax has the exponential of its head's sink in its denominator, beside those of scores,
 * and in the log-sum-exp: probabilities add up to less than 1. Agarwal et al. (gpt-oss), arXiv:2508.10925.
 * Tiled: no score matrix is stored. Flash attention - Dao et al., arXiv:2205.14135. Backward uses forward's
 * log-sum-exp, and sums gradients of shared keys and values head by head.
 *
 * With positions, tiles of queries and keys that share no document are left out, so a row costs about what its
 * documents cost. Tiles begin at fixed places of the row, and keys of other documents add nothing: a document's results
 * at its place in a row are the same bits whatever its neighbours there.
 *
 * With chosen queries (call/sample.h), backward estimates the gradients of keys and values: of each head's sums over
 * its queries it adds up those terms alone, times their weights. Gradients of queries, bias and sinks stay exact. */
struct device_attention {
    size_t n_rows, n_tokens, n_heads, width;
    size_t n_kv_heads; /* divides n_heads; 0: n_heads */
    bool full;         /* a query sees all keys; else those up to its own */
    /* A query sees the last `window` of these, its own included; with `full`, so many to each side: |query - key| <
     * window, and those beyond the row's length at least its last key. 0: all. Not with kv */
    size_t window;
    const uint32_t *lengths; /* (n_rows), on the device, if full: keys of each row, at least 1; NULL: all */
    /* (n_rows*n_tokens), on the device: each token's index in its document, where the documents of a row follow each
     * other; a query sees keys of its own document alone. NULL: a row is one document. Not with kv or lengths */
    const uint32_t *positions;
    float scale;       /* > 0 */
    float cap;         /* bound of scaled scores; 0: none. Not with bias */
    bool alibi;        /* Press et al., arXiv:2108.12409. Not with bias, cap, full or kv */
    const void *qkv;   /* (n_rows*n_tokens, width + 2*kv_width); with kv (n_rows*n_tokens, width) */
    const void *kv;    /* (n_rows*n_keys, 2*kv_width): keys, then values. NULL: self-attention. Needs `full` */
    size_t n_keys;     /* keys of each row, at least 1, with kv; n_tokens without */
    const float *bias; /* (buckets.n, n_heads): added to scores. NULL: none. Not with kv or shared keys */
    struct device_buckets buckets;
    const void *sinks;        /* (n_heads): neither scaled nor capped. NULL: none. Not with kv or bias */
    void *out;                /* (n_rows*n_tokens, width): written forward, read backward */
    float *log_sum_exp;       /* (n_rows, n_heads, n_tokens): written forward, read backward */
    const void *out_gradient; /* (n_rows*n_tokens, width), backward */
    void *qkv_gradient;       /* shaped as qkv, backward, overwritten */
    void *kv_gradient;        /* shaped as kv, backward, overwritten */
    float *bias_gradient;     /* shaped as bias, backward, added to; NULL: it is not wanted */
    float *sinks_gradient;    /* (n_heads), backward, added to; NULL: it is not wanted */
    size_t n_chosen;          /* queries chosen of each row and head; 0: all */
    /* (n_rows, n_heads, n_chosen), backward: the indices of their numbers in log_sum_exp, ascending; a query may be
     * there several times. NULL if n_chosen is 0 */
    const uint32_t *chosen;
    const float *weights; /* shaped as chosen */
    void *scratch; /* scratch_bytes() of proto/operation/backend.h; or, backward, of proto/operation/attention_way.h */
    struct device_dropout dropout; /* drops probabilities: element (head*n_tokens + query)*n_keys + key of a row */
};

/* Attention of n_tokens queries at positions first .. first+n_tokens-1 of one sequence. First appends their own keys
 * and values to the cache. Each query sees the keys of all positions up to its own, or the last `window` of them. The
 * cache holds all positions even so. A bias counts the distance from a query to a key in positions. No dropout. */
struct device_attention_cached {
    size_t first, n_tokens, n_heads, width;
    size_t n_kv_heads;  /* as in struct device_attention */
    size_t window;      /* as in struct device_attention */
    size_t n_positions; /* capacity of the cache, at least first + n_tokens */
    float scale;        /* > 0 */
    float cap;          /* as in struct device_attention */
    bool alibi;         /* as in struct device_attention */
    const void *qkv;    /* (n_tokens, width + 2*kv_width), as in struct device_attention */
    const float *bias;  /* (buckets.n, n_heads): added to scores. NULL: none. Not with shared keys */
    struct device_buckets buckets;
    const void *sinks; /* as in struct device_attention */
    void *out;         /* (n_tokens, width) */
    void *cache;   /* cache_bytes() (proto/operation/backend.h), in the backend's layout; undefined from `first` on */
    void *scratch; /* scratch_bytes() of n_tokens tokens in 1 row */
};

/* For struct device_attention; neither width nor heads may be 0. */
static inline size_t device_kv_heads(size_t n_heads, size_t n_kv_heads)
{
    return n_kv_heads ? n_kv_heads : n_heads;
}

/* Buckets of one direction. */
static inline uint32_t device_buckets_of_direction(const struct device_buckets *buckets)
{
    return buckets->both ? buckets->n / 2 : buckets->n;
}

/* The bucket of a key so many places after the query. */
static inline uint32_t device_bucket(const struct device_buckets *buckets, ptrdiff_t ahead)
{
    const bool upper = buckets->both && ahead > 0;
    const size_t distance = ahead <= 0 ? (size_t)-ahead : upper ? (size_t)ahead : 0;
    uint32_t bucket = device_buckets_of_direction(buckets) - 1;

    while (buckets->starts[bucket] > distance)
        bucket--;
    return bucket + (upper ? buckets->n / 2 : 0);
}

/* The heads with ALiBi's slopes of that many heads, a power of 2; the others have every second one of twice as many. */
static inline uint32_t device_alibi_whole(size_t n_heads)
{
    uint32_t n = 1;

    while (2 * n <= n_heads)
        n *= 2;
    return n;
}

/* Columns of keys, or of values. */
static inline size_t device_kv_width(size_t n_heads, size_t n_kv_heads, size_t width)
{
    return width / n_heads * device_kv_heads(n_heads, n_kv_heads);
}

/* Keys of each row, also those that its length excludes. */
static inline size_t device_attention_keys(const struct device_attention *op)
{
    assert(!op->kv || (op->full && op->n_keys > 0 && op->window == 0));
    assert(!op->bias || op->cap == 0);
    assert(!op->alibi || (!op->bias && op->cap == 0 && !op->full));
    assert(!op->positions || (!op->kv && !op->lengths));
    assert(!op->sinks || (!op->kv && !op->bias));
    assert(!op->bias || (!op->kv && device_kv_heads(op->n_heads, op->n_kv_heads) == op->n_heads));
    return op->kv ? op->n_keys : op->n_tokens;
}

/* The most keys that a query of n tokens sees, if it does not see all. */
static inline size_t device_window(size_t window, size_t n)
{
    return window > 0 && window < n ? window : n;
}

/* The first key that the query at a position sees, of those up to its own. */
static inline size_t device_first_key(size_t window, size_t position)
{
    return position + 1 - device_window(window, position + 1);
}

/* True if queries of a full row see a part of it on both sides. */
static inline bool device_attention_is_local(const struct device_attention *op)
{
    return op->full && device_window(op->window, op->n_tokens) < op->n_tokens;
}

/* True for calls of the same shape, of any rows, and the same mask. */
static inline bool device_attention_alike(const struct device_attention *a, const struct device_attention *b)
{
    return a->n_tokens == b->n_tokens && a->n_heads == b->n_heads && a->width == b->width &&
           device_kv_heads(a->n_heads, a->n_kv_heads) == device_kv_heads(b->n_heads, b->n_kv_heads) &&
           a->full == b->full && device_window(a->window, a->n_tokens) == device_window(b->window, b->n_tokens) &&
           !a->lengths == !b->lengths && !a->positions == !b->positions && !a->kv == !b->kv && !a->bias == !b->bias &&
           !a->sinks == !b->sinks && a->cap == b->cap && a->alibi == b->alibi && a->dropout.p == b->dropout.p;
}

#endif

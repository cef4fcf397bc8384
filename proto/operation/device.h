/* proto/operation/device.h - the operations of a device, over which layers are written.
 *
 * One const table per backend; every member is required (device_check). Layer code is plain C over this table, so it is
 * written once. All tensors are row-major views: a pointer and a row stride in elements. No operation allocates,
 * synchronises or reads back to the host. The caller provides scratch, sized by the backend's table in
 * proto/operation/backend.h.
 *
 * Calls queue work and return. There are three queues, each of which runs in call order: copies to the device, copies
 * to the host, and computation. Only follow() orders one queue after another; only finish() and sync() make the host
 * wait. On the CPU the work is done when the call returns.
 *
 * Values are weights, activations and gradients of activations: every `void *` here. They have the number type that the
 * device was opened with. Sums over a step or a row (contributions, statistics, log-sum-exp, logits) are always fp32,
 * and so is arithmetic inside operations. Results are rounded once, to nearest, ties to even (proto/base/number.h).
 *
 * Determinism: the result of every operation depends on its arguments alone, never on the number of threads. The
 * division of rows into calls changes no bit of an operation on single rows, nor of matmul: the order in which an
 * element is summed depends on k alone. Sums over rows (reduce_rows, norm_backward's weight gradients, matmul over_rows
 * or with beta 1) depend on the rows of a call; each call adds to the destination once.
 *
 * Dropout: element e of row r of the minibatch is kept if its Philox word (proto/base/random.h) >= random_threshold(p),
 * then scaled by 1/(1-p). p = 0 draws nothing. */
#ifndef PROTO_OPERATION_DEVICE_H
#define PROTO_OPERATION_DEVICE_H

#include "proto/base/error.h"
#include "proto/base/number.h"
#include "proto/base/random.h"
#include "proto/operation/program.h"
#include "proto/operation/attention.h"
#include "proto/operation/products.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct device; /* the backend's own */

enum device_queue {
    DEVICE_COMPUTE,
    DEVICE_PULL, /* upload */
    DEVICE_PUSH, /* download */
    DEVICE_QUEUES
};

/* Properties of a device that a worker knows before there is a job. */
struct device_facts {
    uint64_t available_bytes;      /* device memory that this process may use now, including library_bytes */
    uint64_t library_bytes;        /* of these, used by the backend outside any arena: plan_setting.library_bytes */
    char model[64];                /* "NVIDIA H200"; "" for the CPU */
    enum plan_attention attention; /* its backward method: plan_setting.attention */
};

enum { DEVICE_TOLD = 256 }; /* bytes of a log line */

struct device_dropout {
    float p;
    struct random_key key;
    uint64_t first_row; /* minibatch row of the call's row 0 */
};

enum device_epilogue {
    DEVICE_NO_EPILOGUE,
    DEVICE_BIAS,                /* c = ab + bias */
    DEVICE_BIAS_ACTIVATION,     /* pre = ab + bias; c = act(pre), read back as stored */
    DEVICE_ACTIVATION_GRADIENT, /* c = ab * act'(pre) */
};

/* c (m, n) = op(a) op(b) + beta * c, then the epilogue. op(a) is (m, k): a itself, or a (k, m) transposed. */
struct device_matmul {
    bool transpose_a, transpose_b;
    size_t m, n, k;
    const void *a, *b;
    size_t a_stride, b_stride, c_stride;
    void *c;
    bool wide;      /* c is fp32 whatever the values are: logits, contributions; without epilogue */
    float beta;     /* 0 or 1 */
    bool over_rows; /* k counts rows: with beta 0 too, parts of k may be summed apart, in a fixed order */
    enum device_epilogue epilogue; /* with beta 0 only */
    enum model_activation activation;
    const void *bias; /* (n) */
    void *pre;        /* (m, n), stride c_stride: written by BIAS_ACTIVATION, read by ACTIVATION_GRADIENT */
};

/* Attention over n_rows sequences of n_tokens, heads side by side. Queries, keys and values are columns of one
 * buffer qkv: first `width` columns of queries, head h at h*width/n_heads; then keys, then values, n_kv_heads heads
 * of the same width each. Every n_heads/n_kv_heads neighbouring query heads share a head of keys and values. Ainslie
 * et al., arXiv:2305.13245. Scores are scaled by `scale`. Tiled: no score matrix is stored. Flash attention - Dao et
 * al., arXiv:2205.14135. Backward uses forward's log-sum-exp, and sums gradients of shared keys and values head by
 * head. */
struct device_attention {
    size_t n_rows, n_tokens, n_heads, width;
    size_t n_kv_heads;        /* divides n_heads; 0: n_heads */
    bool full;                /* a query sees all keys; else those up to its own */
    size_t window;            /* the last so many of these, its own included; 0: all. Not with `full` */
    const uint32_t *lengths;  /* (n_rows), on the device, if full: keys of each row, at least 1; NULL: n_tokens */
    float scale;              /* > 0 */
    const void *qkv;          /* (n_rows*n_tokens, width + 2*kv_width) */
    void *out;                /* (n_rows*n_tokens, width): written forward, read backward */
    float *log_sum_exp;       /* (n_rows, n_heads, n_tokens): written forward, read backward */
    const void *out_gradient; /* (n_rows*n_tokens, width), backward */
    void *qkv_gradient;       /* as qkv, backward, overwritten */
    void *scratch; /* scratch_bytes() of proto/operation/backend.h; or, backward, of proto/operation/attention.h */
    struct device_dropout dropout; /* of probabilities; element (head*n_tokens + query)*n_tokens + key of the row */
};

/* Attention of n_tokens queries at positions first .. first+n_tokens-1 of one sequence. First appends their own keys
 * and values to the cache. Each query sees the keys of all positions up to its own, or the last `window` of them. The
 * cache holds all positions even so. No dropout. */
struct device_attention_cached {
    size_t first, n_tokens, n_heads, width;
    size_t n_kv_heads;  /* as in struct device_attention */
    size_t window;      /* as in struct device_attention */
    size_t n_positions; /* capacity of the cache, at least first + n_tokens */
    float scale;        /* > 0 */
    const void *qkv;    /* (n_tokens, width + 2*kv_width), as in struct device_attention */
    void *out;          /* (n_tokens, width) */
    void
        *cache; /* cache_bytes() of proto/operation/backend.h, in the backend's own layout; undefined from `first` on */
    void *scratch; /* scratch_bytes() of n_tokens tokens in 1 row */
};

enum device_norm_kind {
    DEVICE_LAYER_NORM, /* (x - mean) / sqrt(variance + epsilon) * weight + bias. Ba, Kiros & Hinton, arXiv:1607.06450 */
    DEVICE_RMS_NORM,   /* x / sqrt(mean square + epsilon) * weight + bias. Zhang & Sennrich, arXiv:1910.07467 */
};

/* Normalisation of rows of n values; or of m rows of n_heads times n values, each head by itself with the same weight and
 * bias. All arrays of values have these rows, `stride` elements apart. */
struct device_norm {
    enum device_norm_kind kind;
    size_t m, n;
    size_t n_heads;         /* 0: 1 */
    size_t stride;          /* 0: n_heads * n */
    float epsilon;          /* forward */
    bool offset;            /* heads are multiplied by 1 + weight, not by weight: Gemma */
    const void *x;          /* (m, n_heads * n), read by both directions */
    const void *weight;     /* (n), read by both */
    const void *bias;       /* (n), forward; NULL: none */
    void *y;                /* as x, written forward */
    float *statistics;      /* (m * n_heads, 2), mean (RMS_NORM: 0) and 1/sqrt(...): written forward, read backward */
    const void *y_gradient; /* as x, backward */
    void *x_gradient;       /* as x, written backward, or added to; may be y_gradient if not accumulating */
    bool accumulate;        /* x_gradient += */
    float *weight_gradient; /* (n), backward, +=; NULL: not computed */
    float *bias_gradient;   /* (n), backward, +=; NULL: not computed, or no bias */
};

/* Rotary positions. A head's first n_rotated columns are n_rotated/2 pairs (j, j + n_rotated/2), each rotated in its
 * plane, for the token at position p by the angle p * frequencies[j]. Su et al., arXiv:2104.09864, with separate halves
 * as in Hugging Face's models. A rotation's gradient is the inverse rotation. */
struct device_rope {
    size_t n_rows, n_tokens, n_heads, head_width;
    size_t n_rotated;          /* even, at most head_width and DEVICE_MAX_ROTATED; columns beyond stay as they are */
    const double *frequencies; /* (n_rotated/2) of the host's, at least 0, in radians a position; borrowed until done */
    uint64_t first;            /* position of each row's first token */
    void *x;       /* (n_rows*n_tokens, n_heads*head_width), in place: queries, keys, both side by side, or gradients */
    size_t stride; /* elements from a token's first head to the next token's */
    bool inverse;
};

enum { DEVICE_MAX_ROTATED = 256 };

/* y = act(gate) * up. Shazeer, arXiv:2002.05202. */
struct device_glu {
    size_t m, n;
    enum model_activation activation;
    const void *gate, *up;  /* (m, n) each, read by both directions; may be columns of one array */
    size_t stride;          /* of both */
    void *y;                /* (m, n), forward */
    const void *y_gradient; /* (m, n), backward */
    void *gate_gradient;    /* (m, n), backward; may be gate, */
    void *up_gradient;      /* and this up */
    size_t gradient_stride; /* of both */
};

/* y = x + dropout(h), or dropout(h) without x. Element of a row: token*n + column. Dropout's backward is the same
 * operation without x, applied to the gradient of y. Without x and dropout it copies columns. */
struct device_dropout_add {
    size_t n_rows, n_tokens, n;
    size_t stride; /* elements from a token to the next; 0: n */
    const void *x; /* (n_rows*n_tokens, n), or NULL */
    const void *h; /* the same shape */
    void *y;       /* the same shape; may be x or h */
    struct device_dropout dropout;
};

/* Looks up rows of a table that holds ids first .. first+n_table-1. A row of y whose id is outside stays unchanged. */
struct device_embed {
    size_t m, n;
    uint32_t first, n_table;
    const uint32_t *ids; /* (m) */
    const void *table;   /* (n_table, n), forward; may be host memory, lent or not, and is then borrowed until done */
    void *y;             /* (m, n), forward: row i = table row ids[i]-first, */
    bool accumulate;     /* or += */
    float scale;         /* of a row looked up, and of its gradient; 0: 1 */
    const void *y_gradient; /* (m, n), backward */
    float *table_gradient;  /* (n_table, n), backward: row ids[i]-first += y_gradient row i * scale, in order of i */
};

/* y row r*n_tokens+t += table row t. */
struct device_position {
    size_t n_rows, n_tokens, n;
    const void *table;      /* (n_tokens, n), forward; in any memory that struct device_embed allows */
    void *y;                /* (n_rows*n_tokens, n), forward, += */
    const void *y_gradient; /* the same shape, backward */
    float *table_gradient;  /* (n_tokens, n), backward: row t += the sum over rows r, in order */
};

/* Softmax and cross entropy over a vocabulary that comes in chunks: this chunk has the logits of labels
 * first .. first+n-1. A logit that is NaN or +infinity makes the loss a NaN. Elements from n up to the stride are
 * padding: of any content, and ignored. */
struct device_cross_entropy {
    size_t m, n, logits_stride;
    uint32_t first;
    bool start;             /* log_sum_exp: this is the rows' first chunk */
    float *logits;          /* (m, n), read by log_sum_exp; cross_entropy_gradient overwrites them by their gradient */
    const float *bias;      /* (n): added to the logits of each row as they are read; not with a cap. NULL: none */
    const uint32_t *labels; /* (m); rows whose label is UINT32_MAX count for nothing */
    float *running;         /* (m, 3): maximum, sum of exp(logit - maximum), the label's logit; log_sum_exp writes it */
    float scale;            /* cross_entropy_gradient */
    float cap;              /* cross_entropy_gradient: logits are capped (soft_cap); 0: they are not */
};

/* Squares of a predicted number's distance from its label. Elements from 1 up to the stride are padding: of any content,
 * and ignored. */
struct device_squared_error {
    size_t m, logits_stride;
    float *logits;          /* (m, 1), read; squared_error_gradient overwrites them by their gradient */
    const float *bias;      /* (1): added to each as it is read. NULL: none */
    const uint32_t *labels; /* (m), the bits of floats; rows whose label is UINT32_MAX count for nothing */
    double *losses;         /* (m), written by squared_error: 0 without a label */
    float scale;            /* squared_error_gradient */
};

struct device_zero {
    void *x;
    size_t bytes;
};

/* to (n) = from (n), rounded to bf16. `to` begins at least rounding_bytes (proto/operation/backend.h) before `from`, and may
 * overlap it; or it lies apart. */
struct device_round_bf16 {
    uint16_t *to;
    const float *from;
    size_t n;
};

/* y = act(x), with the same bits as matmul's epilogue; and its gradient. */
struct device_activate {
    size_t n;
    enum model_activation activation;
    const void *x;  /* (n), read by both directions */
    void *y;        /* (n), forward */
    void *gradient; /* (n), backward: of y, on return of x */
};

/* sum (n) += x (n). */
struct device_add {
    float *sum;
    const float *x;
    size_t n;
};

/* sum (n) += sum over the m rows of x (m, n), `stride` elements apart. */
struct device_reduce_rows {
    float *sum;
    const void *x;
    size_t m, n, stride;
};

/* x (n) = cap * tanh(x / cap). */
struct device_soft_cap {
    float *x;
    size_t n;
    float cap; /* > 0 */
};

/* The loss of each row: -log p of the label, from log_sum_exp's sums; 0 without a label. */
struct device_loss {
    size_t m;
    double *losses;         /* (m) */
    const float *running;   /* (m, 3) */
    const uint32_t *labels; /* (m) */
};

struct device_ops {
    const char *name; /* "cpu", "cuda": as given to --device and shown in logs */

    /* Reads the properties of device `index`, and loads everything that open() needs. -ENODEV with a sentence: the
     * device is missing, too old or not permitted, or its driver is; -ENOMEM. */
    int (*probe)(unsigned index, struct device_facts *facts, struct error *err);

    /* Claims device `index` for values of one type, and an arena of exactly arena_bytes (> 0), zeroed; n_threads (> 0)
     * for the CPU. *out is owned: close it. -ENODEV, -ENOMEM. */
    int (*open)(struct device **out, unsigned index, enum number_type type, size_t arena_bytes, unsigned n_threads,
                struct error *err);
    void (*close)(struct device *dev);
    /* From now on each operation, and on the CPU each piece of a long one, increments *done by __atomic_fetch_add, so
     * that another thread can watch progress. Borrowed until close. */
    void (*count)(struct device *dev, uint64_t *done);
    /* The arena's first byte; 64-byte aligned. */
    void *(*arena)(struct device *dev);

    /* Page-locks host memory, so that the device reads it directly, and writes it if `writable`; until close or unlend.
     * Copies work without it, more slowly. -errno with a sentence that names the limit; the memory is then
     * unchanged. */
    int (*lend)(struct device *dev, const void *host, size_t bytes, bool writable, struct error *err);
    /* Undoes lend; nothing queued may use the memory any more. */
    void (*unlend)(struct device *dev, const void *host);

    /* Copies between host and device memory, on DEVICE_PULL and on DEVICE_PUSH. Both ends are borrowed until done. */
    void (*upload)(struct device *dev, void *dst, const void *host, size_t bytes);
    void (*download)(struct device *dev, void *host, const void *src, size_t bytes);

    /* Returns a mark (> 0, ascending) that is reached when everything queued on `queue` so far is done. */
    uint64_t (*mark)(struct device *dev, enum device_queue queue);
    /* Later work on `queue` waits until this mark of `other` is reached; 0: does not wait. */
    void (*follow)(struct device *dev, enum device_queue queue, enum device_queue other, uint64_t mark);
    /* The host waits for the mark; 0: returns at once. Faults surface here and in sync: -EIO, after which only close is
     * allowed. */
    int (*finish)(struct device *dev, enum device_queue queue, uint64_t mark);
    /* Waits for everything queued. */
    int (*sync)(struct device *dev);
    /* Explains the -EIO of finish or sync; returns -EIO. */
    int (*fault)(struct device *dev, struct error *err);

    void (*zero)(struct device *dev, const struct device_zero *op);
    void (*round_bf16)(struct device *dev, const struct device_round_bf16 *op);
    void (*matmul)(struct device *dev, const struct device_matmul *op);
    /* Lists the algorithms for a product whose results do not depend on the order of execution. */
    void (*propose)(struct device *dev, const struct device_matmul *op, struct products_candidates *out);
    /* From now on products of these classes use these algorithms where they apply; all others use the library's first
     * choice. -ENOTSUP with a sentence for the log: some or all are unknown here, and ignored. */
    int (*choose)(struct device *dev, const struct products *products, struct error *err);

    void (*activate)(struct device *dev, const struct device_activate *op);
    void (*activate_backward)(struct device *dev, const struct device_activate *op);
    void (*add)(struct device *dev, const struct device_add *op);
    void (*reduce_rows)(struct device *dev, const struct device_reduce_rows *op);

    void (*norm)(struct device *dev, const struct device_norm *op);
    void (*norm_backward)(struct device *dev, const struct device_norm *op);
    void (*rope)(struct device *dev, const struct device_rope *op);
    void (*glu)(struct device *dev, const struct device_glu *op);
    void (*glu_backward)(struct device *dev, const struct device_glu *op);

    /* Before the first step: chooses, compiles and loads the implementation of attention for op's shape (its rows or
     * fewer) and dropout, so that no step has to; forward only if qkv_gradient is NULL. way: the backward method that
     * its scratch was planned for. Waits; overwrites the arrays of op. *told: a log line that names the implementation
     * and the reason; empty if there is only one. Attention that was not prepared, has another shape, or has arrays not
     * aligned to 16 bytes uses the backend's own kernels. */
    void (*prepare_attention)(struct device *dev, const struct device_attention *op, enum plan_attention way,
                              char told[DEVICE_TOLD]);
    void (*attention)(struct device *dev, const struct device_attention *op);
    void (*attention_backward)(struct device *dev, const struct device_attention *op);
    void (*attention_cached)(struct device *dev, const struct device_attention_cached *op);

    void (*dropout_add)(struct device *dev, const struct device_dropout_add *op);

    void (*embed)(struct device *dev, const struct device_embed *op);
    void (*embed_backward)(struct device *dev, const struct device_embed *op);
    void (*position)(struct device *dev, const struct device_position *op);
    void (*position_backward)(struct device *dev, const struct device_position *op);

    void (*soft_cap)(struct device *dev, const struct device_soft_cap *op);
    /* Adds the chunk to `running`, which holds the chunks before it. */
    void (*log_sum_exp)(struct device *dev, const struct device_cross_entropy *op);
    void (*loss)(struct device *dev, const struct device_loss *op);
    /* Overwrites the logits by their gradient, (softmax - one-hot) * scale, 0 in rows without a label; of capped logits
     * by the gradient of those that were capped, which is that times 1 - (logit / cap)^2. The gradient has
     * the values' type: its row i begins where row i of the logits did, so its stride in elements is that of the logits
     * times device_wide(type). Elements from n up to the stride become 0. */
    void (*cross_entropy_gradient)(struct device *dev, const struct device_cross_entropy *op);

    void (*squared_error)(struct device *dev, const struct device_squared_error *op);
    /* Overwrites the logits by their gradient, 2 * (logit + bias - label) * scale, 0 in rows without a label; in type and
     * place as cross_entropy_gradient. Elements from 1 up to the stride become 0. */
    void (*squared_error_gradient)(struct device *dev, const struct device_squared_error *op);
};

static inline void device_count(uint64_t *done)
{
    __atomic_fetch_add(done, 1, __ATOMIC_RELAXED);
}

/* For struct device_attention; neither width nor heads may be 0. */
static inline size_t device_kv_heads(size_t n_heads, size_t n_kv_heads)
{
    return n_kv_heads ? n_kv_heads : n_heads;
}

/* Columns of keys, or of values. */
static inline size_t device_kv_width(size_t n_heads, size_t n_kv_heads, size_t width)
{
    return width / n_heads * device_kv_heads(n_heads, n_kv_heads);
}

/* Heads of a row, and elements from a row to the next. */
static inline size_t device_norm_heads(const struct device_norm *op)
{
    return op->n_heads > 0 ? op->n_heads : 1;
}

static inline size_t device_norm_stride(const struct device_norm *op)
{
    return op->stride > 0 ? op->stride : device_norm_heads(op) * op->n;
}

static inline size_t device_dropout_stride(const struct device_dropout_add *op)
{
    return op->stride > 0 ? op->stride : op->n;
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

/* Element n of values. */
static inline void *device_element(enum number_type type, const void *values, size_t n)
{
    return (char *)values + n * number_bytes(type);
}

static inline float device_embed_scale(const struct device_embed *op)
{
    return op->scale != 0 ? op->scale : 1;
}

/* Values in the space of one fp32 number. */
static inline size_t device_wide(enum number_type type)
{
    return sizeof(float) / number_bytes(type);
}

/* Asserts that no member of the table is NULL. */
void device_check(const struct device_ops *ops);

#endif

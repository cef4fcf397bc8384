/* proto/operation/attention_path.h - which implementation computes attention: one decision, for the kernels' launches
 * and for what they are priced at (proto/plan/time/meter.h).
 *
 * Forward is one kernel. Our gradients are two, for queries, and for keys and values, each with a path of its own; what
 * both need, scores and the gradient of probabilities, both compute. So they are 3 and 4 of 7 products of 2 n^2 width
 * operations, where cuDNN's are 5. Rates count 5 of any path (proto/plan/time/profile.h). */
#ifndef PROTO_OPERATION_ATTENTION_PATH_H
#define PROTO_OPERATION_ATTENTION_PATH_H

#include "proto/base/number.h"
#include "proto/operation/attention_way.h"
#include "proto/operation/call/attention.h"

enum attention_path {
    ATTENTION_PLAIN,   /* without tensor cores; the only path of the CPU, and of fp32 */
    ATTENTION_TENSOR,  /* our kernels on tensor cores */
    ATTENTION_DRAWING, /* these, drawing random numbers for dropout, which takes longer than their products */
    ATTENTION_LIBRARY, /* cuDNN */
    ATTENTION_PATHS
};

/* What the rate of a path depends on. A window or full rows count as the causal row with as many keys for a query: on
 * an H100 our kernels reached 271 and 198 TFLOP/s forward and backward in windows that are worth a row of 1,792 tokens,
 * and 264 and 203 in rows of 2,048 (tests/gpu/RECORD.md). */
struct attention_shape {
    double tokens;  /* of that causal row: twice the keys that a query sees, on average */
    size_t head;    /* values */
    bool is_shared; /* query heads share keys */
};

/* Our kernels. */
enum attention_kernel { ATTENTION_FORWARD, ATTENTION_QUERIES, ATTENTION_KEYS };

/* True if a causal query sees a part of the tokens up to its own. */
static inline bool attention_slides(const struct device_attention *op)
{
    return !op->full && (op->positions || device_window(op->window, op->n_tokens) < op->n_tokens);
}

/* Tensor cores take a bias whose last bucket begins at most so many places away, as T5's do. */
enum { ATTENTION_NEAR = 128 };

static inline bool attention_bias_is_near(const struct device_buckets *buckets)
{
    return buckets->starts[device_buckets_of_direction(buckets) - 1] <= ATTENTION_NEAR;
}

/* Columns that tensor cores compute of a head, of which those beyond its width are 0. On an H100 heads of 96 values
 * reached 0.75 of the rate of 128 by our kernels, heads of 80 two thirds of it by cuDNN (tests/gpu/RECORD.md). */
static inline size_t attention_columns(size_t head)
{
    return head <= 64 ? 64 : head <= 128 ? 128 : 256;
}

/* Columns of the tiles for tensor cores, of which those beyond the head's width are 0; 0 where these have no part. They
 * take heads of 32 to 256 values, causal or of one document a row, with keys of any array. Some combinations are not
 * compiled: in fp16 all but the simple ones, as with these nvcc would take half as long again; with dropout and a
 * window or documents, wide heads, for which there are too few registers; gradients of keys that heads share in full
 * rows; a bias with what no model has it with; a cap; ALiBi; a window on both sides. */
static inline size_t attention_tile(enum number_type type, const struct device_attention *op,
                                    enum attention_kernel kernel)
{
    const size_t head = op->width / op->n_heads;
    const bool drops = op->dropout.p > 0, slides = attention_slides(op), is_wide = head > 128;
    const bool is_shared = device_kv_heads(op->n_heads, op->n_kv_heads) < op->n_heads;

    if (op->cap > 0 || op->alibi || device_attention_is_local(op))
        return 0;
    if (type == NUMBER_FP32 || head % 8 != 0 || head < 32 || head > 256 || (op->full && op->positions) ||
        (is_wide && (op->full || drops)) || (type == NUMBER_FP16 && (is_wide || drops || slides)))
        return 0;
    if (op->bias && (type == NUMBER_FP16 || is_wide || slides || !attention_bias_is_near(&op->buckets)))
        return 0;
    if (kernel == ATTENTION_FORWARD && head > 64 && drops && slides)
        return 0;
    if (kernel == ATTENTION_KEYS && op->chosen && (is_wide || op->bias))
        return 0;
    if (kernel == ATTENTION_KEYS && !op->chosen && ((is_shared && op->full) || (drops && head > 64 && slides)))
        return 0;
    return attention_columns(head);
}

/* Tiles of queries, or of keys, of a head in a row: a kernel's blocks have one each. By attention_tile's columns. */
static inline size_t attention_tiles(const struct device_attention *op, enum attention_kernel kernel, size_t tile)
{
    const size_t n = kernel == ATTENTION_KEYS ? device_attention_keys(op) : op->n_tokens;
    const size_t rows = kernel == ATTENTION_FORWARD && (tile == 64 || tile == 128) ? 128 : 64;

    return (n + rows - 1) / rows;
}

/* Blocks of a kernel's launch. Without tensor cores each has 64 of a head's columns. */
static inline size_t attention_blocks(const struct device_attention *op, enum attention_kernel kernel, size_t tile)
{
    const size_t columns = tile > 0 ? 1 : (op->width / op->n_heads + 63) / 64;
    const size_t heads = kernel == ATTENTION_KEYS ? device_kv_heads(op->n_heads, op->n_kv_heads) : op->n_heads;

    return columns * attention_tiles(op, kernel, tile) * op->n_rows * heads;
}

static inline struct plan_attention_sizes attention_sizes(const struct device_attention *op)
{
    return (struct plan_attention_sizes){.n_rows = op->n_rows,
                                         .n_tokens = op->n_tokens,
                                         .n_keys = op->n_keys,
                                         .n_heads = op->n_heads,
                                         .n_kv_heads = op->n_kv_heads,
                                         .width = op->width,
                                         .n_buckets = op->bias ? op->buckets.n : 0,
                                         .n_chosen = op->n_chosen,
                                         .is_sliding = attention_slides(op)};
}

/* True for calls that cuDNN's graphs take in bf16: self-attention of rows that are not packed, with scores as they are,
 * no dropout, no sinks, and no window on both sides. */
static inline bool attention_suits_library(enum number_type type, const struct device_attention *op)
{
    const struct plan_attention_sizes sizes = attention_sizes(op);

    return type == NUMBER_BF16 && !op->kv && !op->chosen && !op->bias && !op->positions && op->dropout.p == 0 &&
           op->cap == 0 && !op->alibi && !op->sinks && !device_attention_is_local(op) && plan_attention_suits(&sizes);
}

static inline enum attention_path attention_own_path(enum number_type type, const struct device_attention *op,
                                                     enum attention_kernel kernel)
{
    if (attention_tile(type, op, kernel) == 0)
        return ATTENTION_PLAIN;
    return op->dropout.p > 0 ? ATTENTION_DRAWING : ATTENTION_TENSOR;
}

/* The path of a kernel of forward or backward on a CUDA device, in a job of this way. */
static inline enum attention_path attention_path_of(enum number_type type, const struct device_attention *op,
                                                    enum attention_kernel kernel, enum plan_attention way)
{
    const struct plan_attention_sizes sizes = attention_sizes(op);
    struct plan_attention_scratch scratch;

    if (way == PLAN_ATTENTION_OWN || !attention_suits_library(type, op))
        return attention_own_path(type, op, kernel);
    if (kernel == ATTENTION_FORWARD)
        return ATTENTION_LIBRARY;
    plan_attention_lay_out(&scratch, way, &sizes);
    return scratch.way != PLAN_ATTENTION_OWN ? ATTENTION_LIBRARY : attention_own_path(type, op, kernel);
}

#endif

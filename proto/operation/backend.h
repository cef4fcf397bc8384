/* proto/operation/backend.h - the sizes that a device's operations need, known without the device.
 *
 * One table per backend, by the name of its operations (proto/operation/device.h): the plan lays out what they ask for,
 * and the kernels take no more. So `eps plan` and the daemon can plan for a device that this machine lacks. */
#ifndef PROTO_OPERATION_BACKEND_H
#define PROTO_OPERATION_BACKEND_H

#include "proto/base/number.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Sizes of attention, as in struct device_attention (proto/operation/call/attention.h). */
struct plan_attention_sizes {
    size_t n_rows, n_tokens;
    size_t n_keys; /* keys of each row; 0: n_tokens */
    size_t n_heads, n_kv_heads, width;
    size_t n_buckets; /* of a bias by distance; 0: there is none */
    size_t n_chosen;  /* queries of each row and head that backward's gradients of keys and values are from; 0: all */
    bool is_sliding;  /* a query sees some of the keys up to its own: those of a window */
};

/* Sizes of the gated delta rule, as in struct device_gated_delta (proto/operation/call/gated_delta.h). */
enum plan_delta_action { PLAN_DELTA_FORWARD, PLAN_DELTA_BACKWARD, PLAN_DELTA_CACHED };
struct plan_delta_sizes {
    enum plan_delta_action action;
    size_t n_rows, n_tokens;
    size_t n_heads, n_key_heads;
    size_t key_width, value_width; /* of one head */
};

struct plan_backend {
    const char *name; /* "cpu", "cuda" */
    /* The device uses the daemon's cores and memory: pulls, contributions and updates wait for each other. */
    bool takes_turns;
    uint32_t head_tile; /* maximum tokens whose logits exist at a time */
    uint32_t head_pad;  /* on the device, the head's units are padded with zero rows to a multiple of this */
    /* A token has the same bits whatever tokens are beside it in a product, so tokens of several texts that are
     * generated run in one. Otherwise the weights are still read into device memory once for all texts. */
    bool joins_rows;
    bool head_sums; /* in 16 bits, the head's units sum their input's gradient in fp32 */
    /* Bytes outside the arena for products and libraries; they count against the budget. */
    uint64_t (*library_bytes)(unsigned n_threads);
    /* Scratch of attention, enough for forward and backward. A multiple of 64. */
    uint64_t (*scratch_bytes)(const struct plan_attention_sizes *sizes, unsigned n_threads);
    /* Scratch of the gated delta rule. A multiple of 64; no less for more rows or tokens. */
    uint64_t (*delta_bytes)(const struct plan_delta_sizes *sizes, unsigned n_threads);
    /* Free bytes before a sum, needed to round it to 16 bits in place (round_half, proto/operation/device.h). */
    uint64_t rounding_bytes;
    /* Keys and values of n_positions tokens in one block; heads and width: of keys. */
    uint64_t (*cache_bytes)(enum number_type type, size_t n_positions, size_t n_heads, size_t width);
};

extern const struct plan_backend plan_cpu, plan_cuda;

/* By the name of a device ("cuda:1") or of its kind. NULL: there is none of this name. */
const struct plan_backend *plan_backend_find(const char *name);

/* The default budget of each of n_workers (> 0) for a device with free_bytes. In host memory: 7/8 of them, divided by
 * the workers. On a device with its own memory: 31/32, as its driver and a screen take some. Rounded down to MiB, at
 * least one. */
uint64_t plan_default_budget(const struct plan_backend *backend, uint64_t free_bytes, uint32_t n_workers);

/* Maximum tokens whose logits exist at a time. A constant, and the head's products are always cut by units: both order
 * sums, so no budget changes a bit. On CUDA a tile of 4,096 tokens and a unit of at most 8,192 rows make some 2,000
 * blocks of 128 x 128, enough for any device, so products over several units would be no faster. The logits of one unit
 * take at most 128 MiB. A block of width 1,100 or more takes as much for as many tokens, so logits seldom raise the
 * smallest budget. */
enum {
    PLAN_CPU_HEAD_TILE = 256,
    PLAN_CUDA_HEAD_TILE = 4096,
    PLAN_CUDA_HEAD_PAD = 8, /* values: 16 bytes of bf16, the size of a tensor core's loads */
};

/* Queries and keys per tile of the CPU's attention. A constant, so that sums are the same on every machine of an
 * instruction set. */
enum { PLAN_CPU_TILE = 64 };

/* Scratch of the CPU's attention per thread, in floats, for every instruction set. is_shared: several heads share keys
 * and values. */
static inline size_t plan_cpu_attention_scratch(size_t n_tokens, size_t n_keys, size_t head_width, bool is_shared)
{
    const size_t tile = PLAN_CPU_TILE, width = (head_width + 15) / 16 * 16;
    const size_t tokens = (n_tokens + tile - 1) / tile * tile, keys = (n_keys + tile - 1) / tile * tile;

    /* Per head: all of k and v. Per tile: q, out, scores. More than backward only if keys outnumber tokens. */
    const size_t forward = keys * 2 * width + tile * 2 * width + tile * tile;
    /* Per head: q, the gradients of out and q, two numbers per token. Per tile: k, k and v transposed, the gradients of
     * k and v; two tiles of scores. Shared keys and values: also all keys' gradients. */
    const size_t backward =
        tokens * (3 * width + 2) + keys * (is_shared ? 2 * width : 0) + tile * 5 * width + 2 * tile * tile;

    return forward > backward ? forward : backward;
}

/* With chosen queries, what a thread has besides: each one's q and gradient of out, its number and its weight. */
static inline size_t plan_cpu_chosen(size_t n_chosen, size_t head_width)
{
    return (n_chosen * (2 * ((head_width + 15) / 16 * 16) + 2) + 15) / 16 * 16;
}

/* With a bias by distance, what a thread has besides: a head's bias, and its gradient, of each distance in whole
 * tiles. */
static inline size_t plan_cpu_distances(size_t n_tokens, size_t n_keys)
{
    const size_t tile = PLAN_CPU_TILE;

    return (n_tokens + tile - 1) / tile * tile + (n_keys + tile - 1) / tile * tile;
}

/* Scratch of the CPU's gated delta rule per thread, in floats, for every instruction set: a chunk's rows and squares of
 * one head, and a state; backward besides the gradients of these, and of the states of all heads that share keys. */
static inline size_t plan_cpu_delta_scratch(const struct plan_delta_sizes *sizes)
{
    const size_t chunk = PLAN_CPU_TILE, group = sizes->n_heads / sizes->n_key_heads;
    const size_t k = (sizes->key_width + 15) / 16 * 16, v = (sizes->value_width + 15) / 16 * 16;

    if (sizes->action != PLAN_DELTA_BACKWARD)
        return chunk * (3 * k + 2 * v) + k * v + 2 * chunk * chunk;
    return chunk * 6 * (k + v) + (2 + group) * k * v + 5 * chunk * chunk;
}

/* CUDA's memory outside the arena: a context with our kernels, estimated until measured; an allowance for what cuBLASLt
 * and cuDNN load on first use; cuBLASLt's workspace, which also stages copies from host memory that was not lent;
 * partial sums of kernels that sum over rows. */
enum {
    PLAN_CUDA_CONTEXT_BYTES = 640 << 20,
    PLAN_CUDA_LAZY_BYTES = 192 << 20,
    PLAN_CUDA_WORKSPACE_BYTES = 32 << 20,
    PLAN_CUDA_SCRATCH_BYTES = 8 << 20,
    PLAN_CUDA_LIBRARY_BYTES =
        PLAN_CUDA_CONTEXT_BYTES + PLAN_CUDA_LAZY_BYTES + PLAN_CUDA_WORKSPACE_BYTES + PLAN_CUDA_SCRATCH_BYTES,
};

/* The first launch that rounds a sum in place covers half a million numbers; each next one as many as all before. */
enum { PLAN_CUDA_ROUNDING_BYTES = 1 << 20 };

/* CUDA's attention: two numbers per query and head, for backward. */
static inline uint64_t plan_cuda_attention_scratch(size_t n_rows, size_t n_tokens, size_t n_heads)
{
    return ((uint64_t)n_rows * n_tokens * n_heads * 2 * sizeof(float) + 255) / 256 * 256;
}

/* With a bias by distance: the sums of its gradient over each tile of queries, of each head. */
enum { PLAN_CUDA_PLAIN_TILE = 64 };
static inline uint64_t plan_cuda_bias_scratch(size_t n_rows, size_t n_tokens, size_t n_heads, size_t n_buckets)
{
    const uint64_t tiles = (n_tokens + PLAN_CUDA_PLAIN_TILE - 1) / PLAN_CUDA_PLAIN_TILE;

    return (n_rows * n_heads * tiles * n_buckets * sizeof(float) + 255) / 256 * 256;
}

/* CUDA's gated delta rule, backward: the gradients of the states, laid out as these are; and of each token and head
 * two rows of values, two of a chunk's tokens and four numbers. */
static inline uint64_t plan_cuda_delta_scratch(const struct plan_delta_sizes *sizes)
{
    const uint64_t chunk = 64, slots = sizes->n_tokens > 0 ? (sizes->n_tokens - 1) / chunk : 0;
    const uint64_t states = sizes->n_rows * slots * sizes->n_heads * sizes->key_width * sizes->value_width;
    const uint64_t tokens = (uint64_t)sizes->n_rows * sizes->n_tokens * sizes->n_heads;

    if (sizes->action != PLAN_DELTA_BACKWARD)
        return 0;
    return ((states + tokens * (2 * sizes->value_width + 2 * chunk + 4)) * sizeof(float) + 255) / 256 * 256;
}

/* The CPU's products are computed in tiles of at most HEIGHT x WIDTH, and along k in steps of at most DEPTH. Scratch
 * per thread, in bytes, whole pages, for every instruction set: a tile's sums and the packed panels of both factors,
 * with room for six rows packed as eight. */
enum {
    PLAN_CPU_PRODUCT_HEIGHT = 384,
    PLAN_CPU_PRODUCT_WIDTH = 384,
    PLAN_CPU_PRODUCT_DEPTH = 256,
    PLAN_CPU_PRODUCT_SCRATCH = 4 * (PLAN_CPU_PRODUCT_HEIGHT * PLAN_CPU_PRODUCT_WIDTH + PLAN_CPU_PRODUCT_DEPTH * 32 +
                                    PLAN_CPU_PRODUCT_HEIGHT / 6 * (PLAN_CPU_PRODUCT_DEPTH * 8 + 16)),
};

/* Elements of one head's keys (or values) of n tokens in the CPU's cache: whole tiles, as the products require. */
static inline size_t plan_cpu_attention_kept(size_t n, size_t head_width)
{
    const size_t tile = PLAN_CPU_TILE;

    return (n + tile - 1) / tile * tile * ((head_width + 15) / 16 * 16);
}

#endif

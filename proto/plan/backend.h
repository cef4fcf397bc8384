/* proto/plan/backend.h - the sizes that a device's operations need, known without the device.
 *
 * One table per backend, by the name of its operations (device/device.h): the plan lays out what they ask for, and the
 * kernels take no more. So `eps plan` and the daemon can plan for a device that this machine has not got. */
#ifndef PROTO_PLAN_BACKEND_H
#define PROTO_PLAN_BACKEND_H

#include "proto/base/number.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct plan_backend {
    const char *name; /* "cpu", "cuda" */
    /* It computes on the daemon's cores and in its memory: pulls, contributions and updates wait for each other. */
    bool takes_turns;
    uint32_t head_tile; /* tokens of the head whose logits are there at a time, at most */
    uint32_t head_pad; /* its units have whole so many rows on the device: those added are zeros, and nobody's labels */
    bool head_sums;    /* its units add up their input's gradient in fp32, where values are bf16 */
    /* Bytes outside the arena that the backend takes for products, and its libraries: in the budget. */
    uint64_t (*library_bytes)(unsigned n_threads);
    /* Scratch that attention needs for these sizes; the same for forward and backward. A multiple of 64. */
    uint64_t (*scratch_bytes)(size_t n_rows, size_t n_tokens, size_t n_heads, size_t n_kv_heads, size_t width,
                              unsigned n_threads);
    /* What lies free before a sum that is rounded to bf16 where it is: room to begin in (round_bf16, device/device.h). */
    uint64_t rounding_bytes;
    /* Keys and values of n_positions tokens in one block; heads and width: of keys. */
    uint64_t (*cache_bytes)(enum number_type type, size_t n_positions, size_t n_heads, size_t width);
};

extern const struct plan_backend plan_cpu, plan_cuda;

/* By the name of a device ("cuda:1") or of its kind. NULL: there is none of this name. */
const struct plan_backend *plan_backend_find(const char *name);

/* What each of n_workers (> 0) on a host may take of a device with so many free bytes where nobody said: all but an
 * eighth of the host's memory, for what else runs there, divided by them; of a device of its own, which is mostly ours,
 * all but a 32nd, for what its driver comes to take, and a screen. Rounded down to MiB, at least one. */
uint64_t plan_default_budget(const struct plan_backend *backend, uint64_t free_bytes, uint32_t n_workers);

/* Tokens of the head whose logits are there at a time. A constant, and the head's products are cut by units whatever is
 * on the device, since both order sums: so no budget changes a bit. On CUDA a tile of 4,096 tokens and a unit, of at
 * most 8,192 rows, are some 2,000 blocks of 128 x 128: enough for any device, so products over units side by side would
 * be no faster. The logits of one unit are at most 128 MiB; a block of width 1,100 or more takes as much for as many
 * tokens, so it is seldom that they make the least budget larger. */
enum {
    PLAN_CPU_HEAD_TILE = 256,
    PLAN_CUDA_HEAD_TILE = 4096,
    PLAN_CUDA_HEAD_PAD = 8, /* values of 16 bytes, which a tensor core's loads are of */
};

/* The CPU's attention works in tiles of so many queries and keys. A constant, so that sums are the same on every machine
 * of an instruction set. */
enum { PLAN_CPU_TILE = 64 };

/* Its scratch of one thread, in floats; the same for every instruction set. is_shared: several heads share their keys and
 * values. */
static inline size_t plan_cpu_attention_scratch(size_t n_tokens, size_t head_width, bool is_shared)
{
    const size_t tile = PLAN_CPU_TILE, width = (head_width + 15) / 16 * 16;
    const size_t tokens = (n_tokens + tile - 1) / tile * tile;

    /* backward, the larger: q, out's gradient and q's gradient of a head, its two numbers a token; a tile of k, k and v
     * transposed, gradients of k and v; two tiles of scores; what is shared has its gradients of all tokens as well */
    return tokens * ((is_shared ? 5 : 3) * width + 2) + tile * 5 * width + 2 * tile * tile;
}

/* What CUDA holds outside the arena: a context with our kernels, about, until it has been measured; what cuBLASLt and cuDNN
 * load when they first need it, allowed for; cuBLASLt's workspace, by which also comes what is read from host memory that
 * was not lent; and partial sums of kernels that add up over rows. */
enum {
    PLAN_CUDA_CONTEXT_BYTES = 640 << 20,
    PLAN_CUDA_LAZY_BYTES = 192 << 20,
    PLAN_CUDA_WORKSPACE_BYTES = 32 << 20,
    PLAN_CUDA_SCRATCH_BYTES = 8 << 20,
    PLAN_CUDA_LIBRARY_BYTES =
        PLAN_CUDA_CONTEXT_BYTES + PLAN_CUDA_LAZY_BYTES + PLAN_CUDA_WORKSPACE_BYTES + PLAN_CUDA_SCRATCH_BYTES,
};

/* Half a million numbers are the first launch that rounds a sum where it lies; each after it is as long as all before. */
enum { PLAN_CUDA_ROUNDING_BYTES = 1 << 20 };

/* CUDA's attention: two numbers a query and head, for backward. */
static inline uint64_t plan_cuda_attention_scratch(size_t n_rows, size_t n_tokens, size_t n_heads)
{
    return ((uint64_t)n_rows * n_tokens * n_heads * 2 * sizeof(float) + 255) / 256 * 256;
}

/* The CPU's products are computed in tiles of at most HEIGHT x WIDTH, and along k in steps of at most DEPTH. Scratch of
 * one thread, in bytes: a tile's sums, and what is packed of both factors, with room for rows in sixes that are packed
 * as eights. The same for every instruction set; whole pages. */
enum {
    PLAN_CPU_PRODUCT_HEIGHT = 384,
    PLAN_CPU_PRODUCT_WIDTH = 384,
    PLAN_CPU_PRODUCT_DEPTH = 256,
    PLAN_CPU_PRODUCT_SCRATCH = 4 * (PLAN_CPU_PRODUCT_HEIGHT * PLAN_CPU_PRODUCT_WIDTH + PLAN_CPU_PRODUCT_DEPTH * 32 +
                                    PLAN_CPU_PRODUCT_HEIGHT / 6 * (PLAN_CPU_PRODUCT_DEPTH * 8 + 16)),
};

/* Elements of one head's keys, or values, of n tokens in the cache: whole tiles, as the products want them. */
static inline size_t plan_cpu_attention_kept(size_t n, size_t head_width)
{
    const size_t tile = PLAN_CPU_TILE;

    return (n + tile - 1) / tile * tile * ((head_width + 15) / 16 * 16);
}

#endif

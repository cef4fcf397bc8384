/* A kernel and its plan may not disagree by a byte, so the formulas are in the header, and the kernels call the same
 * functions. The CPU's scratch grows with threads, each of which has one head of one row at a time; CUDA's with rows
 * and heads, all of which run at once. On the CPU, workers of one machine share its memory, so each takes its part of
 * what is free; a GPU is one worker's alone. */
#include "proto/operation/backend.h"

#include "proto/operation/device_name.h"

#include <stddef.h>

static uint64_t cpu_library_bytes(unsigned n_threads)
{
    return (uint64_t)n_threads * PLAN_CPU_PRODUCT_SCRATCH;
}

/* Each thread computes one head of one row at a time. Behind all threads' are a bias's gradients, head by head. */
static uint64_t cpu_scratch_bytes(const struct plan_attention_sizes *sizes, unsigned n_threads)
{
    const size_t n_keys = sizes->n_keys ? sizes->n_keys : sizes->n_tokens;
    const size_t of_thread = plan_cpu_attention_scratch(sizes->n_tokens, n_keys, sizes->width / sizes->n_heads,
                                                        sizes->n_kv_heads < sizes->n_heads);
    const size_t distances = sizes->n_buckets ? 2 * plan_cpu_distances(sizes->n_tokens, n_keys) : 0;
    const size_t chosen = plan_cpu_chosen(sizes->n_chosen, sizes->width / sizes->n_heads);
    const size_t of_heads = (sizes->n_rows * sizes->n_heads * sizes->n_buckets + 15) / 16 * 16;

    return (n_threads * (of_thread + chosen + distances) + of_heads) * sizeof(float);
}

/* Each thread computes one head of one document at a time. Backward has behind all threads' the gradient of g of each
 * token and head. */
static uint64_t cpu_delta_bytes(const struct plan_delta_sizes *sizes, unsigned n_threads)
{
    const size_t n = sizes->action == PLAN_DELTA_BACKWARD ? sizes->n_rows * sizes->n_tokens * sizes->n_heads : 0;

    return (n_threads * plan_cpu_delta_scratch(sizes) + (n + 15) / 16 * 16) * sizeof(float);
}

static uint64_t cpu_cache_bytes(enum number_type type, size_t n_positions, size_t n_heads, size_t width)
{
    return 2 * n_heads * plan_cpu_attention_kept(n_positions, width / n_heads) * number_bytes(type);
}

const struct plan_backend plan_cpu = {
    .name = "cpu",
    .takes_turns = true,
    .head_tile = PLAN_CPU_HEAD_TILE,
    .head_pad = 1,
    .joins_rows = true,
    .library_bytes = cpu_library_bytes,
    .scratch_bytes = cpu_scratch_bytes,
    .delta_bytes = cpu_delta_bytes,
    .rounding_bytes = 0,
    .cache_bytes = cpu_cache_bytes,
};

static uint64_t cuda_library_bytes(unsigned n_threads)
{
    (void)n_threads;
    return PLAN_CUDA_LIBRARY_BYTES;
}

static uint64_t cuda_scratch_bytes(const struct plan_attention_sizes *sizes, unsigned n_threads)
{
    (void)n_threads;
    return plan_cuda_attention_scratch(sizes->n_rows, sizes->n_tokens, sizes->n_heads) +
           plan_cuda_bias_scratch(sizes->n_rows, sizes->n_tokens, sizes->n_heads, sizes->n_buckets);
}

static uint64_t cuda_delta_bytes(const struct plan_delta_sizes *sizes, unsigned n_threads)
{
    (void)n_threads;
    return plan_cuda_delta_scratch(sizes);
}

/* (2, n_heads, n_positions, head_width). */
static uint64_t cuda_cache_bytes(enum number_type type, size_t n_positions, size_t n_heads, size_t width)
{
    (void)n_heads;
    return 2 * n_positions * width * number_bytes(type);
}

const struct plan_backend plan_cuda = {
    .name = "cuda",
    .takes_turns = false,
    .head_tile = PLAN_CUDA_HEAD_TILE,
    .head_pad = PLAN_CUDA_HEAD_PAD,
    .head_sums = true,
    .library_bytes = cuda_library_bytes,
    .scratch_bytes = cuda_scratch_bytes,
    .delta_bytes = cuda_delta_bytes,
    .rounding_bytes = PLAN_CUDA_ROUNDING_BYTES,
    .cache_bytes = cuda_cache_bytes,
};

const struct plan_backend *plan_backend_find(const char *name)
{
    static const struct plan_backend *const backends[] = {&plan_cpu, &plan_cuda};

    for (size_t i = 0; i < sizeof backends / sizeof *backends; i++)
        if (device_name_is(name, backends[i]->name))
            return backends[i];
    return NULL;
}

uint64_t plan_default_budget(const struct plan_backend *backend, uint64_t free_bytes, uint32_t n_workers)
{
    const uint64_t mib = 1 << 20, margin = free_bytes / (backend->takes_turns ? 8 : 32);
    const uint64_t each = (free_bytes - margin) / (backend->takes_turns ? n_workers : 1);

    return each < mib ? mib : each - each % mib;
}

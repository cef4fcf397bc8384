#include "plan/backend.h"

#include <string.h>

static uint64_t cpu_library_bytes(unsigned n_threads)
{
    return (uint64_t)n_threads * PLAN_CPU_PRODUCT_SCRATCH;
}

static uint64_t cpu_scratch_bytes(size_t n_rows, size_t n_tokens, size_t n_heads, size_t width, unsigned n_threads)
{
    (void)n_rows; /* one head of one row a thread at a time */
    return n_threads * plan_cpu_attention_scratch(n_tokens, width / n_heads) * sizeof(float);
}

static uint64_t cpu_cache_bytes(enum number_type type, size_t n_positions, size_t n_heads, size_t width)
{
    return 2 * n_heads * plan_cpu_attention_kept(n_positions, width / n_heads) * number_bytes(type);
}

const struct plan_backend plan_cpu = {
    .name = "cpu",
    .takes_turns = true,
    .library_bytes = cpu_library_bytes,
    .scratch_bytes = cpu_scratch_bytes,
    .cache_bytes = cpu_cache_bytes,
};

const struct plan_backend *plan_backend_find(const char *name)
{
    return strcmp(name, plan_cpu.name) == 0 ? &plan_cpu : NULL;
}

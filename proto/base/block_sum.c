/* All kernels give the same sums, so each machine takes its best, and hosts compare theirs. Sums of blocks are gathered
 * by exclusive or, in any order. That alone would not see two blocks exchanged, so each is first multiplied by an odd
 * number of its own. */
#include "proto/base/block_sum.h"

#include <assert.h>

const struct block_sum_kernel *block_sum_kernel(void)
{
    const bool has_v3 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");

    if (has_v3 && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
        __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        return &block_sum_kernel_v4;
    return has_v3 ? &block_sum_kernel_v3 : &block_sum_kernel_v2;
}

struct block_sum block_sum(const struct block_sum_kernel *kernel, const void *bytes, size_t n)
{
    struct block_summing summing = {0};

    assert(n <= BLOCK_SUM_BYTES);
    if (n > 0)
        kernel->add(&summing, bytes, n);
    return kernel->end(&summing);
}

/* A product with an odd number loses no bit, and each block has a factor of its own. */
void block_sum_gather(struct block_sum *sum, struct block_sum block, uint64_t i)
{
    const uint64_t factor = (2 * i + 1) * 0x9E3779B97F4A7C15u;

    sum->a ^= block.a * factor;
    sum->b ^= (block.b ^ block.a >> 32) * factor;
}

struct block_sum block_sum_run(const void *bytes, size_t n, size_t block_bytes)
{
    const struct block_sum_kernel *const kernel = block_sum_kernel();
    struct block_sum sum = {0};

    for (size_t at = 0, i = 0; at < n; at += block_bytes, i++)
        block_sum_gather(&sum, block_sum(kernel, (const char *)bytes + at, n - at < block_bytes ? n - at : block_bytes),
                         i);
    return sum;
}

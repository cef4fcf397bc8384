/* device/cuda/kernels/buckets.cuh - what a distance adds to a score: a bias's bucket, ALiBi's slope. */
#ifndef DEVICE_CUDA_KERNELS_BUCKETS_CUH
#define DEVICE_CUDA_KERNELS_BUCKETS_CUH

#include "device/cuda/kernels/kernel.cuh"

/* The bucket of a key so many places after the query. */
__device__ inline int bucket_of(const struct device_buckets *buckets, int ahead)
{
    const bool upper = buckets->both && ahead > 0;
    const unsigned half = buckets->n / 2, distance = ahead <= 0 ? (unsigned)-ahead : upper ? (unsigned)ahead : 0;
    unsigned low = 0, high = buckets->both ? half : buckets->n; /* the bucket is one of low .. high - 1 */

    while (high - low > 1) {
        const unsigned middle = (low + high) / 2;
        if (buckets->starts[middle] <= distance)
            low = middle;
        else
            high = middle;
    }
    return (int)(low + (upper ? half : 0));
}

/* ALiBi's slope of a head. n: device_alibi_whole. */
__device__ inline float alibi_slope(unsigned n, unsigned head)
{
    const float power = head < n ? 8 * (float)(head + 1) : 4 * (float)(2 * (head - n) + 1);

    return exp2f(-power / (float)n);
}

#endif

/* device/cuda/kernels/buckets.cuh - the bucket of a distance, for attention with a bias. */
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

#endif

/* device/cuda/kernels/kernel.cuh - shared by kernels: launching, values of any type, sums over a warp or block, random
 * words.
 *
 * Kernels are also compiled for the host, where tests/sim stands in for the device. So extensions of C++ are wrapped
 * here: launch() instead of <<<>>>, shared_memory() for a launch's shared memory. */
#ifndef DEVICE_CUDA_KERNELS_KERNEL_CUH
#define DEVICE_CUDA_KERNELS_KERNEL_CUH

#include "device/cuda/kernels/kernels.h"

#include <type_traits>

enum { WARP = 32 };
#define WHOLE_WARP 0xffffffffu

/* Values of 16 bits, as stored in memory. */
struct bf16 {
    uint16_t bits;
};

struct fp16 {
    uint16_t bits;
};

/* f<T>, where T is the queue's type of values: a template of functions, or of kernels. */
#define TYPED(q, f) ((q)->type == NUMBER_FP32 ? f<float> : (q)->type == NUMBER_BF16 ? f<bf16> : f<fp16>)

__device__ inline float to_float(float x)
{
    return x;
}

__device__ inline double to_float(double x) /* of sums, wider than any */
{
    return x;
}

__device__ inline float to_float(bf16 x)
{
    return __uint_as_float((uint32_t)x.bits << 16);
}

__device__ inline float to_float(fp16 x)
{
#ifdef CUDASIM
    return number_from_fp16(x.bits);
#else
    float y;
    asm("cvt.f32.f16 %0, %1;" : "=f"(y) : "h"(x.bits));
    return y;
#endif
}

__device__ inline void set(float *y, float x)
{
    *y = x;
}

/* Rounds to nearest, ties to even: as cvt.rn, and as proto/base/number.h but for NaNs, which all become 0x7fff. */
__device__ inline void set(bf16 *y, float x)
{
    const uint32_t pattern = __float_as_uint(x);

    y->bits = (uint16_t)((x != x ? 0x7fffffffu : pattern + 0x7fffu + (pattern >> 16 & 1)) >> 16);
}

/* The same; from 65520 on to an infinity. */
__device__ inline void set(fp16 *y, float x)
{
#ifdef CUDASIM
    y->bits = number_to_fp16(x);
#else
    asm("cvt.rn.f16.f32 %0, %1;" : "=h"(y->bits) : "f"(x));
#endif
}

template <typename T> __device__ inline uint16_t bits_of(float x)
{
    T y;

    set(&y, x);
    return y.bits;
}

/* Two numbers, rounded, as a pair; the first in the lower half. */
template <typename T> __device__ inline uint32_t pair_of(float first, float second)
{
#ifdef CUDASIM
    return bits_of<T>(first) | (uint32_t)bits_of<T>(second) << 16;
#else
    uint32_t pair;
    if constexpr (std::is_same_v<T, fp16>)
        asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    else
        asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(pair) : "f"(second), "f"(first));
    return pair;
#endif
}

/* The launch's shared memory, 128-byte aligned. */
template <typename T> __device__ inline T *shared_memory()
{
#ifdef CUDASIM
    return (T *)cudasim_shared();
#else
    extern __shared__ __align__(128) unsigned char bytes[];
    return (T *)bytes;
#endif
}

template <typename T> struct as_given {
    typedef T type;
};

/* `threads` of a block in one dimension. */
template <typename... P>
inline cudaError_t launch(void (*kernel)(P...), dim3 grid, unsigned threads, size_t shared, cudaStream_t stream,
                          typename as_given<P>::type... p)
{
    void *args[] = {(void *)&p...};

    return cudaLaunchKernel(kernel, grid, dim3(threads), args, shared, stream);
}

/* Call before the first launch of a kernel with more than 48 KiB of shared memory. */
template <typename... P> inline cudaError_t allow_shared(void (*kernel)(P...), size_t bytes)
{
    return cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, (int)bytes);
}

__device__ inline float warp_sum(float x)
{
    for (int far = WARP / 2; far > 0; far /= 2)
        x += __shfl_xor_sync(WHOLE_WARP, x, far);
    return x;
}

__device__ inline float warp_max(float x)
{
    for (int far = WARP / 2; far > 0; far /= 2)
        x = fmaxf(x, __shfl_xor_sync(WHOLE_WARP, x, far));
    return x;
}

/* The four words of random_quad (proto/base/random.h), whose source is cited there. */
__device__ inline void device_random_quad(uint32_t out[4], struct random_key key, uint64_t row, uint64_t quad)
{
    uint32_t c0 = (uint32_t)quad, c1 = (uint32_t)(quad >> 32), c2 = (uint32_t)row, c3 = (uint32_t)(row >> 32);

    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ key.k[0];
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ key.k[1];
        c3 = (uint32_t)p0;
        key.k[0] += 0x9E3779B9u;
        key.k[1] += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

#endif

/* tests/sim/include/cudasim_kernel.cuh - what the source of a kernel sees, in C++, and how it is launched.
 *
 * A block's threads are fibres (tests/sim/block.cpp). One runs until it waits for others, here at a meeting: all
 * threads of the block at a barrier, or all lanes of the mask at one operation of a warp. They must meet at the same
 * operation of the same line, which is stricter than the hardware and what a reader expects. */
#ifndef CUDASIM_KERNEL_CUH
#define CUDASIM_KERNEL_CUH

#include "cuda_runtime_api.h"

#include <cmath>
#include <cstring>
#include <type_traits>
#include <utility>

#define __global__ __attribute__((patchable_function_entry(1))) /* whose place the program's file tells: symbols.cpp */
#define __device__
#define __host__
#define __shared__      static /* blocks run one after another; in functions only */
#define __forceinline__ inline __attribute__((always_inline))
#define __align__(n)    alignas(n)
#define __launch_bounds__(...)
#define __maxnreg__(n)

struct uint3 {
    unsigned x, y, z;
};
struct dim3 {
    unsigned x, y, z;
    constexpr dim3(unsigned x_ = 1, unsigned y_ = 1, unsigned z_ = 1) : x(x_), y(y_), z(z_)
    {
    }
};
struct alignas(8) float2 {
    float x, y;
};
struct alignas(16) float4 {
    float x, y, z, w;
};
struct alignas(8) uint2 {
    unsigned x, y;
};
struct alignas(16) uint4 {
    unsigned x, y, z, w;
};
struct alignas(16) int4 {
    int x, y, z, w;
};

static inline float2 make_float2(float x, float y)
{
    return {x, y};
}
static inline float4 make_float4(float x, float y, float z, float w)
{
    return {x, y, z, w};
}
static inline uint2 make_uint2(unsigned x, unsigned y)
{
    return {x, y};
}
static inline uint4 make_uint4(unsigned x, unsigned y, unsigned z, unsigned w)
{
    return {x, y, z, w};
}
static inline int4 make_int4(int x, int y, int z, int w)
{
    return {x, y, z, w};
}

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
enum { warpSize = 32 };

/* ---- meetings ---- */

/* Where threads meet: the operation and its line. */
struct cudasim_place {
    const char *what, *file;
    int line;
};

extern "C" {
/* All threads of the block; the number of those that said yes. */
unsigned cudasim_barrier(struct cudasim_place place, bool yes);
/* The lanes of the mask, of which the caller is one: theirs (n of `bytes`) gets what lanes first .. first+n-1 laid down,
 * of lanes outside the mask a pattern of NaNs. */
void cudasim_meet(struct cudasim_place place, unsigned mask, const void *mine, size_t bytes, void *theirs,
                  unsigned first, unsigned n);
/* All lanes of a warp: one computes in place on what all laid down, in their order; each gets its own back. */
void cudasim_compute(struct cudasim_place place, void *mine, size_t bytes, void (*compute)(void *all));
/* The block's dynamic shared memory: as many bytes as the launch asked for, aligned to 128. */
void *cudasim_shared(void);
/* A copy of `given` bytes, then zeros up to `bytes`, that takes effect (both its reading and its writing) only when the
 * thread waits for it: cp.async. Those since the last commit are a group; wait returns when at most `left` of the
 * thread's latest groups are still under way. */
void cudasim_copy(void *to, const void *from, size_t bytes, size_t given);
void cudasim_copy_commit(void);
void cudasim_copy_wait(unsigned left);
/* ldmatrix: lanes 8*i .. 8*i+7 give the rows of matrix i; each gets its pair of each, or of each transposed. */
void cudasim_matrices(uint32_t pairs[4], uintptr_t row, bool transposed, struct cudasim_place place);
/* Says the sentence, with kernel and thread if one runs, and aborts. */
[[noreturn]] void cudasim_fault(const char *format, ...) __attribute__((format(printf, 1, 2)));
}

#define CUDASIM_HERE const char *file = __builtin_FILE(), int line = __builtin_LINE()

static inline void __syncthreads(CUDASIM_HERE)
{
    cudasim_barrier({"__syncthreads", file, line}, false);
}
static inline int __syncthreads_count(int yes, CUDASIM_HERE)
{
    return (int)cudasim_barrier({"__syncthreads_count", file, line}, yes);
}
static inline int __syncthreads_or(int yes, CUDASIM_HERE)
{
    return cudasim_barrier({"__syncthreads_or", file, line}, yes) > 0;
}
static inline int __syncthreads_and(int yes, CUDASIM_HERE)
{
    return cudasim_barrier({"__syncthreads_and", file, line}, !yes) == 0;
}

static inline void cudasim_multiply(void *mine, size_t bytes, void (*compute)(void *all), CUDASIM_HERE)
{
    cudasim_compute({"mma", file, line}, mine, bytes, compute);
}
static inline void cudasim_load_matrices(uint32_t pairs[4], uintptr_t row, bool transposed, CUDASIM_HERE)
{
    cudasim_matrices(pairs, row, transposed, {"ldmatrix", file, line});
}
static inline void __syncwarp(unsigned mask = 0xffffffffu, CUDASIM_HERE)
{
    cudasim_meet({"__syncwarp", file, line}, mask, NULL, 0, NULL, 0, 0);
}

static inline unsigned __ballot_sync(unsigned mask, int yes, CUDASIM_HERE)
{
    const unsigned char mine = yes != 0;
    unsigned char all[warpSize];
    unsigned ballot = 0;

    cudasim_meet({"__ballot_sync", file, line}, mask, &mine, 1, all, 0, warpSize);
    for (unsigned i = 0; i < warpSize; i++)
        ballot |= (unsigned)(all[i] & mask >> i & 1) << i;
    return ballot;
}
static inline int __any_sync(unsigned mask, int yes, CUDASIM_HERE)
{
    return __ballot_sync(mask, yes, file, line) != 0;
}
static inline int __all_sync(unsigned mask, int yes, CUDASIM_HERE)
{
    return __ballot_sync(mask, yes, file, line) == mask;
}

static inline unsigned cudasim_lane()
{
    return (threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z)) % warpSize;
}

/* `x` of lane `from`, or the caller's own if that is outside the lane's segment. */
template <typename T>
static inline T cudasim_shuffle(struct cudasim_place place, unsigned mask, T x, unsigned from, int width)
{
    static_assert(std::is_arithmetic<T>::value && (sizeof(T) == 4 || sizeof(T) == 8), "a type that shuffles take");
    const unsigned lane = cudasim_lane();
    T its;

    if (width < 1 || width > warpSize || (width & (width - 1)))
        cudasim_fault("%s in line %d: a width of %d", place.what, place.line, width);
    if (from / (unsigned)width != lane / (unsigned)width)
        from = lane;
    cudasim_meet(place, mask, &x, sizeof x, &its, from, 1);
    if (!(mask >> from & 1))
        cudasim_fault("%s in line %d: lane %u, which is read, is not in the mask %08x", place.what, place.line, from,
                      mask);
    return its;
}
template <typename T> static inline T __shfl_sync(unsigned mask, T x, int from, int width = 32, CUDASIM_HERE)
{
    const unsigned w = (unsigned)width;
    return cudasim_shuffle({"__shfl_sync", file, line}, mask, x, cudasim_lane() / w * w + (unsigned)from % w, width);
}
template <typename T> static inline T __shfl_xor_sync(unsigned mask, T x, int far, int width = 32, CUDASIM_HERE)
{
    return cudasim_shuffle({"__shfl_xor_sync", file, line}, mask, x, cudasim_lane() ^ (unsigned)far, width);
}
template <typename T> static inline T __shfl_up_sync(unsigned mask, T x, unsigned far, int width = 32, CUDASIM_HERE)
{
    return cudasim_shuffle({"__shfl_up_sync", file, line}, mask, x, cudasim_lane() - far, width);
}
template <typename T> static inline T __shfl_down_sync(unsigned mask, T x, unsigned far, int width = 32, CUDASIM_HERE)
{
    return cudasim_shuffle({"__shfl_down_sync", file, line}, mask, x, cudasim_lane() + far, width);
}

/* ---- memory and arithmetic ---- */

/* One fibre runs at a time: what it does is atomic. */
template <typename T> static inline T atomicAdd(T *to, typename std::common_type<T>::type x)
{
    const T was = *to;
    *to = (T)(was + x);
    return was;
}
template <typename T> static inline T atomicMax(T *to, typename std::common_type<T>::type x)
{
    const T was = *to;
    *to = was < x ? x : was;
    return was;
}
template <typename T> static inline T atomicMin(T *to, typename std::common_type<T>::type x)
{
    const T was = *to;
    *to = x < was ? x : was;
    return was;
}
template <typename T>
static inline T atomicCAS(T *to, typename std::common_type<T>::type expected, typename std::common_type<T>::type x)
{
    const T was = *to;
    if (was == expected)
        *to = x;
    return was;
}
static inline void __threadfence()
{
}
template <typename T> static inline T __ldg(const T *from)
{
    return *from;
}

static inline float __uint_as_float(unsigned pattern)
{
    float x;
    memcpy(&x, &pattern, sizeof x);
    return x;
}
static inline unsigned __float_as_uint(float x)
{
    unsigned pattern;
    memcpy(&pattern, &x, sizeof pattern);
    return pattern;
}
#define __expf expf /* names that the C library has too */
#define __logf logf
static inline float rsqrtf(float x)
{
    return 1 / sqrtf(x);
}
static inline float __fdividef(float x, float y)
{
    return x / y;
}
static inline int __popc(unsigned x)
{
    return __builtin_popcount(x);
}
static inline int __ffs(int x)
{
    return __builtin_ffs(x);
}
static inline unsigned __umulhi(unsigned x, unsigned y)
{
    return (unsigned)((uint64_t)x * y >> 32);
}
template <typename A, typename B> static inline typename std::common_type<A, B>::type min(A a, B b)
{
    typedef typename std::common_type<A, B>::type T;
    return (T)b < (T)a ? (T)b : (T)a;
}
template <typename A, typename B> static inline typename std::common_type<A, B>::type max(A a, B b)
{
    typedef typename std::common_type<A, B>::type T;
    return (T)a < (T)b ? (T)b : (T)a;
}

/* ---- launches ---- */

/* What is known of a kernel without its type: a file of kernels has hundreds of types, and little is compiled for each. */
struct cudasim_parameter {
    size_t bytes;
    bool is_pointer, is_const; /* to const */
    void (*clear)(void *x);    /* of a struct: zeroes its padding, which may hold what once was an address; else NULL */
};
struct cudasim_kernel {
    const void *address;
    void (*call)(const void *address, void *const *args); /* one thread of it, with its own copy of the arguments */
    const cudasim_parameter *parameters;
    unsigned n_parameters;
};

cudaError_t cudasim_queue_launch(cudaStream_t stream, const cudasim_kernel &kernel, dim3 grid, dim3 block,
                                 void *const *args, size_t shared);
cudaError_t cudasim_set_attribute(const void *kernel, enum cudaFuncAttribute attribute, int value);

template <typename T> static inline void cudasim_clear_padding(void *x)
{
#if __has_builtin(__builtin_clear_padding)
    __builtin_clear_padding((T *)x);
#endif
    (void)x;
}

template <typename T> constexpr cudasim_parameter cudasim_parameter_of()
{
    typedef typename std::remove_pointer<T>::type target;

    static_assert(std::is_trivially_copyable<T>::value, "arguments are copied to the device byte by byte");
    static_assert(alignof(T) <= 16, "copies are aligned to this");
    return {sizeof(T), std::is_pointer<T>::value, std::is_const<target>::value,
            std::is_class<T>::value ? cudasim_clear_padding<T> : nullptr};
}

template <typename... P, size_t... I>
static inline void cudasim_call_kernel(void (*kernel)(P...), void *const *args, std::index_sequence<I...>)
{
    kernel(*(const P *)args[I]...);
}

template <typename... P>
static inline cudaError_t cudaLaunchKernel(void (*kernel)(P...), dim3 grid, dim3 block, void **args, size_t shared,
                                           cudaStream_t stream)
{
    static constexpr cudasim_parameter parameters[] = {cudasim_parameter_of<P>()...};
    const auto call = [](const void *address, void *const *of_thread) {
        cudasim_call_kernel((void (*)(P...))address, of_thread, std::index_sequence_for<P...>());
    };

    return cudasim_queue_launch(stream, {(const void *)kernel, call, parameters, sizeof...(P)}, grid, block, args,
                                shared);
}
template <typename... P>
static inline cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), enum cudaFuncAttribute attribute, int value)
{
    return cudasim_set_attribute((const void *)kernel, attribute, value);
}

#endif

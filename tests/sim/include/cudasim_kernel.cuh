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
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>
#include <vector>

#define __global__
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

/* A word among a kernel's arguments that is, or may be (in a struct), an address. */
struct cudasim_pointer {
    const void *address;
    bool writes; /* not to const */
    bool surely;
    unsigned argument;
};

struct cudasim_launch {
    const void *kernel;
    dim3 grid, block;
    size_t shared;
    std::function<void()> body; /* one thread of it, with its own copy of the arguments */
    std::vector<cudasim_pointer> pointers;
};

cudaError_t cudasim_queue_launch(cudaStream_t stream, const cudasim_launch &launch);
cudaError_t cudasim_set_attribute(const void *kernel, enum cudaFuncAttribute attribute, int value);

template <typename T> static inline void cudasim_note_pointers(std::vector<cudasim_pointer> &to, const T &p, unsigned i)
{
    if constexpr (std::is_pointer<T>::value) {
        to.push_back({(const void *)p, !std::is_const<typename std::remove_pointer<T>::type>::value, true, i});
    } else if constexpr (std::is_class<T>::value) {
        T copy = p;
#if __has_builtin(__builtin_clear_padding)
        __builtin_clear_padding(&copy); /* it may hold what once was an address */
#endif
        for (size_t at = 0; at + sizeof(void *) <= sizeof p; at += sizeof(void *)) {
            const void *word;
            memcpy(&word, (const char *)&copy + at, sizeof word);
            to.push_back({word, false, false, i});
        }
    }
}

template <typename... P, size_t... I>
static inline cudasim_launch cudasim_capture(void (*kernel)(P...), void **args, std::index_sequence<I...>)
{
    cudasim_launch launch{};
    std::tuple<P...> given(*(P *)args[I]...);

    static_assert((std::is_trivially_copyable<P>::value && ...), "arguments are copied to the device byte by byte");
    launch.kernel = (const void *)kernel;
    launch.body = [kernel, given]() { std::apply(kernel, given); };
    (cudasim_note_pointers(launch.pointers, std::get<I>(given), (unsigned)I), ...);
    return launch;
}

template <typename... P>
static inline cudaError_t cudaLaunchKernel(void (*kernel)(P...), dim3 grid, dim3 block, void **args, size_t shared,
                                           cudaStream_t stream)
{
    cudasim_launch launch = cudasim_capture(kernel, args, std::index_sequence_for<P...>());

    launch.grid = grid, launch.block = block, launch.shared = shared;
    return cudasim_queue_launch(stream, launch);
}
template <typename... P>
static inline cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), enum cudaFuncAttribute attribute, int value)
{
    return cudasim_set_attribute((const void *)kernel, attribute, value);
}

#endif

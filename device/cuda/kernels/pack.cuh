/* device/cuda/kernels/pack.cuh - values side by side, rows laid over blocks, and sums over a block.
 *
 * Memory is read in packs of 16 bytes if a view's address and stride allow it, else element by element. Kernels are
 * compiled for both, V values a pack, and launchers choose. A thread loads PACKS of them before it uses the first. A
 * row shorter than a warp leaves lanes idle (but in norm.cu); a long one has several blocks.
 *
 * Why 64 bytes a thread: at 4.8 TB/s and 700 ns, each of 132 processors must have 25 KiB in flight, and half of its
 * 2048 threads bring 64. */
#ifndef DEVICE_CUDA_KERNELS_PACK_CUH
#define DEVICE_CUDA_KERNELS_PACK_CUH

#include "device/cuda/kernels/kernel.cuh"

enum {
    PACK_BYTES = 16,
    PACKS = 4,         /* packs of a thread in one row */
    ROW_THREADS = 256, /* threads of a block, at most */
    BLOCKS = 32,       /* blocks of a processor: enough to fill it with the smallest blocks */
};

/* V values of T as they lie in memory, numbers by x[v]. Those of 16 bits stay in pairs until they are used: nvcc would take
 * values apart where they are loaded, and so wait for each load before the next. */
template <typename T, int V, bool PAIRS = sizeof(T) == 2 && V % 2 == 0> struct alignas(V * sizeof(T)) pack {
    T at[V];

    __device__ auto operator[](int v) const
    {
        return to_float(at[v]);
    }
};

template <typename T, int V> struct alignas(V * sizeof(T)) pack<T, V, true> {
    uint32_t pairs[V / 2];

    __device__ float operator[](int v) const
    {
        return to_float(T{(uint16_t)(v % 2 ? pairs[v / 2] >> 16 : pairs[v / 2])});
    }
};

/* Values of T in a whole pack. */
template <typename T> struct whole {
    enum { V = PACK_BYTES / (int)sizeof(T) };
};

template <int V, typename T> static __device__ inline pack<T, V> load(const T *x)
{
    return *(const pack<T, V> *)x;
}

/* Word i of a pack. */
template <int V> static __device__ inline uint32_t word(const pack<float, V> &x, int i)
{
    return __float_as_uint(x.at[i]);
}

template <typename T, int V> static __device__ inline uint32_t word(const pack<T, V> &x, int i)
{
    return x.pairs[i];
}

/* x, hidden from nvcc: through a loop it would hold the numbers instead, in twice as many registers. */
template <typename T, int V> static __device__ inline pack<T, V> unread(pack<T, V> x)
{
#ifndef CUDASIM
    if constexpr (sizeof(T) == 2 && V % 2 == 0)
#pragma unroll
        for (int i = 0; i < V / 2; i++)
            asm volatile("" : "+r"(x.pairs[i]));
#endif
    return x;
}

/* One access; nvcc may split the assignment of a struct. */
template <typename T> static __device__ inline void store_words(void *y, T words)
{
#ifdef CUDASIM
    *(T *)y = words;
#else
    __stwb((T *)y, words);
#endif
}

template <int V, typename T> static __device__ inline void store(T *y, const pack<T, V> &x)
{
    if constexpr (V * sizeof(T) == 16)
        store_words(y, make_uint4(word(x, 0), word(x, 1), word(x, 2), word(x, 3)));
    else if constexpr (V * sizeof(T) == 8)
        store_words(y, make_uint2(word(x, 0), word(x, 1)));
    else
        *(pack<T, V> *)y = x;
}

/* x, rounded to T. */
template <typename T, int V> static __device__ inline pack<T, V> round_to(const float (&x)[V])
{
    pack<T, V> y;

    if constexpr (sizeof(T) == 2 && V % 2 == 0) {
#pragma unroll
        for (int v = 0; v < V; v += 2)
            y.pairs[v / 2] = pair_of<T>(x[v], x[v + 1]);
    } else {
#pragma unroll
        for (int v = 0; v < V; v++)
            set(&y.at[v], x[v]);
    }
    return y;
}

template <typename T, int V> static __device__ inline void store(T *y, const float (&x)[V])
{
    store<V>(y, round_to<T>(x));
}

/* Sums or other results in fp32, V at a time: two accesses where V is 8. */
template <int V> static __device__ inline void load_wide(float (&x)[V], const float *from)
{
    enum { W = V < 4 ? V : 4 };

#pragma unroll
    for (int w = 0; w < V; w += W) {
        const pack<float, W> some = load<W>(from + w);
#pragma unroll
        for (int v = 0; v < W; v++)
            x[w + v] = some.at[v];
    }
}

template <int V> static __device__ inline void store_wide(float *to, const float (&x)[V])
{
    enum { W = V < 4 ? V : 4 };

#pragma unroll
    for (int w = 0; w < V; w += W) {
        pack<float, W> some;
#pragma unroll
        for (int v = 0; v < W; v++)
            some.at[v] = x[w + v];
        store<W>(to + w, some);
    }
}

/* True if a view at this address, with rows `stride` elements of T apart, can be read in whole packs. */
template <typename T> static inline bool is_whole(const T *x, size_t stride)
{
    return ((uintptr_t)x | stride * sizeof(T)) % PACK_BYTES == 0;
}

/* True if a view of U can be read in packs of as many values as a whole pack of T has. */
template <typename T, typename U> static inline bool is_whole_for(const U *x, size_t stride)
{
    return ((uintptr_t)x | stride * sizeof(U)) % (whole<T>::V * sizeof(U)) == 0;
}

/* A grid over (m, n) of V values a pack: x over pieces of a row, y over rows, which the kernel strides. */
struct row_grid {
    dim3 grid;
    unsigned threads;
};

static inline size_t pieces(size_t n, size_t piece)
{
    return (n + piece - 1) / piece;
}

static inline unsigned smaller(size_t a, size_t b)
{
    return (unsigned)(a < b ? a : b);
}

static inline unsigned whole_warps(size_t threads)
{
    return (unsigned)(pieces(threads, WARP) * WARP);
}

static inline struct row_grid rows_over(const struct cuda_queue *q, size_t m, size_t n, int v)
{
    const size_t packs = pieces(n, (size_t)v);
    const unsigned threads = whole_warps(smaller(pieces(packs, PACKS), ROW_THREADS));
    const size_t x = pieces(packs, (size_t)threads * PACKS), y = pieces((size_t)q->n_processors * BLOCKS, x);
    const struct row_grid over = {dim3((unsigned)x, smaller(m, smaller(y, 65535))), threads};

    return over;
}

/* ---- sums over a block ---- */

/* Shared memory of block_sum: two places, so that one barrier a sum is enough. */
struct block_sums {
    float of_warps[2][2][WARP];
};

/* Every thread's x become the block's sums, the same bits in all. The block has whole warps; turn alternates between
 * its sums: 0, 1, 0, 1 ... */
template <int N> static __device__ inline void block_sum(struct block_sums *shared, unsigned turn, float (&x)[N])
{
    const unsigned lane = threadIdx.x % WARP, n_warps = blockDim.x / WARP;

    for (int i = 0; i < N; i++)
        x[i] = warp_sum(x[i]);
    if (n_warps == 1)
        return;
    for (int i = 0; i < N; i++)
        if (lane == 0)
            shared->of_warps[turn % 2][i][threadIdx.x / WARP] = x[i];
    __syncthreads();
    for (int i = 0; i < N; i++)
        x[i] = warp_sum(lane < n_warps ? shared->of_warps[turn % 2][i][lane] : 0);
}

#endif

/* device/cuda/kernels/sum_rows.cuh - sums over rows, each value read once.
 *
 * In two phases: each block sums some rows into a line of the scratch, then the lines' sum is added to the destination.
 * The rows of a block depend only on the shape and the device. */
#ifndef DEVICE_CUDA_KERNELS_SUM_ROWS_CUH
#define DEVICE_CUDA_KERNELS_SUM_ROWS_CUH

#include "device/cuda/kernels/pack.cuh"

enum { SUM_WARPS = 8, SUM_AHEAD = 4 /* rows of a warp in flight */ };

/* A sum in fp32 and its rounding error: as accurate as a double, also on devices with slow doubles. Knuth, The Art of
 * Computer Programming 2, 4.2.2, theorem B. */
struct compensated {
    float sum, lost;
};

static __device__ inline void add(struct compensated *to, float x)
{
    const float sum = to->sum + x, added = sum - to->sum;

    to->lost += (to->sum - (sum - added)) + (x - added);
    to->sum = sum;
}

static __device__ inline double total(const struct compensated &of)
{
    return (double)of.sum + (double)of.lost;
}

static __device__ inline void add(double *to, double x)
{
    *to += x;
}

static __device__ inline double total(double of)
{
    return of;
}

template <typename T> struct sum_of {
    typedef struct compensated type;
};

template <> struct sum_of<double> {
    typedef double type;
};

/* Where sums go: to one line per block row, or added to the destination, whose columns from n on are `others`; sums
 * without a destination are dropped. */
struct to_lines {
    double *lines;
    size_t n;

    __device__ void put(size_t column, double x) const
    {
        lines[blockIdx.y * n + column] = x;
    }
};

static __device__ inline void add_onto(float *sums, size_t column, double x)
{
    if (sums)
        sums[column] = (float)((double)sums[column] + x);
}

struct onto_sums {
    float *sums, *others;
    size_t n;

    __device__ void put(size_t column, double x) const
    {
        if (column < n)
            add_onto(sums, column, x);
        else
            add_onto(others, column - n, x);
    }
};

/* The place of a column's sum in shared memory. One place after each row of the banks stays free, so neither threads of
 * V columns each nor threads of one column each conflict in a bank. */
static __device__ constexpr unsigned apart(unsigned column)
{
    return column + column / 16 /* doubles in the 32 banks */;
}

/* Block (x, y): columns from x * WARP * V on of rows from y * rows on; its warps take the rows in turn. */
template <typename T, int V, typename TO>
static __global__ void sum_rows(TO to, const T *x, size_t m, size_t n, size_t stride, size_t rows)
{
    __shared__ double of_warps[SUM_WARPS][apart(WARP * V)];
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const size_t first = (size_t)blockIdx.x * WARP * V, column = first + lane * V;
    const size_t begin = blockIdx.y * rows, end = begin + rows < m ? begin + rows : m;
    typename sum_of<T>::type sum[V] = {};

    for (size_t row = begin + warp; row < end && column < n; row += SUM_WARPS * SUM_AHEAD) {
        pack<T, V> held[SUM_AHEAD];

#pragma unroll
        for (int i = 0; i < SUM_AHEAD; i++)
            if (row + i * SUM_WARPS < end)
                held[i] = load<V>(x + (row + i * SUM_WARPS) * stride + column);
#pragma unroll
        for (int i = 0; i < SUM_AHEAD; i++)
#pragma unroll
            for (int v = 0; v < V; v++)
                if (row + i * SUM_WARPS < end)
                    add(&sum[v], held[i][v]);
    }
#pragma unroll
    for (int v = 0; v < V; v++)
        of_warps[warp][apart(lane * V + v)] = total(sum[v]);
    __syncthreads();
    for (unsigned i = threadIdx.x; i < WARP * V && first + i < n; i += blockDim.x) {
        double all = 0;
        for (int w = 0; w < SUM_WARPS; w++)
            all += of_warps[w][apart(i)];
        to.put(first + i, all);
    }
}

template <typename T, int V, typename TO>
static cudaError_t add_lines(const struct cuda_queue *q, TO to, size_t n_lines, size_t n)
{
    const dim3 grid((unsigned)pieces(n, WARP * V));

    return launch(sum_rows<T, V, TO>, grid, SUM_WARPS * WARP, 0, q->stream, to, (const T *)q->scratch, n_lines, n, n,
                  n_lines);
}

#endif

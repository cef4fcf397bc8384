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

/* Rows of an array. Where they come from says what is loaded for a pack, and then what the pack is. */
template <typename T, int V> struct summed_array {
    const T *x;
    size_t stride;

    typedef pack<T, V> operands;

    __device__ operands load_at(size_t row, size_t column) const
    {
        return load<V>(x + row * stride + column);
    }

    __device__ pack<T, V> value_at(const operands &held, size_t, size_t) const
    {
        return held;
    }
};

/* Block (x, y): columns from x * WARP * V on of rows from y * rows on; its warps take the rows in turn. */
template <typename T, int V, typename TO, typename FROM>
static __global__ void sum_rows(TO to, const FROM from, size_t m, size_t n, size_t rows)
{
    __shared__ double of_warps[SUM_WARPS][apart(WARP * V)];
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP;
    const size_t first = (size_t)blockIdx.x * WARP * V, column = first + lane * V;
    const size_t begin = blockIdx.y * rows, end = begin + rows < m ? begin + rows : m;
    typename sum_of<T>::type sum[V] = {};

    for (size_t row = begin + warp; row < end && column < n; row += SUM_WARPS * SUM_AHEAD) {
        typename FROM::operands held[SUM_AHEAD];

#pragma unroll
        for (int i = 0; i < SUM_AHEAD; i++)
            if (row + i * SUM_WARPS < end)
                held[i] = from.load_at(row + i * SUM_WARPS, column);
#pragma unroll
        for (int i = 0; i < SUM_AHEAD; i++)
            if (row + i * SUM_WARPS < end) {
                const pack<T, V> x = from.value_at(held[i], row + i * SUM_WARPS, column);
#pragma unroll
                for (int v = 0; v < V; v++)
                    add(&sum[v], x[v]);
            }
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
    const summed_array<T, V> lines = {(const T *)q->scratch, n};

    return launch(sum_rows<T, V, TO, summed_array<T, V>>, grid, SUM_WARPS * WARP, 0, q->stream, to, lines, n_lines, n,
                  n_lines);
}

/* The sum over m rows, of n columns. */
template <typename T, int V, typename TO, typename FROM>
static cudaError_t sum_to(const struct cuda_queue *q, const TO &to, const FROM &from, size_t m, size_t n)
{
    const size_t across = pieces(n, WARP * V), room = PLAN_CUDA_SCRATCH_BYTES / (n * sizeof(double));
    const size_t wanted = pieces((size_t)q->n_processors * 8, across);
    const size_t rows = pieces(m, smaller(room, wanted)), lines = pieces(m, rows);
    const struct to_lines partial = {(double *)q->scratch, n};
    cudaError_t rc;

    rc = launch(sum_rows<T, V, struct to_lines, FROM>, dim3((unsigned)across, (unsigned)lines), SUM_WARPS * WARP, 0,
                q->stream, partial, from, m, n, rows);
    return rc == cudaSuccess ? add_lines<double, 1>(q, to, lines, n) : rc;
}

/* sum (n) += the sum over m rows. */
template <typename T, int V, typename FROM>
static cudaError_t sum_onto(const struct cuda_queue *q, float *sum, const FROM &from, size_t m, size_t n)
{
    const struct onto_sums to = {sum, NULL, n};

    return sum_to<T, V>(q, to, from, m, n);
}

#endif

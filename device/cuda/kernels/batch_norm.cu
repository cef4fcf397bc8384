/* device/cuda/kernels/batch_norm.cu - batch normalisation over a part: moments of rows, their join, normalisation.
 *
 * Everything is per column. A block has COLUMNS columns of some rows: threads side by side have a pack of V columns
 * each, DOWN of them one row each, and every thread keeps its columns' numbers in registers. So also an array of 32
 * columns leaves no thread idle, and a warp reads whole sectors. */
#include "device/cuda/kernels/sum_rows.cuh"

enum {
    COLUMNS = 32, /* of a block */
    BATCH_THREADS = 256,
    BATCH_WARPS = BATCH_THREADS / WARP,
    TALL = 512, /* elements of a block; where it sums them, more of a row that would have more than RUNS blocks */
    RUNS = 32,
    SUM_ROWS = 32,   /* at most, whose runs' sums a block adds up at once */
    JOIN_AHEAD = 16, /* rows in flight of a thread that adds up whole columns */
};

/* A thread's place in its block. */
template <int V> struct place {
    enum { ACROSS = COLUMNS / V, DOWN = BATCH_THREADS / ACROSS };

    static __device__ unsigned row()
    {
        return threadIdx.x / ACROSS;
    }

    /* The thread's first column among the block's. */
    static __device__ unsigned column()
    {
        return threadIdx.x % ACROSS * V;
    }
};

/* f(packs of the arrays' rows, the row) for rows begin, begin + step ... before end, AHEAD of them in flight. from: the
 * arrays' packs in row 0; NULL: no such array. */
template <int V, int AHEAD, int N, typename T, typename F>
static __device__ inline void each_row(const T *const (&from)[N], size_t begin, size_t end, size_t step, size_t stride,
                                       F f)
{
    for (size_t row = begin; row < end; row += AHEAD * step) {
        pack<T, V> held[AHEAD][N];

#pragma unroll
        for (int k = 0; k < AHEAD; k++)
#pragma unroll
            for (int i = 0; i < N; i++)
                if (row + k * step < end && from[i])
                    held[k][i] = load<V>(from[i] + (row + k * step) * stride);
#pragma unroll
        for (int k = 0; k < AHEAD; k++)
            if (row + k * step < end)
                f(held[k], row + k * step);
    }
}

/* A block's sums over its rows, of each column. */
template <int N> struct column_sums {
    float of_warps[N][BATCH_WARPS][COLUMNS];

    /* x: the thread's own, of its columns. Once for each place, as there is one barrier. */
    template <int V> __device__ void put(float (&x)[N][V])
    {
#pragma unroll
        for (int i = 0; i < N; i++)
#pragma unroll
            for (int v = 0; v < V; v++) {
                for (int far = place<V>::ACROSS; far < WARP; far *= 2)
                    x[i][v] += __shfl_xor_sync(WHOLE_WARP, x[i][v], far);
                if (threadIdx.x % WARP < place<V>::ACROSS)
                    of_warps[i][threadIdx.x / WARP][place<V>::column() + v] = x[i][v];
            }
        __syncthreads();
    }

    __device__ float get(int i, unsigned column) const
    {
        float sum = 0;

        for (int warp = 0; warp < BATCH_WARPS; warp++)
            sum += of_warps[i][warp][column];
        return sum;
    }
};

/* ---- moments of rows ---- */

/* Block (x, y): row x. The sum of differences from the mean corrects its rounding, so that a mean far from 0 costs no
 * digits. */
template <typename T, int V>
static __global__ void __launch_bounds__(BATCH_THREADS) moments_of_rows(struct device_row_moments op)
{
    __shared__ struct column_sums<1> sums;
    __shared__ struct column_sums<2> deviations;
    const size_t first = (size_t)blockIdx.y * COLUMNS, column = first + place<V>::column();
    const size_t end = column < op.n ? op.n_elements : 0;
    const float n_elements = (float)op.n_elements;
    const T *const from[1] = {(const T *)op.x + blockIdx.x * op.n_elements * op.n + column};
    float sum[1][V] = {}, difference[2][V] = {}, near[V];

    each_row<V, PACKS>(from, place<V>::row(), end, place<V>::DOWN, op.n, [&](const pack<T, V>(&x)[1], size_t) {
#pragma unroll
        for (int v = 0; v < V; v++)
            sum[0][v] += x[0][v];
    });
    sums.put(sum);
#pragma unroll
    for (int v = 0; v < V; v++)
        near[v] = sums.get(0, place<V>::column() + v) / n_elements;
    /* From the second-level cache now, so half as many in flight are enough; and more spill registers. */
    each_row<V, PACKS / 2>(from, place<V>::row(), end, place<V>::DOWN, op.n, [&](const pack<T, V>(&x)[1], size_t) {
#pragma unroll
        for (int v = 0; v < V; v++) {
            const float d = x[0][v] - near[v];
            difference[0][v] += d;
            difference[1][v] += d * d;
        }
    });
    deviations.put(difference);
    if (threadIdx.x < COLUMNS && first + threadIdx.x < op.n) {
        float *const moments = op.moments + 2 * blockIdx.x * op.n + first + threadIdx.x;
        const float off = deviations.get(0, threadIdx.x) / n_elements;

        moments[0] = sums.get(0, threadIdx.x) / n_elements + off;
        moments[op.n] = fmaxf(deviations.get(1, threadIdx.x) - off * off * n_elements, 0);
    }
}

static dim3 columns_over(size_t blocks, size_t n)
{
    return dim3((unsigned)blocks, (unsigned)pieces(n, COLUMNS));
}

template <typename T> static cudaError_t row_moments(const struct cuda_queue *q, const struct device_row_moments *op)
{
    return launch(is_whole((const T *)op->x, op->n) ? moments_of_rows<T, whole<T>::V> : moments_of_rows<T, 1>,
                  columns_over(op->n_rows, op->n), BATCH_THREADS, 0, q->stream, *op);
}

cudaError_t cuda_row_moments(const struct cuda_queue *q, const struct device_row_moments *op)
{
    if (op->n_rows * op->n_elements * op->n == 0)
        return cudaSuccess;
    return TYPED(q, row_moments)(q, op);
}

/* Block (x, y): a piece of a row, of the row's n_pieces. */
template <typename T, int V>
static __global__ void __launch_bounds__(BATCH_THREADS)
    moments_of_rows_backward(struct device_row_moments op, size_t n_pieces)
{
    const size_t column = (size_t)blockIdx.y * COLUMNS + place<V>::column(), row = blockIdx.x / n_pieces;
    const size_t piece = blockIdx.x % n_pieces * TALL, begin = piece + place<V>::row(),
                 end = piece + TALL < op.n_elements ? piece + TALL : op.n_elements;
    const size_t at = row * op.n_elements * op.n + column, moments = 2 * row * op.n + column;
    T *const dx = (T *)op.x_gradient + at;
    const T *const from[2] = {(const T *)op.x + at, op.accumulate ? dx : NULL};
    float mean[V], share[V], slope[V];

    if (column >= op.n || begin >= end)
        return;
    load_wide(mean, op.moments + moments);
    load_wide(share, op.moments_gradient + moments);
    load_wide(slope, op.moments_gradient + moments + op.n);
#pragma unroll
    for (int v = 0; v < V; v++)
        share[v] /= (float)op.n_elements, slope[v] *= 2;
    each_row<V, PACKS / 2>(from, begin, end, place<V>::DOWN, op.n, [&](const pack<T, V>(&x)[2], size_t i) {
        float to[V];

#pragma unroll
        for (int v = 0; v < V; v++) {
            const float g = (x[0][v] - mean[v]) * slope[v] + share[v];
            to[v] = op.accumulate ? x[1][v] + g : g;
        }
        store(dx + i * op.n, to);
    });
}

template <typename T>
static cudaError_t row_moments_backward(const struct cuda_queue *q, const struct device_row_moments *op)
{
    const size_t n_pieces = pieces(op->n_elements, TALL);
    const bool are_whole = is_whole((const T *)op->x, op->n) && is_whole((const T *)op->x_gradient, op->n) &&
                           is_whole(op->moments, op->n) && is_whole(op->moments_gradient, op->n);

    return launch(are_whole ? moments_of_rows_backward<T, whole<T>::V> : moments_of_rows_backward<T, 1>,
                  columns_over(op->n_rows * n_pieces, op->n), BATCH_THREADS, 0, q->stream, *op, n_pieces);
}

cudaError_t cuda_row_moments_backward(const struct cuda_queue *q, const struct device_row_moments *op)
{
    if (op->n_rows * op->n_elements * op->n == 0)
        return cudaSuccess;
    return TYPED(q, row_moments_backward)(q, op);
}

/* ---- their join: a thread for each column, in double, as columns are few ---- */

static __global__ void join(struct device_join_moments op)
{
    const size_t column = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const float *const from[2] = {op.moments + column, op.moments + op.n + column}, *const means[1] = {from[0]};
    const double n_rows = (double)op.n_rows, n_elements = (double)op.n_elements;
    double mean = 0, squares = 0;

    if (column >= op.n)
        return;
    each_row<1, JOIN_AHEAD>(means, 0, op.n_rows, 1, 2 * op.n,
                            [&](const pack<float, 1>(&of)[1], size_t) { mean += (double)of[0][0]; });
    mean /= n_rows;
    each_row<1, JOIN_AHEAD>(from, 0, op.n_rows, 1, 2 * op.n, [&](const pack<float, 1>(&of)[2], size_t) {
        const double d = (double)of[0][0] - mean;

        squares += (double)of[1][0] + n_elements * d * d;
    });
    op.statistics[column] = (float)mean;
    op.statistics[op.n + column] = (float)(1 / sqrt(squares / (n_rows * n_elements) + (double)op.epsilon));
}

cudaError_t cuda_join_moments(const struct cuda_queue *q, const struct device_join_moments *op)
{
    if (op->n_rows * op->n_elements * op->n == 0)
        return cudaSuccess;
    return launch(join, dim3((unsigned)pieces(op->n, WARP)), WARP, 0, q->stream, *op);
}

/* With r = 1/deviation, the variance's gradient is -r^3 / 2 times that of r. It reaches a row's mean, whose derivative
 * is 2 (row's mean - mean) / n_rows, and its squared deviations, whose derivative is 1 / (n_rows n_elements). */
static __global__ void join_backward(struct device_join_moments op)
{
    const size_t column = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    const float n_rows = (float)op.n_rows;

    if (column >= op.n)
        return;
    const float mean = op.statistics[column], r = op.statistics[op.n + column];
    const float share = op.statistics_gradient[column] / n_rows;
    const float slope = -(r * r * r) * op.statistics_gradient[op.n + column] / n_rows;

    for (size_t row = blockIdx.y; row < op.n_rows; row += gridDim.y) {
        float *const to = op.moments_gradient + 2 * row * op.n + column;

        to[0] = (op.moments[2 * row * op.n + column] - mean) * slope + share;
        to[op.n] = slope / (float)(2 * op.n_elements);
    }
}

cudaError_t cuda_join_moments_backward(const struct cuda_queue *q, const struct device_join_moments *op)
{
    const unsigned threads = whole_warps(smaller(op->n, BATCH_THREADS));

    if (op->n_rows * op->n_elements * op->n == 0)
        return cudaSuccess;
    return launch(join_backward, dim3((unsigned)pieces(op->n, threads), smaller(op->n_rows, 65535)), threads, 0,
                  q->stream, *op);
}

/* ---- normalisation ---- */

/* A thread's columns: x becomes (x - mean) * factor, factor = weight/deviation. */
template <typename T, int V> struct scales {
    float mean[V], factor[V];

    __device__ scales(const struct device_batch_norm &op, size_t column)
    {
        const pack<T, V> weight = load<V>((const T *)op.weight + column);

        load_wide(mean, op.statistics + column);
        load_wide(factor, op.statistics + op.n + column);
#pragma unroll
        for (int v = 0; v < V; v++)
            factor[v] *= weight[v];
    }
};

template <typename T, int V>
static __global__ void __launch_bounds__(BATCH_THREADS) normalise(struct device_batch_norm op)
{
    const size_t column = (size_t)blockIdx.y * COLUMNS + place<V>::column();
    const size_t piece = (size_t)blockIdx.x * TALL, begin = piece + place<V>::row(), m = op.n_rows * op.n_elements,
                 end = piece + TALL < m ? piece + TALL : m;
    const T *const from[1] = {(const T *)op.x + column};
    T *const y = (T *)op.y + column;

    if (column >= op.n || begin >= end)
        return;
    const struct scales<T, V> of(op, column);
    const pack<T, V> bias = load<V>((const T *)op.bias + column);
    each_row<V, PACKS>(from, begin, end, place<V>::DOWN, op.n, [&](const pack<T, V>(&x)[1], size_t row) {
        float to[V];

#pragma unroll
        for (int v = 0; v < V; v++)
            to[v] = (x[0][v] - of.mean[v]) * of.factor[v] + bias[v];
        store(y + row * op.n, to);
    });
}

template <typename T> static cudaError_t batch_norm(const struct cuda_queue *q, const struct device_batch_norm *op)
{
    const bool are_whole = is_whole((const T *)op->x, op->n) && is_whole((const T *)op->y, op->n) &&
                           is_whole((const T *)op->weight, op->n) && is_whole((const T *)op->bias, op->n) &&
                           is_whole(op->statistics, op->n);

    return launch(are_whole ? normalise<T, whole<T>::V> : normalise<T, 1>,
                  columns_over(pieces(op->n_rows * op->n_elements, TALL), op->n), BATCH_THREADS, 0, q->stream, *op);
}

cudaError_t cuda_batch_norm(const struct cuda_queue *q, const struct device_batch_norm *op)
{
    if (op->n_rows * op->n_elements * op->n == 0)
        return cudaSuccess;
    return TYPED(q, batch_norm)(q, op);
}

/* Block (x, y): a run of a row's elements, of the row's n_runs. Its sums of g = y_gradient and of g (x - mean) are line x of
 * lines (n_rows, n_runs, 2n). */
template <typename T, int V>
static __global__ void __launch_bounds__(BATCH_THREADS)
    normalise_backward(struct device_batch_norm op, float *lines, size_t n_runs, size_t run)
{
    __shared__ struct column_sums<2> sums;
    const size_t first = (size_t)blockIdx.y * COLUMNS, column = first + place<V>::column();
    const size_t row = blockIdx.x / n_runs * op.n_elements, piece = blockIdx.x % n_runs * run,
                 begin = row + piece + place<V>::row(),
                 end = row + (piece + run < op.n_elements ? piece + run : op.n_elements);
    T *const dx = (T *)op.x_gradient + column;
    const T *const from[3] = {(const T *)op.y_gradient + column, (const T *)op.x + column, op.accumulate ? dx : NULL};
    float sum[2][V] = {};

    if (column < op.n && begin < end) {
        const struct scales<T, V> of(op, column);

        each_row<V, PACKS / 2>(from, begin, end, place<V>::DOWN, op.n, [&](const pack<T, V>(&at)[3], size_t i) {
            float to[V];

#pragma unroll
            for (int v = 0; v < V; v++) {
                const float g = at[0][v], gradient = g * of.factor[v];

                sum[0][v] += g;
                sum[1][v] += g * (at[1][v] - of.mean[v]);
                to[v] = op.accumulate ? at[2][v] + gradient : gradient;
            }
            store(dx + i * op.n, to);
        });
    }
    sums.put(sum);
    if (threadIdx.x < COLUMNS && first + threadIdx.x < op.n) {
        float *const line = lines + 2 * blockIdx.x * op.n + first + threadIdx.x;

        line[0] = sums.get(0, threadIdx.x);
        line[op.n] = sums.get(1, threadIdx.x);
    }
}

/* A column's gradient, NULL or += factor * each row's sum; and what its rounding lost, or NULL. */
struct gradient {
    float *at, *lost, sum, rest;
    double factor;

    __device__ gradient(float *all, float *all_lost, size_t column, double by)
        : at(all ? all + column : NULL), lost(all && all_lost ? all_lost + column : NULL), factor(by)
    {
        sum = at ? *at : 0;
        rest = lost ? *lost : 0;
    }

    __device__ void add(double x)
    {
        const double whole = (double)sum + (double)rest + factor * x;

        sum = (float)whole;
        rest = lost ? (float)(whole - (double)sum) : 0;
    }

    __device__ void put() const
    {
        if (at)
            *at = sum;
        if (lost)
            *lost = rest;
    }
};

/* Block x: 32 of the lines' columns, of which those of g are 0 to n - 1. Warps sum a row's lines each; then the first warp
 * adds the rows' sums, one after another. */
template <typename T>
static __global__ void __launch_bounds__(SUM_ROWS *WARP)
    add_rows(struct device_batch_norm op, const float *lines, size_t n_runs)
{
    __shared__ double of_rows[SUM_ROWS][WARP];
    const unsigned lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, n_warps = blockDim.x / WARP;
    const size_t i = (size_t)blockIdx.x * WARP + lane, column = i % op.n;
    const bool is_product = i >= op.n, exists = i < 2 * op.n;
    const double weight = exists ? (double)to_float(((const T *)op.weight)[column]) : 0,
                 r = exists ? (double)op.statistics[op.n + column] : 0;
    const float *const from[1] = {lines + i};
    struct gradient of_tensor(exists && warp == 0 ? is_product ? op.weight_gradient : op.bias_gradient : NULL, NULL,
                              column, is_product ? r : 1),
        of_statistic(exists && warp == 0 ? op.statistics_gradient : NULL, op.lost, i,
                     is_product ? weight : -weight * r);

    for (size_t row = 0; row < op.n_rows; row += n_warps) {
        struct compensated sum = {};

        if (exists && row + warp < op.n_rows)
            each_row<1, JOIN_AHEAD>(from, (row + warp) * n_runs, (row + warp + 1) * n_runs, 1, 2 * op.n,
                                    [&](const pack<float, 1>(&line)[1], size_t) { add(&sum, line[0][0]); });
        of_rows[warp][lane] = total(sum);
        __syncthreads();
        for (size_t k = 0; warp == 0 && k < n_warps && row + k < op.n_rows; k++) {
            of_tensor.add(of_rows[k][lane]);
            of_statistic.add(of_rows[k][lane]);
        }
        __syncthreads();
    }
    of_tensor.put();
    of_statistic.put();
}

/* The rows whose lines fit the scratch at once. What a line has depends on the shape alone. */
template <typename T>
static cudaError_t rows_backward(const struct cuda_queue *q, const struct device_batch_norm *op, size_t n_runs)
{
    const bool are_whole = is_whole((const T *)op->x, op->n) && is_whole((const T *)op->y_gradient, op->n) &&
                           is_whole((const T *)op->x_gradient, op->n) && is_whole((const T *)op->weight, op->n) &&
                           is_whole(op->statistics, op->n);
    float *const lines = (float *)q->scratch;
    const cudaError_t rc = launch(are_whole ? normalise_backward<T, whole<T>::V> : normalise_backward<T, 1>,
                                  columns_over(op->n_rows * n_runs, op->n), BATCH_THREADS, 0, q->stream, *op, lines,
                                  n_runs, pieces(op->n_elements, n_runs));

    if (rc != cudaSuccess)
        return rc;
    return launch(add_rows<T>, dim3((unsigned)pieces(2 * op->n, WARP)), smaller(SUM_ROWS, op->n_rows) * WARP, 0,
                  q->stream, *op, (const float *)lines, n_runs);
}

template <typename T>
static cudaError_t batch_norm_backward(const struct cuda_queue *q, const struct device_batch_norm *op)
{
    const size_t n_lines = PLAN_CUDA_SCRATCH_BYTES / (2 * op->n * sizeof(float)),
                 n_runs = smaller(pieces(op->n_elements, TALL), smaller(RUNS, n_lines)), n_fit = n_lines / n_runs,
                 row_values = op->n_elements * op->n;
    cudaError_t rc = cudaSuccess;

    for (size_t row = 0; row < op->n_rows && rc == cudaSuccess; row += n_fit) {
        struct device_batch_norm rows = *op;

        rows.n_rows = smaller(n_fit, op->n_rows - row);
        rows.x = (const T *)op->x + row * row_values;
        rows.y_gradient = (const T *)op->y_gradient + row * row_values;
        rows.x_gradient = (T *)op->x_gradient + row * row_values;
        rc = rows_backward<T>(q, &rows, n_runs);
    }
    return rc;
}

cudaError_t cuda_batch_norm_backward(const struct cuda_queue *q, const struct device_batch_norm *op)
{
    if (op->n_rows * op->n_elements * op->n == 0)
        return cudaSuccess;
    return TYPED(q, batch_norm_backward)(q, op);
}

/* ---- running statistics: a thread has a column ---- */

template <typename T> static __global__ void __launch_bounds__(BATCH_THREADS) recall(struct device_running op)
{
    const size_t i = (size_t)blockIdx.x * BATCH_THREADS + threadIdx.x;

    if (i >= op.n)
        return;
    op.statistics[i] = to_float(((const T *)op.mean)[i]);
    op.statistics[op.n + i] = (float)(1 / sqrt((double)to_float(((const T *)op.variance)[i]) + (double)op.epsilon));
}

static __global__ void __launch_bounds__(BATCH_THREADS) observe(struct device_running op)
{
    const size_t i = (size_t)blockIdx.x * BATCH_THREADS + threadIdx.x;

    if (i >= op.n)
        return;
    const double r = (double)op.statistics[op.n + i], variance = fmax(1 / (r * r) - (double)op.epsilon, 0.0);
    if (op.mean_gradient)
        op.mean_gradient[i] += op.scale * op.statistics[i];
    if (op.variance_gradient)
        op.variance_gradient[i] += (float)(variance * (double)op.scale * (double)op.correction);
}

cudaError_t cuda_running_statistics(const struct cuda_queue *q, const struct device_running *op)
{
    if (op->n == 0)
        return cudaSuccess;
    return launch(TYPED(q, recall), dim3((unsigned)pieces(op->n, BATCH_THREADS)), BATCH_THREADS, 0, q->stream, *op);
}

cudaError_t cuda_running_gradient(const struct cuda_queue *q, const struct device_running *op)
{
    if (op->n == 0)
        return cudaSuccess;
    return launch(observe, dim3((unsigned)pieces(op->n, BATCH_THREADS)), BATCH_THREADS, 0, q->stream, *op);
}

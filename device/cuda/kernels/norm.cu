/* device/cuda/kernels/norm.cu - layer and root-mean-square normalisation, row by row: 2 values per element.
 *
 * A block processes a row at a time. If HELD, the row stays in registers; longer rows are read again, usually from the
 * second-level cache. Weight and bias stay in the first-level cache. */

#include "device/cuda/kernels/sum_rows.cuh"

enum { NORM_THREADS = 512 };

template <typename T> struct norm_arrays {
    T *y;
    float *statistics;
    const T *x, *weight, *bias;
    size_t m, n, n_heads, stride; /* m heads of all rows */
    float epsilon;
    bool centred; /* about the mean; RMS norm is about 0 */
    bool offset;  /* the factor is 1 + weight */
};

/* Head i of all rows' heads, from the first value of an array. */
template <typename OP> static __device__ inline size_t head_at(const OP &op, size_t i)
{
    return op.n_heads == 1 ? i * op.stride : i / op.n_heads * op.stride + i % op.n_heads * op.n;
}

template <typename T> static __device__ inline float factor(T weight, bool offset)
{
    return offset ? 1 + to_float(weight) : to_float(weight);
}

/* A thread's share of N arrays' rows: their packs from `column` on, `step` apart. rows[i] NULL: no such array. */
template <typename T, int V, int K, int N, bool HELD> struct share {
    size_t column, step, n;
    const T *rows[N];
    pack<T, V> held[HELD ? K : 1][N];

    __device__ void read_at(pack<T, V> (&at)[N], size_t place) const
    {
#pragma unroll
        for (int i = 0; i < N; i++)
            if (rows[i])
                at[i] = load<V>(rows[i] + place);
    }

    __device__ void read()
    {
        if constexpr (HELD) {
#pragma unroll
            for (int k = 0; k < K; k++)
                if (column + k * step < n)
                    read_at(held[k], column + k * step);
        }
    }

    /* f(packs of the rows, their column, which of the thread's) */
    template <typename F> __device__ void each(F f)
    {
        if constexpr (HELD) {
#pragma unroll
            for (int k = 0; k < K; k++)
                if (column + k * step < n)
                    f(held[k], column + k * step, k);
        } else {
            for (size_t place = column; place < n; place += step) {
                read_at(held[0], place);
                f(held[0], place, 0);
            }
        }
    }
};

/* mean and 1/deviation. The sum of differences from the mean corrects the mean's rounding, so that a mean far from 0
 * costs no digits. */
template <typename T, int V, bool HELD>
static __device__ inline void row_statistics(share<T, V, PACKS, 1, HELD> *row, struct block_sums *shared,
                                             const struct norm_arrays<T> &op, float *mean, float *inverse)
{
    const float n = (float)row->n;
    float sum[1] = {0}, difference[2] = {0, 0};

    if (op.centred)
        row->each([&](const pack<T, V>(&x)[1], size_t, int) {
#pragma unroll
            for (int v = 0; v < V; v++)
                sum[0] += to_float(x[0].at[v]);
        });
    block_sum(shared, 0, sum);
    const float near = sum[0] / n;
    row->each([&](const pack<T, V>(&x)[1], size_t, int) {
#pragma unroll
        for (int v = 0; v < V; v++) {
            const float d = to_float(x[0].at[v]) - near;
            difference[0] += d;
            difference[1] += d * d;
        }
    });
    block_sum(shared, 1, difference);
    const float off = op.centred ? difference[0] / n : 0;
    *mean = near + off;
    *inverse = 1 / sqrtf(fmaxf(difference[1] / n - off * off, 0) + op.epsilon);
}

template <typename T, int V, bool HELD>
static __global__ void __launch_bounds__(NORM_THREADS) norm_rows(struct norm_arrays<T> op)
{
    __shared__ struct block_sums shared;
    share<T, V, PACKS, 1, HELD> row;

    row.column = (size_t)threadIdx.x * V, row.step = (size_t)blockDim.x * V, row.n = op.n;
    for (size_t i = blockIdx.x; i < op.m; i += gridDim.x) {
        float mean, inverse;

        const size_t at = head_at(op, i);
        row.rows[0] = op.x + at;
        row.read();
        row_statistics(&row, &shared, op, &mean, &inverse);
        if (threadIdx.x == 0) {
            op.statistics[2 * i] = mean;
            op.statistics[2 * i + 1] = inverse;
        }
        row.each([&](const pack<T, V>(&x)[1], size_t column, int) {
            const pack<T, V> weight = load<V>(op.weight + column);
            pack<T, V> bias = {}, y;

            if (op.bias)
                bias = load<V>(op.bias + column);
#pragma unroll
            for (int v = 0; v < V; v++)
                set(&y.at[v],
                    (to_float(x[0].at[v]) - mean) * inverse * factor(weight.at[v], op.offset) + to_float(bias.at[v]));
            store<V>(op.y + at + column, y);
        });
    }
}

template <int V, typename T> static cudaError_t run_norm(const struct cuda_queue *q, const struct norm_arrays<T> &op)
{
    const size_t packs = pieces(op.n, V);
    const unsigned threads = whole_warps(smaller(pieces(packs, PACKS), NORM_THREADS));
    const dim3 grid(smaller(op.m, (size_t)q->n_processors * BLOCKS));

    return launch(packs <= (size_t)threads * PACKS ? norm_rows<T, V, true> : norm_rows<T, V, false>, grid, threads, 0,
                  q->stream, op);
}

template <typename T> static cudaError_t norm(const struct cuda_queue *q, const struct device_norm *op)
{
    const struct norm_arrays<T> arrays = {
        (T *)op->y, op->statistics, (const T *)op->x, (const T *)op->weight,
            (const T *)op->bias, op->m *device_norm_heads(op), op->n, device_norm_heads(op),
            device_norm_stride(op), op->epsilon, op->kind == DEVICE_LAYER_NORM, op->offset
    };
    const bool are_whole = is_whole(arrays.y, arrays.stride) && is_whole(arrays.x, arrays.stride) &&
                           is_whole(arrays.weight, op->n) && is_whole(arrays.bias, op->n);

    return are_whole ? run_norm<whole<T>::V>(q, arrays) : run_norm<1>(q, arrays);
}

cudaError_t cuda_norm(const struct cuda_queue *q, const struct device_norm *op)
{
    if (op->m == 0 || op->n == 0)
        return cudaSuccess;
    return TYPED(q, norm)(q, op);
}

/* ---- norm's gradients: 3 values per element, 4 if accumulating ----
 *
 * With z = (x - mean) * inverse and g = dy * factor: dx = inverse * (g - mean(g) - z * mean(g z)); without mean(g) if
 * not centred. A block processes many rows in turn and sums their dy z and dy for the gradients of weight and bias: in
 * registers if HELD, else in its line of the scratch. If HELD in 16 bits, the next row is loaded during the sums of this
 * one, as a processor has no other block to run meanwhile. Two rows of fp32 do not fit the registers. */

template <typename T> struct gradient_arrays {
    T *dx;
    bool accumulate;
    const T *dy, *x;
    const float *statistics;
    const T *weight;
    size_t m, n, n_heads, stride; /* as above */
    float *lines;                 /* (blocks, 2n): of weight, of bias */
    bool centred, offset;
};

enum { DY, X, DX, GRADIENT_ROWS };

/* Packs of a thread in each row, if HELD: the sums, two per value, fill the registers. */
template <int V> struct gradient_share {
    enum { K = V == 1 ? 4 : 16 / V };
};

/* Without heads, without a division, for which HELD has no registers. */
template <bool HEADS, typename T> static __device__ inline size_t row_at(const struct gradient_arrays<T> &op, size_t i)
{
    return HEADS ? head_at(op, i) : i * op.stride;
}

/* Row i, if there is one. */
template <bool HEADS, typename T, int V, int K, bool HELD>
static __device__ inline void begin_row(share<T, V, K, GRADIENT_ROWS, HELD> *row, const struct gradient_arrays<T> &op,
                                        size_t i)
{
    if (i >= op.m)
        return;
    const size_t at = row_at<HEADS>(op, i);
    row->rows[DY] = op.dy + at, row->rows[X] = op.x + at;
    row->rows[DX] = op.accumulate ? op.dx + at : NULL;
    row->read();
}

template <typename T, int V, bool HELD, bool HEADS>
static __global__ void __launch_bounds__(NORM_THREADS) norm_gradient_rows(struct gradient_arrays<T> op)
{
    enum { K = gradient_share<V>::K, SUMS = HELD ? K : 1 };
    constexpr bool AHEAD = HELD && sizeof(T) == sizeof(bf16);
    __shared__ struct block_sums shared;
    float *line = op.lines + blockIdx.x * 2 * op.n;
    float of_weight[SUMS][V] = {}, of_bias[SUMS][V] = {};
    share<T, V, K, GRADIENT_ROWS, HELD> row, next;
    unsigned turn = 0;

    row.column = (size_t)threadIdx.x * V, row.step = (size_t)blockDim.x * V, row.n = op.n;
    if constexpr (AHEAD) {
        next = row;
        begin_row<HEADS>(&next, op, blockIdx.x);
    }
    for (size_t i = blockIdx.x; i < op.m; i += gridDim.x) {
        const float mean = op.statistics[2 * i], inverse = op.statistics[2 * i + 1];
        float sum[2] = {0, 0};

        if constexpr (AHEAD)
            row = next;
        else
            begin_row<HEADS>(&row, op, i);
        row.each([&](const pack<T, V>(&at)[GRADIENT_ROWS], size_t column, int k) {
            const pack<T, V> weight = load<V>(op.weight + column);

            if (!HELD && i > blockIdx.x) {
                load_wide(of_weight[0], line + column);
                load_wide(of_bias[0], line + op.n + column);
            }
#pragma unroll
            for (int v = 0; v < V; v++) {
                const float dy = to_float(at[DY].at[v]), z = (to_float(at[X].at[v]) - mean) * inverse;
                const float g = dy * factor(weight.at[v], op.offset);
                sum[0] += g;
                sum[1] += g * z;
                of_weight[k][v] = (HELD || i > blockIdx.x ? of_weight[k][v] : 0) + dy * z;
                of_bias[k][v] = (HELD || i > blockIdx.x ? of_bias[k][v] : 0) + dy;
            }
            if (!HELD) {
                store_wide(line + column, of_weight[0]);
                store_wide(line + op.n + column, of_bias[0]);
            }
        });
        if constexpr (AHEAD)
            begin_row<HEADS>(&next, op, i + gridDim.x);
        block_sum(&shared, turn++, sum);
        const float mean_g = op.centred ? sum[0] / (float)op.n : 0, mean_gz = sum[1] / (float)op.n;
        row.each([&](const pack<T, V>(&at)[GRADIENT_ROWS], size_t column, int) {
            const pack<T, V> weight = load<V>(op.weight + column);
            pack<T, V> dx;

#pragma unroll
            for (int v = 0; v < V; v++) {
                const float z = (to_float(at[X].at[v]) - mean) * inverse;
                const float g = to_float(at[DY].at[v]) * factor(weight.at[v], op.offset);
                const float gradient = inverse * (g - mean_g - z * mean_gz);
                set(&dx.at[v], op.accumulate ? to_float(at[DX].at[v]) + gradient : gradient);
            }
            store<V>(op.dx + row_at<HEADS>(op, i) + column, dx);
        });
    }
    if (HELD)
        row.each([&](const pack<T, V>(&)[GRADIENT_ROWS], size_t column, int k) {
            store_wide(line + column, of_weight[k]);
            store_wide(line + op.n + column, of_bias[k]);
        });
}

template <int V, typename T>
static cudaError_t run_norm_gradient(const struct cuda_queue *q, const struct gradient_arrays<T> &op,
                                     struct onto_sums to)
{
    const size_t packs = pieces(op.n, V), held = gradient_share<V>::K;
    const unsigned threads = whole_warps(smaller(pieces(packs, held), NORM_THREADS));
    const size_t room = PLAN_CUDA_SCRATCH_BYTES / (2 * op.n * sizeof *op.lines);
    const unsigned blocks = smaller(op.m, smaller(room, (size_t)q->n_processors * (NORM_THREADS / threads)));
    cudaError_t rc;

    const auto kernel = op.n_heads > 1            ? norm_gradient_rows<T, V, false, true>
                        : packs <= threads * held ? norm_gradient_rows<T, V, true, false>
                                                  : norm_gradient_rows<T, V, false, false>;
    rc = launch(kernel, dim3(blocks), threads, 0, q->stream, op);
    return rc == cudaSuccess ? add_lines<float, 1>(q, to, blocks, 2 * op.n) : rc;
}

template <typename T> static cudaError_t norm_gradient(const struct cuda_queue *q, const struct device_norm *op)
{
    const struct gradient_arrays<T> arrays = {
        (T *)op->x_gradient, op->accumulate, (const T *)op->y_gradient, (const T *)op->x, op->statistics,
            (const T *)op->weight, op->m *device_norm_heads(op), op->n, device_norm_heads(op), device_norm_stride(op),
            (float *)q->scratch, op->kind == DEVICE_LAYER_NORM, op->offset
    };
    const struct onto_sums to = {op->weight_gradient, op->bias_gradient, op->n};
    const bool are_whole = is_whole(arrays.dx, arrays.stride) && is_whole(arrays.dy, arrays.stride) &&
                           is_whole(arrays.x, arrays.stride) && is_whole(arrays.weight, op->n);

    return are_whole ? run_norm_gradient<whole<T>::V>(q, arrays, to) : run_norm_gradient<1>(q, arrays, to);
}

cudaError_t cuda_norm_backward(const struct cuda_queue *q, const struct device_norm *op)
{
    if (op->m == 0 || op->n == 0)
        return cudaSuccess;
    return TYPED(q, norm_gradient)(q, op);
}

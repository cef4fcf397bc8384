/* device/cuda/kernels/rows.cu - sums over rows (the gradients of biases), and positions with their gradient.
 *
 * For positions a thread reads or writes one pack of the table once, and runs over all rows. */
#include "device/cuda/kernels/sum_rows.cuh"

template <typename T> static cudaError_t reduce_either(const struct cuda_queue *q, const struct device_reduce_rows *op)
{
    const T *x = (const T *)op->x;

    return is_whole(x, op->stride) && op->n % whole<T>::V == 0
               ? sum_onto<T, whole<T>::V>(q, op->sum, summed_array<T, whole<T>::V>{x, op->stride}, op->m, op->n)
               : sum_onto<T, 1>(q, op->sum, summed_array<T, 1>{x, op->stride}, op->m, op->n);
}

cudaError_t cuda_reduce_rows(const struct cuda_queue *q, const struct device_reduce_rows *op)
{
    if (op->m == 0 || op->n == 0)
        return cudaSuccess;
    return TYPED(q, reduce_either)(q, op);
}

/* ---- positions ---- */

/* U: the table's type. */
template <typename T, typename U, int V>
static __global__ void add_positions(struct device_position op, size_t first, size_t n_table)
{
    const size_t at = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * V, apart = op.n_tokens * op.n;

    if (at >= n_table * op.n)
        return;
    const pack<U, V> x = load<V>((const U *)op.table + at);
    T *y = (T *)op.y + first * op.n + at;
    for (size_t row = 0; row < op.n_rows; row += PACKS) {
        pack<T, V> held[PACKS];

#pragma unroll
        for (int k = 0; k < PACKS; k++)
            if (row + k < op.n_rows)
                held[k] = load<V>(y + (row + k) * apart);
#pragma unroll
        for (int k = 0; k < PACKS; k++)
            if (row + k < op.n_rows) {
                float sum[V];

#pragma unroll
                for (int v = 0; v < V; v++)
                    sum[v] = held[k][v] + x[v];
                store(y + (row + k) * apart, sum);
            }
    }
}

template <typename T, int V>
static __global__ void sum_positions(float *table, const T *dy, size_t n_rows, size_t apart)
{
    const size_t at = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * V;
    struct compensated sum[V] = {};
    float onto[V];

    if (at >= apart)
        return;
    for (size_t row = 0; row < n_rows; row += PACKS) {
        pack<T, V> held[PACKS];

#pragma unroll
        for (int k = 0; k < PACKS; k++)
            if (row + k < n_rows)
                held[k] = load<V>(dy + (row + k) * apart + at);
#pragma unroll
        for (int k = 0; k < PACKS; k++)
#pragma unroll
            for (int v = 0; v < V; v++)
                if (row + k < n_rows)
                    add(&sum[v], held[k][v]);
    }
    load_wide(onto, table + at);
#pragma unroll
    for (int v = 0; v < V; v++)
        onto[v] = (float)((double)onto[v] + total(sum[v]));
    store_wide(table + at, onto);
}

static dim3 blocks_over(size_t elements, size_t v)
{
    return dim3((unsigned)pieces(pieces(elements, v), ROW_THREADS));
}

template <typename T, typename U>
static cudaError_t position(const struct cuda_queue *q, const struct device_position *op, size_t first, size_t n_table)
{
    enum { V = whole<T>::V };
    const bool are_whole = is_whole((T *)op->y, op->n) && is_whole_for<T>((const U *)op->table, op->n);

    return launch(are_whole ? add_positions<T, U, V> : add_positions<T, U, 1>,
                  blocks_over(n_table * op->n, are_whole ? V : 1), ROW_THREADS, 0, q->stream, *op, first, n_table);
}

template <typename T>
static cudaError_t position_either(const struct cuda_queue *q, const struct device_position *op, size_t first,
                                   size_t n_table)
{
    return op->narrow ? position<T, bf16>(q, op, first, n_table) : position<T, T>(q, op, first, n_table);
}

cudaError_t cuda_position(const struct cuda_queue *q, const struct device_position *op, size_t first, size_t n_table)
{
    if (op->n_rows * n_table * op->n == 0)
        return cudaSuccess;
    return TYPED(q, position_either)(q, op, first, n_table);
}

template <typename T> static cudaError_t position_backward(const struct cuda_queue *q, const struct device_position *op)
{
    enum { V = whole<T>::V };
    const size_t apart = op->n_tokens * op->n;
    const T *dy = (const T *)op->y_gradient;
    const bool are_whole = is_whole(dy, apart) && is_whole(op->table_gradient, apart);

    return launch(are_whole ? sum_positions<T, V> : sum_positions<T, 1>, blocks_over(apart, are_whole ? V : 1),
                  ROW_THREADS, 0, q->stream, op->table_gradient, dy, op->n_rows, apart);
}

cudaError_t cuda_position_backward(const struct cuda_queue *q, const struct device_position *op)
{
    if (op->n_rows * op->n_tokens * op->n == 0)
        return cudaSuccess;
    return TYPED(q, position_backward)(q, op);
}

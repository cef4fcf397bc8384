/* device/cuda/kernels/sparse.cu - sparse weights into their places, and gradients from there.
 *
 * Blocks stride rows. A row's elements lie side by side, and their places ascend. */
#include "device/cuda/kernels/pack.cuh"

struct range {
    size_t first, end;
};

static __device__ inline struct range elements_of(const struct device_sparse &op, size_t row)
{
    const size_t first = op.starts[row], end = op.starts[row + 1];

    return {first < op.n ? first : op.n, end < op.n ? end : op.n};
}

template <typename T> static __global__ void __launch_bounds__(ROW_THREADS) scatter(struct device_sparse op)
{
    for (size_t row = blockIdx.x; row < op.rows; row += gridDim.x) {
        const struct range of = elements_of(op, row);
        T *const y = (T *)op.y + row * op.columns;

        for (size_t i = threadIdx.x; i < op.columns; i += blockDim.x)
            set(&y[i], 0);
        __syncthreads();
        for (size_t i = of.first + threadIdx.x; i < of.end; i += blockDim.x)
            if (op.places[i] < op.columns)
                y[op.places[i]] = ((const T *)op.x)[i];
    }
}

/* The item behind the last row is what no row has. */
static __global__ void __launch_bounds__(ROW_THREADS) gather(struct device_sparse op)
{
    float *const y = (float *)op.y;

    for (size_t row = blockIdx.x; row <= op.rows; row += gridDim.x) {
        const bool is_rest = row == op.rows;
        const size_t n = op.starts[op.rows];
        const struct range of = is_rest ? range{n < op.n ? n : op.n, op.n} : elements_of(op, row);

        for (size_t i = of.first + threadIdx.x; i < of.end; i += blockDim.x)
            y[i] = !is_rest && op.places[i] < op.columns ? ((const float *)op.x)[row * op.columns + op.places[i]] : 0;
    }
}

static dim3 grid_of(const struct cuda_queue *q, size_t rows)
{
    return dim3(smaller(rows, (size_t)q->n_processors * BLOCKS));
}

static unsigned threads_of(const struct device_sparse *op)
{
    return whole_warps(smaller(op->columns, ROW_THREADS));
}

cudaError_t cuda_scatter(const struct cuda_queue *q, const struct device_sparse *op)
{
    if (op->rows * op->columns == 0)
        return cudaSuccess;
    return launch(q->type == NUMBER_BF16 ? scatter<bf16> : scatter<float>, grid_of(q, op->rows), threads_of(op), 0,
                  q->stream, *op);
}

cudaError_t cuda_gather(const struct cuda_queue *q, const struct device_sparse *op)
{
    if (op->rows * op->columns == 0)
        return cudaSuccess;
    return launch(gather, grid_of(q, op->rows + 1), threads_of(op), 0, q->stream, *op);
}

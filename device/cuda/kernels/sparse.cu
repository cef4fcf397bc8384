/* device/cuda/kernels/sparse.cu - sparse weights into their places, and gradients from there.
 *
 * Warps stride rows, lane after lane a column. A word of places says which lanes have an element, and how many precede each. */
#include "device/cuda/kernels/pack.cuh"

struct range {
    size_t first, end;
};

static __device__ inline struct range elements_of(const struct device_sparse &op, size_t row)
{
    const size_t first = op.starts[row], end = op.starts[row + 1];

    return {first < op.n ? first : op.n, end < op.n ? end : op.n};
}

static __device__ inline size_t first_row(void)
{
    return blockIdx.x * (size_t)(blockDim.x / WARP) + threadIdx.x / WARP;
}

static __device__ inline size_t n_warps(void)
{
    return gridDim.x * (size_t)(blockDim.x / WARP);
}

/* Places of a row from column `first` on, a multiple of WARP; as many as the row has. */
static __device__ inline unsigned places_of(const struct device_sparse &op, size_t row, size_t first)
{
    const unsigned all = op.places[row * ((op.columns + WARP - 1) / WARP) + first / WARP];

    return op.columns - first < WARP ? all & ((1u << (op.columns - first)) - 1) : all;
}

template <typename T> static __global__ void __launch_bounds__(ROW_THREADS) scatter(struct device_sparse op)
{
    const unsigned lane = threadIdx.x % WARP;

    for (size_t row = first_row(); row < op.rows; row += n_warps()) {
        const struct range of = elements_of(op, row);
        T *const y = (T *)op.y + row * op.columns;
        size_t at = of.first;

        for (size_t first = 0; first < op.columns; first += WARP) {
            const unsigned places = places_of(op, row, first);
            const size_t i = at + __popc(places & ((1u << lane) - 1));
            if (first + lane < op.columns) {
                if ((places >> lane & 1) && i < of.end)
                    y[first + lane] = ((const T *)op.x)[i];
                else
                    set(&y[first + lane], 0);
            }
            at += __popc(places);
        }
    }
}

/* The item behind the last row is what no row has. */
static __global__ void __launch_bounds__(ROW_THREADS) gather(struct device_sparse op)
{
    const unsigned lane = threadIdx.x % WARP;
    float *const y = (float *)op.y;

    for (size_t row = first_row(); row <= op.rows; row += n_warps()) {
        const bool is_rest = row == op.rows;
        const size_t n = op.starts[op.rows];
        const struct range of = is_rest ? range{n < op.n ? n : op.n, op.n} : elements_of(op, row);
        size_t at = of.first;

        for (size_t first = 0; !is_rest && first < op.columns; first += WARP) {
            const unsigned places = places_of(op, row, first);
            const size_t i = at + __popc(places & ((1u << lane) - 1));
            if ((places >> lane & 1) && i < of.end)
                y[i] = ((const float *)op.x)[row * op.columns + first + lane];
            at += __popc(places);
        }
        for (size_t i = at + lane; i < of.end; i += WARP)
            y[i] = 0;
    }
}

static cudaError_t over_rows(const struct cuda_queue *q, void (*kernel)(struct device_sparse), size_t rows,
                             const struct device_sparse *op)
{
    enum { ROWS = ROW_THREADS / WARP };

    if (op->rows * op->columns == 0)
        return cudaSuccess;
    return launch(kernel, dim3(smaller((rows + ROWS - 1) / ROWS, (size_t)q->n_processors * BLOCKS)), ROW_THREADS, 0,
                  q->stream, *op);
}

cudaError_t cuda_scatter(const struct cuda_queue *q, const struct device_sparse *op)
{
    return over_rows(q, op->wide ? scatter<float> : TYPED(q, scatter), op->rows, op);
}

cudaError_t cuda_gather(const struct cuda_queue *q, const struct device_sparse *op)
{
    return over_rows(q, gather, op->rows + 1, op);
}

/* device/cuda/rows.cu - sums over rows: the gradients of biases. */
#include "device/cuda/sum_rows.cuh"

template <typename T, int V>
static cudaError_t reduce_rows(const struct cuda_queue *q, float *sum, const T *x, size_t m, size_t n)
{
    const size_t across = pieces(n, WARP * V), room = PLAN_CUDA_SCRATCH_BYTES / (n * sizeof(double));
    const size_t wanted = pieces((size_t)q->n_processors * 8, across);
    const size_t rows = pieces(m, smaller(room, wanted)), lines = pieces(m, rows);
    const struct to_lines partial = {(double *)q->scratch, n};
    const struct onto_sums to = {sum, NULL, n};
    cudaError_t rc;

    rc = launch(sum_rows<T, V, struct to_lines>, dim3((unsigned)across, (unsigned)lines), SUM_WARPS * WARP, 0,
                q->stream, partial, x, m, n, rows);
    return rc == cudaSuccess ? add_lines<double, 1>(q, to, lines, n) : rc;
}

template <typename T>
static cudaError_t reduce_either(const struct cuda_queue *q, float *sum, const T *x, size_t m, size_t n)
{
    return is_whole(x, n) ? reduce_rows<T, whole<T>::V>(q, sum, x, m, n) : reduce_rows<T, 1>(q, sum, x, m, n);
}

cudaError_t cuda_reduce_rows(const struct cuda_queue *q, float *sum, const void *x, size_t m, size_t n)
{
    if (m == 0 || n == 0)
        return cudaSuccess;
    return q->type == NUMBER_BF16 ? reduce_either(q, sum, (const bf16 *)x, m, n)
                                  : reduce_either(q, sum, (const float *)x, m, n);
}

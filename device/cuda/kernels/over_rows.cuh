/* device/cuda/kernels/over_rows.cuh - a kernel over the elements of rows, each of which is read and written once. */
#ifndef DEVICE_CUDA_KERNELS_OVER_ROWS_CUH
#define DEVICE_CUDA_KERNELS_OVER_ROWS_CUH

#include "device/cuda/kernels/pack.cuh"

/* f loads one pack's operands and stores the pack's results; all loads of a thread come first. */
template <int V, typename F> static __global__ void over_rows(F f, size_t m, size_t n)
{
    const size_t first = ((size_t)blockIdx.x * blockDim.x * PACKS + threadIdx.x) * V, step = (size_t)blockDim.x * V;

    for (size_t row = blockIdx.y; row < m; row += gridDim.y) {
        typename F::operands held[PACKS];

#pragma unroll
        for (int k = 0; k < PACKS; k++)
            if (first + k * step < n)
                held[k] = f.load_at(row, first + k * step);
#pragma unroll
        for (int k = 0; k < PACKS; k++)
            if (first + k * step < n)
                f.store_at(held[k], row, first + k * step);
    }
}

template <int V, typename F> static cudaError_t run(const struct cuda_queue *q, F f, size_t m, size_t n)
{
    if (m == 0 || n == 0)
        return cudaSuccess;
    const struct row_grid over = rows_over(q, m, n, V);

    return launch(over_rows<V, F>, over.grid, over.threads, 0, q->stream, f, m, n);
}

/* F<T, V> with whole packs if all views have them. */
template <typename T, template <typename, int> class F>
static cudaError_t run_either(const struct cuda_queue *q, bool is_whole, const F<T, whole<T>::V> &whole_packs,
                              const F<T, 1> &elements, size_t m, size_t n)
{
    return is_whole ? run<whole<T>::V>(q, whole_packs, m, n) : run<1>(q, elements, m, n);
}

#endif

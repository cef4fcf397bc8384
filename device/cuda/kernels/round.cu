/* device/cuda/kernels/round.cu - contributions to 16 bits.
 *
 * 6 bytes of device memory per element, then 2 of the link: rounding takes 0.5 % of the copy's time. */
#include "device/cuda/kernels/pack.cuh"

template <typename T, int V> static __global__ void round_all(T *to, const float *from, size_t n)
{
    const size_t all = (size_t)gridDim.x * blockDim.x * V;

    for (size_t first = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * V; first < n; first += PACKS * all) {
        pack<float, V> held[PACKS];

#pragma unroll
        for (int k = 0; k < PACKS; k++)
            if (first + k * all < n)
                held[k] = load<V>(from + first + k * all);
#pragma unroll
        for (int k = 0; k < PACKS; k++)
            if (first + k * all < n)
                store(to + first + k * all, held[k].at);
    }
}

template <typename T> static cudaError_t to_half(const struct cuda_queue *q, uint16_t *to, const float *from, size_t n)
{
    const bool in_packs = is_whole(from, n) && (uintptr_t)to % (4 * sizeof *to) == 0;
    const size_t block = (size_t)ROW_THREADS * PACKS * (in_packs ? 4 : 1);
    const unsigned blocks = smaller(pieces(n, block), (size_t)q->n_processors * BLOCKS);

    return launch(in_packs ? round_all<T, 4> : round_all<T, 1>, dim3(blocks), ROW_THREADS, 0, q->stream, (T *)to, from,
                  n);
}

cudaError_t cuda_to_half(const struct cuda_queue *q, enum number_type type, uint16_t *to, const float *from, size_t n)
{
    if (n == 0)
        return cudaSuccess;
    return type == NUMBER_BF16 ? to_half<bf16>(q, to, from, n) : to_half<fp16>(q, to, from, n);
}

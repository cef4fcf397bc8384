/* device/cuda/kernels/decode.cu - frozen weights from their codes (proto/base/form.h).
 *
 * A thread decodes a pack: 4 or 8 codes, read at once, one store. A pack lies in one row, and in one block of NF4; its
 * scale is read through the cache. The quantiles are in shared memory, where lanes may read different ones at once. */
#include "device/cuda/kernels/pack.cuh"

#include <assert.h>

enum { QUANTILES = 16 };

struct quantiles {
    float of[QUANTILES];
};

/* V weights from element `at` on. */
template <enum form FORM, int V>
static __device__ inline void decode_pack(float (&x)[V], const struct device_decode &op, const float *quantiles,
                                          size_t at)
{
    if constexpr (FORM == FORM_BF16) {
        const pack<bf16, V> codes = load<V>((const bf16 *)op.codes + at);
#pragma unroll
        for (int v = 0; v < V; v++)
            x[v] = codes[v];
    } else if constexpr (FORM == FORM_INT8) {
        const pack<int8_t, V> codes = load<V>((const int8_t *)op.codes + at);
        const float scale = op.scales[at / op.columns];
#pragma unroll
        for (int v = 0; v < V; v++)
            x[v] = (float)codes.at[v] * scale * FORM_INT8_UNIT;
    } else {
        enum { BYTES = V > 1 ? V / 2 : 1 };
        const pack<uint8_t, BYTES> codes = load<BYTES>((const uint8_t *)op.codes + at / 2);
        const float scale = op.scales[at / FORM_BLOCK];
#pragma unroll
        for (int v = 0; v < V; v++)
            x[v] = quantiles[codes.at[v / 2] >> ((at + (size_t)v) % 2 ? 0 : 4) & 15] * scale;
    }
}

template <typename T, enum form FORM, int V>
static __global__ void decode(struct device_decode op, size_t n, struct quantiles given)
{
    const size_t step = (size_t)gridDim.x * blockDim.x * V;
    float *quantiles = shared_memory<float>();

    if (threadIdx.x < QUANTILES)
        quantiles[threadIdx.x] = given.of[threadIdx.x];
    __syncthreads();
    for (size_t at = ((size_t)blockIdx.x * blockDim.x + threadIdx.x) * V; at < n; at += step) {
        float x[V];

        decode_pack<FORM, V>(x, op, quantiles, at);
        store((T *)op.y + at, x);
    }
}

template <typename T, enum form FORM>
static cudaError_t decode_form(const struct cuda_queue *q, const struct device_decode *op)
{
    enum { V = whole<T>::V };
    const size_t n = op->rows * op->columns;
    const bool are_whole = is_whole((T *)op->y, n) && (uintptr_t)op->codes % PACK_BYTES == 0 &&
                           (FORM != FORM_INT8 || op->columns % V == 0);
    const size_t blocks = pieces(pieces(n, are_whole ? V : 1), ROW_THREADS);
    struct quantiles quantiles;

    for (int i = 0; i < QUANTILES; i++)
        quantiles.of[i] = form_nf4[i];
    return launch(are_whole ? decode<T, FORM, V> : decode<T, FORM, 1>,
                  dim3(smaller(blocks, (size_t)q->n_processors * BLOCKS)), ROW_THREADS, sizeof quantiles, q->stream,
                  *op, n, quantiles);
}

template <typename T> static cudaError_t decode_any(const struct cuda_queue *q, const struct device_decode *op)
{
    switch (op->form) {
    case FORM_BF16:
        return decode_form<T, FORM_BF16>(q, op);
    case FORM_INT8:
        return decode_form<T, FORM_INT8>(q, op);
    case FORM_NF4:
        return decode_form<T, FORM_NF4>(q, op);
    case FORM_VALUES:
    case FORM_FP32:
    case FORMS:
        break;
    }
    assert(!"a form with codes");
    return cudaSuccess;
}

cudaError_t cuda_decode(const struct cuda_queue *q, const struct device_decode *op)
{
    if (op->rows * op->columns == 0)
        return cudaSuccess;
    return TYPED(q, decode_any)(q, op);
}

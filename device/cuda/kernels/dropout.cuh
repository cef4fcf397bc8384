/* device/cuda/kernels/dropout.cuh - dropout with the residual addition, a pack at a time: for rows of their own, and for
 * norms that read the sum in the same pass. */
#ifndef DEVICE_CUDA_KERNELS_DROPOUT_CUH
#define DEVICE_CUDA_KERNELS_DROPOUT_CUH

#include "device/cuda/kernels/pack.cuh"

/* y = x + dropout(h), or without x: numbers in fp32, rounded once. */
template <typename T, int V> struct dropout_rows {
    T *y;
    const T *x, *h; /* x may be NULL */
    size_t n, stride;
    uint32_t n_tokens, threshold;
    float kept; /* device_dropout_factor */
    uint64_t first_row;
    struct random_key key;

    struct operands {
        pack<T, V> x, h;
    };

    __device__ operands load_at(size_t row, size_t column) const
    {
        operands held;

        held.h = load<V>(h + row * stride + column);
        if (x)
            held.x = load<V>(x + row * stride + column);
        return held;
    }

    /* Words of the V elements from this one on; a whole pack begins at a quad. */
    __device__ void draw(uint32_t (&words)[V], uint64_t row, uint64_t element) const
    {
        if constexpr (V == 1) {
            uint32_t four[4];
            device_random_quad(four, key, row, element / 4);
            const uint32_t low = element & 1 ? four[1] : four[0], high = element & 1 ? four[3] : four[2];
            words[0] = element & 2 ? high : low;
        } else {
#pragma unroll
            for (int v = 0; v < V; v += 4)
                device_random_quad(words + v, key, row, element / 4 + v / 4);
        }
    }

    /* Of a row's V elements from a column on. */
    __device__ pack<T, V> sum_at(const operands &held, size_t row, size_t column) const
    {
        const uint32_t in_minibatch = (uint32_t)row / n_tokens, token = (uint32_t)row - in_minibatch * n_tokens;
        uint32_t words[V];
        float sum[V];

        if (threshold > 0)
            draw(words, first_row + in_minibatch, (uint64_t)token * n + column);
#pragma unroll
        for (int v = 0; v < V; v++) {
            const float factor = threshold == 0 || words[v] >= threshold ? kept : 0;
            const float element = factor * held.h[v];
            sum[v] = x ? held.x[v] + element : element;
        }
        return round_to<T>(sum);
    }

    __device__ void store_at(const operands &held, size_t row, size_t column) const
    {
        store(y + row * stride + column, sum_at(held, row, column));
    }
};

template <typename T, int V> static dropout_rows<T, V> dropout_of(const struct device_dropout_add *op)
{
    const dropout_rows<T, V> rows = {(T *)op->y,
                                     (const T *)op->x,
                                     (const T *)op->h,
                                     op->n,
                                     device_dropout_stride(op),
                                     (uint32_t)op->n_tokens,
                                     random_threshold(op->dropout.p),
                                     device_dropout_factor(&op->dropout),
                                     op->dropout.first_row,
                                     op->dropout.key};

    return rows;
}

/* True if all of its views have whole packs. */
template <typename T> static bool is_whole_sum(const struct device_dropout_add *op)
{
    const size_t stride = device_dropout_stride(op);

    return is_whole((const T *)op->y, stride) && is_whole((const T *)op->x, stride) &&
           is_whole((const T *)op->h, stride) && op->n % whole<T>::V == 0;
}

#endif

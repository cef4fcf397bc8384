/* device/cuda/kernels/expert_adapter.cuh - products of one expert's low-rank adapter (proto/operation/call/experts.h).
 *
 * A rank is far smaller than a tile of the experts' own products, and B's columns of one expert lie apart: so these have
 * tiles of 32 by 32, a factor, and any strides. In fp32 arithmetic, 16 terms at a time, in order: they do not depend on
 * how many rows an expert has. */
#ifndef DEVICE_CUDA_KERNELS_EXPERT_ADAPTER_CUH
#define DEVICE_CUDA_KERNELS_EXPERT_ADAPTER_CUH

#include "device/cuda/kernels/pack.cuh"

enum { LOW_TILE = 32, LOW_STEP = 16, LOW_EACH = 2, LOW_SIDE = LOW_TILE / LOW_EACH, LOW_THREADS = LOW_SIDE * LOW_SIDE };

/* c (m, n) = factor * a (m, k) b (k, n), + c if it adds, with any strides. An expert's rows are m, or k where it sums over
 * them. */
template <typename T, typename C> struct low_product {
    const T *a, *b;
    C *c;
    size_t a_row, a_column, b_row, b_column, c_row, c_column;
    size_t m, n, k;
    float factor;
    uint32_t over_rows, adds, unused;
};

/* A thread has rows y, y+16 and columns x, x+16 of the tile. rows.count(): the expert's. */
template <typename R, typename T, typename C>
static __global__ void __launch_bounds__(LOW_THREADS) multiply_low(const R rows, const low_product<T, C> p)
{
    __shared__ float a[LOW_STEP][LOW_TILE + 1], b[LOW_STEP][LOW_TILE + 1];
    const size_t count = rows.count(), m = p.over_rows ? p.m : count, k = p.over_rows ? count : p.k;
    const size_t row = (size_t)blockIdx.y * LOW_TILE, column = (size_t)blockIdx.x * LOW_TILE;
    const unsigned x = threadIdx.x % LOW_SIDE, y = threadIdx.x / LOW_SIDE;
    float total[LOW_EACH][LOW_EACH] = {};

    if (row >= m)
        return;
    for (size_t first = 0; first < k; first += LOW_STEP) {
        float sum[LOW_EACH][LOW_EACH] = {};

        __syncthreads();
        for (unsigned i = threadIdx.x; i < LOW_TILE * LOW_STEP; i += LOW_THREADS) {
            const size_t at = first + i % LOW_STEP, r = row + i / LOW_STEP, c = column + i / LOW_STEP;
            a[i % LOW_STEP][i / LOW_STEP] = at < k && r < m ? to_float(p.a[r * p.a_row + at * p.a_column]) : 0;
            b[i % LOW_STEP][i / LOW_STEP] = at < k && c < p.n ? to_float(p.b[at * p.b_row + c * p.b_column]) : 0;
        }
        __syncthreads();
        for (unsigned t = 0; t < LOW_STEP; t++)
            for (unsigned i = 0; i < LOW_EACH; i++)
                for (unsigned j = 0; j < LOW_EACH; j++)
                    sum[i][j] = fmaf(a[t][y + i * LOW_SIDE], b[t][x + j * LOW_SIDE], sum[i][j]);
        for (unsigned i = 0; i < LOW_EACH; i++)
            for (unsigned j = 0; j < LOW_EACH; j++)
                total[i][j] += sum[i][j];
    }
    for (unsigned i = 0; i < LOW_EACH; i++)
        for (unsigned j = 0; j < LOW_EACH; j++) {
            const size_t r = row + y + i * LOW_SIDE, c = column + x + j * LOW_SIDE;
            if (r >= m || c >= p.n)
                continue;
            C *const to = p.c + r * p.c_row + c * p.c_column;
            set(to, p.factor * total[i][j] + (p.adds ? to_float(*to) : 0));
        }
}

/* One expert's adapter of one map of in to out numbers, over `rows` gathered rows at most. */
template <typename T> struct lowered {
    const struct device_experts_adapter *of;
    const T *a; /* (rank, in) */
    T *low;     /* (rows, rank) */
    size_t in, out, rows, expert, n_experts;

    /* low = factor * x A^T, of rows x (rows, in). */
    low_product<T, T> descend(const T *x) const
    {
        low_product<T, T> p = into_low(x, in);

        p.b = a, p.b_row = 1, p.b_column = in;
        return p;
    }

    /* low = factor * dy B. */
    low_product<T, T> ascend(const T *dy) const
    {
        low_product<T, T> p = into_low(dy, out);

        p.b = (const T *)of->b + expert, p.b_row = of->rank * n_experts, p.b_column = n_experts;
        return p;
    }

    /* y (rows, out) += low B^T. */
    template <typename C> low_product<T, C> add(C *y) const
    {
        low_product<T, C> p = of_low(y, out);

        p.b = (const T *)of->b + expert, p.b_row = n_experts, p.b_column = of->rank * n_experts;
        return p;
    }

    /* dx (rows, in) += low A. */
    template <typename C> low_product<T, C> give_back(C *dx) const
    {
        low_product<T, C> p = of_low(dx, in);

        p.b = a, p.b_row = in, p.b_column = 1;
        return p;
    }

    /* A's gradient: low^T x. */
    low_product<T, float> contribute_a(const T *x, bool adds) const
    {
        low_product<T, float> p = over_rows(low, of->rank, of->rank, x, in, adds);

        p.c = of->a_gradient + expert * of->rank * in, p.c_row = in, p.c_column = 1;
        return p;
    }

    /* B's gradient: dy^T low, in the expert's columns. */
    low_product<T, float> contribute_b(const T *dy, bool adds) const
    {
        low_product<T, float> p = over_rows(dy, out, out, low, of->rank, adds);

        p.c = of->b_gradient + expert, p.c_row = of->rank * n_experts, p.c_column = n_experts;
        return p;
    }

  private:
    low_product<T, T> into_low(const T *x, size_t columns) const
    {
        low_product<T, T> p = {};

        p.a = x, p.a_row = columns, p.a_column = 1, p.c = low, p.c_row = of->rank, p.c_column = 1;
        p.m = rows, p.n = of->rank, p.k = columns, p.factor = of->factor;
        return p;
    }

    template <typename C> low_product<T, C> of_low(C *y, size_t columns) const
    {
        low_product<T, C> p = {};

        p.a = low, p.a_row = of->rank, p.a_column = 1, p.c = y, p.c_row = columns, p.c_column = 1;
        p.m = rows, p.n = columns, p.k = of->rank, p.factor = 1, p.adds = 1;
        return p;
    }

    low_product<T, float> over_rows(const T *x, size_t x_row, size_t m, const T *y, size_t n, bool adds) const
    {
        low_product<T, float> p = {};

        p.a = x, p.a_row = 1, p.a_column = x_row, p.b = y, p.b_row = n, p.b_column = 1;
        p.m = m, p.n = n, p.factor = 1, p.over_rows = 1, p.adds = adds;
        return p;
    }
};

#endif

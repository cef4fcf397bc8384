/* device/cuda/kernels/expert_adapter.cuh - products of one expert's low-rank adapter (proto/operation/call/experts.h).
 *
 * A rank is far smaller than a tile of the experts' own products, and B's columns of one expert lie apart: so these are
 * plain ones in tiles of 32 by 32. */
#ifndef DEVICE_CUDA_KERNELS_EXPERT_ADAPTER_CUH
#define DEVICE_CUDA_KERNELS_EXPERT_ADAPTER_CUH

#include "device/cuda/kernels/expert_product.cuh"

enum { LOW_EACH = 2, LOW_TILE = LOW_EACH * plain::ACROSS };

/* One expert's adapter of one map of in to out numbers, over `rows` gathered rows at most. */
template <typename T> struct lowered {
    const struct device_experts_adapter *of;
    const T *a; /* (rank, in) */
    T *low;     /* (rows, rank) */
    size_t in, out, rows, expert, n_experts;

    /* low = factor * x A^T, of rows x (rows, in). */
    strided_product<T, T> descend(const T *x) const
    {
        strided_product<T, T> p = into_low(x, in);

        p.b = a, p.b_row = 1, p.b_column = in;
        return p;
    }

    /* low = factor * dy B. */
    strided_product<T, T> ascend(const T *dy) const
    {
        strided_product<T, T> p = into_low(dy, out);

        p.b = (const T *)of->b + expert, p.b_row = of->rank * n_experts, p.b_column = n_experts;
        return p;
    }

    /* y (rows, out) += low B^T. */
    template <typename C> strided_product<T, C> add(C *y) const
    {
        strided_product<T, C> p = of_low(y, out);

        p.b = (const T *)of->b + expert, p.b_row = n_experts, p.b_column = of->rank * n_experts;
        return p;
    }

    /* dx (rows, in) += low A. */
    template <typename C> strided_product<T, C> give_back(C *dx) const
    {
        strided_product<T, C> p = of_low(dx, in);

        p.b = a, p.b_row = in, p.b_column = 1;
        return p;
    }

    /* A's gradient: low^T x. */
    strided_product<T, float> contribute_a(const T *x, bool adds) const
    {
        strided_product<T, float> p = over_rows(low, of->rank, of->rank, x, in, adds);

        p.c = of->a_gradient + expert * of->rank * in, p.c_row = in, p.c_column = 1;
        return p;
    }

    /* B's gradient: dy^T low, in the expert's columns. */
    strided_product<T, float> contribute_b(const T *dy, bool adds) const
    {
        strided_product<T, float> p = over_rows(dy, out, out, low, of->rank, adds);

        p.c = of->b_gradient + expert, p.c_row = of->rank * n_experts, p.c_column = n_experts;
        return p;
    }

  private:
    strided_product<T, T> into_low(const T *x, size_t columns) const
    {
        strided_product<T, T> p = {};

        p.a = x, p.a_row = columns, p.a_column = 1, p.c = low, p.c_row = of->rank, p.c_column = 1;
        p.m = rows, p.n = of->rank, p.k = columns, p.factor = of->factor;
        return p;
    }

    template <typename C> strided_product<T, C> of_low(C *y, size_t columns) const
    {
        strided_product<T, C> p = {};

        p.a = low, p.a_row = of->rank, p.a_column = 1, p.c = y, p.c_row = columns, p.c_column = 1;
        p.m = rows, p.n = columns, p.k = of->rank, p.factor = 1, p.adds = 1;
        return p;
    }

    strided_product<T, float> over_rows(const T *x, size_t x_row, size_t m, const T *y, size_t n, bool adds) const
    {
        strided_product<T, float> p = {};

        p.a = x, p.a_row = 1, p.a_column = x_row, p.b = y, p.b_row = n, p.b_column = 1;
        p.m = m, p.n = n, p.factor = 1, p.over_rows = 1, p.adds = adds;
        return p;
    }
};

#endif

/* device/cuda/kernels/regroup.cu - columns in another order: 2 values per element (proto/operation/call/regroup.h, split.h). */
#include "device/cuda/kernels/over_rows.cuh"

template <typename T, int V> struct regrouped {
    T *y;
    const T *x;
    size_t n_groups, n_parts, n; /* columns of a piece */

    typedef pack<T, V> operands;

    __device__ operands load_at(size_t row, size_t column) const
    {
        const size_t piece = column / n, part = piece / n_groups, group = piece % n_groups;

        return load<V>(x + (row * n_groups * n_parts + group * n_parts + part) * n + column % n);
    }

    __device__ void store_at(const operands &held, size_t row, size_t column) const
    {
        store(y + row * n_groups * n_parts * n + column, held);
    }
};

template <typename T> static cudaError_t regroup(const struct cuda_queue *q, const struct device_regroup *op)
{
    const regrouped<T, whole<T>::V> packs = {(T *)op->y, (const T *)op->x, op->n_groups, op->n_parts, op->n};
    const regrouped<T, 1> elements = {packs.y, packs.x, op->n_groups, op->n_parts, op->n};
    const bool are_whole = is_whole(packs.y, op->n) && is_whole(packs.x, op->n);

    return run_either<T, regrouped>(q, are_whole, packs, elements, op->m, op->n_groups * op->n_parts * op->n);
}

cudaError_t cuda_regroup(const struct cuda_queue *q, const struct device_regroup *op)
{
    return TYPED(q, regroup)(q, op);
}

template <typename T, int V> struct split_rows {
    T *x, *y, *gates;
    size_t n, n_pairs, n_rest; /* columns of a query, of all pairs, of the rest */
    bool joins;

    typedef pack<T, V> operands;

    /* Where this column of x lies apart. */
    __device__ T *apart(size_t row, size_t column) const
    {
        const size_t head = column / (2 * n), j = column % (2 * n), n_queries = n_pairs / 2;

        if (column >= n_pairs)
            return y + row * (n_queries + n_rest) + n_queries + (column - n_pairs);
        return j < n ? y + row * (n_queries + n_rest) + head * n + j : gates + row * n_queries + head * n + (j - n);
    }

    __device__ T *together(size_t row, size_t column) const
    {
        return x + row * (n_pairs + n_rest) + column;
    }

    __device__ operands load_at(size_t row, size_t column) const
    {
        return load<V>(joins ? apart(row, column) : together(row, column));
    }

    __device__ void store_at(const operands &held, size_t row, size_t column) const
    {
        store(joins ? together(row, column) : apart(row, column), held);
    }
};

template <typename T> static cudaError_t split(const struct cuda_queue *q, const struct device_split *op, bool joins)
{
    const size_t n_pairs = 2 * op->n_heads * op->n;
    const split_rows<T, whole<T>::V> packs = {(T *)op->x, (T *)op->y, (T *)op->gates, op->n,
                                              n_pairs,    op->n_rest, joins};
    const split_rows<T, 1> elements = {packs.x, packs.y, packs.gates, op->n, n_pairs, op->n_rest, joins};
    const bool are_whole = is_whole(packs.x, op->n) && is_whole(packs.y, op->n_rest) && is_whole(packs.gates, op->n);

    return run_either<T, split_rows>(q, are_whole, packs, elements, op->m, n_pairs + op->n_rest);
}

cudaError_t cuda_split(const struct cuda_queue *q, const struct device_split *op)
{
    return TYPED(q, split)(q, op, false);
}

cudaError_t cuda_join(const struct cuda_queue *q, const struct device_split *op)
{
    return TYPED(q, split)(q, op, true);
}

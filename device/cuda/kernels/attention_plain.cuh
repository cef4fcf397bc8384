/* device/cuda/kernels/attention_plain.cuh - attention's tiles of fp32, staged a few columns at a time: for any head
 * width, number type and address. */
#ifndef DEVICE_CUDA_KERNELS_ATTENTION_PLAIN_CUH
#define DEVICE_CUDA_KERNELS_ATTENTION_PLAIN_CUH

#include "device/cuda/kernels/attention.cuh"

/* 64 x 64 sums by 256 threads: 4 x 4 each, rows and columns from plain_row(), plain_column() on. */
enum { PLAIN = 64, PLAIN_STEP = 16, PLAIN_THREADS = 256, PLAIN_ROW = PLAIN + 4 };

/* Shared memory: a few columns, or rows, of two factors; a tile with its columns as rows. */
struct plain_room {
    float left[PLAIN_STEP][PLAIN_ROW], right[PLAIN_STEP][PLAIN_ROW], tile[PLAIN][PLAIN_ROW];
    float by_bucket[DEVICE_BUCKETS]; /* a bias's gradient */
};

__device__ inline int plain_row()
{
    return (int)threadIdx.x / 16 * 4;
}

__device__ inline int plain_column()
{
    return (int)threadIdx.x % 16 * 4;
}

__device__ inline void plain_zero(float sums[4][4])
{
#pragma unroll
    for (int i = 0; i < 16; i++)
        sums[i / 4][i % 4] = 0;
}

/* sums += left^T right, each PLAIN_STEP rows of PLAIN. */
__device__ inline void plain_multiply(float sums[4][4], const float (*left)[PLAIN_ROW], const float (*right)[PLAIN_ROW])
{
#pragma unroll
    for (int s = 0; s < PLAIN_STEP; s++) {
        const float4 a = *(const float4 *)&left[s][plain_row()], b = *(const float4 *)&right[s][plain_column()];
        const float x[4] = {a.x, a.y, a.z, a.w}, y[4] = {b.x, b.y, b.z, b.w};
#pragma unroll
        for (int i = 0; i < 4; i++)
#pragma unroll
            for (int j = 0; j < 4; j++)
                sums[i][j] = fmaf(x[i], y[j], sums[i][j]);
    }
}

/* Rows of a view, in some order: number i < n of them is the view's row at(i). These are all, as they come. */
struct plain_rows {
    int n;

    __device__ int at(int i) const
    {
        return i;
    }
};

/* PLAIN rows of queries, or of keys, from `row` on of a head, columns from `column` on, as the rows of room; zeros
 * beyond the end. */
template <typename R, typename T>
__device__ inline void plain_stage_columns(float (*room)[PLAIN_ROW], const attention &a, view<const T> x, const R &rows,
                                           int row, int column)
{
    for (int i = (int)threadIdx.x; i < PLAIN * PLAIN_STEP; i += PLAIN_THREADS) {
        const int r = row + i / PLAIN_STEP, c = column + i % PLAIN_STEP;
        const bool there = r < rows.n && c < a.head_width;
        room[i % PLAIN_STEP][i / PLAIN_STEP] = there ? to_float(x.first[rows.at(r) * x.stride + c]) : 0;
    }
}

/* PLAIN_STEP rows from `row` on, PLAIN columns from `column` on. */
template <typename R, typename T>
__device__ inline void plain_stage_rows(float (*room)[PLAIN_ROW], const attention &a, view<const T> x, const R &rows,
                                        int row, int column)
{
    for (int i = (int)threadIdx.x; i < PLAIN * PLAIN_STEP; i += PLAIN_THREADS) {
        const int r = row + i / PLAIN, c = column + i % PLAIN;
        const bool there = r < rows.n && c < a.head_width;
        room[i / PLAIN][i % PLAIN] = there ? to_float(x.first[rows.at(r) * x.stride + c]) : 0;
    }
}

/* sums = x y^T: rows of x from `row` on with rows of y from `column` on, along the head; rows: y's, all of them unless
 * they are given. */
template <typename T, typename R>
__device__ inline void plain_products(float sums[4][4], plain_room *room, const attention &a, view<const T> x, int row,
                                      view<const T> y, int column, const R &rows)
{
    plain_zero(sums);
    for (int step = 0; step < a.head_width; step += PLAIN_STEP) {
        __syncthreads();
        plain_stage_columns(room->left, a, x, plain_rows{x.n}, row, step);
        plain_stage_columns(room->right, a, y, rows, column, step);
        __syncthreads();
        plain_multiply(sums, room->left, room->right);
    }
}

template <typename T>
__device__ inline void plain_products(float sums[4][4], plain_room *room, const attention &a, view<const T> x, int row,
                                      view<const T> y, int column)
{
    plain_products(sums, room, a, x, row, y, column, plain_rows{y.n});
}

/* sums += tile y: y's rows, queries or keys, from `row` on, columns from `column` on. Each thread passes the part of
 * the tile that it holds. */
template <typename T, typename R>
__device__ inline void plain_add(float sums[4][4], plain_room *room, const attention &a, const float tile[4][4],
                                 view<const T> y, int row, int column, const R &rows)
{
    __syncthreads();
#pragma unroll
    for (int i = 0; i < 16; i++)
        room->tile[plain_column() + i % 4][plain_row() + i / 4] = tile[i / 4][i % 4];
    for (int step = 0; step < PLAIN; step += PLAIN_STEP) {
        __syncthreads();
        plain_stage_rows(room->right, a, y, rows, row + step, column);
        __syncthreads();
        plain_multiply(sums, room->tile + step, room->right);
    }
}

template <typename T>
__device__ inline void plain_add(float sums[4][4], plain_room *room, const attention &a, const float tile[4][4],
                                 view<const T> y, int row, int column)
{
    plain_add(sums, room, a, tile, y, row, column, plain_rows{y.n});
}

/* Rows from `row` on, columns from `column` on = sums * scale[i]. */
template <typename T>
__device__ inline void plain_store(view<T> to, const attention &a, int row, int column, const float sums[4][4],
                                   const float scale[4])
{
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const int r = row + plain_row() + i / 4, c = column + plain_column() + i % 4;
        if (r < to.n && c < a.head_width)
            set(&to.first[r * to.stride + c], sums[i / 4][i % 4] * scale[i / 4]);
    }
}

#endif

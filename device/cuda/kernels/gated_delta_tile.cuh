/* device/cuda/kernels/gated_delta_tile.cuh - squares of 64 x 64 in shared memory and their products, of which the gated
 * delta rule's kernels are made: sums of 256 threads, 16 each.
 *
 * There are two precisions. `exact` keeps fp32 and multiplies without tensor cores. `split` keeps each number as two of
 * bf16, the second of which is the rest of the first, so it has 16 bits, and takes four products on tensor cores. That
 * suffices where inputs and results have 16 bits, also those of fp16. Normalised queries and keys, decays, states and
 * gradients are no numbers of 16 bits, so one would not do. Nor three products, without the rests' own: where tokens repeat,
 * it is the same part of the square of a key that would be missing each time. */
#ifndef DEVICE_CUDA_KERNELS_GATED_DELTA_TILE_CUH
#define DEVICE_CUDA_KERNELS_GATED_DELTA_TILE_CUH

#include "device/cuda/kernels/pack.cuh"
#include "device/cuda/kernels/tile.cuh"

/* A row of a square is a bit longer than 64, so that rows begin in different banks. */
enum { SIDE = 64, SIDE_ROW = SIDE + 4, SQUARE_THREADS = 256, SUMS = SIDE * SIDE / SQUARE_THREADS };

/* Numbers as they are, or factors of products: what put() and store() make of them. */
struct alignas(128) square {
    float at[SIDE][SIDE_ROW];
};

/* Two parts of each row's sum over columns. */
typedef float row_parts[2][SIDE];

struct exact {
    enum { ROWS = 4 }; /* in which a thread has sums */

    static __device__ inline int row(int i)
    {
        return (int)threadIdx.x / 16 + i / 4 * 16;
    }

    static __device__ inline int column(int i)
    {
        return (int)threadIdx.x % 16 + i % 4 * 16;
    }

    /* Sum i is in this one of the thread's rows. */
    static __device__ inline int own(int i)
    {
        return i / 4;
    }

    /* Columns column .. column + 3 of a factor's row. */
    static __device__ inline void put(square *to, int row, int column, const float (&x)[4])
    {
        *(float4 *)&to->at[row][column] = make_float4(x[0], x[1], x[2], x[3]);
    }

    /* Sums become a factor. */
    static __device__ inline void store(square *to, const float (&x)[SUMS])
    {
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            to->at[row(i)][column(i)] = x[i];
    }

    /* A factor's numbers where the thread has sums. */
    static __device__ inline void read(float (&x)[SUMS], const square *from)
    {
#pragma unroll
        for (int i = 0; i < SUMS; i++)
            x[i] = from->at[row(i)][column(i)];
    }

    /* The block's sums over the columns, of what each thread has of its rows. */
    static __device__ inline void sum_columns(row_parts &to, const float (&x)[ROWS])
    {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float sum = x[i];

            for (int far = 8; far > 0; far /= 2)
                sum += __shfl_xor_sync(WHOLE_WARP, sum, far);
            if (threadIdx.x % 16 == 0)
                to[0][row(4 * i)] = sum, to[1][row(4 * i)] = 0;
        }
    }

    /* sums += left right, or of either the transpose. */
    template <bool LEFT_TURNED, bool RIGHT_TURNED>
    static __device__ inline void multiply(float (&sums)[SUMS], const square *left, const square *right)
    {
#pragma unroll 1
        for (int k = 0; k < SIDE; k += 4) {
            float x[4][4], y[4][4]; /* x[row][k], y[k][column] */

#pragma unroll
            for (int i = 0; i < 4; i++) {
                if (LEFT_TURNED) {
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        x[i][j] = left->at[k + j][row(4 * i)];
                } else {
                    const float4 a = *(const float4 *)&left->at[row(4 * i)][k];
                    x[i][0] = a.x, x[i][1] = a.y, x[i][2] = a.z, x[i][3] = a.w;
                }
                if (RIGHT_TURNED) {
                    const float4 b = *(const float4 *)&right->at[column(i)][k];
                    y[0][i] = b.x, y[1][i] = b.y, y[2][i] = b.z, y[3][i] = b.w;
                } else {
#pragma unroll
                    for (int j = 0; j < 4; j++)
                        y[j][i] = right->at[k + j][column(i)];
                }
            }
#pragma unroll
            for (int j = 0; j < 4; j++)
#pragma unroll
                for (int i = 0; i < SUMS; i++)
                    sums[i] = fmaf(x[i / 4][j], y[j][i % 4], sums[i]);
        }
    }
};

/* A warp has 16 rows, and half of the columns: four tiles of sums (fragment.cuh). */
struct split {
    enum { ROWS = 2, REST = SIDE * SIDE * 2 /* bytes from a number to its rest */ };

    static __device__ inline int row(int i)
    {
        return (int)threadIdx.x / WARP % 4 * 16 + i / 2 % 2 * 8 + lane_index() / 4;
    }

    static __device__ inline int column(int i)
    {
        return (int)threadIdx.x / WARP / 4 * 32 + i / 4 * 8 + lane_index() % 4 * 2 + i % 2;
    }

    static __device__ inline int own(int i)
    {
        return i / 2 % 2;
    }

    /* A pair, and its rest. */
    static __device__ inline void halve(uint32_t &whole, uint32_t &rest, float first, float second)
    {
        whole = pair_of<bf16>(first, second);
        rest = pair_of<bf16>(first - to_float(bf16{(uint16_t)whole}), second - to_float(bf16{(uint16_t)(whole >> 16)}));
    }

    static __device__ inline unsigned char *at(const square *x, int row, int column)
    {
        return (unsigned char *)x + tile_at<SIDE>(row, column / 8) + column % 8 * 2;
    }

    static __device__ inline void put(square *to, int row, int column, const float (&x)[4])
    {
        unsigned char *const place = at(to, row, column);
        uint2 whole, rest;

        halve(whole.x, rest.x, x[0], x[1]);
        halve(whole.y, rest.y, x[2], x[3]);
        *(uint2 *)place = whole;
        *(uint2 *)(place + REST) = rest;
    }

    static __device__ inline void store(square *to, const float (&x)[SUMS])
    {
#pragma unroll
        for (int i = 0; i < SUMS; i += 2) {
            unsigned char *const place = at(to, row(i), column(i));
            uint32_t whole, rest;

            halve(whole, rest, x[i], x[i + 1]);
            *(uint32_t *)place = whole;
            *(uint32_t *)(place + REST) = rest;
        }
    }

    static __device__ inline void read(float (&x)[SUMS], const square *from)
    {
#pragma unroll
        for (int i = 0; i < SUMS; i += 2) {
            const unsigned char *const place = at(from, row(i), column(i));
            const uint32_t whole = *(const uint32_t *)place, rest = *(const uint32_t *)(place + REST);

            x[i] = to_float(bf16{(uint16_t)whole}) + to_float(bf16{(uint16_t)rest});
            x[i + 1] = to_float(bf16{(uint16_t)(whole >> 16)}) + to_float(bf16{(uint16_t)(rest >> 16)});
        }
    }

    static __device__ inline void sum_columns(row_parts &to, const float (&x)[ROWS])
    {
#pragma unroll
        for (int i = 0; i < ROWS; i++) {
            float sum = x[i];

            sum += __shfl_xor_sync(WHOLE_WARP, sum, 1);
            sum += __shfl_xor_sync(WHOLE_WARP, sum, 2);
            if (lane_index() % 4 == 0)
                to[threadIdx.x / WARP / 4][row(2 * i)] = sum;
        }
    }

    template <bool TURNED> static __device__ inline matrices left_of(shared_address tile, int row, int step)
    {
        return TURNED ? tile_left_transposed<SIDE>(tile, step * 16, row / 16) : tile_left<SIDE>(tile, row, step);
    }

    template <bool TURNED> static __device__ inline matrices right_of(shared_address tile, int column, int step)
    {
        return TURNED ? tile_right_transposed<SIDE>(tile, column, step)
                      : tile_right<SIDE>(tile, step * 16, column / 16);
    }

    template <bool LEFT_TURNED, bool RIGHT_TURNED>
    static __device__ inline void multiply(float (&sums)[SUMS], const square *left, const square *right)
    {
        const int warp = (int)threadIdx.x / WARP, first_row = warp % 4 * 16, first_column = warp / 4 * 32;
        const shared_address x = shared_at(left), y = shared_at(right);

#pragma unroll
        for (int step = 0; step < SIDE / 16; step++) {
            const matrices a = left_of<LEFT_TURNED>(x, first_row, step);
            const matrices a_rest = left_of<LEFT_TURNED>(x + REST, first_row, step);
#pragma unroll
            for (int n = 0; n < 2; n++) {
                const matrices b = right_of<RIGHT_TURNED>(y, first_column + 16 * n, step);
                const matrices b_rest = right_of<RIGHT_TURNED>(y + REST, first_column + 16 * n, step);
#pragma unroll
                for (int half = 0; half < 2; half++) {
                    float *const to = sums + 8 * n + 4 * half;
                    multiply_add<bf16>(to, a_rest, b_rest.pair[2 * half], b_rest.pair[2 * half + 1]);
                    multiply_add<bf16>(to, a_rest, b.pair[2 * half], b.pair[2 * half + 1]);
                    multiply_add<bf16>(to, a, b_rest.pair[2 * half], b_rest.pair[2 * half + 1]);
                    multiply_add<bf16>(to, a, b.pair[2 * half], b.pair[2 * half + 1]);
                }
            }
        }
    }
};

template <typename T> using precision = typename std::conditional<std::is_same_v<T, float>, exact, split>::type;

/* Where a square lies in an array: rows `stride` apart, of which so many and so many columns are there. whole: packs of
 * four numbers can be read. */
template <typename T> struct array_part {
    T *first;
    size_t stride;
    int n_rows, n_columns;
    bool whole;
};

/* f(row, column, which of the thread's) of packs of four numbers that the thread has of a square. Places are computed
 * each time, and two packs are in flight: more would take the registers of sums. */
template <typename F> __device__ inline void each_four(F f)
{
    const int first = (int)afresh(threadIdx.x);

#pragma unroll 2
    for (int i = 0; i < SUMS / 4; i++) {
        const int at = i * SQUARE_THREADS + first;
        f(at / (SIDE / 4), at % (SIDE / 4) * 4, i);
    }
}

/* One number. */
template <typename T> __device__ inline float number_at(const T *x)
{
    return load<1>(x)[0];
}

/* Four numbers of the array, zeros where it has none. */
template <typename T>
__device__ inline void read_four(float (&x)[4], const array_part<const T> &from, int row, int column)
{
    const T *const at = from.first + row * from.stride + column;

#pragma unroll
    for (int v = 0; v < 4; v++)
        x[v] = 0;
    if (row >= from.n_rows || column >= from.n_columns)
        return;
    if (from.whole) {
        const pack<T, 4> all = load<4>(at);
#pragma unroll
        for (int v = 0; v < 4; v++)
            x[v] = all[v];
    } else {
#pragma unroll
        for (int v = 0; v < 4; v++)
            if (column + v < from.n_columns)
                x[v] = number_at(at + v);
    }
}

/* The array's part becomes a factor, its rows times scale(row). */
template <typename P, typename T, typename F>
__device__ inline void fetch(square *to, const array_part<const T> &from, F scale)
{
    each_four([&](int row, int column, int) {
        float x[4];

        read_four(x, from, row, column);
        const float factor = row < from.n_rows ? scale(row) : 0;
#pragma unroll
        for (int v = 0; v < 4; v++)
            x[v] *= factor;
        P::put(to, row, column, x);
    });
}

__device__ inline float unscaled(int)
{
    return 1;
}

/* Writes sums to an array, rounded, by way of a square that nobody has used since the last barrier. */
template <typename P, typename T>
__device__ inline void emit(const array_part<T> &to, const float (&sums)[SUMS], square *room)
{
#pragma unroll
    for (int i = 0; i < SUMS; i++)
        room->at[P::row(i)][P::column(i)] = sums[i];
    __syncthreads();
    each_four([&](int row, int column, int) {
        const float4 all = *(const float4 *)&room->at[row][column];
        const float x[4] = {all.x, all.y, all.z, all.w};
        T *const at = to.first + row * to.stride + column;

        if (row >= to.n_rows || column >= to.n_columns)
            return;
        if (to.whole)
            store(at, x);
        else
#pragma unroll
            for (int v = 0; v < 4; v++)
                if (column + v < to.n_columns)
                    set(at + v, x[v]);
    });
}

#endif

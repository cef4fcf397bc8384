/* device/cuda/kernels/expert_product.cuh - products of the rows of one expert, whose number the device alone knows.
 *
 * There are two kernels: in fp32 arithmetic, for any widths and strides; and on tensor cores, for values of 16 bits whose
 * lines are whole packs of 8, in order. Which one a product takes depends on its shape and on where its unit has the weights, so a
 * budget changes no bit. In both a sum takes its terms in order, however many rows there are. */
#ifndef DEVICE_CUDA_KERNELS_EXPERT_PRODUCT_CUH
#define DEVICE_CUDA_KERNELS_EXPERT_PRODUCT_CUH

#include "device/cuda/kernels/pack.cuh"
#include "device/cuda/kernels/tile.cuh"

struct rows {
    const uint32_t *order, *starts;
    const float *weights;
    size_t n_chosen;
    uint32_t expert, unused;

    __device__ size_t count() const
    {
        return starts[expert + 1] - starts[expert];
    }

    /* Place of row i in the choice. */
    __device__ size_t place(size_t i) const
    {
        return order[starts[expert] + i];
    }

    __device__ size_t token(size_t i) const
    {
        return place(i) / n_chosen;
    }

    __device__ float weight(size_t i) const
    {
        return weights[place(i)];
    }
};

/* c (m, n) = a (m, k) b (k, n) + beta c. Lines of a and b are contiguous: of a its rows, or its columns if the sum is
 * over the expert's rows; of b its columns if weights lie as (n, k), else its rows. The expert's rows are m, or k. */
template <typename T, typename C> struct product {
    const T *a, *b;
    C *c;
    size_t a_line, b_line, c_line; /* values from a line to the next */
    size_t m, n, k;
    uint32_t over_rows, out_in, adds, unused;
};

/* c = factor * a b, + c if it adds, with any strides. */
template <typename T, typename C> struct strided_product {
    const T *a, *b;
    C *c;
    size_t a_row, a_column, b_row, b_column, c_row, c_column;
    size_t m, n, k;
    float factor;
    uint32_t over_rows, adds, unused;
};

template <typename T, typename C> inline strided_product<T, C> strided_of(const struct product<T, C> &p)
{
    strided_product<T, C> s = {};

    s.a = p.a, s.a_row = p.over_rows ? 1 : p.a_line, s.a_column = p.over_rows ? p.a_line : 1;
    s.b = p.b, s.b_row = p.out_in ? 1 : p.b_line, s.b_column = p.out_in ? p.b_line : 1;
    s.c = p.c, s.c_row = p.c_line, s.c_column = 1;
    s.m = p.m, s.n = p.n, s.k = p.k, s.factor = 1, s.over_rows = p.over_rows, s.adds = p.adds;
    return s;
}

/* A product's sizes, as the device finds them. */
struct product_size {
    size_t m, k, row, column; /* of the block's first sum */
};

template <int SIDE, typename P>
static __device__ inline product_size product_size_of(const struct rows &rows, const P &p)
{
    const size_t count = rows.count();

    return {p.over_rows ? p.m : count, p.over_rows ? count : p.k, (size_t)blockIdx.y * SIDE, (size_t)blockIdx.x * SIDE};
}

/* ---- in fp32 arithmetic ---- */

/* Tiles of SIDE by SIDE; sums take STEP terms at a time. A thread has EACH rows y, y+16, ... and as many columns x, x+16,
 * ... of the tile. */
namespace plain
{
enum { STEP = 16, ACROSS = 16, THREADS = ACROSS * ACROSS };

template <typename T, typename C, int EACH>
static __global__ void __launch_bounds__(THREADS, 2) multiply(const struct rows rows, const strided_product<T, C> p)
{
    enum { SIDE = EACH * ACROSS };
    __shared__ float a[STEP][SIDE + 2], b[STEP][SIDE + 2]; /* no two of a warp write to one bank */
    const product_size size = product_size_of<SIDE>(rows, p);
    const unsigned x = threadIdx.x % ACROSS, y = threadIdx.x / ACROSS;
    float total[EACH][EACH] = {};

    if (size.row >= size.m)
        return;
    for (size_t first = 0; first < size.k; first += STEP) {
        float sum[EACH][EACH] = {};

        __syncthreads();
        for (unsigned i = threadIdx.x; i < SIDE * STEP; i += THREADS) {
            const size_t at = first + i % STEP, r = size.row + i / STEP, c = size.column + i / STEP;
            a[i % STEP][i / STEP] = at < size.k && r < size.m ? to_float(p.a[r * p.a_row + at * p.a_column]) : 0;
            b[i % STEP][i / STEP] = at < size.k && c < p.n ? to_float(p.b[at * p.b_row + c * p.b_column]) : 0;
        }
        __syncthreads();
        for (unsigned t = 0; t < STEP; t++)
            for (unsigned i = 0; i < EACH; i++)
                for (unsigned j = 0; j < EACH; j++)
                    sum[i][j] = fmaf(a[t][y + i * ACROSS], b[t][x + j * ACROSS], sum[i][j]);
        for (unsigned i = 0; i < EACH; i++)
            for (unsigned j = 0; j < EACH; j++)
                total[i][j] += sum[i][j];
    }
    for (unsigned i = 0; i < EACH; i++)
        for (unsigned j = 0; j < EACH; j++) {
            const size_t r = size.row + y + i * ACROSS, c = size.column + x + j * ACROSS;
            if (r >= size.m || c >= p.n)
                continue;
            C *const to = p.c + r * p.c_row + c * p.c_column;
            set(to, p.factor * total[i][j] + (p.adds ? to_float(*to) : 0));
        }
}
}  // namespace plain

/* ---- on tensor cores ---- */

/* A block of four warps has a tile of 128 by 128, a warp 64 by 64 of it, so that what a warp loads from shared memory
 * serves four products each. Both factors come in turns of DEPTH terms, copied STAGES - 1 turns ahead. */
namespace tensor
{
enum { SIDE = 128, DEPTH = 32, STAGES = 3, THREADS = 128, OWN = 64, STAGE_BYTES = 2 * SIDE * DEPTH * 2 };
enum { SHARED_BYTES = STAGES * STAGE_BYTES };

/* A factor's tile: SIDE lines of DEPTH terms; or, ACROSS, a line for each term, of SIDE places. */
template <bool ACROSS> struct factor {
    enum { LINE = ACROSS ? SIDE : DEPTH, EIGHTS = LINE / 8 };

    /* From `place` and `term` on; zeros beyond the last ones. */
    template <typename T>
    static __device__ inline void load(shared_address tile, const T *from, size_t line_values, size_t place,
                                       size_t n_places, size_t term, size_t n_terms)
    {
#pragma unroll
        for (int turn = 0; turn < SIDE * DEPTH / 8 / THREADS; turn++) {
            const unsigned i = threadIdx.x + turn * THREADS, line = i / EIGHTS, eight = i % EIGHTS;
            const size_t l = (ACROSS ? term : place) + line, at = (ACROSS ? place : term) + eight * 8;
            const bool there = l < (ACROSS ? n_terms : n_places) && at < (ACROSS ? n_places : n_terms);
            copy_async<16>(tile + tile_at<LINE>((int)line, (int)eight), there ? from + l * line_values + at : from,
                           there);
        }
    }

    static __device__ inline matrices left(shared_address tile, int row, int step)
    {
        return ACROSS ? tile_left_transposed<LINE>(tile, step * 16, row / 16) : tile_left<LINE>(tile, row, step);
    }

    static __device__ inline matrices right(shared_address tile, int column, int step)
    {
        return ACROSS ? tile_right<LINE>(tile, step * 16, column / 16)
                      : tile_right_transposed<LINE>(tile, column, step);
    }
};

/* Two sums side by side; both are columns, or none. */
template <typename T, typename C>
static __device__ inline void put_pair(const struct product<T, C> &p, const product_size &size, size_t row,
                                       size_t column, float first, float second)
{
    if (row >= size.m || column >= p.n)
        return;
    C *const to = p.c + row * p.c_line + column;
    float sums[] = {first, second};
    if (p.adds) {
        const pack<C, 2> before = load<2>(to);
        sums[0] += before[0], sums[1] += before[1];
    }
    store(to, round_to<C, 2>(sums));
}

typedef float sums[OWN / 16][OWN / 8][4];

/* sums += a b, of one turn's tiles. */
template <typename T, bool OVER_ROWS, bool OUT_IN>
static __device__ inline void multiply_tiles(sums &to, shared_address a, shared_address b, int row, int column)
{
#pragma unroll
    for (int step = 0; step < DEPTH / 16; step++) {
        matrices left[OWN / 16];

#pragma unroll
        for (int i = 0; i < OWN / 16; i++)
            left[i] = factor<OVER_ROWS>::left(a, row + i * 16, step);
#pragma unroll
        for (int j = 0; j < OWN / 16; j++) {
            const matrices right = factor<!OUT_IN>::right(b, column + j * 16, step);

#pragma unroll
            for (int i = 0; i < OWN / 16; i++) {
                multiply_add<T>(to[i][2 * j], left[i], right.pair[0], right.pair[1]);
                multiply_add<T>(to[i][2 * j + 1], left[i], right.pair[2], right.pair[3]);
            }
        }
    }
}

template <typename T, typename C, bool OVER_ROWS, bool OUT_IN>
static __global__ void __launch_bounds__(THREADS, 2) multiply(const struct rows rows, const struct product<T, C> p)
{
    const shared_address stages = shared_at(shared_memory<unsigned char>());
    const product_size size = product_size_of<SIDE>(rows, p);
    const size_t n_turns = (size.k + DEPTH - 1) / DEPTH;
    const int warp = (int)threadIdx.x / WARP, row = warp / 2 * OWN, column = warp % 2 * OWN;
    sums to = {};

    if (size.row >= size.m)
        return;
    const auto load = [&](size_t turn) {
        const shared_address a = stages + (unsigned)(turn % STAGES) * STAGE_BYTES, b = a + STAGE_BYTES / 2;
        if (turn < n_turns) {
            factor<OVER_ROWS>::load(a, p.a, p.a_line, size.row, size.m, turn * DEPTH, size.k);
            factor<!OUT_IN>::load(b, p.b, p.b_line, size.column, p.n, turn * DEPTH, size.k);
        }
        copy_commit();
    };
    for (int turn = 0; turn < STAGES - 1; turn++)
        load(turn);
#pragma unroll 1
    for (size_t turn = 0; turn < n_turns; turn++) {
        copy_wait<STAGES - 2>();
        __syncthreads(); /* all have done with the turn whose stage is filled next */
        load(turn + STAGES - 1);
        const shared_address a = stages + (unsigned)(turn % STAGES) * STAGE_BYTES;
        multiply_tiles<T, OVER_ROWS, OUT_IN>(to, a, a + STAGE_BYTES / 2, row, column);
    }
    copy_wait<0>();
#pragma unroll
    for (int i = 0; i < OWN / 16; i++)
#pragma unroll
        for (int j = 0; j < OWN / 8; j++)
#pragma unroll
            for (int half = 0; half < 2; half++)
                put_pair(p, size, size.row + row + i * 16 + half * 8 + lane_index() / 4,
                         size.column + column + j * 8 + lane_index() % 4 * 2, to[i][j][2 * half],
                         to[i][j][2 * half + 1]);
}

/* Whether lines are whole packs, in places for packs. */
template <typename T, typename C> inline bool fits(const struct product<T, C> &p)
{
    const size_t widths = p.a_line | p.b_line | p.c_line | p.n | (p.over_rows ? p.m : p.k);

    return sizeof(T) == 2 && widths % 8 == 0 && ((uintptr_t)p.a | (uintptr_t)p.b) % PACK_BYTES == 0 &&
           (uintptr_t)p.c % (2 * sizeof(C)) == 0;
}
}  // namespace tensor

#endif

/* device/cpu/tile.kernel.c - one tile of a matrix product, on one thread.
 *
 * As Goto & van de Geijn, "Anatomy of high-performance matrix multiplication" (2008), and Van Zee & van de Geijn,
 * "BLIS" (2015), have it: along k in steps of PLAN_CPU_PRODUCT_DEPTH, a's rows are packed into panels of ROWS, all of which stay
 * in the second-level cache, and b's columns into one panel of COLUMNS, which stays in the first while every block of
 * rows meets it. A block's sums fill the registers: 14 x 2 vectors of thirty-two with AVX-512, 6 x 2 of sixteen, each
 * independent of the next, so that the multipliers never wait.
 *
 * Sums lie in scratch until the tile is done. So blocks are always whole vectors, c is touched once, and its type and
 * what follows the product are one function's matter. An element's sum is one chain of multiplications and additions
 * for each PLAN_CPU_PRODUCT_DEPTH of k, from 0, the chains added in order: whatever the block, the tile or the thread. */
#include "device/cpu/cpu.h"
#include "device/cpu/panel.h"

enum {
    ROWS = VECTOR == 16 ? 14 : 6, /* of a block */
    ROW_VECTORS = (ROWS + VECTOR - 1) / VECTOR,
    ROW_LANES = ROW_VECTORS * VECTOR,
    COLUMN_VECTORS = 2,
    COLUMNS = COLUMN_VECTORS * VECTOR,
    BLOCKS = (PLAN_CPU_PRODUCT_EDGE + ROWS - 1) / ROWS,
};
/* Where scratch holds what, in floats. */
enum {
    SUMS = 0,
    RIGHT = SUMS + PLAN_CPU_PRODUCT_EDGE * PLAN_CPU_PRODUCT_EDGE,
    LEFT = RIGHT + COLUMNS * PLAN_CPU_PRODUCT_DEPTH,
    END = LEFT + BLOCKS * ROW_LANES * PLAN_CPU_PRODUCT_DEPTH,
};
_Static_assert(END * sizeof(float) <= PLAN_CPU_PRODUCT_SCRATCH, "scratch is large enough for every instruction set");
_Static_assert(PLAN_CPU_PRODUCT_EDGE % COLUMNS == 0, "a tile's sums are whole panels");

static size_t smaller(size_t a, size_t b)
{
    return a < b ? a : b;
}

/* sums (rows, COLUMNS) = or += (add) left right; rows is a constant wherever this is inlined. */
VECTOR_INLINE void block_of(const size_t rows, float *sums, bool add, const float *left, const float *right,
                            size_t depth)
{
    vec sum[ROWS][COLUMN_VECTORS] = {{{0}}};

    for (size_t p = 0; p < depth; p++, left += ROW_LANES, right += COLUMNS) {
        vec b[COLUMN_VECTORS];
#pragma GCC unroll 2
        for (size_t v = 0; v < COLUMN_VECTORS; v++)
            b[v] = vec_load(right + v * VECTOR);
#pragma GCC unroll 14
        for (size_t r = 0; r < rows; r++) {
            const vec a = vec_all(left[r]);
#pragma GCC unroll 2
            for (size_t v = 0; v < COLUMN_VECTORS; v++)
                sum[r][v] = vec_multiply_add(a, b[v], sum[r][v]);
        }
    }
#pragma GCC unroll 14
    for (size_t r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (size_t v = 0; v < COLUMN_VECTORS; v++) {
            float *to = sums + r * PLAN_CPU_PRODUCT_EDGE + v * VECTOR;
            vec_store(to, add ? vec_load(to) + sum[r][v] : sum[r][v]);
        }
}

static void block(size_t rows, float *sums, bool add, const float *left, const float *right, size_t depth)
{
    switch (rows) {
#define BLOCK(n)                                                                                                       \
    case n:                                                                                                            \
        block_of(n, sums, add, left, right, depth);                                                                    \
        break
        BLOCK(1);
        BLOCK(2);
        BLOCK(3);
        BLOCK(4);
        BLOCK(5);
        BLOCK(6);
#if defined(__AVX512F__)
        BLOCK(7);
        BLOCK(8);
        BLOCK(9);
        BLOCK(10);
        BLOCK(11);
        BLOCK(12);
        BLOCK(13);
        BLOCK(14);
#endif
#undef BLOCK
    }
}

/* The tile's rows are shared out evenly among as few blocks as hold them. */
static size_t block_start(size_t m, size_t i)
{
    return m * i / ((m + ROWS - 1) / ROWS);
}

static void pack_left(float *left, const struct device_matmul *op, const struct cpu_tile *tile, size_t from,
                      size_t depth)
{
    for (size_t i = 0; block_start(tile->m, i) < tile->m; i++) {
        const size_t start = block_start(tile->m, i), row = tile->row + start;
        const struct panel_source source = {
            .x = (const value *)op->a + (op->transpose_a ? from * op->a_stride + row : row * op->a_stride + from),
            .stride = op->a_stride,
            .across = !op->transpose_a,
            .n = block_start(tile->m, i + 1) - start,
            .depth = depth,
        };
        panel_fill(left + i * ROW_LANES * PLAN_CPU_PRODUCT_DEPTH, ROW_VECTORS, &source);
    }
}

static void pack_right(float *right, const struct device_matmul *op, size_t column, size_t n, size_t from, size_t depth)
{
    const struct panel_source source = {
        .x = (const value *)op->b + (op->transpose_b ? column * op->b_stride + from : from * op->b_stride + column),
        .stride = op->b_stride,
        .across = op->transpose_b,
        .n = n,
        .depth = depth,
    };
    panel_fill(right, COLUMN_VECTORS, &source);
}

static void multiply(const struct device_matmul *op, const struct cpu_tile *tile, float *scratch)
{
    float *left = scratch + LEFT, *right = scratch + RIGHT, *sums = scratch + SUMS;

    for (size_t from = 0; from < op->k; from += PLAN_CPU_PRODUCT_DEPTH) {
        const size_t depth = smaller(PLAN_CPU_PRODUCT_DEPTH, op->k - from);

        pack_left(left, op, tile, from, depth);
        for (size_t j = 0; j < tile->n; j += COLUMNS) {
            pack_right(right, op, tile->column + j, smaller(COLUMNS, tile->n - j), from, depth);
            for (size_t i = 0; block_start(tile->m, i) < tile->m; i++) {
                const size_t start = block_start(tile->m, i);
                block(block_start(tile->m, i + 1) - start, sums + start * PLAN_CPU_PRODUCT_EDGE + j, from > 0,
                      left + i * ROW_LANES * PLAN_CPU_PRODUCT_DEPTH, right, depth);
            }
        }
    }
}

const struct cpu_tile_kernels KERNEL_NAME(cpu_tile) = {.multiply = multiply};

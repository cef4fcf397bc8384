/* device/cpu/kernels/block.h - the innermost block of a product, of panels that are packed (panel.h).
 *
 * A block's sums fill the registers: 14 x 2 vectors of thirty-two with AVX-512, 6 x 2 of sixteen, each independent of
 * the next, so that the multipliers never wait. */
#ifndef DEVICE_CPU_KERNELS_BLOCK_H
#define DEVICE_CPU_KERNELS_BLOCK_H

#include "device/cpu/cpu.h"
#include "device/cpu/kernels/panel.h"

enum {
    ROWS = VECTOR == 16 ? 14 : 6, /* of a block */
    ROW_VECTORS = (ROWS + VECTOR - 1) / VECTOR,
    ROW_LANES = ROW_VECTORS * VECTOR,
    COLUMN_VECTORS = 2,
    COLUMNS = COLUMN_VECTORS * VECTOR,
    BLOCKS = (PLAN_CPU_PRODUCT_HEIGHT + ROWS - 1) / ROWS,
    LEFT_PANEL = ROW_LANES * PLAN_CPU_PRODUCT_DEPTH + 16, /* floats; a power of two would crowd a part of the cache */
};

/* Adds a step of the panels: a term, or a pair, of each row and of each vector of columns. */
VECTOR_INLINE void block_add(const size_t rows, vec sum[ROWS][COLUMN_VECTORS], const float *left,
                             const float *const right[COLUMN_VECTORS])
{
    vec b[COLUMN_VECTORS];

#pragma GCC unroll 2
    for (size_t v = 0; v < COLUMN_VECTORS; v++)
        b[v] = vec_load(right[v]);
#pragma GCC unroll 14
    for (size_t r = 0; r < rows; r++) {
        const vec a = panel_all(left + r);
#pragma GCC unroll 2
        for (size_t v = 0; v < COLUMN_VECTORS; v++)
            sum[r][v] = panel_multiply_add(a, b[v], sum[r][v]);
    }
}

/* sums (rows, COLUMNS) = or += (add) left right. stride: floats of left from term to term. rows is a constant wherever
 * this is inlined. */
VECTOR_INLINE void block_of(const size_t rows, float *sums, bool add, const float *left, size_t stride,
                            const float *right, size_t depth)
{
    vec sum[ROWS][COLUMN_VECTORS] = {{{0}}};

    for (size_t p = 0; p < depth; p += PANEL_TERMS, left += stride, right += COLUMNS) {
        const float *const b[COLUMN_VECTORS] = {right, right + VECTOR};

        block_add(rows, sum, left, b);
    }
    panel_put(rows, COLUMN_VECTORS, sums, PLAN_CPU_PRODUCT_WIDTH, add, sum);
}

/* The numbers of rows that a block can have. */
#define BLOCK_FEW(X)                                                                                                   \
    X(1);                                                                                                              \
    X(2);                                                                                                              \
    X(3);                                                                                                              \
    X(4);                                                                                                              \
    X(5);                                                                                                              \
    X(6)
#if defined(__AVX512F__)
#define BLOCK_EACH(X)                                                                                                  \
    BLOCK_FEW(X);                                                                                                      \
    X(7);                                                                                                              \
    X(8);                                                                                                              \
    X(9);                                                                                                              \
    X(10);                                                                                                             \
    X(11);                                                                                                             \
    X(12);                                                                                                             \
    X(13);                                                                                                             \
    X(14)
#else
#define BLOCK_EACH BLOCK_FEW
#endif

static inline void block(size_t rows, float *sums, bool add, const float *left, size_t stride, const float *right,
                         size_t depth)
{
    switch (rows) {
#define BLOCK(n)                                                                                                       \
    case n:                                                                                                            \
        block_of(n, sums, add, left, stride, right, depth);                                                            \
        break
        BLOCK_EACH(BLOCK);
#undef BLOCK
    }
}

/* A tile's m rows are divided evenly among as few blocks as hold them. */
static inline size_t blocks_of(size_t m)
{
    return (m + ROWS - 1) / ROWS;
}

static inline size_t block_start(size_t m, size_t i)
{
    return m * i / blocks_of(m);
}

#endif

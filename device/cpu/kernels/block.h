/* device/cpu/kernels/block.h - the innermost block of a product, of panels that are packed (panel.h).
 *
 * A block's sums fill the registers: 14 x 2 vectors of thirty-two with AVX-512, 6 x 2 of sixteen, each independent of the
 * next, so that the multipliers never wait. */
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

/* sums (rows, COLUMNS) = or += (add) left right; rows is a constant wherever this is inlined. */
VECTOR_INLINE void block_of(const size_t rows, float *sums, bool add, const float *left, const float *right,
                            size_t depth)
{
    vec sum[ROWS][COLUMN_VECTORS] = {{{0}}};

    for (size_t p = 0; p < depth; p += PANEL_TERMS, left += ROW_LANES, right += COLUMNS) {
        vec b[COLUMN_VECTORS];
#pragma GCC unroll 2
        for (size_t v = 0; v < COLUMN_VECTORS; v++)
            b[v] = vec_load(right + v * VECTOR);
#pragma GCC unroll 14
        for (size_t r = 0; r < rows; r++) {
            const vec a = panel_all(left + r);
#pragma GCC unroll 2
            for (size_t v = 0; v < COLUMN_VECTORS; v++)
                sum[r][v] = panel_multiply_add(a, b[v], sum[r][v]);
        }
    }
#pragma GCC unroll 14
    for (size_t r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (size_t v = 0; v < COLUMN_VECTORS; v++) {
            float *to = sums + r * PLAN_CPU_PRODUCT_WIDTH + v * VECTOR;
            vec_store(to, add ? vec_load(to) + sum[r][v] : sum[r][v]);
        }
}

static inline void block(size_t rows, float *sums, bool add, const float *left, const float *right, size_t depth)
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

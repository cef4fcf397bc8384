/* device/cpu/kernels/product.h - small matrix products, for attention's tiles.
 *
 * Packing costs more than a 64x64 tile is worth. The block of ROWS x COLUMNS sums
 * fills the registers: 6 x 4 vectors with AVX-512, 6 x 2 with sixteen registers, each sum independent of the next, so
 * that the multipliers never wait. */
#ifndef DEVICE_CPU_KERNELS_PRODUCT_H
#define DEVICE_CPU_KERNELS_PRODUCT_H

#include "device/cpu/kernels/value.h"

#include <stdbool.h>
#include <string.h>

enum {
    PRODUCT_ROWS = 6,
    PRODUCT_COLUMNS = VECTOR == 16 ? 4 : 2, /* vectors */
};

/* The computed part of a diagonal tile, in blocks of PRODUCT_ROWS rows: a few zeros more than necessary are added, or a
 * few elements more are written. */
enum product_shape {
    PRODUCT_WHOLE,
    PRODUCT_COLUMNS_TO_ROW, /* columns up to the row's own */
    PRODUCT_DEPTH_TO_ROW,   /* terms up to the row's own: a is 0 beyond */
    PRODUCT_DEPTH_FROM_ROW, /* terms from the row's own: a is 0 before */
};

/* Elements of b: floats, or values if the including file says so. */
#ifdef PRODUCT_OF_VALUES
typedef value product_right;
#define PRODUCT_LOAD value_load
#else
typedef float product_right;
#define PRODUCT_LOAD vec_load
#endif

/* c (m, n) = or += (add) a (m, depth) b (depth, n) */
struct product {
    const float *a; /* element (i, p) at i * a_row + p * a_step: a transposed view costs nothing */
    size_t a_row, a_step;
    const product_right *b;
    size_t b_stride;
    float *c;
    size_t c_stride;
    size_t m, n, depth; /* n is a multiple of VECTOR */
    bool add;
    enum product_shape shape;
};

/* One block; rows and columns (vectors) are constants wherever this is inlined. */
VECTOR_INLINE void product_block(const struct product *op, const size_t rows, const size_t columns, const float *a,
                                 const product_right *b, float *c, size_t depth)
{
    const size_t a_row = op->a_row, a_step = op->a_step, b_stride = op->b_stride, c_stride = op->c_stride;
    vec sum[PRODUCT_ROWS][4] = {{{0}}};

    for (size_t p = 0; p < depth; p++) {
        vec right[4];
#pragma GCC unroll 8
        for (size_t v = 0; v < columns; v++)
            right[v] = PRODUCT_LOAD(b + v * VECTOR);
#pragma GCC unroll 8
        for (size_t r = 0; r < rows; r++) {
            const vec left = vec_all(a[r * a_row]);
#pragma GCC unroll 8
            for (size_t v = 0; v < columns; v++)
                sum[r][v] += left * right[v];
        }
        a += a_step;
        b += b_stride;
    }
#pragma GCC unroll 8
    for (size_t r = 0; r < rows; r++)
#pragma GCC unroll 8
        for (size_t v = 0; v < columns; v++) {
            float *to = c + r * c_stride + v * VECTOR;
            vec_store(to, op->add ? vec_load(to) + sum[r][v] : sum[r][v]);
        }
}

/* `rows` rows from `row`, n columns, the terms from .. to-1. */
VECTOR_INLINE void product_rows(const struct product *op, const size_t rows, size_t row, size_t n, size_t from,
                                size_t to)
{
    const float *a = op->a + row * op->a_row + from * op->a_step;
    const product_right *b = op->b + from * op->b_stride;
    float *c = op->c + row * op->c_stride;
    size_t left = n / VECTOR, columns;

    for (; left > 0; left -= columns, b += columns * VECTOR, c += columns * VECTOR) {
        columns = left < PRODUCT_COLUMNS ? left : PRODUCT_COLUMNS;
        switch (columns) {
        case 4:
            if (PRODUCT_COLUMNS == 4)
                product_block(op, rows, 4, a, b, c, to - from);
            break;
        case 3:
            if (PRODUCT_COLUMNS == 4)
                product_block(op, rows, 3, a, b, c, to - from);
            break;
        case 2:
            product_block(op, rows, 2, a, b, c, to - from);
            break;
        default:
            product_block(op, rows, 1, a, b, c, to - from);
        }
    }
}

static inline void product(const struct product *op)
{
    size_t rows;

    for (size_t row = 0; row < op->m; row += rows) {
        const size_t left = op->m - row, end = row + PRODUCT_ROWS;
        size_t n = op->n, from = 0, to = op->depth;

        rows = left >= PRODUCT_ROWS ? PRODUCT_ROWS : left >= 4 ? 4 : left >= 2 ? 2 : 1;
        if (op->shape == PRODUCT_COLUMNS_TO_ROW && end < n)
            n = (end + VECTOR - 1) / VECTOR * VECTOR;
        if (op->shape == PRODUCT_DEPTH_TO_ROW && end < to)
            to = end;
        if (op->shape == PRODUCT_DEPTH_FROM_ROW)
            from = row;
        switch (rows) {
        case PRODUCT_ROWS:
            product_rows(op, PRODUCT_ROWS, row, n, from, to);
            break;
        case 4:
            product_rows(op, 4, row, n, from, to);
            break;
        case 2:
            product_rows(op, 2, row, n, from, to);
            break;
        default:
            product_rows(op, 1, row, n, from, to);
        }
    }
}

/* A factor that products read by columns: to (columns, stride) = transpose of from (n, columns), with zeros in the place
 * of rows n .. padded-1. columns: whole vectors; padded: a multiple of 4. */
static inline void product_transpose(float *to, size_t stride, const float *from, size_t columns, size_t n,
                                     size_t padded)
{
    for (size_t i = 0; i < padded; i += 4)
        for (size_t d = 0; d < columns; d += VECTOR) {
            vec row[4];
            for (size_t r = 0; r < 4; r++)
                row[r] = i + r < n ? vec_load(from + (i + r) * columns + d) : (vec){0};
            vec_transpose(row);
            for (size_t j = 0; j < VECTOR; j++) /* column d + j of four rows */
                memcpy(to + (d + j) * stride + i, (const float *)&row[j % 4] + j / 4 * 4, 4 * sizeof *to);
        }
}

#endif

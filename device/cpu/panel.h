/* device/cpu/panel.h - parts of a matrix laid out as products read them.
 *
 * A panel holds, for each step along k, the elements of some rows of op(a), or columns of op(b), side by side in whole
 * vectors: its lanes. The product then reads it from front to back, however the matrix lies in memory. */
#ifndef DEVICE_CPU_PANEL_H
#define DEVICE_CPU_PANEL_H

#include "device/cpu/value.h"

#include <stdbool.h>

/* Where a panel comes from: element (lane, step) is at lane + step * stride, or at lane * stride + step (`across`). */
struct panel_source {
    const value *x;
    size_t stride;
    bool across;
    size_t n, depth; /* lanes and steps that there are; further lanes of the panel get numbers that nobody reads */
};

/* One step. */
VECTOR_INLINE void panel_step(float *to, const size_t n_vectors, const value *x, size_t n)
{
#pragma GCC unroll 4
    for (size_t v = 0; v < n_vectors; v++)
        if (v * VECTOR < n)
            vec_store(to + v * VECTOR, value_load_n(x + v * VECTOR, n - v * VECTOR));
}

VECTOR_INLINE void panel_along(float *panel, const size_t n_vectors, const struct panel_source *from)
{
    const size_t lanes = n_vectors * VECTOR;

    if (from->n >= lanes)
        for (size_t p = 0; p < from->depth; p++)
            panel_step(panel + p * lanes, n_vectors, from->x + p * from->stride, lanes);
    else
        for (size_t p = 0; p < from->depth; p++)
            panel_step(panel + p * lanes, n_vectors, from->x + p * from->stride, from->n);
}

/* Four steps of VECTOR lanes at a time: lanes of one group of four are rows of a 4 x 4 matrix. Lanes that are not there
 * repeat the last one. */
VECTOR_INLINE void panel_vector_across(float *to, const size_t width, const struct panel_source *from, size_t first)
{
    const value *lanes[VECTOR];
    size_t p = 0;

    for (size_t i = 0; i < VECTOR; i++)
        lanes[i] = from->x + (first + i < from->n ? first + i : from->n - 1) * from->stride;
    for (; p + 4 <= from->depth; p += 4) {
        vec row[4];
#pragma GCC unroll 4
        for (size_t r = 0; r < 4; r++)
            row[r] = value_gather_fours(lanes + r, p);
        vec_transpose(row);
#pragma GCC unroll 4
        for (size_t r = 0; r < 4; r++)
            vec_store(to + (p + r) * width, row[r]);
    }
    for (; p < from->depth; p++)
        for (size_t i = 0; i < VECTOR; i++)
            to[p * width + i] = value_widen(lanes[i][p]);
}

/* Asks for part i of n of what a panel will be filled from, while something else is computed: its lines lie far apart,
 * and a processor guesses no such pattern. */
VECTOR_INLINE void panel_fetch(const struct panel_source *from, size_t lanes, size_t i, size_t n)
{
    const size_t width = from->n < lanes ? from->n : lanes;
    const size_t n_rows = from->across ? width : from->depth, row = from->across ? from->depth : width;

    for (size_t r = n_rows * i / n; r < n_rows * (i + 1) / n; r++)
        for (size_t j = 0; j < row; j += 64 / sizeof(value))
            __builtin_prefetch(from->x + r * from->stride + j, 0, 2);
}

/* Fills a panel of n_vectors vectors a step; n_vectors is a constant wherever this is inlined. */
VECTOR_INLINE void panel_fill(float *panel, const size_t n_vectors, const struct panel_source *from)
{
    if (!from->across)
        panel_along(panel, n_vectors, from);
    else
        for (size_t v = 0; v < n_vectors && v * VECTOR < from->n; v++)
            panel_vector_across(panel + v * VECTOR, n_vectors * VECTOR, from, v * VECTOR);
}

#endif

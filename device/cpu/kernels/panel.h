/* device/cpu/kernels/panel.h - parts of a matrix laid out as products read them.
 *
 * A panel holds, for each step along k, the elements of some rows of op(a), or columns of op(b), side by side in whole
 * vectors: its lanes. The product then reads it from front to back, however the matrix lies in memory. An element is a
 * float; or, where one instruction multiplies two bf16 and adds both products (AVX512_BF16), a pair of neighbours along
 * k, the first in its lower half, 0 beyond the end of k. */
#ifndef DEVICE_CPU_KERNELS_PANEL_H
#define DEVICE_CPU_KERNELS_PANEL_H

#include "device/cpu/kernels/value.h"

#include <stdbool.h>

#if defined(KERNEL_BF16) && defined(__AVX512BF16__)

enum { PANEL_TERMS = 2 }; /* of k, in an element */

/* c + a * b, element by element. */
VECTOR_INLINE vec panel_multiply_add(vec a, vec b, vec c)
{
    return _mm512_dpbf16_ps(c, (__m512bh)a, (__m512bh)b);
}

/* One element in all lanes. */
VECTOR_INLINE vec panel_all(const float *element)
{
    int32_t bits;

    memcpy(&bits, element, sizeof bits);
    return (vec)_mm512_set1_epi32(bits);
}

/* An element of adjacent values, of which n are left. */
VECTOR_INLINE float panel_element(const value *x, size_t n)
{
    return number_from_pattern(x[0] | (n > 1 ? (uint32_t)x[1] << 16 : 0));
}

/* n elements of adjacent lanes, with terms a stride apart, of which n_terms are left. */
VECTOR_INLINE vec panel_load_n(const value *x, size_t stride, size_t n_terms, size_t n)
{
    vec_uint pairs = (vec_uint)value_load_n(x, n) >> 16;

    if (n_terms > 1)
        pairs |= (vec_uint)value_load_n(x + stride, n);
    return (vec)pairs;
}

/* n elements of adjacent lanes, the terms of each at places of their own. */
VECTOR_INLINE vec panel_join_n(const value *first, const value *second, size_t n)
{
    return (vec)((vec_uint)value_load_n(first, n) >> 16 | (vec_uint)value_load_n(second, n));
}

/* Group g of four lanes: four elements from p[4 * g] + offset. */
VECTOR_INLINE vec panel_gather_fours(const value *const *p, size_t offset)
{
    const __m128i *x[4];

    for (size_t g = 0; g < 4; g++)
        x[g] = (const __m128i *)(const void *)(p[4 * g] + offset);
    __m512i y = _mm512_castsi128_si512(_mm_loadu_si128(x[0]));
    y = _mm512_inserti32x4(y, _mm_loadu_si128(x[1]), 1);
    y = _mm512_inserti32x4(y, _mm_loadu_si128(x[2]), 2);
    return (vec)_mm512_inserti32x4(y, _mm_loadu_si128(x[3]), 3);
}

#else

enum { PANEL_TERMS = 1 };

VECTOR_INLINE vec panel_multiply_add(vec a, vec b, vec c)
{
    return vec_multiply_add(a, b, c);
}

VECTOR_INLINE vec panel_all(const float *element)
{
    return vec_all(*element);
}

VECTOR_INLINE float panel_element(const value *x, size_t n)
{
    (void)n;
    return value_widen(x[0]);
}

VECTOR_INLINE vec panel_load_n(const value *x, size_t stride, size_t n_terms, size_t n)
{
    (void)stride, (void)n_terms;
    return value_load_n(x, n);
}

VECTOR_INLINE vec panel_join_n(const value *first, const value *second, size_t n)
{
    (void)second;
    return value_load_n(first, n);
}

VECTOR_INLINE vec panel_gather_fours(const value *const *p, size_t offset)
{
    return value_gather_fours(p, offset);
}

#endif

/* Where a panel comes from: element (lane, step) is at lane + step * stride, or at lane * stride + step (`across`). */
struct panel_source {
    const value *x;
    size_t stride;
    bool across;
    size_t n, depth; /* lanes and steps of the source; further lanes of the panel are undefined */
};

/* One step; terms are a stride apart, and n_terms are left. */
VECTOR_INLINE void panel_step(float *to, const size_t n_vectors, const value *x, size_t stride, size_t n_terms,
                              size_t n)
{
#pragma GCC unroll 4
    for (size_t v = 0; v < n_vectors; v++)
        if (v * VECTOR < n)
            vec_store(to + v * VECTOR, panel_load_n(x + v * VECTOR, stride, n_terms, n - v * VECTOR));
}

VECTOR_INLINE void panel_along(float *panel, const size_t n_vectors, const struct panel_source *from)
{
    const size_t lanes = n_vectors * VECTOR;

    for (size_t p = 0; p < from->depth; p += PANEL_TERMS, panel += lanes)
        if (from->n >= lanes)
            panel_step(panel, n_vectors, from->x + p * from->stride, from->stride, from->depth - p, lanes);
        else
            panel_step(panel, n_vectors, from->x + p * from->stride, from->stride, from->depth - p, from->n);
}

/* Addresses of VECTOR lanes; n exist, the others repeat the last one. */
VECTOR_INLINE void panel_lanes(const value **lanes, const value *x, size_t stride, size_t n)
{
    for (size_t i = 0; i < VECTOR; i++)
        lanes[i] = x + (i < n ? i : n - 1) * stride;
}

/* Four steps of these lanes from p: each group of four lanes has the rows of a 4 x 4 matrix. */
VECTOR_INLINE void panel_four(vec row[4], const value *const *lanes, size_t p)
{
#pragma GCC unroll 4
    for (size_t r = 0; r < 4; r++)
        row[r] = panel_gather_fours(lanes + r, p);
    vec_transpose(row);
}

/* One step of these lanes, with n terms left. */
VECTOR_INLINE vec panel_one(const value *const *lanes, size_t p, size_t n)
{
    float x[VECTOR];

    for (size_t i = 0; i < VECTOR; i++)
        x[i] = panel_element(lanes[i] + p, n);
    return vec_load(x);
}

VECTOR_INLINE void panel_vector_across(float *to, const size_t width, const struct panel_source *from, size_t first)
{
    const value *lanes[VECTOR];
    size_t p = 0;

    panel_lanes(lanes, from->x + first * from->stride, from->stride, from->n - first);
    for (; p + 4 * PANEL_TERMS <= from->depth; p += 4 * PANEL_TERMS, to += 4 * width) {
        vec row[4];
        panel_four(row, lanes, p);
#pragma GCC unroll 4
        for (size_t r = 0; r < 4; r++)
            vec_store(to + r * width, row[r]);
    }
    for (; p < from->depth; p += PANEL_TERMS, to += width)
        vec_store(to, panel_one(lanes, p, from->depth - p));
}

/* Prefetches part i of n of a panel's source during other computation. Its cache lines lie far apart, a pattern that
 * hardware prefetchers miss. */
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

/* sums (rows, columns in vectors), rows `stride` apart, = or += (add) a block's; rows and columns are constants
 * wherever this is inlined. */
VECTOR_INLINE void panel_put(const size_t rows, const size_t columns, float *sums, size_t stride, bool add,
                             vec (*sum)[2])
{
#pragma GCC unroll 14
    for (size_t r = 0; r < rows; r++)
#pragma GCC unroll 2
        for (size_t v = 0; v < columns; v++) {
            float *const to = sums + r * stride + v * VECTOR;
            vec_store(to, add ? vec_load(to) + sum[r][v] : sum[r][v]);
        }
}

#endif

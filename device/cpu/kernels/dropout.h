/* device/cpu/kernels/dropout.h - the factors of dropout: 0, or device_dropout_factor where the element's Philox word
 * says keep; and a row that is dropped, with the residual addition.
 *
 * VECTOR counters run side by side, each for four elements. */
#ifndef DEVICE_CPU_KERNELS_DROPOUT_H
#define DEVICE_CPU_KERNELS_DROPOUT_H

#include "device/cpu/kernels/value.h"
#include "proto/operation/device.h"

enum {
    DROPOUT_BLOCK = 4 * VECTOR, /* elements of one run of Philox */
    DROPOUT_PIECE = 128,        /* elements of one call at most */
};

/* The 64-bit products of all lanes, their upper and lower halves apart. */
VECTOR_INLINE void dropout_multiply(vec_uint *high, vec_uint *low, vec_uint x, uint32_t by)
{
    const vec_long factor = by - (vec_long){0}, upper = 0xffffffff00000000u - (vec_long){0};
    vec_long even = (vec_long)VECTOR_CALL(mul_epu32)((vec_integer)x, (vec_integer)factor);
    vec_long odd = (vec_long)VECTOR_CALL(mul_epu32)((vec_integer)((vec_long)x >> 32), (vec_integer)factor);

    *high = (vec_uint)(even >> 32 | (odd & upper));
    *low = (vec_uint)((even & ~upper) | odd << 32);
}

/* Philox4x32-10, random_quad, for VECTOR quads. words[lane] has that word of each quad, in an order that
 * vec_transpose undoes. */
VECTOR_INLINE void dropout_words(vec_uint words[4], struct random_key key, uint64_t row, uint64_t first)
{
    vec_uint step, c0, c1, c2 = (uint32_t)row - (vec_uint){0}, c3 = (uint32_t)(row >> 32) - (vec_uint){0};

    for (uint32_t i = 0; i < VECTOR; i++)
        step[i] = i % 4 * (VECTOR / 4) + i / 4;
    c0 = (uint32_t)first + step;
    c1 = (uint32_t)(first >> 32) - (vec_uint)(c0 < step); /* the carry is -1 */
    for (int round = 0; round < 10; round++) {
        vec_uint high0, low0, high1, low1;
        dropout_multiply(&high0, &low0, c0, 0xD2511F53u);
        dropout_multiply(&high1, &low1, c2, 0xCD9E8D57u);
        c0 = high1 ^ c1 ^ key.k[0];
        c1 = low1;
        c2 = high0 ^ c3 ^ key.k[1];
        c3 = low0;
        key.k[0] += 0x9E3779B9u;
        key.k[1] += 0xBB67AE85u;
    }
    words[0] = c0, words[1] = c1, words[2] = c2, words[3] = c3;
}

/* Factors of elements first .. first+n-1, n <= DROPOUT_PIECE, of this row of the minibatch. */
static inline void dropout_factors(float *factors, uint64_t first, size_t n, uint64_t row,
                                   const struct device_dropout *dropout)
{
    const vec kept = vec_all(device_dropout_factor(dropout));
    const uint32_t threshold = random_threshold(dropout->p);
    const size_t skip = first % 4;
    float all[DROPOUT_PIECE + 2 * DROPOUT_BLOCK];

    for (size_t i = 0; i < skip + n; i += DROPOUT_BLOCK) {
        vec_uint words[4];
        vec lanes[4];

        dropout_words(words, dropout->key, row, (first + i) / 4);
        for (int lane = 0; lane < 4; lane++)
            lanes[lane] = (vec)((vec_int)(words[lane] >= threshold) & (vec_int)kept);
        vec_transpose(lanes);
        for (size_t v = 0; v < 4; v++)
            vec_store(all + i + v * VECTOR, lanes[v]);
    }
    memcpy(factors, all + skip, n * sizeof *factors);
}

/* y = x + factor * h, or factor * h if there is no x */
static inline void dropout_apply(value *y, const value *x, const value *h, const float *factors, size_t n)
{
    for (size_t j = 0; j < n; j += VECTOR) {
        const vec factor = vec_load_n(factors + j, n - j, 0), element = value_load_n(h + j, n - j);
        value_store_n(y + j, x ? vec_multiply_add(factor, element, value_load_n(x + j, n - j)) : factor * element,
                      n - j);
    }
}

static inline void dropout_none(value *y, const value *x, const value *h, size_t n)
{
    if (x)
        for (size_t j = 0; j < n; j += VECTOR)
            value_store_n(y + j, value_load_n(x + j, n - j) + value_load_n(h + j, n - j), n - j);
    else if (y != h)
        memcpy(y, h, n * sizeof *y);
}

/* Row i of the call, y = x + dropout(h), or without x; from rows x and h to row y, which may be one of them. */
static inline void dropout_add_row(const struct device_dropout_add *op, size_t i, value *y, const value *x,
                                   const value *h)
{
    const struct device_dropout *dropout = &op->dropout;
    const uint64_t row = dropout->first_row + i / op->n_tokens, first = (uint64_t)(i % op->n_tokens) * op->n;
    const float factor = device_dropout_factor(dropout);

    if (dropout->p == 0 && factor == 1) {
        dropout_none(y, x, h, op->n);
        return;
    }
    for (size_t j = 0; j < op->n; j += DROPOUT_PIECE) {
        const size_t width = op->n - j < DROPOUT_PIECE ? op->n - j : DROPOUT_PIECE;
        float factors[DROPOUT_PIECE];

        if (dropout->p > 0)
            dropout_factors(factors, first + j, width, row, dropout);
        for (size_t k = 0; dropout->p == 0 && k < width; k++)
            factors[k] = factor;
        dropout_apply(y + j, x ? x + j : NULL, h + j, factors, width);
    }
}

#endif

/* device/cpu/dropout.h - the factors of dropout: 0, or 1/(1-p) where the element's Philox word says keep.
 *
 * Philox runs on many counters side by side, in arrays that the compiler turns into vectors. */
#ifndef DEVICE_CPU_DROPOUT_H
#define DEVICE_CPU_DROPOUT_H

#include "device/device.h"

enum {
    DROPOUT_QUADS = 32,         /* counters run side by side */
    DROPOUT_PIECE = 4 * 32 - 3, /* elements of one call at most: so many lie in that many quads wherever they start */
};

/* One batch of Philox4x32-10: words[lane][i] of quad first + i. The same function as random_quad. */
static inline void dropout_words(uint32_t words[4][DROPOUT_QUADS], struct random_key key, uint64_t row, uint64_t first)
{
    for (unsigned i = 0; i < DROPOUT_QUADS; i++) {
        words[0][i] = (uint32_t)(first + i);
        words[1][i] = (uint32_t)((first + i) >> 32);
        words[2][i] = (uint32_t)row;
        words[3][i] = (uint32_t)(row >> 32);
    }
    for (int round = 0; round < 10; round++) {
        for (unsigned i = 0; i < DROPOUT_QUADS; i++) {
            uint64_t p0 = (uint64_t)0xD2511F53u * words[0][i], p1 = (uint64_t)0xCD9E8D57u * words[2][i];
            words[0][i] = (uint32_t)(p1 >> 32) ^ words[1][i] ^ key.k[0];
            words[1][i] = (uint32_t)p1;
            words[2][i] = (uint32_t)(p0 >> 32) ^ words[3][i] ^ key.k[1];
            words[3][i] = (uint32_t)p0;
        }
        key.k[0] += 0x9E3779B9u;
        key.k[1] += 0xBB67AE85u;
    }
}

/* Factors of elements first .. first+n-1, n <= DROPOUT_PIECE, of this row of the minibatch. */
static inline void dropout_factors(float *factors, uint64_t first, size_t n, uint64_t row,
                                   const struct device_dropout *dropout)
{
    const uint32_t threshold = random_threshold(dropout->p);
    const float kept = (float)(1 / (1 - (double)dropout->p));
    uint32_t words[4][DROPOUT_QUADS];
    float all[4 * DROPOUT_QUADS];

    dropout_words(words, dropout->key, row, first / 4);
    for (unsigned i = 0; i < DROPOUT_QUADS; i++)
        for (unsigned lane = 0; lane < 4; lane++)
            all[4 * i + lane] = words[lane][i] >= threshold ? kept : 0;
    for (size_t i = 0; i < n; i++)
        factors[i] = all[first % 4 + i];
}

#endif

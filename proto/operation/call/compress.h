/* proto/operation/call/compress.h - values in 8, 4 or 1 bits, for what forward leaves for backward.
 *
 * Each 64 values of a row have a scale s, the largest of their magnitudes, rounded up to bf16, and whole numbers of
 * magnitude L = 127 or 7 at most; a number q stands for q s / L. Numbers are rounded stochastically, so what is read
 * back is, on average, what was written (but for 2^-17 of a step, for the rounding to bf16 of
 * values in bf16, and for blocks below 2^-95, which become 0).
 * Random bits are those of the row of the minibatch and the element, so neither microbatch nor worker changes one.
 * Sources: Chen et al., "ActNN", arXiv 2104.14129; Liu et al., "GACT", arXiv 2206.11357.
 *
 * One bit says whether a value is above 0, and is read back as 1 or 0: all that the slope of relu depends on, so
 * nothing is lost. There are no scales.
 *
 *   compress        writes the codes;
 *   expand          reads them;
 *   round_values    does both in place, where values were not kept but are computed again. */
#ifndef PROTO_OPERATION_CALL_COMPRESS_H
#define PROTO_OPERATION_CALL_COMPRESS_H

#include "proto/base/random.h"
#include "proto/base/size.h"

#include <stddef.h>
#include <stdint.h>

enum { COMPRESS_BLOCK = 64 }; /* values with one scale, and 32 random words: value i has half i / 32 of word i % 32 */

struct device_compress {
    size_t n_rows, n; /* n: values of a row */
    unsigned bits;    /* 8, 4 or 1 */
    const void *x;    /* (n_rows, n) */
    uint8_t *codes;   /* (n_rows, compress_row_bytes) */
    struct random_key key;
    uint64_t first_row; /* minibatch row of the call's row 0 */
};

struct device_expand {
    size_t n_rows, n;
    unsigned bits;
    const uint8_t *codes; /* (n_rows, compress_row_bytes) */
    void *y;              /* (n_rows, n) */
};

struct device_round_values {
    size_t n_rows, n;
    unsigned bits; /* 8 or 4 */
    void *x;       /* (n_rows, n) */
    struct random_key key;
    uint64_t first_row;
};

static inline size_t compress_blocks(size_t n)
{
    return size_pieces(n, COMPRESS_BLOCK);
}

/* Bytes of a block's codes: of 8 bits in order; of 4, value i and i + 32 in one byte, the first in its lower half; of
 * one, bit i % 8 of byte i / 8. */
static inline size_t compress_block_bytes(unsigned bits)
{
    return COMPRESS_BLOCK / 8 * bits;
}

/* Bytes of all blocks' codes in a row of n values, and of their scales. */
static inline size_t compress_used_bytes(size_t n, unsigned bits)
{
    return compress_blocks(n) * (compress_block_bytes(bits) + (bits > 1 ? sizeof(uint16_t) : 0));
}

/* Bytes of a row of n values: all blocks' codes, then their scales, in whole 16 bytes. */
static inline size_t compress_row_bytes(size_t n, unsigned bits)
{
    return size_pieces(compress_used_bytes(n, bits), 16) * 16;
}

/* A block's scale, as bf16, from the pattern of its largest magnitude in fp32, rounded up. What is too small for its
 * inverse counts as 0, the largest finite numbers as the largest bf16; an infinity or a NaN makes the block NaN. */
#define COMPRESS_SCALE(pattern)                                                                                        \
    ((pattern) < 0x10000000u    ? (uint16_t)0                                                                          \
     : (pattern) >= 0x7f800000u ? (uint16_t)0x7fc0                                                                     \
     : (pattern) > 0x7f7f0000u  ? (uint16_t)0x7f7f                                                                     \
                                : (uint16_t)(((pattern) + 0xffffu) >> 16))

/* L */
static inline int32_t compress_most(unsigned bits)
{
    return bits == 8 ? 127 : 7;
}

#endif

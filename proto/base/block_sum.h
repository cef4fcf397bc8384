/* proto/base/block_sum.h - sums of memory, block by block: whether bytes are those that were written.
 *
 * A block is at most 4 KiB. It is read as vectors of eight 64-bit words, the last one padded with zeros. Each of the
 * eight lanes keeps two words: a, the exclusive or of its words; b, the same, rotated by one bit before each word. At
 * the end the lanes' a are added up (exclusive or), and their b likewise, after each has gone through an invertible map
 * of its own. All of it is linear over bits, so what changes a sum depends on the changed bits alone, not on the
 * values.
 *
 * Of one block these changes are always found: an odd number of bits; any two bits; all words of the block by the same
 * bits, as where one constant replaces another. tests/proto/base/test_block_sum.c counts them through. Other changes
 * are missed with a probability of about 2^-64 (no adversary is assumed).
 *
 * Three instructions a vector with AVX-512. Sums are the same on every instruction path, and are not written to
 * files. */
#ifndef PROTO_BASE_BLOCK_SUM_H
#define PROTO_BASE_BLOCK_SUM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { BLOCK_SUM_BYTES = 4096, BLOCK_SUM_VECTOR = 64 };

/* Of zeros, as of no bytes, it is zero. */
struct block_sum {
    uint64_t a, b;
};

/* A block on its way. */
struct block_summing {
    uint64_t a[8], b[8], first[8]; /* first: the first vector */
    uint32_t n;                    /* vectors so far */
};

struct block_sum_kernel {
    /* Adds n bytes: whole vectors, unless they are the block's last. */
    void (*add)(struct block_summing *summing, const void *bytes, size_t n);
    struct block_sum (*end)(const struct block_summing *summing);
};
extern const struct block_sum_kernel block_sum_kernel_v2, block_sum_kernel_v3, block_sum_kernel_v4;

/* The best one of this machine. */
const struct block_sum_kernel *block_sum_kernel(void);

/* The sum of one block of n bytes, at most BLOCK_SUM_BYTES. */
struct block_sum block_sum(const struct block_sum_kernel *kernel, const void *bytes, size_t n);

static inline bool block_sum_equal(struct block_sum x, struct block_sum y)
{
    return x.a == y.a && x.b == y.b;
}

/* Adds to `sum` the sum of block number i of a longer run, in any order of blocks. A change within one block changes
 * it; one of several blocks is missed with a probability of about 2^-64. */
void block_sum_gather(struct block_sum *sum, struct block_sum block, uint64_t i);

/* The sum of n bytes, cut into blocks of block_bytes, at most BLOCK_SUM_BYTES. */
struct block_sum block_sum_run(const void *bytes, size_t n, size_t block_bytes);

#endif

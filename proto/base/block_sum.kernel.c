/* The lanes of a sum (proto/base/block_sum.h), once for each instruction set, in the widest vectors that it has. */
#include "proto/base/block_sum.h"

#include <string.h>

#if defined __AVX512F__
typedef uint64_t lanes __attribute__((vector_size(64)));
#elif defined __AVX2__
typedef uint64_t lanes __attribute__((vector_size(32)));
#else
typedef uint64_t lanes __attribute__((vector_size(16)));
#endif
enum { VECTORS = BLOCK_SUM_VECTOR / sizeof(lanes) };

static void block_sum_add(struct block_summing *summing, const void *bytes, size_t n)
{
    const char *from = bytes;
    char rest[BLOCK_SUM_VECTOR] = {0};
    lanes a[VECTORS], b[VECTORS], word;

    memcpy(a, summing->a, sizeof a);
    memcpy(b, summing->b, sizeof b);
    if (summing->n == 0)
        memcpy(summing->first, from, n < BLOCK_SUM_VECTOR ? n : BLOCK_SUM_VECTOR);
    for (; n > 0; summing->n++) {
        const size_t now = n < BLOCK_SUM_VECTOR ? n : BLOCK_SUM_VECTOR;
        if (now < BLOCK_SUM_VECTOR)
            from = memcpy(rest, from, now);
        for (size_t k = 0; k < VECTORS; k++) {
            memcpy(&word, from + k * sizeof word, sizeof word);
            a[k] ^= word;
            b[k] = (b[k] << 1 | b[k] >> 63) ^ word;
        }
        from += now, n -= now;
    }
    memcpy(summing->a, a, sizeof a);
    memcpy(summing->b, b, sizeof b);
}

static inline uint64_t block_sum_rotate(uint64_t x, unsigned by)
{
    return x << by | x >> (64 - by);
}

/* Rotations by one bit come round after 64 words, and an even number of equal words adds up to nothing: so a block of
 * an even number of vectors counts its first one once more. The rotations and shifts were drawn until all that the
 * header promises held. */
static struct block_sum block_sum_end(const struct block_summing *summing)
{
    static const uint8_t rotations[8] = {56, 24, 4, 20, 10, 9, 19, 25}, shifts[8] = {8, 7, 15, 22, 9, 11, 22, 18};
    struct block_sum sum = {0};

    for (unsigned l = 0; l < 8; l++) {
        const uint64_t b = summing->b[l] ^ (summing->n % 2 == 0 ? block_sum_rotate(summing->first[l], 20) : 0);
        sum.a ^= summing->a[l];
        sum.b ^= b ^ block_sum_rotate(b, rotations[l]) ^ b << shifts[l];
    }
    return sum;
}

#define NAME_OF(isa) block_sum_kernel_##isa
#define NAME(isa)    NAME_OF(isa)
const struct block_sum_kernel NAME(KERNEL_ISA) = {.add = block_sum_add, .end = block_sum_end};

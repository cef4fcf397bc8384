/* proto/base/random.h - counter-based random bits.
 *
 * A bit is a function of (seed, step, unit, site, row of the minibatch, element). So dropout masks and fresh weights
 * are the same for any microbatch, share, worker, thread and order of drawing, and a recomputed layer gets the mask of
 * its forward pass.
 *
 * Source: Philox4x32-10 - Salmon, Moraes, Dror, Shaw, "Parallel random numbers: as easy as 1, 2, 3", SC 2011. */
#ifndef PROTO_BASE_RANDOM_H
#define PROTO_BASE_RANDOM_H

#include <stdint.h>

/* Sites: the places inside one unit that draw. */
enum random_site {
    RANDOM_WEIGHTS = 1, /* fresh weights; row: tensor, element: its flat index */
    RANDOM_ORDER,       /* shuffled windows */
    RANDOM_DROPOUT_EMBEDDING,
    RANDOM_DROPOUT_ATTENTION, /* element: (head * n_tokens + query) * n_tokens + key */
    RANDOM_DROPOUT_RESIDUAL_ATTENTION,
    RANDOM_DROPOUT_RESIDUAL_MLP,
    RANDOM_SAMPLE,  /* generated tokens; quad: position in the text */
    RANDOM_MOMENTS, /* rounding of 16-bit moments (eps/store/optimizer.h); step: the unit's update, row: part */
    RANDOM_MASKS, /* masked tokens (client/task/masks.h); unit 0: training, 1: evaluation; quad: position in the row */
    RANDOM_DROPOUT_CLASSIFIER_INPUT,
    RANDOM_DROPOUT_CLASSIFIER,
    RANDOM_DROPOUT_MLP, /* between an MLP's two maps */
    RANDOM_DROPOUT_CROSS_ATTENTION,
    RANDOM_DROPOUT_RESIDUAL_CROSS_ATTENTION,
    RANDOM_DROPOUT_NORM,   /* what the last norm made */
    RANDOM_DROP_LAYER,     /* blocks that a step leaves out (proto/model/drop.h); unit: the block's number */
    RANDOM_DROPOUT_FILTER, /* filters of a convolution (DropConnect) */
    RANDOM_DROPOUT_SOURCE, /* an embedded source, apart from its target */
    RANDOM_VIEW,           /* how a row sees its image (client/images/view.h); row: its number in the run */
    RANDOM_PLACES, /* of sparse weights. Step 0: the first ones; row: tensor, element: its flat index, were it dense.
                    * Later in unit 0 row UINT64_MAX: pieces that grow; in unit 1 + tensor: a permutation of its free
                    * places */
    RANDOM_UPDATE, /* rounding of weights without a master; step: the unit's update, row 0 */
    RANDOM_SUM,    /* rounding of sums in 16 bits; step: the unit's update, row: part */
    /* Sites of an operation, plus the number of its first tensor in its program: no other site lies between these. */
    RANDOM_DROPOUT_ADAPTER = 256, /* an adapter's input */
    RANDOM_ROWS = 512, /* rows that stand for all (proto/operation/call/sample.h); quad: half the index of the choice */
    RANDOM_VALUES = 768, /* values in few bits (proto/operation/call/compress.h); plus the value's number instead */
    RANDOM_QUERIES =
        1024, /* attention's queries that stand for all; plus its result's number; row: times heads, plus the head */
};

struct random_key {
    uint32_t k[2];
};

/* The block function: 10 rounds. out (4) from counter (4) and key; the published test vectors hold. */
static inline void random_philox(uint32_t out[4], const uint32_t counter[4], struct random_key key)
{
    uint32_t c0 = counter[0], c1 = counter[1], c2 = counter[2], c3 = counter[3];

    for (int round = 0; round < 10; round++) {
        uint64_t p0 = (uint64_t)0xD2511F53u * c0, p1 = (uint64_t)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ key.k[0];
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ key.k[1];
        c3 = (uint32_t)p0;
        key.k[0] += 0x9E3779B9u;
        key.k[1] += 0xBB67AE85u;
    }
    out[0] = c0, out[1] = c1, out[2] = c2, out[3] = c3;
}

/* The key of one site in one step: four Philox words of (step, unit) under the seed, folded with the site. */
struct random_key random_site_key(uint64_t seed, uint64_t step, uint64_t unit, enum random_site site);

/* Four words, for elements 4*quad .. 4*quad+3 of this row of the minibatch. */
static inline void random_quad(uint32_t out[4], struct random_key key, uint64_t row, uint64_t quad)
{
    const uint32_t counter[4] = {(uint32_t)quad, (uint32_t)(quad >> 32), (uint32_t)row, (uint32_t)(row >> 32)};
    random_philox(out, counter, key);
}

/* The smallest word that keeps an element under dropout probability p: keep if word >= threshold. p in [0, 1). */
static inline uint32_t random_threshold(float p)
{
    return (uint32_t)((double)p * 4294967296.0);
}

/* n normal deviates of mean 0 and deviation 1: elements first .. first+n-1 of this row (Box-Muller on pairs of words).
 * Element i does not depend on first and n. */
void random_normal(float *out, struct random_key key, uint64_t row, uint64_t first, uint64_t n);

/* n numbers, uniform in (-1, 1): elements first .. first+n-1 of this row, each from a word of its own. */
void random_uniform(float *out, struct random_key key, uint64_t row, uint64_t first, uint64_t n);

/* A seeded permutation of 0..n-1, computed for one index without memory. A four-round Feistel network over the next
 * even power of two, repeated until the result is in range (cycle walking; Black & Rogaway 2002). n >= 1, index < n. */
uint64_t random_permute(struct random_key key, uint64_t index, uint64_t n);

#endif

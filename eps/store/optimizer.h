/* eps/store/optimizer.h - AdamA or SGD on the host, contribution by contribution.
 *
 * The optimizer *is* AdamA; with one part it is AdamW, bit for bit. A contribution is folded into both moments as it
 * arrives, and its slot is free again, so no gradient is ever stored. With one part, decay, fold and update are one
 * pass over 28 bytes a parameter; the memory bus carries nothing else.
 *
 * Sources: AdamA - Zhang et al., arXiv:2305.19982. AdamW - Loshchilov & Hutter, arXiv:1711.05101, Algorithm 2.
 *
 * Arithmetic, in fp32 and the same bits on every instruction path and for every split of the range
 * (-ffp-contract=off). Fused multiply-adds, divisions and roots are rounded once, as IEEE 754 has it:
 *   first fold    m = fma(c1, g, fma(-c1, m, m))   v = fma(c2 * g, g, fma(-c2, v, v))
 *   next folds    m = fma(c1, g, m)                v = fma(c2 * g, g, v)
 *   update        q = m / fma(sqrt(v), root_scale, epsilon)
 *                 w = w - fma(step_size, q, decay * w)
 *
 * c1 = 1 - b1, c2 = 1 - b2, step_size = lr / (1 - b1^t), root_scale = 1 / sqrt(1 - b2^t) and decay = lr * weight_decay
 * (0 where nothing decays) are computed in double and rounded once. With c1 and c2 a moment decays by a beta exact to
 * 2^-24 of 1 - beta; b2 itself, rounded to fp32, would in the long run shift v by 1e-5. Likewise w * (1 - decay) would
 * take 1.19e-7 for a decay of 1e-7, and nothing for 1e-8: so decay * w, which has all its bits, is added to the update
 * first. Where a weight gets no update at all, a decay below half its spacing changes nothing: that is fp32's, not the
 * formula's.
 *
 * A new weight is within 6 ulp of the exact one of the stored w, m and v, an ulp being that of the largest of w, the
 * new w, step_size * q and decay * w. In units of e = 2^-24: the root, root_scale and the sum of the denominator have a
 * relative error of e each, the quotient of e, step_size of e: 5e of step_size * q, at most 5 ulp. decay adds e of
 * decay * w, twice with its product: 2 decay ulp. The last fma and the difference add half an ulp each, but where the
 * weight cancels its update, so that the whole error counts, the difference is exact (Sterbenz). A quotient below the
 * normal numbers, from 1e-38 on, loses 2^-150 besides; one past fp32's range makes the weight infinite.
 *
 * A moment below FLT_MIN (1.2e-38), the smallest normal number, is written as 0: m of a parameter that gets no gradient
 * any more is after some 800 steps, where it would be a denormal number for ever and slow each step down. A v past
 * fp32's range stays at its largest value.
 *
 * Narrower forms (proto/base/number.h) are decoded a block at a time into the first-level cache, go through the same
 * arithmetic and are encoded again: a split master exactly; 16-bit and coded moments (eps/store/coded_kernel.h),
 * weights without a master and sums stochastically. Each element's random word is named by (seed, unit, its update,
 * what it is, part, element), so that its bits depend on no thread and no order. A step moves the weights by the
 * moments before they are rounded.
 *
 * SGD is torch.optim.SGD without dampening, its weight decay a part of the gradient. m is its momentum, and v is not
 * there; without momentum m is not either. c = 1 - momentum, as above:
 *   first fold    d = fma(decay, w, g)   m = fma(-c, m, m) + d
 *   next folds    m = m + g
 *   update        w = fma(-lr, m, w)
 *   step          d and m as by the first fold; w = fma(-lr, u, w), where u is m; with Nesterov fma(momentum, m, d);
 *                 without momentum d
 * It is linear in the gradient, so parts are folded into m as they come, and differ from their sum by rounding alone;
 * all folds come before the update, so all of them see the weights that the workers had. Nesterov's u needs the whole
 * gradient beside the new m: from m alone it could be had only with the old m, which the first fold replaces. So there,
 * as without momentum, parts are summed elsewhere, and the sum is stepped. A momentum that is infinite makes its weight
 * so.
 *
 * Likewise, e being 2^-24 of the largest partial result (w, and lr times the others): d has 2e (decay, the fma), m
 * another 2e + c e (the fma, the sum, c), Nesterov's u 4e more (momentum, the fma, d again), lr e, and the new weight
 * half an ulp. So a step is within 6 ulp of the exact one of the stored w and m for a momentum of 1/2 or more; with
 * Nesterov within 10. */
#ifndef EPS_STORE_OPTIMIZER_H
#define EPS_STORE_OPTIMIZER_H

#include "eps/store/coded_kernel.h"
#include "proto/base/block_sum.h"
#include "proto/base/number.h"
#include "proto/base/random.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct hyper {
    double lr, beta1, beta2, epsilon, weight_decay;
    float grad_scale; /* factor for held sums (eps/store/store.h): of clipping, over the loss's scale */
    bool sgd;         /* SGD; else AdamA. Of SGD neither betas nor epsilon count, of AdamA neither of these: */
    bool nesterov;    /* with momentum alone; steps only (asserted) */
    double momentum;  /* from 0 and below 1 */
};

/* The instruction sets. OPTIMIZER_ISA_BEST is the best one of this machine. */
enum optimizer_isa { OPTIMIZER_ISA_BEST, OPTIMIZER_ISA_V2, OPTIMIZER_ISA_V3, OPTIMIZER_ISA_V4 };

/* Returns the arithmetic for one instruction set; NULL if the machine lacks it. All give the same bits. */
const struct optimizer_kernel *optimizer_find(enum optimizer_isa isa);

/* Sums of the blocks of these parameters' arrays (TEAM_BLOCK elements each, from the first parameter on), where memory
 * is checked. A pass checks the blocks that it reads before it uses them, and renews the sums of those that it writes
 * while they are in the first-level cache. Arrays whose sums are NULL are not checked. */
struct optimizer_blocks {
    struct block_sum *w, *new_w; /* of `w` or `high`; of where new ones are written, which may be the same */
    struct block_sum *low, *m, *v;
    struct block_sum *m_scales, *v_scales; /* of coded moments; m and v: of their codes */
    struct block_sum *sum;                 /* in optimizer_sum: of the sum */
    struct block_sum *gradient;            /* of a gradient that is a sum */
    uint64_t first;                        /* number of the first block */
    uint64_t *damage; /* the least optimizer_damage of a block whose sum is another. All access is __atomic */
};

/* A block's array and number in one, so that the least is the first block. */
enum optimizer_array { OPTIMIZER_W, OPTIMIZER_LOW, OPTIMIZER_M, OPTIMIZER_V, OPTIMIZER_SUM, OPTIMIZER_GRADIENT };
enum { OPTIMIZER_ARRAYS = 8 };
#define OPTIMIZER_WHOLE UINT64_MAX /* no block is damaged */
static inline uint64_t optimizer_damage(uint64_t block, enum optimizer_array array)
{
    return block * OPTIMIZER_ARRAYS + array;
}

/* Notes that a block's sum is another. Any thread. */
void optimizer_note_damage(uint64_t *damage, uint64_t block, enum optimizer_array array);

/* n consecutive parameters. Each array has n elements, or is NULL where the parameters have the other form. */
struct parameters {
    const struct optimizer_kernel *kernel; /* from optimizer_find */
    size_t n;
    float *w;                     /* the master in fp32; NULL: weights have 16 bits */
    enum number_type type;        /* of these */
    uint16_t *high;               /* upper halves of a split master; or weights without one */
    int16_t *low;                 /* lower halves of a split master; NULL without one */
    bool is_upper;                /* without `low`: the low half of the split master is on another host */
    float *new_w;                 /* new weights are written here, past the caches; NULL: in place */
    uint16_t *new_high;           /* those of 16 bits, likewise */
    float *m, *v;                 /* moments in fp32; NULL if they have 16 bits, or are not there */
    uint16_t *m16, *v16;          /* 16-bit moments: bf16; 8 + 8 bits */
    struct coded_moments coded;   /* coded ones, where the parameters begin with a group's first; AdamA's alone */
    struct random_key key;        /* for rounding moments: random_site_key(seed, update, unit, RANDOM_MOMENTS) */
    struct random_key update_key; /* for rounding weights without a master: the same of RANDOM_UPDATE */
    uint64_t part;                /* or whatever else tells the folds of one update apart */
    uint64_t first;               /* index of the first parameter in its unit */
    struct optimizer_blocks blocks;
};

/* Sums of n consecutive parameters' contributions, in one of two forms. */
struct sums {
    float *wide;           /* fp32 */
    uint16_t *half;        /* bf16, rounded stochastically after each addition; else NULL */
    struct random_key key; /* for rounding `half`: random_site_key(seed, update, unit, RANDOM_SUM) */
    uint64_t part, first;  /* as in struct parameters */
    struct optimizer_blocks blocks;
};

/* (n) values to fold; borrowed. They may be in shared memory, written by an untrusted worker. */
struct gradient {
    const void *g;
    enum number_type type;
    float scale; /* each value is multiplied by it */
};

/* Each call uses every OpenMP thread of the caller and cannot fail. t: updates done, including this one (1 at the
 * first). decays: whether weight_decay applies here. */

/* True if every element is finite; g (n) is of this type. *sum, unless NULL: contribution_sum of g. */
bool optimizer_is_finite(const struct optimizer_kernel *kernel, const void *g, enum number_type type, size_t n,
                         struct block_sum *sum);
/* first: the first fold of the step, which decays the moments. Reads the weights only where SGD's decay. */
void optimizer_fold(const struct parameters *p, const struct gradient *g, const struct hyper *hp, bool first,
                    bool decays);
/* Leaves the moments alone. divisor divides the update, but not the decay: 1 unless the update is clipped. False if
 * a weight is not finite afterwards; it never is where its first moment is not. */
bool optimizer_update(const struct parameters *p, const struct hyper *hp, uint64_t t, bool decays, double divisor);
/* First fold and update in one pass: the same bits as one after the other, with fp32 moments. */
bool optimizer_step(const struct parameters *p, const struct gradient *g, const struct hyper *hp, uint64_t t,
                    bool decays);
/* sums = g or sums += g, (n): accumulators, tied units, held sums. One that overflows is an infinity, in either
 * form. */
void optimizer_sum(const struct optimizer_kernel *kernel, const struct sums *sums, const struct gradient *g, size_t n,
                   bool first);

/* The sum of squares of g (n), of this type, in double. Each block of 1024 is summed on its own, and blocks are added
 * in order, for any number of threads. */
double optimizer_squares(const struct optimizer_kernel *kernel, const void *g, enum number_type type, size_t n);
/* The sum of squares of the update that optimizer_update would make at a learning rate of 1, without weight decay.
 * AdamA's alone (asserted). */
double optimizer_update_squares(const struct parameters *p, const struct hyper *hp, uint64_t t);

/* Decode and encode those of w, m and v that are not NULL; serial. Each value is rounded once, without random bits:
 * 16-bit moments to nearest; high without low to nearest, ties to even, or as in a split if is_upper. Coded moments are
 * read, both or none, but not written (asserted). */
void optimizer_read(const struct parameters *p, float *w, float *m, float *v);
void optimizer_write(const struct parameters *p, const float *w, const float *m, const float *v);
/* Weights of 16 bits from element `at` on, n of them; serial. */
void optimizer_read_halves(float *w, const struct parameters *p, size_t at, size_t n);

#endif

/* eps/store/optimizer_kernel.h - the contents of optimizer.kernel.c, once for each instruction set.
 *
 * Serial over one thread's range. eps/store/optimizer.c cuts the range and computes the constants. All paths give
 * the same bits: v2 has no fused multiply-add instruction and makes one of instructions on doubles, which is exact and
 * slow. */
#ifndef EPS_STORE_OPTIMIZER_KERNEL_H
#define EPS_STORE_OPTIMIZER_KERNEL_H

#include "eps/store/coded_kernel.h"
#include "proto/base/block_sum.h"
#include "proto/base/number.h"
#include "proto/base/random.h"

#include <stdbool.h>
#include <stddef.h>

/* Computed in double and rounded once. */
struct optimizer_constants {
    float c1, c2; /* 1 - beta; of SGD c1 is 1 - momentum */
    float step_size, root_scale, epsilon;
    float decay; /* lr * weight_decay; of SGD weight_decay, and its learning rate is step_size */
    float momentum;
    bool nesterov;
};

struct optimizer_kernel {
    const struct block_sum_kernel *blocks; /* these two: of the same instruction set */
    const struct coded_kernel *coded;
    bool (*is_finite)(const float *g, size_t n);
    void (*fold)(float *restrict m, float *restrict v, const float *restrict g, size_t n,
                 const struct optimizer_constants *c, bool first);
    /* Updates w to `to`, which is w itself or apart from it. False if a weight is not finite afterwards. That one check
     * is enough: a moment that is not finite makes its weight not finite. */
    bool (*update)(float *to, const float *w, const float *restrict m, const float *restrict v, size_t n,
                   const struct optimizer_constants *c);
    bool (*step)(float *to, const float *w, float *restrict m, float *restrict v, const float *restrict g, size_t n,
                 const struct optimizer_constants *c);
    /* SGD. w may be NULL where nothing decays, and after the first fold; m in a step without momentum. */
    void (*sgd_fold)(float *restrict m, const float *restrict w, const float *restrict g, size_t n,
                     const struct optimizer_constants *c, bool first);
    bool (*sgd_update)(float *to, const float *w, const float *restrict m, size_t n,
                       const struct optimizer_constants *c);
    bool (*sgd_step)(float *to, const float *w, float *restrict m, const float *restrict g, size_t n,
                     const struct optimizer_constants *c);
    /* Copies past the caches, so that no line of `to` is read before it is written. An _mm_sfence orders the stores. */
    void (*stream)(void *restrict to, const void *restrict from, size_t bytes);
    void (*sum)(float *restrict sum, const float *restrict g, size_t n, bool first);
    void (*scale)(float *restrict out, const float *restrict g, float scale, size_t n);

    /* Sums of squares in double, in an order fixed by n: of g; of the fp32 quotient m / (sqrt(v) * root_scale +
     * epsilon). */
    double (*squares)(const float *g, size_t n);
    double (*update_squares)(const float *m, const float *v, size_t n, const struct optimizer_constants *c);

    /* By number type, those of 16 bits alone: from and to its forms (proto/base/number.h); narrow to nearest, round by
     * 16 random bits an element. */
    struct optimizer_halves {
        bool (*is_finite)(const uint16_t *g, size_t n);
        void (*join)(float *restrict w, const uint16_t *restrict high, const int16_t *restrict low, size_t n);
        void (*split)(uint16_t *restrict high, int16_t *restrict low, const float *restrict w, size_t n);
        void (*widen)(float *restrict out, const uint16_t *restrict half, size_t n);
        void (*narrow)(uint16_t *restrict half, const float *restrict x, size_t n);
        void (*round)(uint16_t *restrict half, const float *restrict x, const uint16_t *restrict random, size_t n);
    } halves[NUMBER_TYPES];
    /* Second moments in 16 bits. */
    void (*widen_v)(float *restrict v, const uint16_t *restrict v16, size_t n);
    void (*narrow_v)(uint16_t *restrict v16, const float *restrict v, size_t n);
    /* Stochastically, by 16 random bits an element: as they are for m, with their bytes exchanged for v. So each of the
     * two is rounded without bias, and their errors are all but uncorrelated. */
    void (*round_moments)(uint16_t *restrict m16, uint16_t *restrict v16, const float *restrict m,
                          const float *restrict v, const uint16_t *restrict random, size_t n);
    /* The random bits of n groups of OPTIMIZER_GROUP elements, from `group` on. The 8 quads of a group
     * (proto/base/random.h) are stored as they fill vectors: words 0 and 1 of each quad, then words 2 and 3 of each;
     * the lower half of a word before its upper half. */
    void (*draw)(uint16_t *random, struct random_key key, uint64_t row, uint64_t group, size_t n);
};

enum { OPTIMIZER_GROUP = 64 };

extern const struct optimizer_kernel optimizer_kernel_v2, optimizer_kernel_v3, optimizer_kernel_v4;

#endif

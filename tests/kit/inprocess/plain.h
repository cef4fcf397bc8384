/* tests/kit/inprocess/plain.h - the optimizer on fp32 arrays, as most tests have them. */
#ifndef TESTS_KIT_INPROCESS_PLAIN_H
#define TESTS_KIT_INPROCESS_PLAIN_H

#include "eps/store/optimizer.h"

#include <check.h>
#include <stdlib.h>

#ifdef _OPENMP
#include <omp.h>
#endif

/* n zeros of any type, the caller's to free. */
static inline void *plain_zeros(size_t n, size_t size)
{
    void *x = calloc(n, size);

    ck_assert_ptr_nonnull(x);
    return x;
}

/* Element i of gradient `seed`: a cheap mix, within -1 and 1. tests/oracle/make_clip.py has the same. */
static inline float plain_number(uint64_t i, uint64_t seed)
{
    return (float)(int32_t)((uint32_t)(i + seed * 1000003) * 2654435761u) * 0x1p-31f;
}

/* The 16 random bits of an element, as eps/store/optimizer_kernel.h has them, from the published generator. */
static inline uint16_t plain_bits(struct random_key key, uint64_t row, uint64_t i)
{
    const uint64_t group = i / 64, lane = i % 64;
    uint32_t quad[4];

    random_quad(quad, key, row, group * 8 + lane % 32 / 4);
    return (uint16_t)(quad[lane / 32 * 2 + lane / 2 % 2] >> 16 * (lane % 2));
}

/* Of the next parallel loops. One without OpenMP. */
static inline void plain_set_threads(int n)
{
#ifdef _OPENMP
    omp_set_num_threads(n);
#else
    (void)n;
#endif
}

/* On this instruction set; false if the machine lacks it. The best one unless told otherwise. */
static const struct optimizer_kernel *plain_kernel;

static inline bool plain_use(enum optimizer_isa isa)
{
    const struct optimizer_kernel *kernel = optimizer_find(isa);

    if (kernel)
        plain_kernel = kernel;
    return kernel != NULL;
}

static inline const struct optimizer_kernel *plain_used(void)
{
    return plain_kernel ? plain_kernel : optimizer_find(OPTIMIZER_ISA_BEST);
}

static inline struct parameters plain_parameters(float *w, float *m, float *v, size_t n)
{
    return (struct parameters){.kernel = plain_used(), .n = n, .w = w, .m = m, .v = v};
}

static inline void plain_fold(float *m, float *v, const float *g, size_t n, const struct hyper *hp, bool first)
{
    const struct parameters p = plain_parameters(NULL, m, v, n);

    optimizer_fold(&p, &(struct gradient){g, NUMBER_FP32, 1}, hp, first, false);
}

static inline void plain_update(float *w, float *m, float *v, size_t n, const struct hyper *hp, uint64_t t, bool decays)
{
    const struct parameters p = plain_parameters(w, m, v, n);

    optimizer_update(&p, hp, t, decays, 1);
}

static inline void plain_step(float *w, float *m, float *v, const float *g, size_t n, const struct hyper *hp,
                              uint64_t t, bool decays)
{
    const struct parameters p = plain_parameters(w, m, v, n);

    optimizer_step(&p, &(struct gradient){g, NUMBER_FP32, 1}, hp, t, decays);
}

static inline void plain_sum(float *sum, const float *g, size_t n, bool first)
{
    optimizer_sum(plain_used(), &(struct sums){.wide = sum}, &(struct gradient){g, NUMBER_FP32, 1}, n, first);
}

static inline bool plain_is_finite(const float *g, size_t n)
{
    return optimizer_is_finite(plain_used(), g, NUMBER_FP32, n, NULL);
}

#endif

/* tests/kit/plain.h - the optimizer on fp32 arrays, as most tests have them, and a store's fold of fp32. */
#ifndef TESTS_KIT_PLAIN_H
#define TESTS_KIT_PLAIN_H

#include "eps/store/store.h"

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

    optimizer_fold(&p, &(struct gradient){g, NUMBER_FP32, 1}, hp, first);
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
    optimizer_sum(plain_used(), sum, &(struct gradient){g, NUMBER_FP32, 1}, n, first);
}

static inline bool plain_is_finite(const float *g, size_t n)
{
    return optimizer_is_finite(plain_used(), g, NUMBER_FP32, n);
}

static inline bool plain_store_fold(struct store *store, uint32_t unit, uint32_t slice, const float *g, bool first,
                                    enum store_fold how, const struct hyper *hp)
{
    return store_fold(store, unit, slice, &(struct store_contribution){g, NUMBER_FP32, first, 0}, how, hp) == 0;
}

#endif

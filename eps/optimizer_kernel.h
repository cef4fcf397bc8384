/* eps/optimizer_kernel.h - what optimizer.kernel.c holds, once for each instruction set.
 *
 * Serial over one thread's range; eps/optimizer.c cuts the range and works the constants out. All paths give the same
 * bits: v2 has no fused multiply-add instruction and calls the C library's, which is exact and slow. */
#ifndef EPS_OPTIMIZER_KERNEL_H
#define EPS_OPTIMIZER_KERNEL_H

#include <stdbool.h>
#include <stddef.h>

struct eps_constants {
    float c1, c2; /* 1 - beta */
    double step_size, root_scale, epsilon, shrink;
};

struct eps_kernel {
    bool (*is_finite)(const float *g, size_t n);
    void (*fold)(float *restrict m, float *restrict v, const float *restrict g, size_t n, const struct eps_constants *c,
                 bool first);
    void (*update)(float *restrict w, const float *restrict m, const float *restrict v, size_t n,
                   const struct eps_constants *c);
    void (*step)(float *restrict w, float *restrict m, float *restrict v, const float *restrict g, size_t n,
                 const struct eps_constants *c);
    void (*sum)(float *restrict sum, const float *restrict g, size_t n, bool first);
};

extern const struct eps_kernel eps_kernel_v2, eps_kernel_v3, eps_kernel_v4;

#endif

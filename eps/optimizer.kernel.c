#include "eps/optimizer_kernel.h"

#include <float.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

static inline float first_moment(float m, float g, float c1)
{
    return fmaf(c1, g, fmaf(-c1, m, m));
}

/* v + c2 * g^2; c2 * g first, which overflows later than g^2. It stops at the largest finite value: an infinity would
 * be a NaN when it decays, and one gradient of 1e21 would cost the model. */
static inline float squared(float v, float g, float c2)
{
    float sum = fmaf(c2 * g, g, v);

    return sum < FLT_MAX ? sum : FLT_MAX;
}

static inline float second_moment(float v, float g, float c2)
{
    return squared(fmaf(-c2, v, v), g, c2);
}

static inline float moved(float w, float m, float v, double step_size, double root_scale, double epsilon, double shrink)
{
    return (float)((double)w * shrink - step_size * (double)m / (sqrt((double)v) * root_scale + epsilon));
}

/* Adding one to the exponent carries into the sign bit where all its bits are set: infinities and NaNs. */
static bool is_finite(const float *g, size_t n)
{
    uint32_t carry = 0;

#pragma omp simd reduction(| : carry)
    for (size_t i = 0; i < n; i++) {
        uint32_t bits;
        memcpy(&bits, &g[i], sizeof bits);
        carry |= (bits & 0x7fffffffu) + 0x00800000u;
    }
    return carry >> 31 == 0;
}

static void fold(float *restrict m, float *restrict v, const float *restrict g, size_t n, const struct eps_constants *c,
                 bool first)
{
    const float c1 = c->c1, c2 = c->c2;

    if (first) {
#pragma omp simd
        for (size_t i = 0; i < n; i++) {
            m[i] = first_moment(m[i], g[i], c1);
            v[i] = second_moment(v[i], g[i], c2);
        }
    } else {
#pragma omp simd
        for (size_t i = 0; i < n; i++) {
            m[i] = fmaf(c1, g[i], m[i]);
            v[i] = squared(v[i], g[i], c2);
        }
    }
}

static void update(float *restrict w, const float *restrict m, const float *restrict v, size_t n,
                   const struct eps_constants *c)
{
    const double step_size = c->step_size, root_scale = c->root_scale, epsilon = c->epsilon, shrink = c->shrink;

#pragma omp simd
    for (size_t i = 0; i < n; i++)
        w[i] = moved(w[i], m[i], v[i], step_size, root_scale, epsilon, shrink);
}

static void step(float *restrict w, float *restrict m, float *restrict v, const float *restrict g, size_t n,
                 const struct eps_constants *c)
{
    const float c1 = c->c1, c2 = c->c2;
    const double step_size = c->step_size, root_scale = c->root_scale, epsilon = c->epsilon, shrink = c->shrink;

#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        float new_m = first_moment(m[i], g[i], c1), new_v = second_moment(v[i], g[i], c2);
        m[i] = new_m;
        v[i] = new_v;
        w[i] = moved(w[i], new_m, new_v, step_size, root_scale, epsilon, shrink);
    }
}

static void sum_up(float *restrict sum, const float *restrict g, size_t n, bool first)
{
    if (first) {
        memcpy(sum, g, n * sizeof *sum);
        return;
    }
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        sum[i] += g[i];
}

#define NAME_OF(isa) eps_kernel_##isa
#define NAME(isa)    NAME_OF(isa)
const struct eps_kernel NAME(KERNEL_ISA) = {is_finite, fold, update, step, sum_up};

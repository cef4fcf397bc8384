/* One group at a time: its largest numbers, then its codes. Whole groups have a constant length, so that their loops
 * are vectors without a rest; the last group of a run may be shorter.
 *
 * What is not finite is not kept so: its weight is not finite either, and the run ends (eps/store/optimizer.h). But no
 * conversion to an integer may be out of its range, so numbers are bounded by their patterns: with a comparison of
 * numbers the compiler finds a branch for the bound, and the loop is no vector loop. */
#include "eps/store/coded_kernel.h"

#include "proto/base/number.h"
#include "proto/model/groups.h"

#include <float.h>
#include <math.h>

/* Patterns of numbers from 0 on are in the order of the numbers, so their largest is exact and has no order. */
static inline float largest(const float *restrict x, size_t n)
{
    int32_t most = 0;

#pragma omp simd reduction(max : most)
    for (size_t i = 0; i < n; i++) {
        const int32_t pattern = (int32_t)(number_pattern(x[i]) & 0x7fffffffu);
        most = pattern > most ? pattern : most;
    }
    return number_from_pattern((uint32_t)most);
}

/* 1 / scale, rounded up: with it the largest number is 1 or more. 0 of 0. */
static inline float inverse_of(float scale)
{
    const float nearest = scale > 0 ? 1 / scale : 0;

    return number_from_pattern(number_pattern(nearest) + (nearest > 0 && scale * nearest < 1));
}

/* A number from 0 on, or `most` if that is less, without a fraction. A NaN's pattern is above all numbers'. */
static inline int32_t whole(float x, float most)
{
    const int32_t pattern = (int32_t)(number_pattern(x) & 0x7fffffffu), bound = (int32_t)number_pattern(most);

    return (int32_t)number_from_pattern((uint32_t)(pattern < bound ? pattern : bound));
}

static inline int32_t code_m(float m, float inverse, uint16_t bits)
{
    const float x = fabsf(m) * inverse;
    const int32_t c = whole(254 * x / (1 + x), 126), sign = (int32_t)number_pattern(m) >> 31;
    const float at = (float)c, above = (x * (254 - at) - at) * (253 - at);
    const float u = (float)(2 * (int32_t)bits + 1) * (127 * 0x1p-16f);
    const int32_t code = c + (u < above);

    return (code ^ sign) - sign;
}

static inline int32_t code_v(float v, float inverse, uint16_t bits)
{
    const float r = v * inverse;
    const int32_t c = whole(255 * sqrtf(r), 254);
    const float above = r * 65025 - (float)(c * c), u = (float)(2 * (int32_t)bits + 1) * (float)(2 * c + 1) * 0x1p-17f;
    const int32_t code = c + (u < above), least = v > 0;

    return code < least ? least : code;
}

static inline void encode_group(int8_t *restrict m8, uint8_t *restrict v8, float *m_scale, float *v_scale,
                                const float *restrict m, const float *restrict v, const uint16_t *restrict random,
                                size_t n)
{
    const float most_m = largest(m, n), most_v = largest(v, n);
    const float m_inverse = inverse_of(most_m), v_inverse = inverse_of(most_v);

    *m_scale = most_m, *v_scale = most_v;
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        const uint16_t bits = random[i];
        m8[i] = (int8_t)code_m(m[i], m_inverse, bits);
        v8[i] = (uint8_t)code_v(v[i], v_inverse, (uint16_t)(bits << 8 | bits >> 8));
    }
}

static void encode(const struct coded_moments *to, const float *restrict m, const float *restrict v,
                   const uint16_t *restrict random, size_t n)
{
    size_t at = 0, group = 0;

    for (; at + MODEL_GROUP <= n; at += MODEL_GROUP, group++)
        encode_group(to->m + at, to->v + at, &to->m_scales[group], &to->v_scales[group], m + at, v + at, random + at,
                     MODEL_GROUP);
    if (at < n)
        encode_group(to->m + at, to->v + at, &to->m_scales[group], &to->v_scales[group], m + at, v + at, random + at,
                     n - at);
}

static inline float value_m(int32_t code, float scale)
{
    const float c = (float)code, m = scale * (c / (254 - fabsf(c)));

    return fabsf(m) < FLT_MIN ? 0 : m;
}

static inline float value_v(int32_t code, float scale)
{
    const float v = scale * ((float)(code * code) / 65025), kept = v < FLT_MIN ? FLT_MIN : v;

    return code > 0 ? kept : 0;
}

static inline void decode_group(float *restrict m, float *restrict v, const int8_t *restrict m8,
                                const uint8_t *restrict v8, float m_scale, float v_scale, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        m[i] = value_m(m8[i], m_scale);
        v[i] = value_v(v8[i], v_scale);
    }
}

static void decode(float *restrict m, float *restrict v, const struct coded_moments *from, size_t n)
{
    size_t at = 0, group = 0;

    for (; at + MODEL_GROUP <= n; at += MODEL_GROUP, group++)
        decode_group(m + at, v + at, from->m + at, from->v + at, from->m_scales[group], from->v_scales[group],
                     MODEL_GROUP);
    if (at < n)
        decode_group(m + at, v + at, from->m + at, from->v + at, from->m_scales[group], from->v_scales[group], n - at);
}

#define NAME_OF(isa) coded_kernel_##isa
#define NAME(isa)    NAME_OF(isa)
const struct coded_kernel NAME(KERNEL_ISA) = {.decode = decode, .encode = encode};

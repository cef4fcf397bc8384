/* device/cpu/kernels/value.h - values of the number type that a kernel file is compiled for: widened to fp32 when read,
 * rounded to nearest, ties to even, when written (proto/base/number.h). For fp32 both do nothing. */
#ifndef DEVICE_CPU_KERNELS_VALUE_H
#define DEVICE_CPU_KERNELS_VALUE_H

#include "device/cpu/kernels/vector.h"
#include "proto/base/number.h"

#if defined(KERNEL_BF16) || defined(KERNEL_FP16)

typedef uint16_t value;
typedef uint16_t vec_values __attribute__((vector_size(2 * VECTOR)));

#ifdef KERNEL_FP16

VECTOR_INLINE float value_widen(value x)
{
    return number_from_fp16(x);
}

/* From x86-64-v3 on there are instructions for it. */
VECTOR_INLINE vec value_widen_all(vec_values x)
{
#if defined(__AVX512F__)
    return (vec)_mm512_cvtph_ps((__m256i)x);
#else
    return (vec)_mm256_cvtph_ps((__m128i)x);
#endif
}

VECTOR_INLINE vec_values value_round_all(vec x)
{
#if defined(__AVX512F__)
    return (vec_values)_mm512_cvtps_ph((__m512)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#else
    return (vec_values)_mm256_cvtps_ph((__m256)x, _MM_FROUND_TO_NEAREST_INT | _MM_FROUND_NO_EXC);
#endif
}

#else

VECTOR_INLINE float value_widen(value x)
{
    return number_from_bf16(x);
}

VECTOR_INLINE vec value_widen_all(vec_values x)
{
#if defined(__AVX512F__) /* which the vector's conversion takes in halves */
    return (vec)_mm512_slli_epi32(_mm512_cvtepu16_epi32((__m256i)x), 16);
#else
    return (vec)(__builtin_convertvector(x, vec_uint) << 16);
#endif
}

VECTOR_INLINE vec_values value_round_all(vec x)
{
    const vec_int is_nan = x != x;
    const vec_uint pattern = (vec_uint)x, nan = pattern | 0x00400000u;
    const vec_uint rounded = pattern + 0x7fffu + (pattern >> 16 & 1); /* ties to even */

    return __builtin_convertvector(((nan & (vec_uint)is_nan) | (rounded & ~(vec_uint)is_nan)) >> 16, vec_values);
}

#endif

VECTOR_INLINE vec value_load(const value *p)
{
    vec_values x;

    memcpy(&x, p, sizeof x);
    return value_widen_all(x);
}

VECTOR_INLINE void value_store(value *p, vec x)
{
    const vec_values rounded = value_round_all(x);

    memcpy(p, &rounded, sizeof rounded);
}

/* x, rounded as by writing and reading it. */
VECTOR_INLINE vec value_as_stored(vec x)
{
    return value_widen_all(value_round_all(x));
}

/* Group g of four lanes: four values from p[4 * g] + offset. */
VECTOR_INLINE vec value_gather_fours(const value *const *p, size_t offset)
{
#if defined(__AVX512F__) /* by way of memory, a load would wait for four stores */
    uint64_t x[VECTOR / 4];

    for (size_t i = 0; i < VECTOR / 4; i++)
        memcpy(&x[i], p[4 * i] + offset, sizeof x[i]);
    return value_widen_all((vec_values)_mm256_setr_epi64x((int64_t)x[0], (int64_t)x[1], (int64_t)x[2], (int64_t)x[3]));
#else
    value x[VECTOR];

    for (size_t i = 0; i < VECTOR; i += 4)
        memcpy(x + i, p[i] + offset, 4 * sizeof *x);
    return value_load(x);
#endif
}

/* The first n <= VECTOR elements; 0 in the others. */
VECTOR_INLINE vec value_load_n(const value *p, size_t n)
{
    vec_values x = {0};

    if (n >= VECTOR)
        return value_load(p);
#if defined(__AVX512F__)
    x = (vec_values)_mm256_maskz_loadu_epi16((__mmask16)((1u << n) - 1), p);
#else
    memcpy(&x, p, n * sizeof *p);
#endif
    return value_widen_all(x);
}

VECTOR_INLINE void value_store_n(value *p, vec x, size_t n)
{
    const vec_values rounded = value_round_all(x);

    if (n >= VECTOR)
        memcpy(p, &rounded, sizeof rounded);
    else
        memcpy(p, &rounded, n * sizeof *p);
}

#else

typedef float value;

VECTOR_INLINE float value_widen(value x)
{
    return x;
}

VECTOR_INLINE vec value_load(const value *p)
{
    return vec_load(p);
}

VECTOR_INLINE void value_store(value *p, vec x)
{
    vec_store(p, x);
}

VECTOR_INLINE vec value_as_stored(vec x)
{
    return x;
}

VECTOR_INLINE vec value_gather_fours(const value *const *p, size_t offset)
{
    return vec_gather_fours(p, offset);
}

VECTOR_INLINE vec value_load_n(const value *p, size_t n)
{
    return vec_load_n(p, n, 0);
}

VECTOR_INLINE void value_store_n(value *p, vec x, size_t n)
{
    vec_store_n(p, x, n);
}

#endif

#endif

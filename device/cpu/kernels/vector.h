/* device/cpu/kernels/vector.h - vectors as wide as the instruction set a kernel file is compiled for.
 *
 * The compiler's own vector types, so that one source serves every instruction set, and loads are wide without
 * relying on auto-vectorisation. Tails use vec_load_n and vec_store_n, so the same instructions compute every element
 * of a row. */
#ifndef DEVICE_CPU_KERNELS_VECTOR_H
#define DEVICE_CPU_KERNELS_VECTOR_H

#include <stddef.h>
#include <stdint.h>
#include <immintrin.h>
#include <string.h>

/* Intrinsics where vector types have no operator: VECTOR_CALL(max_ps) is _mm512_max_ps or _mm256_max_ps. */
#define VECTOR_SHUFFLE __builtin_shufflevector
#if defined(__AVX512F__)
enum { VECTOR = 16 };
typedef __m512i vec_integer;
typedef __m512d vec_pair;
#define VECTOR_CALL(name) _mm512_##name
#define VECTOR_LOW(x)     VECTOR_SHUFFLE(x, x, 0, 1, 2, 3, 4, 5, 6, 7)
#define VECTOR_HIGH(x)    VECTOR_SHUFFLE(x, x, 8, 9, 10, 11, 12, 13, 14, 15)
#define VECTOR_EXCHANGE(x, d)                                                                                          \
    VECTOR_SHUFFLE(x, x, 0 ^ (d), 1 ^ (d), 2 ^ (d), 3 ^ (d), 4 ^ (d), 5 ^ (d), 6 ^ (d), 7 ^ (d), 8 ^ (d), 9 ^ (d),     \
                   10 ^ (d), 11 ^ (d), 12 ^ (d), 13 ^ (d), 14 ^ (d), 15 ^ (d))
#elif defined(__AVX2__)
enum { VECTOR = 8 };
typedef __m256i vec_integer;
typedef __m256d vec_pair;
#define VECTOR_CALL(name) _mm256_##name
#define VECTOR_LOW(x)     VECTOR_SHUFFLE(x, x, 0, 1, 2, 3)
#define VECTOR_HIGH(x)    VECTOR_SHUFFLE(x, x, 4, 5, 6, 7)
#define VECTOR_EXCHANGE(x, d)                                                                                          \
    VECTOR_SHUFFLE(x, x, 0 ^ (d), 1 ^ (d), 2 ^ (d), 3 ^ (d), 4 ^ (d), 5 ^ (d), 6 ^ (d), 7 ^ (d))
#else
enum { VECTOR = 4 };
typedef __m128i vec_integer;
typedef __m128d vec_pair;
#define VECTOR_CALL(name)     _mm_##name
#define VECTOR_LOW(x)         VECTOR_SHUFFLE(x, x, 0, 1)
#define VECTOR_HIGH(x)        VECTOR_SHUFFLE(x, x, 2, 3)
#define VECTOR_EXCHANGE(x, d) VECTOR_SHUFFLE(x, x, 0 ^ (d), 1 ^ (d), 2 ^ (d), 3 ^ (d))
#endif

typedef float vec __attribute__((vector_size(4 * VECTOR)));
typedef int32_t vec_int __attribute__((vector_size(4 * VECTOR))); /* also the result of a comparison: -1 or 0 */
typedef uint32_t vec_uint __attribute__((vector_size(4 * VECTOR)));
typedef uint64_t vec_long __attribute__((vector_size(4 * VECTOR))); /* VECTOR / 2 of them */
typedef float vec_half __attribute__((vector_size(2 * VECTOR)));
typedef double vec_double __attribute__((vector_size(4 * VECTOR))); /* VECTOR / 2 of them */

#define VECTOR_INLINE static inline __attribute__((always_inline, unused))

VECTOR_INLINE vec vec_all(float x)
{
    return x - (vec){0}; /* not x + 0: that would lose the sign of -0 */
}

VECTOR_INLINE vec vec_load(const float *p)
{
    vec x;
    memcpy(&x, p, sizeof x);
    return x;
}

VECTOR_INLINE void vec_store(float *p, vec x)
{
    memcpy(p, &x, sizeof x);
}

/* The first n <= VECTOR elements; `fill` in the others. */
VECTOR_INLINE vec vec_load_n(const float *p, size_t n, float fill)
{
    vec x = vec_all(fill);

    if (n >= VECTOR)
        return vec_load(p);
#if defined(__AVX512F__)
    x = _mm512_mask_loadu_ps(x, (__mmask16)((1u << n) - 1), p);
#else
    memcpy(&x, p, n * sizeof *p);
#endif
    return x;
}

VECTOR_INLINE void vec_store_n(float *p, vec x, size_t n)
{
    if (n >= VECTOR)
        vec_store(p, x);
    else
#if defined(__AVX512F__)
        _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), x);
#else
        memcpy(p, &x, n * sizeof *p);
#endif
}

/* a * b + c: rounded once where the instruction set can, wherever it is written. */
VECTOR_INLINE vec vec_multiply_add(vec a, vec b, vec c)
{
#if defined(__FMA__)
    return VECTOR_CALL(fmadd_ps)(a, b, c);
#else
    return a * b + c;
#endif
}

/* Group g of four lanes: four numbers from p[4 * g] + offset. */
VECTOR_INLINE vec vec_gather_fours(const float *const *p, size_t offset)
{
#if defined(__AVX512F__)
    __m512 x = _mm512_castps128_ps512(_mm_loadu_ps(p[0] + offset));
    x = _mm512_insertf32x4(x, _mm_loadu_ps(p[4] + offset), 1);
    x = _mm512_insertf32x4(x, _mm_loadu_ps(p[8] + offset), 2);
    return _mm512_insertf32x4(x, _mm_loadu_ps(p[12] + offset), 3);
#elif defined(__AVX2__)
    const __m256 x = _mm256_castps128_ps256(_mm_loadu_ps(p[0] + offset));
    return _mm256_insertf128_ps(x, _mm_loadu_ps(p[4] + offset), 1);
#else
    return _mm_loadu_ps(p[0] + offset);
#endif
}

VECTOR_INLINE vec vec_select(vec_int mask, vec yes, vec no)
{
    return (vec)((mask & (vec_int)yes) | (~mask & (vec_int)no));
}

/* The larger; b where either is NaN, so a NaN in b stays. */
VECTOR_INLINE vec vec_max(vec a, vec b)
{
    return VECTOR_CALL(max_ps)(a, b);
}

/* The smaller; b where either is NaN. */
VECTOR_INLINE vec vec_min(vec a, vec b)
{
    return VECTOR_CALL(min_ps)(a, b);
}

/* Groups of four lanes hold four rows of 4 x 4 matrices, one matrix per place of a group: each is transposed. */
VECTOR_INLINE void vec_transpose(vec row[4])
{
    vec_pair low = (vec_pair)VECTOR_CALL(unpacklo_ps)(row[0], row[1]);
    vec_pair high = (vec_pair)VECTOR_CALL(unpackhi_ps)(row[0], row[1]);
    vec_pair low2 = (vec_pair)VECTOR_CALL(unpacklo_ps)(row[2], row[3]);
    vec_pair high2 = (vec_pair)VECTOR_CALL(unpackhi_ps)(row[2], row[3]);

    row[0] = (vec)VECTOR_CALL(unpacklo_pd)(low, low2);
    row[1] = (vec)VECTOR_CALL(unpackhi_pd)(low, low2);
    row[2] = (vec)VECTOR_CALL(unpacklo_pd)(high, high2);
    row[3] = (vec)VECTOR_CALL(unpackhi_pd)(high, high2);
}

VECTOR_INLINE vec_half vec_low(vec x)
{
    return VECTOR_LOW(x);
}

VECTOR_INLINE vec_half vec_high(vec x)
{
    return VECTOR_HIGH(x);
}

VECTOR_INLINE vec_double vec_widen(vec_half x)
{
    return __builtin_convertvector(x, vec_double);
}

/* total (VECTOR doubles) += x */
VECTOR_INLINE void vec_add_double(double *total, vec x)
{
    vec_double low, high;

    memcpy(&low, total, sizeof low);
    memcpy(&high, total + VECTOR / 2, sizeof high);
    low += vec_widen(vec_low(x));
    high += vec_widen(vec_high(x));
    memcpy(total, &low, sizeof low);
    memcpy(total + VECTOR / 2, &high, sizeof high);
}

VECTOR_INLINE double vec_double_sum(vec_double x)
{
    double lanes[VECTOR / 2];

    memcpy(lanes, &x, sizeof lanes);
    for (size_t n = VECTOR / 4; n > 0; n /= 2)
        for (size_t i = 0; i < n; i++)
            lanes[i] += lanes[i + n];
    return lanes[0];
}

/* Sum of all lanes, in double: halves added first, a fixed order. */
VECTOR_INLINE double vec_sum(vec x)
{
    return vec_double_sum(vec_widen(vec_low(x)) + vec_widen(vec_high(x)));
}

/* The largest lane; if one is a NaN, that or any lane. */
VECTOR_INLINE float vec_largest(vec x)
{
#if defined(__AVX512F__)
    x = vec_max(x, VECTOR_EXCHANGE(x, 8));
#endif
#if defined(__AVX2__)
    x = vec_max(x, VECTOR_EXCHANGE(x, 4));
#endif
    x = vec_max(x, VECTOR_EXCHANGE(x, 2));
    x = vec_max(x, VECTOR_EXCHANGE(x, 1));
    return x[0];
}

#endif

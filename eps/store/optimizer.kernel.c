/* Without contraction of its own (-ffp-contract=off) the compiler fuses what is written as such and nothing else, so
 * loops have the same bits in vectors of any width. A check of all elements is a bit that each carries into a word
 * (carry_of), as a loop that may leave early does not become a vector loop.
 *
 * In updates `to` may be w itself, so neither is restrict: `omp simd` vouches for it. */
#include "eps/store/optimizer_kernel.h"

#include "proto/base/number.h"

#include <float.h>
#include <immintrin.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

/* a * b + c, rounded once. */
#if defined __FMA__
#define fused fmaf
#else
/* In double the product is exact. The sum is rounded to odd: where it is not exact, to that neighbour whose last bit is
 * 1. Its rounding to fp32 is then that of the exact sum (Boldo & Melquiond, "Emulation of a FMA and correctly rounded
 * sums", IEEE Transactions on Computers 57, 2008). With the C library's fmaf a loop would be no vector loop. */
static inline float fused(float a, float b, float c)
{
    const double product = (double)a * (double)b, addend = (double)c, sum = product + addend, from = sum - product;
    const double lost = (product - (sum - from)) + (addend - from); /* exact; a NaN where the sum is not finite */
    const double outward = sum < 0 ? -lost : lost;
    int64_t bits;
    double odd;

    memcpy(&bits, &sum, sizeof bits);
    bits += ((int64_t)(outward > 0) - (int64_t)(outward < 0)) & ((bits & 1) - 1);
    memcpy(&odd, &bits, sizeof odd);
    return (float)odd;
}
#endif

/* A moment below the smallest normal number is 0. Where no gradient comes any more, moments would decay to denormal
 * numbers after some hundred steps and stay there, and processors take up to a hundred cycles for each of these. The
 * rule is a comparison, not a mode of the processor, so it is the same on each. */
static inline float kept(float moment)
{
    const uint32_t pattern = number_pattern(moment);

    return number_from_pattern((int32_t)(pattern & 0x7fffffffu) < 0x00800000 ? 0 : pattern);
}

static inline float first_moment(float m, float g, float c1)
{
    return kept(fused(c1, g, fused(-c1, m, m)));
}

/* v + c2 * g^2, computed as c2 * g first, which overflows later than g^2. The result stops at the largest finite
 * value: an infinity would become a NaN when it decays, and one gradient of 1e21 would cost the model. */
static inline float squared(float v, float g, float c2)
{
    const float sum = fused(c2 * g, g, v);

    return kept(sum < FLT_MAX ? sum : FLT_MAX);
}

static inline float second_moment(float v, float g, float c2)
{
    return squared(fused(-c2, v, v), g, c2);
}

static inline float quotient(float m, float v, float root_scale, float epsilon)
{
    return m / fused(sqrtf(v), root_scale, epsilon);
}

/* What the decay takes away is added to the update before either meets w: 1 - decay would be rounded to steps of
 * 2^-24. */
static inline float moved(float w, float m, float v, float step_size, float root_scale, float epsilon, float decay)
{
    return w - fused(step_size, quotient(m, v, root_scale, epsilon), decay * w);
}

/* All exponent bits are set in infinities and NaNs. Adding one to such an exponent carries into the sign bit. */
static inline uint32_t carry_of(float x)
{
    return (number_pattern(x) & 0x7fffffffu) + 0x00800000u;
}

static bool is_finite(const float *g, size_t n)
{
    uint32_t carry = 0;

#pragma omp simd reduction(| : carry)
    for (size_t i = 0; i < n; i++)
        carry |= carry_of(g[i]);
    return carry >> 31 == 0;
}

/* The first contribution of a step also lets the moments decay. */
static void fold(float *restrict m, float *restrict v, const float *restrict g, size_t n,
                 const struct optimizer_constants *c, bool first)
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
            m[i] = kept(fused(c1, g[i], m[i]));
            v[i] = squared(v[i], g[i], c2);
        }
    }
}

static bool update(float *to, const float *w, const float *restrict m, const float *restrict v, size_t n,
                   const struct optimizer_constants *c)
{
    const float step_size = c->step_size, root_scale = c->root_scale, epsilon = c->epsilon, decay = c->decay;
    uint32_t carry = 0;

#pragma omp simd reduction(| : carry)
    for (size_t i = 0; i < n; i++) {
        const float moved_w = moved(w[i], m[i], v[i], step_size, root_scale, epsilon, decay);
        to[i] = moved_w;
        carry |= carry_of(moved_w);
    }
    return carry >> 31 == 0;
}

static bool step(float *to, const float *w, float *restrict m, float *restrict v, const float *restrict g, size_t n,
                 const struct optimizer_constants *c)
{
    const float c1 = c->c1, c2 = c->c2;
    const float step_size = c->step_size, root_scale = c->root_scale, epsilon = c->epsilon, decay = c->decay;
    uint32_t carry = 0;

#pragma omp simd reduction(| : carry)
    for (size_t i = 0; i < n; i++) {
        float new_m = first_moment(m[i], g[i], c1), new_v = second_moment(v[i], g[i], c2);
        m[i] = new_m;
        v[i] = new_v;
        const float moved_w = moved(w[i], new_m, new_v, step_size, root_scale, epsilon, decay);
        to[i] = moved_w;
        carry |= carry_of(moved_w);
    }
    return carry >> 31 == 0;
}

/* ---- SGD ------------------------------------------------------------------------------------------------------- */

/* The gradient of a loss that has decay / 2 * w^2 added. */
static inline float decayed(float g, const float *w, size_t i, float decay, bool decays)
{
    return decays ? fused(decay, w[i], g) : g;
}

/* c1: 1 - momentum */
static inline float gathered(float m, float direction, float c1)
{
    return kept(fused(-c1, m, m) + direction);
}

static void sgd_fold(float *restrict m, const float *restrict w, const float *restrict g, size_t n,
                     const struct optimizer_constants *c, bool first)
{
    const float c1 = c->c1, decay = c->decay;

    if (!first) {
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            m[i] = kept(m[i] + g[i]);
    } else if (decay != 0) {
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            m[i] = gathered(m[i], decayed(g[i], w, i, decay, true), c1);
    } else {
#pragma omp simd
        for (size_t i = 0; i < n; i++)
            m[i] = gathered(m[i], g[i], c1);
    }
}

static bool sgd_update(float *to, const float *w, const float *restrict m, size_t n,
                       const struct optimizer_constants *c)
{
    const float rate = c->step_size;
    uint32_t carry = 0;

#pragma omp simd reduction(| : carry)
    for (size_t i = 0; i < n; i++) {
        const float moved_w = fused(-rate, m[i], w[i]);
        to[i] = moved_w;
        carry |= carry_of(moved_w);
    }
    return carry >> 31 == 0;
}

enum descent { PLAIN, MOMENTUM, NESTEROV };

/* Compiled for each kind of descent, so that no loop has a branch. */
static inline __attribute__((always_inline)) bool descend(float *to, const float *w, float *restrict m,
                                                          const float *restrict g, size_t n,
                                                          const struct optimizer_constants *c, enum descent how,
                                                          bool decays)
{
    const float c1 = c->c1, momentum = c->momentum, decay = c->decay, rate = c->step_size;
    uint32_t carry = 0;

#pragma omp simd reduction(| : carry)
    for (size_t i = 0; i < n; i++) {
        float direction = decayed(g[i], w, i, decay, decays);
        if (how != PLAIN) {
            const float new_m = gathered(m[i], direction, c1);
            m[i] = new_m;
            direction = how == NESTEROV ? fused(momentum, new_m, direction) : new_m;
        }
        const float moved_w = fused(-rate, direction, w[i]);
        to[i] = moved_w;
        carry |= carry_of(moved_w);
    }
    return carry >> 31 == 0;
}

static bool sgd_step(float *to, const float *w, float *restrict m, const float *restrict g, size_t n,
                     const struct optimizer_constants *c)
{
    const bool decays = c->decay != 0;

    if (!m)
        return decays ? descend(to, w, NULL, g, n, c, PLAIN, true) : descend(to, w, NULL, g, n, c, PLAIN, false);
    if (!c->nesterov)
        return decays ? descend(to, w, m, g, n, c, MOMENTUM, true) : descend(to, w, m, g, n, c, MOMENTUM, false);
    return decays ? descend(to, w, m, g, n, c, NESTEROV, true) : descend(to, w, m, g, n, c, NESTEROV, false);
}

/* The widest store past the caches. */
#if defined __AVX512F__
typedef __m512i wide;
#define STREAM(to, from) _mm512_stream_si512(to, _mm512_loadu_si512(from))
#elif defined __AVX2__
typedef __m256i wide;
#define STREAM(to, from) _mm256_stream_si256(to, _mm256_loadu_si256(from))
#else
typedef __m128i wide;
#define STREAM(to, from) _mm_stream_si128(to, _mm_loadu_si128(from))
#endif

/* What is not aligned at either end goes through the caches. */
static void stream(void *restrict to, const void *restrict from, size_t bytes)
{
    const size_t before = -(uintptr_t)to % sizeof(wide), head = before < bytes ? before : bytes;
    size_t i = head;

    memcpy(to, from, head);
    for (; i + sizeof(wide) <= bytes; i += sizeof(wide))
        STREAM((wide *)((char *)to + i), (const wide *)((const char *)from + i));
    memcpy((char *)to + i, (const char *)from + i, bytes - i);
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

static void scale_all(float *restrict out, const float *restrict g, float scale, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        out[i] = g[i] * scale;
}

/* Sums in LANES parts: element i goes to part i % LANES, and parts are added in pairs. So vectors of any width give
 * the same bits. */
enum { LANES = 16 };

static double add_lanes(double lanes[LANES])
{
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int i = 0; i < half; i++)
            lanes[i] += lanes[i + half];
    return lanes[0];
}

/* Squares of fp32 are exact in double. */
static double squares(const float *g, size_t n)
{
    double lanes[LANES] = {0};
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
#pragma omp simd
        for (int k = 0; k < LANES; k++)
            lanes[k] += (double)g[i + (size_t)k] * (double)g[i + (size_t)k];
    for (int k = 0; i < n; i++, k++)
        lanes[k] += (double)g[i] * (double)g[i];
    return add_lanes(lanes);
}

static inline double squared_update(float m, float v, float root_scale, float epsilon)
{
    const double u = (double)quotient(m, v, root_scale, epsilon);

    return u * u;
}

static double update_squares(const float *m, const float *v, size_t n, const struct optimizer_constants *c)
{
    const float root_scale = c->root_scale, epsilon = c->epsilon;
    double lanes[LANES] = {0};
    size_t i = 0;

    for (; i + LANES <= n; i += LANES)
#pragma omp simd
        for (int k = 0; k < LANES; k++)
            lanes[k] += squared_update(m[i + (size_t)k], v[i + (size_t)k], root_scale, epsilon);
    for (int k = 0; i < n; i++, k++)
        lanes[k] += squared_update(m[i], v[i], root_scale, epsilon);
    return add_lanes(lanes);
}

/* The forms of a type of 16 bits; exponent_one is one in its exponent: infinities and NaNs carry into the sign. */
#define HALVES(type, exponent_one, join_one, split_one)                                                                \
    static bool is_finite_##type(const uint16_t *g, size_t n)                                                          \
    {                                                                                                                  \
        uint16_t carry = 0;                                                                                            \
                                                                                                                       \
        _Pragma("omp simd reduction(| : carry)") for (size_t i = 0; i < n; i++) carry |=                               \
            (uint16_t)((g[i] & 0x7fffu) + (exponent_one));                                                             \
        return carry >> 15 == 0;                                                                                       \
    }                                                                                                                  \
    static void join_##type(float *restrict w, const uint16_t *restrict high, const int16_t *restrict low, size_t n)   \
    {                                                                                                                  \
        _Pragma("omp simd") for (size_t i = 0; i < n; i++) w[i] = join_one(high[i], low[i]);                           \
    }                                                                                                                  \
    static void split_##type(uint16_t *restrict high, int16_t *restrict low, const float *restrict w, size_t n)        \
    {                                                                                                                  \
        _Pragma("omp simd") for (size_t i = 0; i < n; i++) split_one(w[i], &high[i], &low[i]);                         \
    }                                                                                                                  \
    static void widen_##type(float *restrict out, const uint16_t *restrict half, size_t n)                             \
    {                                                                                                                  \
        _Pragma("omp simd") for (size_t i = 0; i < n; i++) out[i] = number_from_##type(half[i]);                       \
    }                                                                                                                  \
    static void narrow_##type(uint16_t *restrict half, const float *restrict x, size_t n)                              \
    {                                                                                                                  \
        _Pragma("omp simd") for (size_t i = 0; i < n; i++) half[i] = number_to_##type(x[i]);                           \
    }                                                                                                                  \
    static void round_##type(uint16_t *restrict half, const float *restrict x, const uint16_t *restrict random,        \
                             size_t n)                                                                                 \
    {                                                                                                                  \
        _Pragma("omp simd") for (size_t i = 0; i < n; i++) half[i] = number_to_##type##_stochastic(x[i], random[i]);   \
    }
HALVES(bf16, 0x0080u, number_join, number_split)
HALVES(fp16, 0x0400u, number_join_fp16, number_split_fp16)

static void widen_v(float *restrict v, const uint16_t *restrict v16, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        v[i] = number_from_v16(v16[i]);
}

static void narrow_v(uint16_t *restrict v16, const float *restrict v, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++)
        v16[i] = number_to_v16(v[i]);
}

/* One draw serves both: its bytes are swapped for v, whose rounding looks at other bits first. */
static void round_moments(uint16_t *restrict m16, uint16_t *restrict v16, const float *restrict m,
                          const float *restrict v, const uint16_t *restrict random, size_t n)
{
#pragma omp simd
    for (size_t i = 0; i < n; i++) {
        const uint16_t bits = random[i];
        m16[i] = number_to_bf16_stochastic(m[i], bits);
        v16[i] = number_to_v16_stochastic(v[i], (uint16_t)(bits << 8 | bits >> 8));
    }
}

/* random_philox on several quads at once, one in each 64-bit lane. Compilers do not find this multiplication: it takes
 * the lower half of each lane and gives 64 bits. The upper halves of its operands hold earlier values. */
#if defined __AVX512F__
typedef uint64_t lanes __attribute__((vector_size(64)));
#define MULTIPLY(a, b) ((lanes)_mm512_mul_epu32((__m512i)(a), (__m512i)(b)))
#elif defined __AVX2__
typedef uint64_t lanes __attribute__((vector_size(32)));
#define MULTIPLY(a, b) ((lanes)_mm256_mul_epu32((__m256i)(a), (__m256i)(b)))
#else
typedef uint64_t lanes __attribute__((vector_size(16)));
#define MULTIPLY(a, b) ((lanes)_mm_mul_epu32((__m128i)(a), (__m128i)(b)))
#endif
enum { WIDTH = sizeof(lanes) / sizeof(uint64_t) };

/* Words 0 and 1 of WIDTH quads to front, 2 and 3 to back. */
static inline void draw_quads(uint16_t *front, uint16_t *back, struct random_key key, uint64_t row, uint64_t first)
{
    const lanes zero = {0}, low = zero + UINT32_MAX, by0 = zero + 0xD2511F53u, by1 = zero + 0xCD9E8D57u;
    lanes c0 = zero + (uint32_t)first, c1 = zero + (first >> 32), c2 = zero + (uint32_t)row, c3 = zero + (row >> 32);

    for (uint32_t i = 0; i < WIDTH; i++)
        c0[i] += i; /* first is a multiple of WIDTH: no carry */
    for (int round = 0; round < 10; round++) {
        const lanes p0 = MULTIPLY(by0, c0), p1 = MULTIPLY(by1, c2);
        c0 = (p1 >> 32) ^ c1 ^ (zero + key.k[0]);
        c1 = p1;
        c2 = (p0 >> 32) ^ c3 ^ (zero + key.k[1]);
        c3 = p0;
        key.k[0] += 0x9E3779B9u;
        key.k[1] += 0xBB67AE85u;
    }
    c0 = (c0 & low) | c1 << 32;
    c2 = (c2 & low) | c3 << 32;
    memcpy(front, &c0, sizeof c0);
    memcpy(back, &c2, sizeof c2);
}

static void draw(uint16_t *random, struct random_key key, uint64_t row, uint64_t group, size_t n)
{
    enum { QUADS = OPTIMIZER_GROUP / 8 };

    for (size_t k = 0; k < n; k++, random += OPTIMIZER_GROUP)
        for (uint32_t i = 0; i < QUADS; i += WIDTH)
            draw_quads(random + 4 * i, random + OPTIMIZER_GROUP / 2 + 4 * i, key, row, (group + k) * QUADS + i);
}

#define NAME_OF(isa)   optimizer_kernel_##isa
#define NAME(isa)      NAME_OF(isa)
#define BLOCKS_OF(isa) block_sum_kernel_##isa
#define BLOCKS(isa)    BLOCKS_OF(isa)
#define CODED_OF(isa)  coded_kernel_##isa
#define CODED(isa)     CODED_OF(isa)
const struct optimizer_kernel NAME(KERNEL_ISA) = {
    .blocks = &BLOCKS(KERNEL_ISA),
    .coded = &CODED(KERNEL_ISA),
    .is_finite = is_finite,
    .fold = fold,
    .update = update,
    .step = step,
    .sgd_fold = sgd_fold,
    .sgd_update = sgd_update,
    .sgd_step = sgd_step,
    .stream = stream,
    .sum = sum_up,
    .scale = scale_all,
    .squares = squares,
    .update_squares = update_squares,
    .halves = {[NUMBER_BF16] = {is_finite_bf16, join_bf16, split_bf16, widen_bf16, narrow_bf16, round_bf16},
               [NUMBER_FP16] = {is_finite_fp16, join_fp16, split_fp16, widen_fp16, narrow_fp16, round_fp16}},
    .widen_v = widen_v,
    .narrow_v = narrow_v,
    .round_moments = round_moments,
    .draw = draw,
};

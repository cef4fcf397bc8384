#include "tests/kit/test.h"

#include "proto/base/number.h"

#include <immintrin.h>
#include <math.h>

SUITE_LABELS(long)

/* In release a split goes through all 2^32 patterns, one upper half at a time so that the loop is simple enough for
 * vectors; what takes longer goes through every 61st upper half (which is coprime to 2^16), as all does where it would
 * take a minute. */
#if SANITIZED || !defined _OPENMP
enum { STRIDE = 61 };
#else
enum { STRIDE = 1 };
#endif
enum { SPARSE = 61 };

SUITE_TIMEOUT(120)

TEST(types_have_their_bytes_and_names)
{
    ck_assert(number_bytes(NUMBER_FP32) == 4 && number_bytes(NUMBER_BF16) == 2 && number_bytes(NUMBER_FP16) == 2);
    ck_assert_str_eq(number_name(NUMBER_FP32), "fp32");
    ck_assert_str_eq(number_name(NUMBER_BF16), "bf16");
    ck_assert_str_eq(number_name(NUMBER_FP16), "fp16");
}

/* How many of the 65536 patterns under one upper half do not join to what was split. */
static unsigned n_joined_wrong(uint32_t upper)
{
    unsigned n = 0;

    for (uint32_t lower = 0; lower < 65536; lower++) {
        const float x = number_from_pattern(upper << 16 | lower);
        uint16_t high;
        int16_t low;
        number_split(x, &high, &low);
        const float joined = number_join(high, low);
        n += number_pattern(joined) != number_pattern(x);
    }
    return n;
}

/* Those under 0x7f80 and 0xff80 are an infinity, which joins too, and NaNs; those above are NaNs. A master past the
 * largest bf16, 0x7f7f, is relayed as an infinity, and joins. */
TEST(every_finite_pattern_joins_exactly)
{
    unsigned wrong = n_joined_wrong(0x7f7f) + n_joined_wrong(0xff7f);

#pragma omp parallel for reduction(+ : wrong) schedule(dynamic, 64)
    for (uint32_t upper = 0; upper < 65536; upper += STRIDE)
        if ((upper & 0x7f80) != 0x7f80)
            wrong += n_joined_wrong(upper);
    ck_assert_uint_eq(wrong, 0);
}

/* What bf16 pattern a stands for; past the largest, where infinity stands, the value that the next would have. */
static double value_of(uint32_t pattern)
{
    return (pattern & 0x7fff) == 0x7f80 ? (pattern >> 15 ? -0x1p128 : 0x1p128) : number_from_bf16((uint16_t)pattern);
}

/* How many of the 65536 patterns under one upper half become another bf16 than the nearer of the two around them. If
 * both are as near: rounded, other than the even one; split, other than the one further from zero. Distances are exact
 * in double. */
static unsigned n_rounded_wrong(uint32_t upper)
{
    const double inner = fabs(value_of(upper)), outer = fabs(value_of(upper + 1));
    unsigned n = 0;

    for (uint32_t lower = 0; lower < 65536; lower++) {
        const float x = number_from_pattern(upper << 16 | lower);
        const double up = outer - fabs((double)x), down = fabs((double)x) - inner;
        uint16_t high;
        int16_t low;
        number_split(x, &high, &low);
        n += number_to_bf16(x) != upper + (up < down || (up == down && upper % 2 == 1));
        n += high != upper + (up <= down);
    }
    return n;
}

TEST(rounded_and_split_the_bf16_is_the_nearest)
{
    unsigned wrong = n_rounded_wrong(0x7f7f) + n_rounded_wrong(0xff7f) + n_rounded_wrong(0) + n_rounded_wrong(0x8000);

#pragma omp parallel for reduction(+ : wrong) schedule(dynamic, 64)
    for (uint32_t upper = 0; upper < 65536; upper += SPARSE)
        if ((upper & 0x7f80) != 0x7f80)
            wrong += n_rounded_wrong(upper);
    ck_assert_uint_eq(wrong, 0);
}

TEST(an_infinity_stays_and_every_nan_stays_a_nan)
{
    unsigned wrong = 0;

    for (uint32_t sign = 0; sign < 2; sign++) {
        const uint32_t infinity = sign << 31 | 0x7f800000u;
        uint16_t high;
        int16_t low;
        number_split(number_from_pattern(infinity), &high, &low);
        ck_assert_uint_eq(high, infinity >> 16);
        ck_assert_uint_eq(number_pattern(number_join(high, low)), infinity);
        ck_assert_uint_eq(number_to_bf16(number_from_pattern(infinity)), infinity >> 16);
        for (uint32_t nan = 1; nan < 0x800000; nan += SPARSE) {
            number_split(number_from_pattern(infinity | nan), &high, &low);
            wrong += (high & 0x7fffu) <= 0x7f80 || high >> 15 != sign || !isnan(number_join(high, low));
            wrong += number_to_bf16(number_from_pattern(infinity | nan)) != high;
        }
    }
    ck_assert_uint_eq(wrong, 0);
}

/* ---- 16-bit moments ---------------------------------------------------------------------------------------------- */

/* 8 exponent and 8 mantissa bits: 1 + k / 256 in every binade, and the sign's bit is the exponent's first. Ties go to
 * even. */
TEST(a_second_moment_has_eight_bits_of_mantissa)
{
    const float largest = 0x1.fffffep127f;

    for (int exponent = -126; exponent <= 127; exponent++)
        for (int k = 0; k < 256; k++) {
            const float v = ldexpf(1 + (float)k / 256, exponent);
            ck_assert_uint_eq(number_to_v16(v), ((unsigned)(exponent + 127) << 8) + (unsigned)k);
            ck_assert_float_eq(number_from_v16(number_to_v16(v)), v);
        }
    for (int k = 0; k < 256; k++) /* below the first binade: steps of 2^-134 */
        ck_assert_float_eq(number_from_v16((uint16_t)k), ldexpf((float)k, -134));
    ck_assert_uint_eq(number_to_v16(1 + 0x1p-9f), number_to_v16(1));
    ck_assert_uint_eq(number_to_v16(nextafterf(1 + 0x1p-9f, 2)), number_to_v16(1 + 0x1p-8f));
    ck_assert_uint_eq(number_to_v16(1 + 3 * 0x1p-9f), number_to_v16(1 + 0x1p-7f));
    ck_assert_uint_eq(number_to_v16(0), 0);
    ck_assert_float_eq(number_from_v16(number_to_v16(largest)), 0x1.ffp127f); /* moments stop there */
    ck_assert_float_eq(number_from_v16(number_to_v16_stochastic(largest, 0xffff)), 0x1.ffp127f);
    ck_assert_float_eq(number_from_bf16(number_to_bf16_stochastic(largest, 0xffff)), 0x1.fep127f);
    ck_assert_float_eq(number_from_bf16(number_to_bf16_stochastic(-largest, 0xffff)), -0x1.fep127f);
}

/* A moment that lies 0 <= k < 2^16 of the way to the next is rounded up by k of the 2^16 random numbers: by hand, the
 * mean over all of them is the value. The numbers counted, not drawn. */
TEST(over_all_random_numbers_the_mean_is_the_value)
{
    static const float values[] = {
        0, 0x1p-149f, 0x1.2346p-128f, 0x1.fffffep-127f, 1e-12f, 0x1.02468p0f, 0.7f, 3.14159274f, 0x1.fffffep10f, 1e30f};

    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        double m = 0, negative = 0, v = 0;
        for (uint32_t random = 0; random < 65536; random++) {
            m += (double)number_from_bf16(number_to_bf16_stochastic(values[i], random));
            negative += (double)number_from_bf16(number_to_bf16_stochastic(-values[i], random));
            v += (double)number_from_v16(number_to_v16_stochastic(values[i], random));
        }
        ck_assert_double_eq(m / 65536, (double)values[i]); /* sums of few bits each: exact in double */
        ck_assert_double_eq(negative / 65536, -(double)values[i]);
        ck_assert_double_eq(v / 65536, (double)values[i]);
    }
}

/* In fp16, too, up to its largest numbers; below 2^-14 of values in steps of 2^-40. Then what is exact, and
 * infinities. */
TEST(over_all_random_numbers_the_mean_in_fp16_is_the_value)
{
    static const float values[] = {0,      0x1p-40f,     0x1.8p-25f,  0x1.2346p-20f, 0x1.23456p-15f, 0x1.fffffep-15f,
                                   0.001f, 0x1.02468p0f, 3.14159274f, 1234.567f,     0x1.ffbfep15f};

    for (size_t i = 0; i < sizeof values / sizeof *values; i++) {
        double mean = 0, negative = 0;
        for (uint32_t random = 0; random < 65536; random++) {
            mean += (double)number_from_fp16(number_to_fp16_stochastic(values[i], random));
            negative += (double)number_from_fp16(number_to_fp16_stochastic(-values[i], random));
        }
        ck_assert_double_eq(mean / 65536, (double)values[i]);
        ck_assert_double_eq(negative / 65536, -(double)values[i]);
    }
    ck_assert_uint_eq(number_to_fp16_stochastic(65504, 0xffff), 0x7bff); /* what is exact stays */
    ck_assert_uint_eq(number_to_fp16_stochastic(-65535, 0xffff), 0xfc00);
    ck_assert_uint_eq(number_to_fp16_stochastic(INFINITY, 0xffff), 0x7c00);
    ck_assert(isnan(number_from_fp16(number_to_fp16_stochastic(NAN, 0xffff))));
}

/* ---- fp16 ---- */

__attribute__((target("f16c"))) static uint16_t to_fp16(float x)
{
    return _cvtss_sh(x, _MM_FROUND_TO_NEAREST_INT);
}

__attribute__((target("f16c"))) static float from_fp16(uint16_t half)
{
    return _cvtsh_ss(half);
}

/* Under one upper half: what is not as the processor's instruction has it, or does not join as promised. A master from
 * 2^-17 on joins exactly, a smaller one within half a step of 2^-40, and from 65536 on to an infinity. */
static unsigned n_fp16_wrong(uint32_t upper)
{
    unsigned n = 0;

    for (uint32_t lower = 0; lower < 65536; lower++) {
        const float x = number_from_pattern(upper << 16 | lower), size = fabsf(x);
        uint16_t high;
        int16_t low;
        number_split_fp16(x, &high, &low);
        const float joined = number_join_fp16(high, low), nearest = number_from_fp16(number_to_fp16(x));
        if (isnan(x)) {
            n += !isnan(joined) || !isnan(nearest);
            continue;
        }
        n += number_to_fp16(x) != to_fp16(x);
        n += size >= 65536 ? joined != copysignf(INFINITY, x)
                           : fabs((double)joined - (double)x) > (size >= 0x1p-17f ? 0 : 0x1p-41);
        n += size < 65504 &&
             fabs((double)number_from_fp16(high) - (double)x) > fabs((double)nearest - (double)x) + 0x1p-40;
    }
    return n;
}

TEST_IF(fp16_is_the_processors_and_its_split_masters_join, __builtin_cpu_supports("f16c"))
{
    unsigned wrong = n_fp16_wrong(0x477f) + n_fp16_wrong(0xc77f) + n_fp16_wrong(0x3880) + n_fp16_wrong(0x387f);

#pragma omp parallel for reduction(+ : wrong) schedule(dynamic, 64)
    for (uint32_t upper = 0; upper < 65536; upper += SPARSE)
        wrong += n_fp16_wrong(upper);
    ck_assert_uint_eq(wrong, 0);
    for (uint32_t half = 0; half < 65536; half++) {
        const float got = number_from_fp16((uint16_t)half), want = from_fp16((uint16_t)half);
        ck_assert(got == want || (isnan(got) && isnan(want)));
    }
}

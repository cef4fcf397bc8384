/* proto/base/number.h - the number formats that processes share, and conversions to them.
 *
 * The formats are fp32, bf16 (the upper half of an fp32), fp16 (IEEE 754's binary16), and 16 bits for a second moment.
 * The host and every device round to nearest, ties to even. Ties are frequent, as the sum of two bf16 often is one; a
 * rule that sends all ties the same way would bias sums.
 *
 * An fp32 master is the relayed bf16 plus the 16 bits that complete it (the "split master"). Only there do ties go away
 * from zero: the remainder is then a signed 16-bit number, and one addition joins the two. With ties to even, an even
 * bf16 would have ties on both sides: one remainder more than 16 bits can distinguish. One in 65536 updated masters is
 * a tie.
 *
 * An infinity stays an infinity and a NaN stays a NaN. A finite value from 0x7f7f8000 on (3.3961775e38, half a step
 * past the largest finite bf16) rounds to an infinity. When split, it is relayed as an infinity, and joins exactly.
 *
 * Of fp16 a split master is one of 32 bits with fp16's exponents: 1 bit of sign, 5 of exponent, 26 of mantissa. It has
 * every fp32 from 2^-17 to below 65536 bit for bit, and smaller ones in steps of 2^-40. From 65520 on it is relayed as
 * an infinity. */
#ifndef PROTO_BASE_NUMBER_H
#define PROTO_BASE_NUMBER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum number_type { NUMBER_FP32, NUMBER_BF16, NUMBER_FP16, NUMBER_TYPES };

static inline size_t number_bytes(enum number_type type)
{
    return type == NUMBER_FP32 ? 4 : 2;
}

/* "fp32", "bf16", "fp16": in options, tables and JSON. */
static inline const char *number_name(enum number_type type)
{
    return type == NUMBER_BF16 ? "bf16" : type == NUMBER_FP16 ? "fp16" : "fp32";
}

static inline uint32_t number_pattern(float x)
{
    uint32_t pattern;

    memcpy(&pattern, &x, sizeof pattern);
    return pattern;
}

static inline float number_from_pattern(uint32_t pattern)
{
    float x;

    memcpy(&x, &pattern, sizeof x);
    return x;
}

static inline float number_from_bf16(uint16_t bf16)
{
    return number_from_pattern((uint32_t)bf16 << 16);
}

/* The upper half of pattern + up. A NaN is made quiet instead, as the addition could turn it into a number. */
static inline uint16_t number_upper(uint32_t pattern, uint32_t up)
{
    const uint32_t is_nan = (pattern & 0x7fffffffu) > 0x7f800000u;

    return (uint16_t)((is_nan ? pattern | 0x00400000u : pattern + up) >> 16);
}

/* Rounds to nearest, ties to even. */
static inline uint16_t number_to_bf16(float x)
{
    const uint32_t pattern = number_pattern(x);

    return number_upper(pattern, 0x7fffu + (pattern >> 16 & 1));
}

/* x to 32 bits with fp16's exponents, to nearest, ties to even. All that is below 2^-14 has steps of 2^-40, of which
 * fp32's mantissa counts; a magnitude from 65536 on is an infinity. */
static inline uint32_t number_to_wide16(float x)
{
    const uint32_t pattern = number_pattern(x), sign = pattern & 0x80000000u, magnitude = pattern & 0x7fffffffu;
    const float small = number_from_pattern(magnitude < 0x38800000u ? magnitude : 0) * 0x1p40f; /* below 2^26 */
    const uint32_t steps = (uint32_t)(int32_t)__builtin_rintf(small);
    const uint32_t scaled = (magnitude - 0x38000000u) << 3;
    const uint32_t large = magnitude > 0x7f800000u ? 0x7e000000u : magnitude >= 0x47800000u ? 0x7c000000u : scaled;

    return sign | (magnitude < 0x38800000u ? steps : large);
}

static inline float number_from_wide16(uint32_t wide)
{
    const uint32_t sign = wide & 0x80000000u, magnitude = wide & 0x7fffffffu;
    const float small = (float)(int32_t)(magnitude < 0x04000000u ? magnitude : 0) * 0x1p-40f;
    const uint32_t large =
        magnitude >= 0x7c000000u ? 0x7f800000u | (magnitude & 0x03ffffffu) >> 3 : (magnitude >> 3) + 0x38000000u;

    return number_from_pattern(sign | (magnitude < 0x04000000u ? number_pattern(small) : large));
}

static inline float number_from_fp16(uint16_t fp16)
{
    return number_from_wide16((uint32_t)fp16 << 16);
}

/* Rounds to nearest, ties to even, once: below 2^-14 in steps of 2^-24, from 65520 on to an infinity. */
static inline uint16_t number_to_fp16(float x)
{
    const uint32_t pattern = number_pattern(x), magnitude = pattern & 0x7fffffffu, sign = pattern >> 16 & 0x8000u;
    const float small = number_from_pattern(magnitude < 0x38800000u ? magnitude : 0) * 0x1p24f; /* below 2^10 */
    const uint32_t steps = (uint32_t)(int32_t)__builtin_rintf(small);
    const uint32_t rounded = (magnitude - 0x38000000u + 0x0fffu + (magnitude >> 13 & 1)) >> 13;
    const uint32_t large = magnitude > 0x7f800000u ? 0x7e00u : magnitude >= 0x477ff000u ? 0x7c00u : rounded;

    return (uint16_t)(sign | (magnitude < 0x38800000u ? steps : large));
}

/* A number of a 16-bit type. */
static inline float number_from_half(enum number_type type, uint16_t half)
{
    return type == NUMBER_FP16 ? number_from_fp16(half) : number_from_bf16(half);
}

static inline uint16_t number_to_half(enum number_type type, float x)
{
    return type == NUMBER_FP16 ? number_to_fp16(x) : number_to_bf16(x);
}

/* Every finite x, and every infinity, joins again bit for bit; a NaN joins to a NaN. high is the nearest bf16; of two
 * equally near, the one further from zero. */
static inline void number_split(float x, uint16_t *high, int16_t *low)
{
    const uint32_t pattern = number_pattern(x);

    *high = number_upper(pattern, 0x8000u);
    *low = (int16_t)(uint16_t)pattern; /* what rounding took away; negative if it added */
}

static inline float number_join(uint16_t high, int16_t low)
{
    return number_from_pattern(((uint32_t)high << 16) + (uint32_t)(int32_t)low);
}

/* For a split master of fp16, as number_split: number_to_wide16(x) joins again bit for bit; high is the nearest
 * fp16. */
static inline void number_split_fp16(float x, uint16_t *high, int16_t *low)
{
    const uint32_t wide = number_to_wide16(x);

    *high = (uint16_t)((wide & 0x7fffffffu) > 0x7c000000u ? wide >> 16 : (wide + 0x8000u) >> 16);
    *low = (int16_t)(uint16_t)wide;
}

static inline float number_join_fp16(uint16_t high, int16_t low)
{
    return number_from_wide16(((uint32_t)high << 16) + (uint32_t)(int32_t)low);
}

/* ---- stochastic rounding -------------------------------------------------------------------------------------------
 *
 * What changes in small steps, and is kept in 16 bits alone: moments, weights without a master, sums of contributions.
 * A moment that decays by a thousandth of itself would never move in steps of 1/256 if it were rounded to nearest.
 *
 * The first moment is a bf16. The second has no sign and uses that bit for its mantissa: 8 bits of exponent and 8 of
 * mantissa, with the range of fp32. random: uniform below 2^16, of which v16 uses the upper 15 bits. Within one binade
 * the expectation is exactly the value (fp16: to 2^-41 below 2^-14); below the first binade spacing is even down to
 * zero. bf16 and v16 stop at the largest finite value; fp16 may round to an infinity from 65504 on. x, v: finite, v not
 * negative. */

static inline uint16_t number_to_bf16_stochastic(float x, uint32_t random)
{
    const uint32_t pattern = number_pattern(x), magnitude = ((pattern & 0x7fffffffu) + random) >> 16;

    return (uint16_t)((pattern >> 31 << 15) | (magnitude < 0x7f80u ? magnitude : 0x7f7fu));
}

static inline uint16_t number_to_fp16_stochastic(float x, uint32_t random)
{
    const uint32_t wide = number_to_wide16(x);

    return (uint16_t)((wide >> 31 << 15) | ((wide & 0x7fffffffu) + random) >> 16);
}

static inline float number_from_v16(uint16_t v16)
{
    return number_from_pattern((uint32_t)v16 << 15);
}

/* Rounds to nearest, ties to even. */
static inline uint16_t number_to_v16(float v)
{
    const uint32_t pattern = number_pattern(v), rounded = (pattern + 0x3fffu + (pattern >> 15 & 1)) >> 15;

    return (uint16_t)(rounded < 0xff00u ? rounded : 0xfeffu);
}

static inline uint16_t number_to_v16_stochastic(float v, uint32_t random)
{
    const uint32_t rounded = (number_pattern(v) + (random >> 1)) >> 15;

    return (uint16_t)(rounded < 0xff00u ? rounded : 0xfeffu);
}

/* A form of moments alone: 8 bits each, by groups (proto/model/groups.h). It is no type of one number, so no array by
 * type has it, and number_bytes and number_name do not know it. */
#define NUMBER_CODED ((enum number_type)NUMBER_TYPES)

#endif

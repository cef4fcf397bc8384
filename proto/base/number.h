/* proto/base/number.h - the number formats that processes share, and how values get into them.
 *
 * fp32 and bf16 (the upper half of an fp32), and the 16 bits in which a second moment is kept. One rule of rounding on
 * the host and on every device: to nearest, ties to even. Ties are frequent, as the sum of two bf16 often is one, and
 * any rule that sends them all one way would bias what is summed up.
 *
 * An fp32 master is the bf16 that is relayed and the 16 bits that complete it (the "split master"). There, and there
 * alone, ties go away from zero: the remainder is then a signed 16-bit number, and joining the two is one addition. Ties
 * to even would leave an even bf16 with the ties on both its sides, one remainder more than 16 bits can tell apart. One
 * in 65536 updated masters is a tie.
 *
 * What is not finite: an infinity stays what it is and a NaN stays a NaN. A finite value from 0x7f7f8000 on (3.3961775e38,
 * half a step past the largest finite bf16) rounds to an infinity; split, it is relayed as one, and joins exactly. */
#ifndef PROTO_BASE_NUMBER_H
#define PROTO_BASE_NUMBER_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

enum number_type { NUMBER_FP32, NUMBER_BF16, NUMBER_TYPES };

static inline size_t number_bytes(enum number_type type)
{
    return type == NUMBER_BF16 ? 2 : 4;
}

/* "fp32", "bf16": in options, tables and JSON. */
static inline const char *number_name(enum number_type type)
{
    return type == NUMBER_BF16 ? "bf16" : "fp32";
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

/* The upper half after `up` is added. A NaN is made quiet instead, as the addition could carry it into a number. */
static inline uint16_t number_upper(uint32_t pattern, uint32_t up)
{
    const uint32_t is_nan = (pattern & 0x7fffffffu) > 0x7f800000u;

    return (uint16_t)((is_nan ? pattern | 0x00400000u : pattern + up) >> 16);
}

/* To nearest, ties to even. */
static inline uint16_t number_to_bf16(float x)
{
    const uint32_t pattern = number_pattern(x);

    return number_upper(pattern, 0x7fffu + (pattern >> 16 & 1));
}

/* Every finite x joins again bit for bit, and so does an infinity; a NaN joins to a NaN. high is the nearest bf16, of
 * two as near the one further from zero. */
static inline void number_split(float x, uint16_t *high, int16_t *low)
{
    const uint32_t pattern = number_pattern(x);

    *high = number_upper(pattern, 0x8000u);
    *low = (int16_t)(uint16_t)pattern; /* what rounding took off, or put on as a negative number */
}

static inline float number_join(uint16_t high, int16_t low)
{
    return number_from_pattern(((uint32_t)high << 16) + (uint32_t)(int32_t)low);
}

/* ---- 16-bit moments ------------------------------------------------------------------------------------------------
 *
 * The first is a bf16. The second has no sign, whose bit it spends on its mantissa: 8 bits of exponent and 8 of
 * mantissa, the range of fp32. Both are rounded stochastically where they change little from step to step: a moment
 * that decays by a thousandth of itself would not move at all in steps of 1/256 (or 1/512). random: uniform below
 * 2^16, of which v16 uses the upper 15 bits. Within one binade the expectation is the value, exactly; a step below,
 * spacing is even from zero to the first binade. None of them rounds to an infinity: they stop at the largest finite
 * value. x, v: finite, v not negative. */

static inline uint16_t number_to_bf16_stochastic(float x, uint32_t random)
{
    const uint32_t pattern = number_pattern(x), magnitude = ((pattern & 0x7fffffffu) + random) >> 16;

    return (uint16_t)((pattern >> 31 << 15) | (magnitude < 0x7f80u ? magnitude : 0x7f7fu));
}

static inline float number_from_v16(uint16_t v16)
{
    return number_from_pattern((uint32_t)v16 << 15);
}

/* To nearest, ties to even. */
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

#endif

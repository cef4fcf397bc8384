/* The host codes, the device decodes with kernels of its own, and a resume codes again what was decoded. All agree in
 * their bits only because each value is made by these very operations, in this order: a product with 1 / s where
 * bitsandbytes has one, a quotient where it has that. Nothing here adds to a product, so no compiler can contract the
 * two to an FMA. form_nearest counts instead of searching: it has no branch, and its ties are those of the original. */
#include "proto/base/form.h"

#include "proto/base/number.h"
#include "proto/base/size.h"

#include <assert.h>
#include <math.h>
#include <string.h>

/* bitsandbytes.functional.get_4bit_type("nf4"). */
const float form_nf4[16] = {
    -1.0f,
    -0.6961928009986877f,
    -0.5250730514526367f,
    -0.39491748809814453f,
    -0.28444138169288635f,
    -0.18477343022823334f,
    -0.09105003625154495f,
    0.0f,
    0.07958029955625534f,
    0.16093020141124725f,
    0.24611230194568634f,
    0.33791524171829224f,
    0.44070982933044434f,
    0.5626170039176941f,
    0.7229568362236023f,
    1.0f,
};

enum { NF4_ZERO = 7 /* the code of 0 */ };

const char *form_name(enum form form)
{
    static const char *const names[FORMS] = {"values", "bf16", "int8", "nf4", "fp32"};

    return names[form];
}

uint64_t form_group(enum form form, uint64_t columns)
{
    assert(form != FORM_VALUES && form < FORMS);
    return form == FORM_INT8 ? columns : form == FORM_NF4 ? FORM_BLOCK : 1;
}

uint64_t form_scales(enum form form, uint64_t rows, uint64_t columns)
{
    const uint64_t group = form_group(form, columns);

    return form_is_plain(form) ? 0 : (rows * columns + group - 1) / group;
}

uint64_t form_scales_at(enum form form, uint64_t rows, uint64_t columns)
{
    const uint64_t n = rows * columns;

    assert(form != FORM_VALUES && form < FORMS);
    return form_aligned(form == FORM_FP32 ? 4 * n : form == FORM_BF16 ? 2 * n : form == FORM_INT8 ? n : (n + 1) / 2);
}

uint64_t form_bytes(enum form form, uint64_t rows, uint64_t columns)
{
    return form_scales_at(form, rows, columns) + form_aligned(form_scales(form, rows, columns) * sizeof(float));
}

/* ---- NF4 -------------------------------------------------------------------------------------------------------- */

/* The number of midpoints between neighbours that are below x: a midpoint itself belongs to the lower code. */
static unsigned form_nearest(float x)
{
    unsigned code = 0;

    for (int i = 0; i < 15; i++)
        code += x > (form_nf4[i] + form_nf4[i + 1]) / 2;
    return code;
}

void form_encode_nf4(uint8_t *codes, float *scale, const float *values, size_t n, bool is_short)
{
    const float largest = form_largest(0, values, n), inverse = 1 / largest;
    uint8_t code[FORM_BLOCK + 1];

    assert(n <= FORM_BLOCK);
    *scale = is_short && largest < 1e-38f ? 1e-38f : largest;
    for (size_t i = 0; i < n; i++) {
        const float x = is_short ? values[i] / largest : values[i] * inverse;
        code[i] = (uint8_t)(largest < FORM_LEAST ? NF4_ZERO : form_nearest(x));
    }
    code[n] = NF4_ZERO;
    for (size_t i = 0; i < n; i += 2)
        codes[i / 2] = (uint8_t)(code[i] << 4 | code[i + 1]);
}

/* ---- INT8 ------------------------------------------------------------------------------------------------------- */

float form_largest(float so_far, const float *values, size_t n)
{
    for (size_t i = 0; i < n; i++)
        so_far = fabsf(values[i]) > so_far ? fabsf(values[i]) : so_far;
    return so_far;
}

float form_trial(float largest, unsigned trial)
{
    const int32_t steps = (int32_t)((trial + 1) / 2) * (trial % 2 ? 1 : -1); /* 0, 1, -1, 2, -2, ... */

    return largest < FORM_LEAST ? largest : number_from_pattern(number_pattern(largest) + (uint32_t)steps);
}

/* Memory that others can write may have another value now than when its row's largest was found. */
static int code_int8(float value, float factor)
{
    return (int)fmaxf(-127, fminf(127, rintf(value * factor)));
}

static float form_factor_of(float scale)
{
    return scale < FORM_LEAST ? 0 : 127 / scale;
}

bool form_reproduces(float scale, const float *values, size_t n)
{
    const float factor = form_factor_of(scale);

    for (size_t i = 0; i < n; i++)
        if (form_value_int8(code_int8(values[i], factor), scale) != values[i])
            return false;
    return true;
}

void form_encode_int8(int8_t *codes, float scale, const float *values, size_t n)
{
    const float factor = form_factor_of(scale);

    for (size_t i = 0; i < n; i++)
        codes[i] = (int8_t)code_int8(values[i], factor);
}

/* ---- all -------------------------------------------------------------------------------------------------------- */

void form_decode(float *out, enum form form, const void *codes, const float *scales, uint64_t columns, uint64_t first,
                 size_t n)
{
    const uint64_t group = form_group(form, columns);
    const uint16_t *const halves = codes;
    const int8_t *const bytes = codes;

    for (size_t i = 0, now; i < n; i += now) {
        const uint64_t at = first + i;
        now = form_is_plain(form) ? n : size_smaller(n - i, (size_t)(group - at % group));
        for (size_t j = i; j < i + now; j++) {
            if (form == FORM_FP32)
                out[j] = ((const float *)codes)[first + j];
            else if (form == FORM_BF16)
                out[j] = number_from_bf16(halves[first + j]);
            else if (form == FORM_INT8)
                out[j] = form_value_int8(bytes[first + j], scales[at / group]);
            else
                out[j] = form_nf4[form_code_nf4(codes, first + j)] * scales[at / group];
        }
    }
}

/* Forms of frozen weights: the codes, scales and decoded weights of bitsandbytes (tests/oracle/make_forms.py). */
#include "tests/kit/test.h"

#include "proto/base/form.h"
#include "proto/base/number.h"
#include "proto/base/random.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static json_t *fixture;

static void open_fixture(void)
{
    fixture = json_load_file(TESTS_DIR "/fixtures/forms.json", 0, NULL);
    ck_assert_ptr_nonnull(fixture);
}

static void close_fixture(void)
{
    json_decref(fixture);
}

SUITE_FIXTURE(open_fixture, close_fixture)

static float at(const json_t *array, size_t i)
{
    return (float)json_number_value(json_array_get(array, i));
}

/* A matrix's codes and scales, side by side as they are relayed. */
struct coded {
    uint64_t rows, columns, n;
    float *values, *scales, *decoded;
    unsigned char *codes;
};

static struct coded make(uint64_t rows, uint64_t columns)
{
    const uint64_t n = rows * columns;

    return (struct coded){rows,
                          columns,
                          n,
                          calloc(n, sizeof(float)),
                          calloc(n, sizeof(float)),
                          calloc(n, sizeof(float)),
                          calloc(2 * n, 1)};
}

static void drop(struct coded *c)
{
    free(c->values), free(c->scales), free(c->decoded), free(c->codes);
}

/* As the store codes a row. */
static float scale_of(const float *row, size_t n)
{
    const float largest = form_largest(0, row, n);

    for (unsigned trial = 0; trial < FORM_TRIALS; trial++)
        if (form_reproduces(form_trial(largest, trial), row, n))
            return form_trial(largest, trial);
    return largest;
}

static void code(struct coded *c, enum form form)
{
    for (uint64_t row = 0; form == FORM_INT8 && row < c->rows; row++) {
        const float *values = c->values + row * c->columns;
        c->scales[row] = scale_of(values, c->columns);
        form_encode_int8((int8_t *)c->codes + row * c->columns, c->scales[row], values, c->columns);
    }
    for (uint64_t i = 0; form == FORM_NF4 && i < c->n; i += FORM_BLOCK) {
        const size_t left = c->n - i < FORM_BLOCK ? c->n - i : FORM_BLOCK;
        form_encode_nf4(c->codes + i / 2, &c->scales[i / FORM_BLOCK], c->values + i, left, left < FORM_BLOCK);
    }
    for (uint64_t i = 0; form == FORM_BF16 && i < c->n; i++)
        ((uint16_t *)(void *)c->codes)[i] = number_to_bf16(c->values[i]);
    form_decode(c->decoded, form, c->codes, c->scales, c->columns, 0, c->n);
}

TEST(quantiles_are_those_of_bitsandbytes)
{
    for (size_t i = 0; i < 16; i++)
        ck_assert(form_nf4[i] == at(json_object_get(fixture, "nf4_quantiles"), i));
}

static void check_matrix(const json_t *want, enum form form)
{
    const json_t *values = json_object_get(want, "values"), *codes = json_object_get(want, "codes");
    struct coded c = make((uint64_t)json_integer_value(json_object_get(want, "rows")),
                          (uint64_t)json_integer_value(json_object_get(want, "columns")));

    ck_assert_uint_eq(json_array_size(values), c.n);
    for (size_t i = 0; i < c.n; i++)
        c.values[i] = at(values, i);
    code(&c, form);
    ck_assert_uint_eq(json_array_size(codes), form == FORM_INT8 ? c.n : (c.n + 1) / 2);
    for (size_t i = 0; i < json_array_size(codes); i++)
        ck_assert_int_eq(form == FORM_INT8 ? (int8_t)c.codes[i] : c.codes[i],
                         json_integer_value(json_array_get(codes, i)));
    ck_assert_uint_eq(json_array_size(json_object_get(want, "scales")), form_scales(form, c.rows, c.columns));
    for (size_t i = 0; i < form_scales(form, c.rows, c.columns); i++)
        ck_assert(c.scales[i] == at(json_object_get(want, "scales"), i));
    for (size_t i = 0; i < c.n; i++)
        ck_assert(c.decoded[i] == at(json_object_get(want, "decoded"), i));
    drop(&c);
}

TEST(codes_scales_and_decoded_weights_are_those_of_bitsandbytes)
{
    const enum form forms[] = {FORM_NF4, FORM_INT8};
    size_t i;
    json_t *each;

    for (int f = 0; f < COUNT(forms); f++) {
        const json_t *all = json_object_get(fixture, form_name(forms[f]));
        ck_assert_uint_ge(json_array_size(all), 5);
        json_array_foreach(all, i, each) check_matrix(each, forms[f]);
    }
}

/* By hand: codes, rounded up to 64 bytes; then 4 bytes a scale, rounded up. */
TEST(a_matrix_takes_the_bytes_of_its_codes_and_scales)
{
    ck_assert_uint_eq(form_bytes(FORM_BF16, 3, 50), 320);
    ck_assert_uint_eq(form_bytes(FORM_INT8, 3, 50), 192 + 64);
    ck_assert_uint_eq(form_bytes(FORM_INT8, 4096, 4096), (4096 << 12) + 4096 * 4);
    ck_assert_uint_eq(form_bytes(FORM_NF4, 3, 43), 128 + 64);
    ck_assert_uint_eq(form_bytes(FORM_NF4, 4096, 4096), (2048 << 12) + (4096 << 12) / 64 * 4);
}

/* Largest magnitudes of rows: of weights, far below, near the ends of fp32, and where 1 / s overflows. */
static const float sizes[] = {0.02f, 1, 1e-20f, 3e-36f, 1e-37f, 1e-41f, 1e30f, 3e38f};

/* The largest that INT8 decodes, in its place. */
static float size_of(enum form form, float size)
{
    return form == FORM_INT8 && size > FORM_MOST ? FORM_MOST : size;
}

/* 20,000 matrices: uneven rows, blocks that cross them, a shorter last block. In int8 it is the scale that may not come
 * back. */
TEST_EACH(decoded_weights_are_decoded_to_themselves, 3 * COUNT(sizes))
{
    const enum form form = (enum form)(FORM_BF16 + _i / COUNT(sizes));
    unsigned n_other = 0;

    for (uint64_t i = 0; i < 20000; i++) {
        struct coded c = make(1 + i % 3, 1 + i % 150);
        random_normal(c.values, (struct random_key){{(uint32_t)i, 7}}, 0, 0, c.n);
        const float largest = form_largest(0, c.values, c.n);
        for (uint64_t k = 0; k < c.n; k++)
            c.values[k] = c.values[k] / largest * size_of(form, sizes[_i % COUNT(sizes)]);
        code(&c, form);
        struct coded again = make(c.rows, c.columns);
        memcpy(again.values, c.decoded, c.n * sizeof *c.decoded);
        code(&again, form);
        for (uint64_t k = 0; k < c.n; k++)
            n_other += !(again.decoded[k] == c.decoded[k]);
        drop(&c), drop(&again);
    }
    ck_assert_uint_eq(n_other, 0);
}

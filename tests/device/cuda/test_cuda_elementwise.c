/* What is particular to the CUDA kernels over elements: whole packs and single elements, long rows and flat views. That
 * they compute the formulas is shown by the tests of every backend. */
#include "tests/kit/device/kernels.h"
#include "tests/kit/device/reference.h"
#include "tests/kit/test.h"

#include <math.h>

SUITE_LABELS(kernels)

/* Every kernel whose elements do not depend on each other, on views that have whole packs and on the same ones an
 * element further on, which have not: the same bits. */
struct element_case {
    const char *name;
    size_t m, n;
    run_kernels *run;
};

static const struct device_dropout dropout = {.p = 0.3f, .key = {{5, 6}}, .first_row = 1ull << 33};

static const struct element_case *element(const void *context)
{
    return context;
}

static cudaError_t run_bias(struct world *w, const void *c)
{
    return cuda_add_bias(&w->q, at(w, 0), element(c)->n, at(w, 1), element(c)->m, element(c)->n);
}
static cudaError_t run_gelu_new(struct world *w, const void *c)
{
    return cuda_activate_rows(&w->q, at(w, 0), at(w, 1), element(c)->n, element(c)->m, element(c)->n, MODEL_GELU_NEW);
}
/* All but the last column, so that rows have gaps. */
static cudaError_t run_gelu(struct world *w, const void *c)
{
    return cuda_activate_rows(&w->q, at(w, 0), at(w, 1), element(c)->n, element(c)->m, element(c)->n - 8, MODEL_GELU);
}
static cudaError_t run_gelu_gradient(struct world *w, const void *c)
{
    return cuda_activation_gradient(&w->q, at(w, 0), at(w, 1), element(c)->n, element(c)->m, element(c)->n, MODEL_GELU);
}
static cudaError_t run_relu_gradient(struct world *w, const void *c)
{
    return cuda_activation_gradient(&w->q, at(w, 0), at(w, 1), element(c)->n, element(c)->m, element(c)->n - 8,
                                    MODEL_RELU);
}
static cudaError_t run_dropout(struct world *w, const void *c)
{
    const struct device_dropout_add op = {.n_rows = 1,
                                          .n_tokens = element(c)->m,
                                          .n = element(c)->n,
                                          .x = at(w, 0),
                                          .h = at(w, 1),
                                          .y = at(w, 0),
                                          .dropout = dropout};

    return cuda_dropout_add(&w->q, &op);
}
static cudaError_t run_position(struct world *w, const void *c)
{
    const struct device_position op = {
        .n_rows = 1, .n_tokens = element(c)->m, .n = element(c)->n, .table = at(w, 1), .y = at(w, 0)};

    return cuda_position(&w->q, &op, 1, element(c)->m - 2);
}

static const struct element_case element_cases[] = {
    {"bias", 7, 48, run_bias},
    {"bias of long rows", 3, 4360, run_bias}, /* two blocks a row */
    {"gelu_new", 5, 2600, run_gelu_new},      /* as one row */
    {"gelu", 300, 24, run_gelu},              /* more rows than blocks */
    {"gelu's gradient", 6, 1208, run_gelu_gradient},
    {"relu's gradient", 6, 72, run_relu_gradient},
    {"dropout", 9, 80, run_dropout},
    {"positions", 9, 40, run_position},
};
enum { N_ELEMENT_CASES = sizeof element_cases / sizeof *element_cases };

TEST_EACH(elements_do_not_depend_on_where_they_lie, NUMBER_TYPES *N_ELEMENT_CASES)
{
    const struct element_case *c = &element_cases[_i / NUMBER_TYPES];
    const enum number_type type = (enum number_type)(_i % NUMBER_TYPES);
    struct world whole = world_of(type), apart = world_of(type);

    for (int i = 0; i < 2; i++) {
        add_values(&whole, i, type, c->m * c->n, i == 0);
        add_values(&apart, i, type, c->m * c->n, i == 0);
        apart.arrays[i].off = number_bytes(type);
    }
    run_orders(&whole, c->run, c);
    run_once(&apart, c->run, c);
    ck_assert_msg(memcmp(whole.arrays[0].host, apart.arrays[0].host, whole.arrays[0].bytes) == 0, "%s", c->name);
    free_world(&whole), free_world(&apart);
}

/* 2^33 rows in, elements of a row past its first token: the words are proto/base/random.h's. */
TEST_EACH(dropout_draws_the_words_of_the_minibatch, 2)
{
    const struct element_case c = {.m = 9, .n = 80 - (size_t)_i}; /* whole packs; single elements */
    struct world w = world_of(NUMBER_FP32);
    float *y = add_values(&w, 0, NUMBER_FP32, c.m * c.n, true), *h = add_values(&w, 1, NUMBER_FP32, c.m * c.n, false);
    float *x = operation_values(NUMBER_FP32, c.m * c.n, 1);

    run_once(&w, run_dropout, &c);
    for (size_t i = 0; i < c.m * c.n; i++)
        ck_assert_float_eq(y[i], x[i] + (float)(reference_dropout(0.3f, dropout.key, 1ull << 33, i)) * h[i]);
    free(x), free_world(&w);
}

static cudaError_t run_to_bf16(struct world *w, const void *context)
{
    return cuda_to_bf16(&w->q, at(w, 0), at(w, 1), *(const size_t *)context);
}

TEST_EACH(contributions_are_rounded_to_nearest, 2)
{
    const size_t n = 300000; /* more than the blocks have under way */
    struct world w = world_of(NUMBER_FP32);
    uint16_t *to = calloc(n, sizeof *to);
    float *from = add_values(&w, 1, NUMBER_FP32, n, false);

    add_array(&w, 0, to, n * sizeof *to, true);
    from[7] = number_from_pattern(0x7f800001), from[8] = -INFINITY;             /* a NaN that its upper half is not */
    from[9] = 1 + 0x1p-8f, from[10] = -1 - 3 * 0x1p-8f, from[11] = 0x1.ffp127f; /* ties: to even */
    w.arrays[0].off = (size_t)_i * sizeof *to;
    run_orders(&w, run_to_bf16, &n);
    for (size_t i = 0; i < n; i++)
        ck_assert_uint_eq(to[i], number_to_bf16(from[i]));
    ck_assert_uint_eq(to[7], 0x7fc0);
    ck_assert_uint_eq(to[9], 0x3f80);
    ck_assert_uint_eq(to[10], 0xbf82);
    ck_assert_uint_eq(to[11], 0x7f80); /* an infinity */
    free_world(&w);
}

/* A short convolution over tokens. */
#include "tests/kit/device/operation.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

SUITE_LABELS(on_cuda)

/* What it is besides its kernel. */
enum { PLAIN, SILU, GATED, KINDS };
enum { LEAST_TAPS = 2, N_TAPS = DEVICE_SHORT_TAPS - LEAST_TAPS + 1 };

/* Fewer tokens than taps, as many, more; around the run that a CPU sums at a time; several rows; channels of less than
 * a vector, of whole packs, of more than a strip. Documents: 0: a row is one; else so many a row, of unequal length.
 * Beside: columns of a row that are another's, unless it is gated. */
static const struct shape {
    size_t n_rows, n_tokens, n;
    unsigned n_documents, beside;
} shapes[] = {
    {1, 1, 1, 0, 0},  {2, 2, 3, 0, 2},   {1, 3, 16, 2, 0},  {3, 7, 33, 3, 0},  {2, 8, 8, 1, 16},
    {1, 63, 5, 4, 0}, {1, 64, 40, 5, 3}, {2, 65, 72, 2, 0}, {1, 9, 320, 0, 0},
};
enum { N_CASES = COUNT(shapes) * KINDS * NUMBER_TYPES, N_WAYS = N_TAPS * 2 /* with a bias and without */ };

/* Sums of up to 8 products, and a product or silu of them. Backward, those of parameters are over all tokens. */
static double near(const struct call_test *test, const char *output)
{
    const struct device_short_conv *op = &test->call.short_conv;

    return (strcmp(output, "weight_gradient") == 0 || strcmp(output, "bias_gradient") == 0
                ? 8 + sqrt((double)(op->n_rows * op->n_tokens))
                : 12) *
           0x1p-23;
}

/* The token of a row where its document i of n begins: the lengths grow. */
static size_t begin_of(size_t n_tokens, unsigned i, unsigned n)
{
    return n_tokens * i * (i + 1) / (n * (n + 1));
}

static void number_documents(uint32_t *positions, size_t n_rows, size_t n_tokens, unsigned n)
{
    for (size_t row = 0; row < n_rows; row++)
        for (unsigned i = 0; i < n; i++)
            for (size_t t = begin_of(n_tokens, i, n); t < begin_of(n_tokens, i + 1, n); t++)
                positions[row * n_tokens + t] = (uint32_t)(t - begin_of(n_tokens, i, n));
}

static const struct shape *shape_of(const struct call_test *test)
{
    const struct device_short_conv *op = &test->call.short_conv;
    const struct shape *s = shapes;

    while (s->n_rows != op->n_rows || s->n_tokens != op->n_tokens || s->n != op->n)
        s++;
    return s;
}

static void number(struct call_test *test)
{
    const struct shape *s = shape_of(test);

    if (s->n_documents > 0)
        number_documents((void *)(uintptr_t)test->host.short_conv.positions, s->n_rows, s->n_tokens, s->n_documents);
}

/* Case i of N_CASES: a type, a kind, a shape. */
static struct call_test make(enum call_kind kind, int i, int way)
{
    const int k = i / NUMBER_TYPES;
    const struct shape *s = &shapes[k / KINDS];

    return (
        struct call_test){.type = (enum number_type)(i % NUMBER_TYPES),
                          .call = {.kind = kind,
                                   .short_conv = {.n_rows = s->n_rows,
                                                  .n_tokens = s->n_tokens,
                                                  .n = s->n,
                                                  .n_taps = (size_t)(LEAST_TAPS + way / 2),
                                                  .gated = k % KINDS == GATED,
                                                  .silu = k % KINDS == SILU,
                                                  .stride = s->beside > 0 && k % KINDS != GATED ? s->n + s->beside : 0,
                                                  .positions = s->n_documents ? (void *)call_given : NULL,
                                                  .bias = way % 2 ? (void *)call_given : NULL}},
                          .near = near,
                          .prepare = number};
}

SUITE_FIXTURE(mirror_forget, NULL)

TEST_EACH(a_short_convolution_is_the_formula, N_CASES)
{
    for (int way = 0; way < N_WAYS; way++) {
        struct call_test test = make(CALL_short_conv, _i, way);
        call_check(&test);
    }
}

/* Of x alone, of the weight, overwritten or added to, and of the bias. */
TEST_EACH(the_gradient_of_a_short_convolution_is_the_formula, N_CASES)
{
    for (int way = 0; way < N_WAYS; way++) {
        struct call_test test = make(CALL_short_conv_backward, _i, way);
        struct device_short_conv *op = &test.call.short_conv;

        if (way % 3 > 0)
            op->weight_gradient = (void *)call_given, op->beta = way % 3 == 1;
        if (op->bias && way % 3 < 2)
            op->bias_gradient = (void *)call_given;
        call_check(&test);
    }
}

/* As a text goes on: with no token before, fewer than taps, as many. */
TEST_EACH(a_cached_short_convolution_is_the_formula, N_CASES)
{
    static const uint32_t firsts[] = {0, 1, 3, 100};

    for (int way = 0; way < N_WAYS; way++) {
        struct call_test test = make(CALL_short_conv_cached, _i, way);
        struct device_short_conv *op = &test.call.short_conv;

        op->n_rows = 1;
        op->positions = NULL;
        op->first = firsts[way % COUNT(firsts)];
        test.prepare = NULL;
        call_check(&test);
    }
}

static const void *at(const struct call_test *test, const void *values, size_t i)
{
    return (const char *)values + i * number_bytes(test->type);
}

/* A row's tokens in calls of so many, each of which leaves its tail to the next. */
TEST_EACH(tokens_after_earlier_ones_are_as_in_the_whole_row, 5 * KINDS * NUMBER_TYPES)
{
    static const size_t at_once[] = {1, 2, 3, 7, 19};
    const int kind = _i / NUMBER_TYPES % KINDS;
    const size_t n = at_once[_i / NUMBER_TYPES / KINDS], width = 36, columns = kind == GATED ? 3 * width : width;
    struct call_test all = {.type = (enum number_type)(_i % NUMBER_TYPES),
                            .call = {.kind = CALL_short_conv,
                                     .short_conv = {.n_rows = 1,
                                                    .n_tokens = 20,
                                                    .n = width,
                                                    .n_taps = 4,
                                                    .gated = kind == GATED,
                                                    .silu = kind == SILU,
                                                    .bias = (void *)call_given}},
                            .near = near},
                     some = all;
    char tail[3 * 2 * 36 * sizeof(float)];
    const size_t tail_bytes = 3 * (kind == GATED ? 2u : 1u) * width * number_bytes(all.type);

    call_make(&all);
    call_once(&all);
    some.call.kind = CALL_short_conv_cached;
    for (size_t first = 0; first < 20; first += n) {
        some.call.short_conv.n_tokens = first + n < 20 ? n : 20 - first;
        some.call.short_conv.first = (uint32_t)first;
        call_make(&some);
        memcpy(call_get(call_find(&some, "x")), at(&all, all.host.short_conv.x, first * columns),
               some.call.short_conv.n_tokens * columns * number_bytes(all.type));
        memcpy(call_get(call_find(&some, "weight")), all.host.short_conv.weight, 4 * width * number_bytes(all.type));
        memcpy(call_get(call_find(&some, "bias")), all.host.short_conv.bias, width * number_bytes(all.type));
        if (first > 0)
            memcpy(call_get(call_find(&some, "tail")), tail, tail_bytes);
        call_once(&some);
        ck_assert_mem_eq(some.host.short_conv.y, at(&all, all.host.short_conv.y, first * width),
                         some.call.short_conv.n_tokens * width * number_bytes(all.type));
        memcpy(tail, some.host.short_conv.tail, tail_bytes);
    }
}

/* A document of 9 tokens: alone in a row; or in the middle of one, where its neighbours hold infinities and NaNs. */
TEST_EACH(a_documents_neighbours_change_none_of_its_bits, 2 * KINDS * N_TAPS * NUMBER_TYPES)
{
    enum { BEFORE = 5, LENGTH = 9, BEHIND = 4, WIDTH = 24, TOKENS = BEFORE + LENGTH + BEHIND };
    const int kind = _i / 2 / NUMBER_TYPES % KINDS;
    const size_t columns = kind == GATED ? 3 * WIDTH : WIDTH;
    struct call_test alone = {.type = (enum number_type)(_i / 2 % NUMBER_TYPES),
                              .call = {.kind = _i % 2 ? CALL_short_conv_backward : CALL_short_conv,
                                       .short_conv = {.n_rows = 1,
                                                      .n_tokens = LENGTH,
                                                      .n = WIDTH,
                                                      .n_taps = (size_t)(LEAST_TAPS + _i / 2 / NUMBER_TYPES / KINDS),
                                                      .gated = kind == GATED,
                                                      .silu = kind == SILU}},
                              .near = near},
                     beside = alone;
    const size_t bytes = number_bytes(alone.type);

    call_make(&alone);
    beside.call.short_conv.n_tokens = TOKENS;
    beside.call.short_conv.positions = (void *)call_given;
    call_make(&beside);
    uint32_t *positions = (void *)(uintptr_t)beside.host.short_conv.positions;
    for (uint32_t t = 0; t < TOKENS; t++)
        positions[t] = t < BEFORE ? t : t < BEFORE + LENGTH ? t - BEFORE : t - BEFORE - LENGTH;
    for (size_t i = 0; i < TOKENS * columns; i++)
        operation_set(alone.type, call_get(call_find(&beside, "x")), i, i % 2 ? INFINITY : NAN);
    memcpy((char *)call_get(call_find(&beside, "x")) + BEFORE * columns * bytes, alone.host.short_conv.x,
           LENGTH * columns * bytes);
    memcpy(call_get(call_find(&beside, "weight")), alone.host.short_conv.weight,
           alone.call.short_conv.n_taps * WIDTH * bytes);
    if (_i % 2)
        memcpy((char *)call_get(call_find(&beside, "y_gradient")) + BEFORE * WIDTH * bytes,
               alone.host.short_conv.y_gradient, LENGTH * WIDTH * bytes);
    call_once(&alone);
    call_once(&beside);
    if (_i % 2)
        ck_assert_mem_eq(at(&beside, beside.host.short_conv.x_gradient, BEFORE * columns),
                         alone.host.short_conv.x_gradient, LENGTH * columns * bytes);
    else
        ck_assert_mem_eq(at(&beside, beside.host.short_conv.y, BEFORE * WIDTH), alone.host.short_conv.y,
                         LENGTH * WIDTH * bytes);
}

/* By hand: taps 1, 10, 100 of the two tokens before and the token itself, over two documents of 3 and 2 tokens. */
TEST(taps_count_up_to_the_token_itself)
{
    static const float x[] = {1, 2, 3, 4, 5}, weight[] = {1, 10, 100}, expected[] = {100, 210, 321, 400, 540};
    static const uint32_t positions[] = {0, 1, 2, 0, 1};
    struct call_test test = {
        .call = {.kind = CALL_short_conv,
                 .short_conv = {.n_rows = 1, .n_tokens = 5, .n = 1, .n_taps = 3, .positions = (void *)call_given}},
        .near = near};

    call_make(&test);
    memcpy(call_get(call_find(&test, "x")), x, sizeof x);
    memcpy(call_get(call_find(&test, "weight")), weight, sizeof weight);
    memcpy(call_get(call_find(&test, "positions")), positions, sizeof positions);
    call_once(&test);
    for (size_t i = 0; i < COUNT(expected); i++)
        ck_assert_float_eq(((float *)test.host.short_conv.y)[i], expected[i]);
}

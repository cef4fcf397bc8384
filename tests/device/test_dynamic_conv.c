/* Dynamic convolution. */
#include "tests/kit/device/operation.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

SUITE_LABELS(on_cuda)

/* One of everything; fewer elements than taps, on either side; heads of less than a vector or a pack, and of several;
 * more taps than a warp has lanes, and the most; a pass of more filters than dropout draws at a time. A length leaves
 * nothing, one element or some of the row; 0: no lengths. */
static const struct shape {
    size_t n_rows, n_tokens, n, n_heads, n_taps, n_before;
    uint32_t length;
    float p;
} shapes[] = {
    {1, 1, 1, 1, 1, 0, 0, 0},       {2, 5, 6, 2, 3, 1, 0, 0},        {2, 7, 12, 3, 7, 6, 0, 0.3f},
    {3, 9, 40, 2, 5, 2, 4, 0},      {2, 3, 32, 4, 31, 15, 2, 0.1f},  {1, 40, 64, 4, 31, 30, 0, 0.1f},
    {2, 33, 128, 4, 15, 7, 20, 0},  {1, 12, 33, 3, 45, 44, 0, 0.2f}, {1, 66, 8, 1, 128, 64, 0, 0},
    {3, 20, 512, 4, 3, 1, 1, 0.5f}, {2, 4, 30, 1, 2, 1, 0, 0},
};
enum { N_CASES = COUNT(shapes) * COMMON_TYPES };

/* Sums of up to 128 products of weights that add up to 1, each within 4 units: an exponential's 2, its sum's, its
 * quotient's. Backward, a gradient of a weight is a sum over the columns of a head. */
static double near(const struct call_test *test, const char *output)
{
    const struct device_dynamic_conv *op = &test->call.dynamic_conv;

    return strcmp(output, "scores_gradient") == 0 ? (16 + sqrt((double)(op->n / op->n_heads))) * 0x1p-23 : 8 * 0x1p-23;
}

/* All but the first row are as short as the shape's length; what lies beyond is never read. */
static void cut(struct call_test *test)
{
    const struct shape *s = &shapes[0];
    const struct device_dynamic_conv *op = &test->host.dynamic_conv;
    uint32_t *lengths = (void *)(uintptr_t)op->lengths;

    while (s->n_tokens != op->n_tokens || s->n_taps != op->n_taps)
        s++;
    for (size_t row = 0; lengths && row < op->n_rows; row++) {
        lengths[row] = row > 0 ? s->length : (uint32_t)op->n_tokens;
        for (size_t i = (row * op->n_tokens + lengths[row]) * op->n; i < (row + 1) * op->n_tokens * op->n; i++) {
            operation_set(test->type, (void *)(uintptr_t)op->x, i, NAN);
            if (op->y_gradient)
                operation_set(test->type, (void *)(uintptr_t)op->y_gradient, i, NAN);
        }
    }
}

static struct call_test make(enum call_kind kind, int i)
{
    const struct shape *s = &shapes[i / COMMON_TYPES];

    return (struct call_test){
        .type = (enum number_type)(i % COMMON_TYPES),
        .call = {.kind = kind,
                 .dynamic_conv = {.n_rows = s->n_rows,
                                  .n_tokens = s->n_tokens,
                                  .n = s->n,
                                  .n_heads = s->n_heads,
                                  .n_taps = s->n_taps,
                                  .n_before = s->n_before,
                                  .lengths = s->length ? (void *)call_given : NULL,
                                  .dropout = {.p = s->p, .key = {{3, 4}}, .first_row = (UINT64_C(1) << 33) + 9}}},
        .near = near,
        .prepare = cut};
}

SUITE_FIXTURE(mirror_forget, NULL)

TEST_EACH(dynamic_convolution_is_the_formula, N_CASES)
{
    struct call_test test = make(CALL_dynamic_conv, _i);

    call_check(&test);
}

TEST_EACH(the_gradient_of_a_dynamic_convolution_is_the_formula, N_CASES)
{
    struct call_test test = make(CALL_dynamic_conv_backward, _i);

    call_check(&test);
}

/* A row's elements in calls of so many, each with those before it that it reaches: as texts are generated. */
TEST_EACH(elements_after_earlier_ones_are_as_in_the_whole_row, 4 * COMMON_TYPES)
{
    static const size_t at_once[] = {1, 2, 5, 11};
    const size_t n = at_once[_i / COMMON_TYPES], taps = 7, heads = 3, width = 36, tokens = 20;
    struct call_test all = {.type = (enum number_type)(_i % COMMON_TYPES),
                            .call = {.kind = CALL_dynamic_conv,
                                     .dynamic_conv = {.n_rows = 1,
                                                      .n_tokens = tokens,
                                                      .n = width,
                                                      .n_heads = heads,
                                                      .n_taps = taps,
                                                      .n_before = taps - 1}},
                            .near = near},
                     some = all;
    const size_t x_bytes = width * number_bytes(all.type), scores_bytes = heads * taps * number_bytes(all.type);

    call_make(&all);
    call_once(&all);
    for (size_t first = 0; first < tokens; first += n) {
        struct device_dynamic_conv *op = &some.call.dynamic_conv;
        op->n_tokens = first + n < tokens ? n : tokens - first;
        op->n_earlier = first < taps - 1 ? first : taps - 1;
        call_make(&some);
        memcpy(call_get(call_find(&some, "x")),
               (const char *)all.host.dynamic_conv.x + (first - op->n_earlier) * x_bytes,
               (op->n_earlier + op->n_tokens) * x_bytes);
        memcpy(call_get(call_find(&some, "scores")), (const char *)all.host.dynamic_conv.scores + first * scores_bytes,
               op->n_tokens * scores_bytes);
        call_once(&some);
        ck_assert_mem_eq(some.host.dynamic_conv.y, (const char *)all.host.dynamic_conv.y + first * x_bytes,
                         op->n_tokens * x_bytes);
    }
}

/* Each row in a call of its own: a microbatch changes no bit. */
TEST_EACH(a_row_alone_is_as_among_others, N_CASES)
{
    const struct shape *s = &shapes[_i / COMMON_TYPES];
    struct call_test all = make(CALL_dynamic_conv, _i), alone = all;
    const size_t x_bytes = s->n_tokens * s->n * number_bytes(all.type),
                 scores_bytes = s->n_tokens * s->n_heads * s->n_taps * number_bytes(all.type);

    all.prepare = alone.prepare = NULL;
    all.call.dynamic_conv.lengths = alone.call.dynamic_conv.lengths = NULL;
    alone.call.dynamic_conv.n_rows = 1;
    call_make(&all);
    call_once(&all);
    for (size_t row = 0; row < s->n_rows; row++) {
        call_make(&alone);
        memcpy(call_get(call_find(&alone, "x")), (const char *)all.host.dynamic_conv.x + row * x_bytes, x_bytes);
        memcpy(call_get(call_find(&alone, "scores")), (const char *)all.host.dynamic_conv.scores + row * scores_bytes,
               scores_bytes);
        alone.host.dynamic_conv.dropout.first_row = all.call.dynamic_conv.dropout.first_row + row;
        call_once(&alone);
        ck_assert_mem_eq(alone.host.dynamic_conv.y, (const char *)all.host.dynamic_conv.y + row * x_bytes, x_bytes);
    }
}

/* Softmax of one is 1: y is x, whatever the scores, and its gradient x's; scores get none. */
TEST_EACH(a_filter_of_one_tap_changes_nothing, COMMON_TYPES)
{
    struct call_test test = {.type = (enum number_type)_i,
                             .call = {.kind = CALL_dynamic_conv,
                                      .dynamic_conv = {.n_rows = 2, .n_tokens = 5, .n = 36, .n_heads = 4, .n_taps = 1}},
                             .near = near};
    const size_t bytes = 2 * 5 * 36 * number_bytes(test.type);

    call_make(&test);
    call_once(&test);
    ck_assert_mem_eq(test.host.dynamic_conv.y, test.host.dynamic_conv.x, bytes);
    test.call.kind = CALL_dynamic_conv_backward;
    call_make(&test);
    call_once(&test);
    ck_assert_mem_eq(test.host.dynamic_conv.x_gradient, test.host.dynamic_conv.y_gradient, bytes);
    for (size_t i = 0; i < 2 * 5 * 4; i++)
        ck_assert_float_eq(operation_get(test.type, test.host.dynamic_conv.scores_gradient, i), 0);
}

/* Scores of 0, as of a W that is 0: the mean of the neighbours, of which those beyond the row are 0 and count. */
TEST_EACH(equal_scores_give_the_mean_of_the_neighbours, 2)
{
    const size_t n_before = _i ? 2 : 1; /* causal, or not */
    struct call_test test = {
        .call = {.kind = CALL_dynamic_conv,
                 .dynamic_conv = {.n_rows = 1, .n_tokens = 4, .n = 2, .n_heads = 1, .n_taps = 3, .n_before = n_before}},
        .near = near};
    static const float x[] = {3, -6, 6, 12, 9, 0, -3, 3};
    static const float expected[2][8] = {{3, 2, 6, 2, 4, 5, 2, 1}, {1, -2, 3, 2, 6, 2, 4, 5}};

    call_make(&test);
    memcpy(call_get(call_find(&test, "x")), x, sizeof x);
    memset(call_get(call_find(&test, "scores")), 0, 12 * sizeof(float));
    call_once(&test);
    for (size_t i = 0; i < COUNT(x); i++)
        ck_assert_float_eq_tol(((float *)test.host.dynamic_conv.y)[i], expected[_i][i], 12 * 0x1p-22f);
}

/* What comes after an element changes none of its bits. */
TEST_EACH(a_causal_filter_sees_nothing_later, COMMON_TYPES)
{
    struct call_test test = {
        .type = (enum number_type)_i,
        .call = {.kind = CALL_dynamic_conv,
                 .dynamic_conv = {.n_rows = 1, .n_tokens = 9, .n = 24, .n_heads = 3, .n_taps = 5, .n_before = 4}},
        .near = near};
    const size_t seen = 6, bytes = seen * 24 * number_bytes(test.type);
    char before[6 * 24 * sizeof(float)];

    call_make(&test);
    call_once(&test);
    memcpy(before, test.host.dynamic_conv.y, bytes);
    for (size_t i = seen * 24; i < 9 * 24; i++)
        operation_set(test.type, call_get(call_find(&test, "x")), i, 1000);
    for (size_t i = seen * 15; i < 9 * 15; i++)
        operation_set(test.type, call_get(call_find(&test, "scores")), i, -3);
    call_once(&test);
    ck_assert_mem_eq(test.host.dynamic_conv.y, before, bytes);
    ck_assert_float_ne(operation_get(test.type, test.host.dynamic_conv.y, seen * 24), 0);
}

/* Sparse weights into their places, and gradients from there. */
#include "tests/kit/device/operation.h"
#include "tests/kit/test.h"

#include <string.h>

SUITE_LABELS(on_cuda)

/* `of` rows times columns elements are there, of n that there is room for. */
static const struct shape {
    size_t rows, columns, n, of;
} shapes[] = {{1, 1, 1, 1},  {1, 200, 60, 60},       {3, 64, 40, 17},      {7, 33, 231, 231}, {16, 288, 1500, 1383},
              {5, 9, 12, 0}, {130, 256, 9984, 9000}, {2, 40000, 500, 433}, {12, 75, 400, 350}};

static const struct shape *shape_of(const struct call_test *test)
{
    const struct device_sparse *op = &test->call.scatter;

    for (size_t i = 0; i < COUNT(shapes); i++)
        if (shapes[i].rows == op->rows && shapes[i].columns == op->columns)
            return &shapes[i];
    ck_abort_msg("no shape");
    return NULL;
}

/* Row by row, every so-manieth element of the matrix; what no row has is not read. */
static void place(struct call_test *test)
{
    const struct shape *s = shape_of(test);
    uint32_t *const starts = call_get(call_find(test, "starts")), *const places = call_get(call_find(test, "places"));
    const size_t all = s->rows * s->columns, words = device_sparse_words(s->columns);
    size_t row = 0;

    starts[0] = 0;
    memset(places, 0, s->rows * words * sizeof *places);
    for (size_t i = 0; i < s->of; i++) {
        const size_t at = i * all / s->of, column = at % s->columns;
        for (; row < at / s->columns; row++)
            starts[row + 1] = (uint32_t)i;
        places[row * words + column / 32] |= UINT32_C(1) << column % 32;
    }
    for (; row < s->rows; row++)
        starts[row + 1] = (uint32_t)s->of;
}

/* Places beyond the columns, elements beyond those that there are, more and fewer than places: what a daemon that is
 * none might send. */
static void misplace(struct call_test *test)
{
    uint32_t *const starts = call_get(call_find(test, "starts")), *const places = call_get(call_find(test, "places"));
    const struct shape *s = shape_of(test);
    const size_t words = device_sparse_words(s->columns);

    place(test);
    for (size_t row = 0; s->columns % 32 > 0 && row < s->rows; row++)
        places[(row + 1) * words - 1] |= UINT32_MAX << s->columns % 32;
    starts[s->rows] = UINT32_MAX;
    starts[s->rows / 2] -= 2;
}

static double copied(const struct call_test *test, const char *output)
{
    (void)test, (void)output;
    return 0;
}

SUITE_FIXTURE(mirror_forget, NULL)

static struct call_test test_of(enum call_kind kind, int i)
{
    const struct shape *s = &shapes[i / NUMBER_TYPES];

    return (struct call_test){.type = (enum number_type)(i % NUMBER_TYPES),
                              .call = {.kind = kind, .scatter = {.rows = s->rows, .columns = s->columns, .n = s->n}},
                              .near = copied,
                              .prepare = place,
                              .is_elementwise = true};
}

TEST_EACH(weights_are_put_into_their_places, COUNT(shapes) * NUMBER_TYPES)
{
    struct call_test test = test_of(CALL_scatter, _i);

    call_check(&test);
}

TEST_EACH(gradients_are_taken_from_their_places, COUNT(shapes) * NUMBER_TYPES)
{
    struct call_test test = test_of(CALL_gather, _i);

    call_check(&test);
}

TEST_EACH(gradients_are_put_into_their_places_in_fp32, COUNT(shapes) * NUMBER_TYPES)
{
    struct call_test test = test_of(CALL_scatter, _i);

    test.call.scatter.wide = true;
    call_check(&test);
}

TEST_EACH(places_beyond_the_matrix_are_not_followed, 4 * NUMBER_TYPES)
{
    const int shape = _i / (2 * NUMBER_TYPES) ? 4 : COUNT(shapes) - 1;
    struct call_test test =
        test_of(_i / NUMBER_TYPES % 2 ? CALL_gather : CALL_scatter, shape * NUMBER_TYPES + _i % NUMBER_TYPES);

    test.prepare = misplace;
    call_check(&test);
}

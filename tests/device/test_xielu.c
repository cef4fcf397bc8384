/* The activation with two trained numbers. */
#include "tests/kit/device/operation.h"
#include "tests/kit/test.h"

#include <math.h>

SUITE_LABELS(single, on_cuda)

/* One element, an end inside every vector, several parts of the CPU's and blocks of a CUDA device's, in whole packs and
 * in none. */
static const size_t sizes[] = {1, 33, 4096, 9001, 40000};
enum { N_CASES = COUNT(sizes) * NUMBER_TYPES };

/* Elements: a few roundings of terms that do not cancel. Sums over all of them: in fp32 on a CUDA device, thread by
 * thread. */
static double near(const struct call_test *test, const char *output)
{
    return (strncmp(output, "of_", 3) == 0 ? 8 + 0.5 * sqrt((double)test->call.xielu.n) : 8) * 0x1p-24;
}

/* 0, between the bound and 0, the ends of the series, where the exponential is 0, and large ones. */
static void place_corners(struct call_test *test)
{
    static const float corners[] = {0, -5e-7f, -1e-3f, -0.999f, -1.001f, -5, -90, 1e-3f, 20};
    const struct call_array *x = call_find(test, "x");

    for (size_t i = 0; i < COUNT(corners) && i < x->n; i++)
        operation_set(test->type, call_get(x), x->n - 1 - i, corners[i]);
}

SUITE_FIXTURE(mirror_forget, NULL)

/* Forward; backward into an array of its own, in the gradient's place, and of one number alone. */
TEST_EACH(xielu_is_the_formula, 4 * N_CASES)
{
    const int way = _i / N_CASES;
    struct call_test test = {
        .type = (enum number_type)(_i % NUMBER_TYPES),
        .call = {.kind = way ? CALL_xielu_backward : CALL_xielu,
                 .xielu = {.n = sizes[_i % N_CASES / NUMBER_TYPES], .beta = 0.5f, .bound = -1e-6f}},
        .near = near,
        .prepare = place_corners};

    if (way == 2)
        test.onto[0].written = "x_gradient", test.onto[0].read = "y_gradient";
    if (way == 1 || way == 2)
        test.call.xielu.of_positive = (void *)call_given;
    if (way == 1 || way == 3)
        test.call.xielu.of_negative = (void *)call_given;
    call_check(&test);
}

/* A NaN comes through, and so the loss shows it. */
TEST_EACH(xielu_passes_nan_on, NUMBER_TYPES)
{
    struct call_test test = {.type = (enum number_type)_i,
                             .call = {.kind = CALL_xielu, .xielu = {.n = 40, .beta = 0.5f, .bound = -1e-6f}}};

    call_make(&test);
    operation_set(test.type, call_get(call_find(&test, "x")), 17, NAN);
    call_once(&test);
    for (size_t i = 0; i < test.call.xielu.n; i++)
        ck_assert_int_eq(isnan(operation_get(test.type, test.host.xielu.y, i)), i == 17);
}

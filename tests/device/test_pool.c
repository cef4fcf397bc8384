/* Pooling of images. */
#include "proto/base/size.h"
#include "tests/kit/device/operation.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

SUITE_LABELS(on_cuda)

/* One of everything; ResNets' first pool and last; windows side by side, that overlap, or leave pixels out; whole
 * images; channels of no whole vector, and of several; lines and columns that no window reaches; the most taps. */
static const struct shape {
    size_t n_rows, height, width, n;
    struct image_window window;
} shapes[] = {
    {1, 1, 1, 1, {1, 1, 1, 0}},  {2, 8, 8, 64, {3, 3, 2, 1}}, {3, 4, 4, 40, {4, 4, 1, 0}},
    {2, 5, 7, 3, {2, 2, 2, 0}},  {1, 9, 6, 33, {3, 3, 1, 1}}, {2, 7, 8, 17, {2, 3, 4, 1}},
    {2, 3, 2, 16, {3, 2, 1, 0}}, {4, 6, 5, 8, {3, 2, 2, 1}},  {1, 17, 18, 5, {16, 16, 1, 8}},
    {5, 7, 7, 24, {7, 7, 1, 0}},
};
enum { N_CASES = COUNT(shapes) * COMMON_TYPES };

/* A largest number is one of them. A mean is a sum of n numbers, each rounded once; a gradient one of as many shares or
 * fewer. */
static double near(const struct call_test *test, const char *output)
{
    const struct image_window *w = &test->call.max_pool.window;

    return test->call.kind == CALL_max_pool ? 0 : (4 * sqrt(w->height * w->width) + (output[0] == 'x')) * 0x1p-24;
}

static struct call_test make(enum call_kind kind, int i)
{
    const struct shape *s = &shapes[i / COMMON_TYPES];

    return (struct call_test){.type = (enum number_type)(i % COMMON_TYPES),
                              .call = {.kind = kind,
                                       .max_pool = {.n_rows = s->n_rows,
                                                    .height = s->height,
                                                    .width = s->width,
                                                    .n = s->n,
                                                    .window = s->window}},
                              .near = near};
}

SUITE_FIXTURE(mirror_forget, NULL)

/* Few numbers, many of them equal. */
static void repeat(struct call_test *test)
{
    const struct call_array *x = call_find(test, "x");

    for (size_t i = 0; i < x->n; i++)
        operation_set(test->type, call_get(x), i, (float)(i * 7919 % 5) - 2);
}

TEST_EACH(the_largest_number_is_that_of_its_window, 2 * N_CASES)
{
    struct call_test test = make(CALL_max_pool, _i / 2);

    test.prepare = _i % 2 ? repeat : NULL;
    call_check(&test);
}

TEST_EACH(its_gradient_goes_to_the_first_pixel_that_has_it, 4 * N_CASES)
{
    struct call_test test = make(CALL_max_pool_backward, _i / 4);

    test.prepare = _i % 2 ? repeat : NULL;
    test.call.max_pool_backward.accumulate = _i / 2 % 2;
    call_check(&test);
}

TEST_EACH(a_mean_is_that_of_its_window, N_CASES)
{
    struct call_test test = make(CALL_average_pool, _i);

    call_check(&test);
}

TEST_EACH(the_gradient_of_a_mean_is_shared_equally, 2 * N_CASES)
{
    struct call_test test = make(CALL_average_pool_backward, _i / 2);

    test.call.average_pool_backward.accumulate = _i % 2;
    call_check(&test);
}

/* Blocks of ResNets' inputs, and of their gradients by the window of 3 x 3 and of 1 x 1, with each tap; ragged ones;
 * blocks of one pixel, and of the whole image; blocks that no window reaches; channels of no whole vector. */
static const struct device_sum_blocks blocks[] = {
    {1, 1, 1, 1, .side = 1, .window = {1, 1, 1, 0}},
    {2, 8, 8, 64, .side = 2, .window = {1, 1, 1, 0}, .mean = true},
    {2, 5, 7, 3, .side = 4, .window = {1, 1, 1, 0}, .mean = true},
    {1, 4, 4, 33, .side = 8, .window = {1, 1, 1, 0}, .mean = true},
    {2, 8, 8, 16, .side = 2, .window = {3, 3, 1, 1}, .down = 0, .across = 0},
    {2, 8, 8, 16, .side = 2, .window = {3, 3, 1, 1}, .down = 1, .across = 2},
    {2, 7, 9, 5, .side = 4, .window = {3, 3, 2, 1}, .down = 2, .across = 0},
    {1, 8, 8, 40, .side = 2, .window = {1, 1, 2, 0}},
    {3, 9, 6, 8, .side = 2, .window = {2, 3, 5, 1}, .down = 1, .across = 1},
    {1, 6, 6, 4, .side = 3, .window = {3, 3, 3, 0}, .down = 2, .across = 1, .mean = true},
};

static double near_blocks(const struct call_test *test, const char *output)
{
    const struct device_sum_blocks *op = &test->call.sum_blocks;

    return (4 * op->side + (output[0] == 'y' && op->mean)) * 0x1p-24;
}

TEST_EACH(a_block_s_sum_is_that_of_its_windows, COUNT(blocks) * COMMON_TYPES)
{
    struct call_test test = {.type = (enum number_type)(_i % COMMON_TYPES),
                             .call = {.kind = CALL_sum_blocks, .sum_blocks = blocks[_i / COMMON_TYPES]},
                             .near = near_blocks};

    call_check(&test);
}

/* One channel, 3 numbers in a line: the window of the first two, and of the last two. */
static void check_line(enum number_type type, const float *x, const float *y, const float *dx)
{
    struct call_test test = {
        .type = type,
        .call = {.kind = CALL_max_pool,
                 .max_pool = {.n_rows = 1, .height = 1, .width = 3, .n = 1, .window = {1, 2, 1, 0}}},
        .near = near};

    for (int backward = 0; backward < 2; backward++) {
        test.call.kind = backward ? CALL_max_pool_backward : CALL_max_pool;
        call_make(&test);
        for (size_t i = 0; i < 3; i++)
            operation_set(type, call_get(call_find(&test, "x")), i, x[i]);
        for (size_t i = 0; i < 2 && backward; i++)
            operation_set(type, call_get(call_find(&test, "y_gradient")), i, (float)(4 + i));
        call_once(&test);
        for (size_t i = 0; i < (backward ? 3 : 2); i++) {
            const float got = operation_get(type, backward ? test.host.max_pool.x_gradient : test.host.max_pool.y, i),
                        want = (backward ? dx : y)[i];
            ck_assert_msg(isnan(want) ? isnan(got) : got >= want && got <= want, "%zu: %g, not %g", i, (double)got,
                          (double)want);
        }
    }
}

TEST_EACH(not_a_number_is_the_largest, COMMON_TYPES)
{
    check_line((enum number_type)_i, (const float[]){3, NAN, 5}, (const float[]){NAN, NAN}, (const float[]){0, 9, 0});
}

TEST_EACH(the_least_number_may_be_the_largest, COMMON_TYPES)
{
    check_line((enum number_type)_i, (const float[]){-INFINITY, -INFINITY, -INFINITY},
               (const float[]){-INFINITY, -INFINITY}, (const float[]){4, 5, 0});
}

/* Convolution of images. */
#include "proto/base/size.h"
#include "tests/kit/device/operation.h"
#include "tests/kit/test.h"

#include <math.h>
#include <string.h>

SUITE_LABELS(on_cuda, on_cudnn)

/* One of everything; every window that ResNets have, at either stride; windows larger than the image, and beside it;
 * lines and columns that no window reaches; odd channels, several panels and tiles of them, and so many that one tap is
 * several steps; groups, down to one channel each; more taps than a step has; images of one pixel, and of several
 * steps; slices of images, of a small gradient and of one of as many tiles as there are groups. Last, those that a
 * library may compute, where there is one: blocks of 16 images, and some that are left over. */
static const struct shape {
    size_t n_rows, height, width, n_in, n_out, n_groups;
    struct image_window window;
} shapes[] = {
    {1, 1, 1, 1, 1, 1, {1, 1, 1, 0}},     {2, 4, 5, 3, 7, 1, {1, 1, 1, 0}},         {3, 6, 6, 16, 16, 1, {3, 3, 1, 1}},
    {2, 7, 5, 16, 33, 1, {3, 3, 2, 1}},   {3, 8, 8, 20, 24, 1, {1, 1, 2, 0}},       {1, 15, 13, 3, 10, 1, {7, 7, 2, 3}},
    {2, 5, 5, 5, 6, 1, {3, 3, 1, 0}},     {2, 9, 6, 8, 12, 4, {3, 3, 2, 1}},        {2, 5, 7, 6, 6, 6, {3, 3, 1, 1}},
    {4, 2, 2, 64, 40, 1, {3, 3, 1, 1}},   {2, 3, 3, 4, 4, 1, {2, 2, 3, 0}},         {1, 6, 7, 4, 5, 1, {1, 3, 1, 1}},
    {2, 2, 3, 2, 3, 1, {1, 1, 1, 2}},     {1, 24, 23, 2, 3, 1, {3, 3, 1, 1}},       {1, 3, 4, 523, 30, 1, {3, 3, 2, 1}},
    {1, 4, 3, 600, 410, 1, {1, 1, 2, 0}}, {5, 1, 1, 40, 36, 1, {3, 3, 1, 1}},       {2, 11, 4, 4, 8, 2, {7, 5, 3, 3}},
    {7, 17, 16, 3, 5, 1, {3, 3, 1, 1}},   {2, 16, 17, 256, 256, 256, {1, 1, 1, 0}}, {35, 4, 4, 8, 16, 1, {3, 3, 1, 1}},
    {18, 5, 6, 16, 8, 1, {3, 3, 2, 1}},   {16, 6, 4, 24, 16, 1, {1, 1, 2, 0}},      {3, 8, 8, 32, 40, 1, {1, 1, 1, 0}},
    {17, 8, 8, 3, 8, 1, {7, 7, 2, 3}},    {17, 4, 4, 16, 32, 2, {3, 3, 1, 1}},
};
enum { N_OWN = 20 /* of these no library is asked */, BLOCK = 16 /* images of its calls */ };
enum { N_CASES = COUNT(shapes) * NUMBER_TYPES };

/* As of a product of as many terms (test_matmul.c); of weights, these are pixels. A stored number that is added to is
 * in the sum. */
static double near(const struct call_test *test, const char *output)
{
    const struct device_conv2d *op = &test->call.conv2d;
    const size_t n = strcmp(output, "weight_gradient") == 0 ? device_conv2d_pixels(op)
                     : strcmp(output, "x_gradient") == 0
                         ? op->window.height * op->window.width * op->n_out / op->n_groups
                         : device_conv2d_taps(op);

    return 4 * 0x1p-24 * sqrt((double)n) + 0x1p-23;
}

/* On arrays of its own: what the call adds to must stay. */
static void prepare(struct mirror *at, struct call *call, const struct call_test *test)
{
    struct device_conv2d op = call->conv2d;
    char told[DEVICE_TOLD];

    for (unsigned i = 0; i < test->work.n_arrays; i++) {
        const struct call_array *a = &test->work.arrays[i];
        void *const room =
            a->use & CALL_WRITTEN ? mirror_scratch(at, a->n * call_type_bytes(a->type, test->type)) : NULL;
        if (room && op.weight_gradient)
            op.weight_gradient = room;
        else if (room && op.x_gradient)
            op.x_gradient = room;
        else if (room)
            op.y = room;
    }
    at->ops->prepare_conv2d(at->dev, &op, 1, backend_get()->convolution, told);
}

static bool is_librarys(const struct call_test *test)
{
    return test->before && test->type == NUMBER_BF16 && backend_get()->convolution != 0;
}

static struct call_test make(enum call_kind kind, int i)
{
    const struct shape *s = &shapes[i / NUMBER_TYPES];

    return (struct call_test){.type = (enum number_type)(i % NUMBER_TYPES),
                              .call = {.kind = kind,
                                       .conv2d = {.n_rows = s->n_rows,
                                                  .height = s->height,
                                                  .width = s->width,
                                                  .n_in = s->n_in,
                                                  .n_out = s->n_out,
                                                  .n_groups = s->n_groups,
                                                  .window = s->window}},
                              .before = s >= shapes + N_OWN ? prepare : NULL,
                              .near = near};
}

/* The simulated device, which is slow, takes the shape of many tiles for the gradient of weights alone, in fp32. Where
 * a library is found, what it is not asked for is left to the run without it. */
static bool is_left_out(const struct call_test *test)
{
    const bool is_large = backend_get()->simulated && test->call.conv2d.n_groups == 256;

    return (is_large && (test->type != NUMBER_FP32 || test->call.kind != CALL_conv2d_weight_gradient)) ||
           (backend_get()->convolution != 0 && !test->before);
}

SUITE_FIXTURE(mirror_forget, NULL)

TEST_EACH(a_convolution_is_the_formula, 2 * N_CASES)
{
    struct call_test test = make(CALL_conv2d, _i / 2);

    test.call.conv2d.bias = _i % 2 ? call_given : NULL;
    if (!is_left_out(&test))
        call_check(&test);
}

TEST_EACH(the_gradient_of_its_input_is_the_formula, 2 * N_CASES)
{
    struct call_test test = make(CALL_conv2d_input_gradient, _i / 2);

    test.call.conv2d.accumulate = _i % 2;
    if (!is_left_out(&test))
        call_check(&test);
}

TEST_EACH(the_gradient_of_its_weights_is_the_formula, 2 * N_CASES)
{
    struct call_test test = make(CALL_conv2d_weight_gradient, _i / 2);

    test.call.conv2d.beta = (float)(_i % 2);
    if (!is_left_out(&test))
        call_check(&test);
}

/* What padding covers is 0, not what lies beside the image in memory. */
TEST_EACH(infinities_reach_their_windows_alone, N_CASES)
{
    struct call_test test = make(CALL_conv2d, _i);
    const double *expected[CALL_ARRAYS];
    const struct device_conv2d *op = &test.host.conv2d;

    if (is_left_out(&test))
        TEST_SKIP("too slow here, or of another device: other tests have it");
    call_make(&test);
    for (size_t i = 0; i < op->n_in; i++)
        operation_set(test.type, (void *)(uintptr_t)op->x, i, INFINITY);
    call_expect(&test, expected);
    call_once(&test);
    for (size_t i = 0; i < call_find(&test, "y")->n; i++)
        ck_assert_int_eq(isfinite(operation_get(test.type, op->y, i)), isfinite(expected[2][i]));
}

/* Rows first .. first+n-1 in a call of their own. */
static void make_some(struct call_test *some, const struct call_test *all, size_t first, size_t n)
{
    const struct device_conv2d *of = &all->host.conv2d;
    const size_t bytes = number_bytes(all->type), x = of->height * of->width * of->n_in * bytes,
                 y = device_conv2d_pixels(of) / of->n_rows * of->n_out * bytes;

    some->type = all->type, some->call = all->call, some->before = all->before, some->near = all->near;
    some->call.conv2d.n_rows = n;
    call_make(some);
    for (unsigned i = 0; i < some->work.n_arrays; i++) {
        const struct call_array *array = &some->work.arrays[i];
        const size_t row = array->name[0] == 'x' ? x : array->name[0] == 'y' ? y : 0;
        const char *from = call_get(&all->work.arrays[i]);
        memcpy(call_get(array), from + first * row, array->n * call_type_bytes(array->type, all->type));
    }
}

/* Images in several calls, one, two or a block each: a microbatch changes no bit, also of the weights' gradient, if a
 * library gets whole blocks. */
TEST_EACH(images_in_calls_of_their_own_give_the_same_bits, 3 * N_CASES)
{
    static const struct {
        enum call_kind kind;
        const char *result;
    } kinds[] = {{CALL_conv2d, "y"},
                 {CALL_conv2d_input_gradient, "x_gradient"},
                 {CALL_conv2d_weight_gradient, "weight_gradient"}};
    static const size_t some_at_once[] = {1, 2, BLOCK};
    const size_t at_once = some_at_once[_i % 3];

    for (int k = 0; k < COUNT(kinds); k++) {
        const bool sums = kinds[k].kind == CALL_conv2d_weight_gradient;
        struct call_test all = make(kinds[k].kind, _i / 3), together = all;

        if (is_left_out(&all) || (sums && at_once < BLOCK && is_librarys(&all)))
            continue;
        all.call.conv2d.beta = together.call.conv2d.beta = 1;
        call_make(&all);
        call_make(&together);
        call_once(&together);
        const struct call_array *const expected = call_find(&together, kinds[k].result);
        const size_t bytes = expected->n * call_type_bytes(expected->type, all.type),
                     of_row = bytes / all.call.conv2d.n_rows;
        /* Of what a library computes, the first images and the last: it takes long to begin. */
        const size_t n_rows = all.call.conv2d.n_rows,
                     step = all.before && !sums && at_once < BLOCK ? n_rows - at_once : at_once;
        for (size_t row = 0; row < n_rows; row += step) {
            const size_t n = size_smaller(at_once, n_rows - row);
            struct call_test some = {0};

            make_some(&some, &all, row, n);
            call_once(&some);
            const void *const result = call_get(call_find(&some, kinds[k].result));
            if (sums)
                call_set(call_find(&all, kinds[k].result), result);
            else
                ck_assert_mem_eq(result, (const char *)call_get(expected) + row * of_row, n * of_row);
        }
        if (sums)
            ck_assert_mem_eq(call_get(call_find(&all, kinds[k].result)), call_get(expected), bytes);
    }
}

/* By hand: a 2 x 2 image, a window of 2 x 2 at stride 1 with padding 1, weights 1, 2, 3, 4. */
TEST_EACH(a_small_convolution_is_as_by_hand, COMMON_TYPES)
{
    static const float x[] = {1, 10, 100, 1000}, w[] = {1, 2, 3, 4},
                       y[] = {4, 43, 30, 402, 4321, 3010, 200, 2100, 1000};
    struct call_test test = {.type = (enum number_type)_i,
                             .call = {.kind = CALL_conv2d,
                                      .conv2d = {.n_rows = 1,
                                                 .height = 2,
                                                 .width = 2,
                                                 .n_in = 1,
                                                 .n_out = 1,
                                                 .n_groups = 1,
                                                 .window = {2, 2, 1, 1}}},
                             .near = near};

    call_make(&test);
    for (size_t i = 0; i < 4; i++) {
        operation_set(test.type, call_get(call_find(&test, "x")), i, x[i]);
        operation_set(test.type, call_get(call_find(&test, "weight")), i, w[i]);
    }
    call_once(&test);
    for (size_t i = 0; i < COUNT(y); i++)
        ck_assert_float_eq(operation_get(test.type, test.host.conv2d.y, i),
                           test.type == NUMBER_FP32 ? y[i]
                                                    : number_from_half(test.type, number_to_half(test.type, y[i])));
}

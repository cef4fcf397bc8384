/* Programs of images: tokens as pixels, and the mean of an image, which is one element of a row; gradients from
 * means. */
#include "device/find.h"
#include "proto/operation/operation.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdlib.h>

enum { ROWS = 2, HEIGHT = 2, WIDTH = 3, PIXELS = HEIGHT * WIDTH };

/* By hand: 1 x 1 with weight 3 and bias 1, then the mean: 3 times the mean of the tokens, and 1. */
TEST(a_mean_is_of_all_pixels_that_tokens_are)
{
    const struct program_conv2d_options conv = {
        .height = HEIGHT, .width = WIDTH, .window = {1, 1, 1, 0}, .n_groups = 1, .bias = true};
    static const float x[ROWS * PIXELS] = {1, 2, 3, 4, 5, 6, -1, 0, 0, 0, 0, 7}, weight = 3, bias = 1;
    float y[ROWS * PIXELS], mean[ROWS];
    struct program p;
    struct schedule forward;
    struct error err = {""};
    struct device *dev;

    const int tokens = program_begin(&p, 1);
    p.own[0] = (struct program_own){.height = HEIGHT, .width = WIDTH};
    const int image = program_conv2d(&p, tokens, "conv", PROGRAM_OWN, 1, &conv);
    p.own[1] = (struct program_own){.height = 1, .width = 1};
    const int value = program_average_image(&p, image, PROGRAM_OWN + 1);
    ck_assert_uint_eq(program_elements(&p, value, ROWS, PIXELS), ROWS);
    ck_assert_int_eq(device_cpu.open(&dev, 0, NUMBER_FP32, 4096, 2, &err), 0);
    schedule_forward(&forward, &p, 0);
    struct operation_run run = {.ops = &device_cpu,
                                .dev = dev,
                                .program = &p,
                                .schedule = &forward,
                                .weights = {&weight, &bias},
                                .n_rows = ROWS,
                                .n_tokens = PIXELS};
    for (int i = 0; i < forward.n_buffers; i++)
        run.at[i] = forward.buffers[i].value == tokens  ? (void *)(uintptr_t)x
                    : forward.buffers[i].value == image ? (void *)y
                    : forward.buffers[i].value == value ? (void *)mean
                                                        : NULL;
    operation_run_steps(&run, 0, forward.n_steps);
    ck_assert_float_eq_tol(mean[0], 3 * 3.5f + 1, 4 * 0x1p-20f);
    ck_assert_float_eq_tol(mean[1], 3 * 1.f + 1, 4 * 0x1p-20f);
    device_cpu.close(dev);
}

/* ---- the gradient of a convolution's weight from means ---- */

/* A size that no block divides; 1 x 1; groups, strides, no padding; blocks larger than the image. */
static const struct device_conv2d convolutions[] = {
    {2, 5, 7, .n_in = 3, .n_out = 4, .n_groups = 1, .window = {3, 3, 1, 1}},
    {3, 8, 8, .n_in = 5, .n_out = 2, .n_groups = 1, .window = {1, 1, 1, 0}},
    {2, 9, 6, .n_in = 4, .n_out = 6, .n_groups = 2, .window = {3, 3, 2, 1}},
    {1, 6, 7, .n_in = 6, .n_out = 6, .n_groups = 3, .window = {2, 3, 1, 0}},
};
static const uint32_t sides[] = {2, 4, 8};

/* -1 .. 1, other numbers for another seed. */
static float *numbers(size_t n, uint32_t seed)
{
    float *x = malloc(n * sizeof *x);

    ck_assert_ptr_nonnull(x);
    for (size_t i = 0; i < n; i++)
        x[i] = (float)((i + 1) * 2654435761u % 1000003u * (seed + 1) % 2001u) / 1000 - 1;
    return x;
}

static float *zeros(size_t n)
{
    float *x = calloc(n, sizeof *x);

    ck_assert_ptr_nonnull(x);
    return x;
}

static size_t count_inputs(const struct device_conv2d *c)
{
    return c->n_rows * c->height * c->width * c->n_in;
}

static size_t count_weights(const struct device_conv2d *c)
{
    return c->n_out * c->window.height * c->window.width * c->n_in / c->n_groups;
}

/* The device's own gradient of the weight, which is PyTorch's (test_convolutions), added to what is there. */
static void add_exact(const struct device_conv2d *c, struct device *dev, const float *x, const float *g,
                      float *gradient)
{
    struct device_conv2d call = *c;

    call.x = x, call.y_gradient = g, call.weight_gradient = gradient, call.beta = 1;
    device_cpu.conv2d_weight_gradient(dev, &call);
}

/* Each number becomes its block's mean. In double. */
static void take_means(float *x, const struct device_conv2d *c, uint32_t side)
{
    double *sums = calloc(c->n_rows * c->height * c->width * c->n_in, sizeof *sums);

    ck_assert_ptr_nonnull(sums);
    for (int pass = 0; pass < 2; pass++)
        for (size_t i = 0; i < c->n_rows * c->height * c->width * c->n_in; i++) {
            const size_t pixel = i / c->n_in, line = pixel / c->width % c->height, column = pixel % c->width,
                         top = line / side * side, left = column / side * side;
            const size_t block =
                ((pixel / c->width / c->height * c->height + top) * c->width + left) * c->n_in + i % c->n_in;
            const size_t down = c->height - top < side ? c->height - top : side,
                         across = c->width - left < side ? c->width - left : side;
            if (pass == 0)
                sums[block] += (double)x[i];
            else
                x[i] = (float)(sums[block] / (double)(down * across));
        }
    free(sums);
}

/* relu, then the convolution, backward: the gradient of its weight, added to what is there; of x. */
static void run_backward(const struct device_conv2d *c, uint32_t side, struct device *dev, float *x, float *g,
                         const float *weight, float *gradient)
{
    static struct program p;
    static struct schedule s;
    const struct program_conv2d_options options = {.window = c->window,
                                                   .n_groups = (uint32_t)c->n_groups,
                                                   .deviation = 1};
    const size_t largest = c->n_rows * (c->height + 2) * (c->width + 2) * (c->n_in + c->n_out);

    program_init(&p);
    p.own[0] = (struct program_own){.height = (uint32_t)c->height, .width = (uint32_t)c->width};
    p.own[1] =
        (struct program_own){.height = (uint32_t)device_conv2d_height(c), .width = (uint32_t)device_conv2d_width(c)};
    const int in = program_input(&p, "", PROGRAM_OWN, (uint32_t)c->n_in);
    const int a = program_activation(&p, in, MODEL_RELU);
    program_output(&p, "", program_conv2d(&p, a, "conv", PROGRAM_OWN + 1, (uint32_t)c->n_out, &options));
    program_pool(&p, side);
    program_compress(&p, 0);
    schedule_backward(&s, &p, 0);
    struct operation_run run = {.ops = &device_cpu,
                                .dev = dev,
                                .program = &p,
                                .schedule = &s,
                                .weights = {weight},
                                .gradients = {gradient},
                                .n_rows = (uint32_t)c->n_rows,
                                .n_tokens = 1};
    for (int i = 0; i < s.n_buffers; i++) {
        const bool is_g = s.buffers[i].place == SCHEDULE_GRADIENT;
        run.at[i] = s.buffers[i].place == SCHEDULE_INPUT ? x : is_g ? g : numbers(largest, 9);
    }
    operation_run_steps(&run, 0, s.n_steps);
    for (int i = 0; i < s.n_buffers; i++)
        if (run.at[i] != x && run.at[i] != g)
            free(run.at[i]);
}

/* A convolution behind a relu, with means: what its tests take. */
struct pooled {
    struct device_conv2d c;
    uint32_t side;
    size_t n_x, n_g, n_weight;
    float *x, *g, *weight;
    struct device *dev;
};

static struct pooled open_pooled(int test)
{
    struct pooled p = {.c = convolutions[test / (int)COUNT(sides)], .side = sides[test % (int)COUNT(sides)]};
    struct error err = {""};

    p.n_x = count_inputs(&p.c), p.n_g = device_conv2d_pixels(&p.c) * p.c.n_out, p.n_weight = count_weights(&p.c);
    p.x = numbers(p.n_x, 1), p.g = numbers(p.n_g, 2), p.weight = numbers(p.n_weight, 3);
    ck_assert_int_eq(device_cpu.open(&p.dev, 0, NUMBER_FP32, 4096, 2, &err), 0);
    return p;
}

static void close_pooled(struct pooled *p)
{
    device_cpu.close(p->dev);
    free(p->x), free(p->g), free(p->weight);
}

/* That of the convolution of the means. */
TEST_EACH(a_gradient_from_means_is_that_of_an_image_of_means, COUNT(convolutions) * COUNT(sides))
{
    struct pooled p = open_pooled(_i);
    float *const want = numbers(p.n_weight, 4), *const got = numbers(p.n_weight, 4);

    run_backward(&p.c, p.side, p.dev, p.x, p.g, p.weight, got);
    for (size_t i = 0; i < p.n_x; i++)
        p.x[i] = fmaxf(p.x[i], 0);
    take_means(p.x, &p.c, p.side);
    add_exact(&p.c, p.dev, p.x, p.g, want);
    for (size_t i = 0; i < p.n_weight; i++)
        ck_assert_float_eq_tol(got[i], want[i], 1e-5f * (1 + fabsf(want[i])));
    close_pooled(&p);
    free(want), free(got);
}

/* An image that is its own means loses nothing by them: with whole numbers, of which every sum is exact, the gradient
 * is the exact one to the bit. */
TEST_EACH(of_constant_blocks_the_gradient_is_exact, COUNT(convolutions) * COUNT(sides))
{
    struct pooled p = open_pooled(_i);
    float *const want = zeros(p.n_weight), *const got = zeros(p.n_weight);

    for (size_t i = 0; i < p.n_x; i++)
        p.x[i] = fabsf(p.x[i]); /* relu takes nothing */
    take_means(p.x, &p.c, p.side);
    for (size_t i = 0; i < p.n_x; i++)
        p.x[i] = roundf(16 * p.x[i]);
    for (size_t i = 0; i < p.n_g; i++)
        p.g[i] = roundf(16 * p.g[i]);
    run_backward(&p.c, p.side, p.dev, p.x, p.g, p.weight, got);
    add_exact(&p.c, p.dev, p.x, p.g, want);
    ck_assert_mem_eq(got, want, p.n_weight * sizeof *want);
    close_pooled(&p);
    free(want), free(got);
}

/* It is linear in the image, as the exact one is: what it lacks is the gradient of what the means leave of the
 * image. */
TEST_EACH(what_means_lose_is_the_gradient_of_what_they_leave, COUNT(convolutions) * COUNT(sides))
{
    struct pooled p = open_pooled(_i);
    float *const means = numbers(p.n_x, 1), *const exact = zeros(p.n_weight), *const rest = zeros(p.n_weight),
                 *const got = zeros(p.n_weight);
    double lost = 0;

    for (size_t i = 0; i < p.n_x; i++)
        p.x[i] = fabsf(p.x[i]), means[i] = p.x[i];
    run_backward(&p.c, p.side, p.dev, p.x, p.g, p.weight, got);
    add_exact(&p.c, p.dev, p.x, p.g, exact);
    take_means(means, &p.c, p.side);
    for (size_t i = 0; i < p.n_x; i++)
        p.x[i] -= means[i];
    add_exact(&p.c, p.dev, p.x, p.g, rest);
    for (size_t i = 0; i < p.n_weight; i++) {
        ck_assert_float_eq_tol(exact[i] - got[i], rest[i], 2e-5f * (1 + fabsf(exact[i])));
        lost = fmax(lost, fabs((double)rest[i]));
    }
    ck_assert_double_gt(lost, 0.1);
    close_pooled(&p);
    free(means), free(exact), free(rest), free(got);
}

/* In y's gradient it is linear, too. */
TEST_EACH(a_gradient_from_means_is_linear_in_that_of_its_output, COUNT(convolutions) * COUNT(sides))
{
    struct pooled p = open_pooled(_i);
    float *g[3], *got[3]; /* the third: of 4 times the first less 0.5 times the second */

    for (int k = 0; k < 3; k++)
        g[k] = numbers(p.n_g, 4 + (uint32_t)k), got[k] = zeros(p.n_weight);
    for (size_t i = 0; i < p.n_g; i++)
        g[2][i] = 4 * g[0][i] - 0.5f * g[1][i];
    for (int k = 0; k < 3; k++)
        run_backward(&p.c, p.side, p.dev, p.x, g[k], p.weight, got[k]);
    for (size_t i = 0; i < p.n_weight; i++)
        ck_assert_float_eq_tol(got[2][i], 4 * got[0][i] - 0.5f * got[1][i], 2e-5f * (1 + fabsf(4 * got[0][i])));
    close_pooled(&p);
    for (int k = 0; k < 3; k++)
        free(g[k]), free(got[k]);
}

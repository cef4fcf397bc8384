/* A program of images, forward: tokens as pixels, and the mean of an image, which is one element of a row. */
#include "device/find.h"
#include "proto/operation/operation.h"
#include "tests/kit/test.h"

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

/* device/cpu/kernels/conv2d.kernel.c - convolution of images: its tiles (conv2d_tile.kernel.c,
 * conv2d_weights.kernel.c), each computed by one thread. */
#include "device/cpu/kernels/conv2d.h"

#include "device/cpu/kernels/cut.h"
#include "device/cpu/kernels/value.h"

#include <assert.h>

static size_t work_of(const struct cpu_conv *c)
{
    return c->n_rows * c->down * c->across * c->n_groups * c->columns * c->depth * c->n_taps / CPU_TERMS;
}

static void run(struct device *dev, const struct cpu_conv *conv)
{
    const struct cut cut = cut_into(conv->n_rows * conv->down * conv->across, conv->columns, conv->n_groups, dev);

#pragma omp parallel for num_threads(cpu_threads(dev, work_of(conv))) schedule(dynamic)
    for (size_t i = 0; i < cut.all; i++) {
        const struct cpu_tile tile = cut_tile(&cut, i);

        device_count(dev->done);
        dev->kernels->conv(conv, i / cut.of_group, &tile, cut_scratch(dev));
    }
}

/* ---- forward ---- */

static struct cpu_conv forward_of(const struct device_conv2d *op)
{
    const size_t taps = device_conv2d_taps(op), in = op->n_in / op->n_groups, out = op->n_out / op->n_groups;
    struct cpu_conv conv = {.n_groups = op->n_groups,
                            .depth = in,
                            .columns = out,
                            .source = op->x,
                            .height = op->height,
                            .width = op->width,
                            .n_rows = op->n_rows,
                            .down = device_conv2d_height(op),
                            .across = device_conv2d_width(op),
                            .step = op->window.stride,
                            .weight = op->weight,
                            .apart = taps,
                            .group_weights = out * taps};

    for (size_t y = 0; y < op->window.height; y++)
        for (size_t x = 0; x < op->window.width; x++, conv.n_taps++)
            conv.taps[conv.n_taps] =
                (struct cpu_conv_tap){(ptrdiff_t)y - (ptrdiff_t)op->window.padding,
                                      (ptrdiff_t)x - (ptrdiff_t)op->window.padding, conv.n_taps * in};
    return conv;
}

/* A product of pixels and weights, as they lie. */
static bool is_product(const struct device_conv2d *op)
{
    return op->window.height == 1 && op->window.width == 1 && op->window.stride == 1 && op->window.padding == 0 &&
           op->n_groups == 1;
}

void KERNEL_NAME(cpu_conv2d)(struct device *dev, const struct device_conv2d *op)
{
    struct cpu_conv conv = forward_of(op);
    const struct device_matmul product = {.transpose_b = true,
                                          .m = device_conv2d_pixels(op),
                                          .n = op->n_out,
                                          .k = op->n_in,
                                          .a = op->x,
                                          .a_stride = op->n_in,
                                          .b = op->weight,
                                          .b_stride = op->n_in,
                                          .c = op->y,
                                          .c_stride = op->n_out,
                                          .epilogue = op->bias ? DEVICE_BIAS : DEVICE_NO_EPILOGUE,
                                          .bias = op->bias};

    conv.results = (struct cpu_conv_results){
        .to = op->y, .height = conv.down, .width = conv.across, .step = 1, .channels = op->n_out, .bias = op->bias};
    if (is_product(op))
        KERNEL_NAME(cpu_matmul)(dev, &product);
    else
        run(dev, &conv);
}

/* ---- the gradient of the input ---- */

/* Taps ky with y + padding - ky a multiple of the stride meet pixel y of x, from y's pixel (y + padding - ky) /
 * stride. */
static bool meets(ptrdiff_t *from, size_t first, size_t tap, const struct image_window *w)
{
    const ptrdiff_t stride = w->stride, off = (ptrdiff_t)first + w->padding - (ptrdiff_t)tap;

    *from = off / stride;
    return off % stride == 0;
}

/* Pixels y, y + stride, ... of lines, and x, x + stride, ... of columns. */
static struct cpu_conv gradient_of(const struct device_conv2d *op, size_t y, size_t x)
{
    const size_t taps = device_conv2d_taps(op), in = op->n_in / op->n_groups, out = op->n_out / op->n_groups;
    const struct image_window *w = &op->window;
    struct cpu_conv conv = {.n_groups = op->n_groups,
                            .depth = out,
                            .columns = in,
                            .source = op->y_gradient,
                            .height = device_conv2d_height(op),
                            .width = device_conv2d_width(op),
                            .n_rows = op->n_rows,
                            .down = size_pieces(op->height - y, w->stride),
                            .across = size_pieces(op->width - x, w->stride),
                            .step = 1,
                            .weight = op->weight,
                            .apart = taps,
                            .by_depth = true,
                            .group_weights = out * taps};

    for (size_t tap = 0; tap < w->height * w->width; tap++) {
        struct cpu_conv_tap *const to = &conv.taps[conv.n_taps];
        const bool down = meets(&to->y, y, tap / w->width, w), across = meets(&to->x, x, tap % w->width, w);

        to->at = tap * in;
        conv.n_taps += down && across;
    }
    return conv;
}

void KERNEL_NAME(cpu_conv2d_input_gradient)(struct device *dev, const struct device_conv2d *op)
{
    const struct device_matmul product = {.m = device_conv2d_pixels(op),
                                          .n = op->n_in,
                                          .k = op->n_out,
                                          .a = op->y_gradient,
                                          .a_stride = op->n_out,
                                          .b = op->weight,
                                          .b_stride = op->n_in,
                                          .c = op->x_gradient,
                                          .c_stride = op->n_in,
                                          .beta = op->accumulate ? 1 : 0};

    if (is_product(op)) {
        KERNEL_NAME(cpu_matmul)(dev, &product);
        return;
    }
    for (size_t y = 0; y < op->window.stride && y < op->height; y++)
        for (size_t x = 0; x < op->window.stride && x < op->width; x++) {
            struct cpu_conv conv = gradient_of(op, y, x);
            conv.results = (struct cpu_conv_results){.to = op->x_gradient,
                                                     .height = op->height,
                                                     .width = op->width,
                                                     .y = y,
                                                     .x = x,
                                                     .step = op->window.stride,
                                                     .channels = op->n_in,
                                                     .accumulate = op->accumulate};
            if (conv.n_taps > 0 || !op->accumulate)
                run(dev, &conv);
        }
}

/* ---- the gradient of weights ---- */

/* sums (m, n), rows WIDTH apart, from the gradient or to it, whose rows are n_taps apart. */
static void copy_tile(const struct cpu_tile *tile, float *to, size_t to_stride, const float *from, size_t from_stride)
{
    for (size_t i = 0; i < tile->m; i++)
        memcpy(to + i * to_stride, from + i * from_stride, tile->n * sizeof *to);
}

static void compute_weights(struct device *dev, const struct device_conv2d *op, const struct cpu_conv *conv,
                            size_t group, const struct cpu_tile *tile)
{
    const size_t taps = device_conv2d_taps(op);
    float *const sums = cut_scratch(dev), *const to = op->weight_gradient + (group * conv->columns + tile->row) * taps +
                                                      tile->column;

    device_count(dev->done);
    if (op->beta != 0)
        copy_tile(tile, sums, PLAN_CPU_PRODUCT_WIDTH, to, taps);
    else
        memset(sums, 0, tile->m * PLAN_CPU_PRODUCT_WIDTH * sizeof *sums);
    dev->kernels->conv_weights(conv, op->y_gradient, group, tile, sums);
    copy_tile(tile, to, taps, sums, PLAN_CPU_PRODUCT_WIDTH);
}

void KERNEL_NAME(cpu_conv2d_weight_gradient)(struct device *dev, const struct device_conv2d *op)
{
    const struct cpu_conv conv = forward_of(op);
    const struct cut cut = cut_into(conv.columns, device_conv2d_taps(op), op->n_groups, dev);

    assert(op->beta == 0 || op->beta == 1);
#pragma omp parallel for num_threads(cpu_threads(dev, work_of(&conv))) schedule(dynamic)
    for (size_t i = 0; i < cut.all; i++) {
        const struct cpu_tile tile = cut_tile(&cut, i);

        compute_weights(dev, op, &conv, i / cut.of_group, &tile);
    }
}

#include "tests/kit/reference/reference_conv2d.h"

/* One product: of a weight, a channel of a pixel of x and one of y. */
struct meeting {
    size_t x, weight, y;
};

static void multiply(const struct device_conv2d *op, enum reference_conv2d which, const struct meeting *at)
{
    if (which == REFERENCE_CONV2D_FORWARD)
        ((double *)op->y)[at->y] += ((const double *)op->x)[at->x] * ((const double *)op->weight)[at->weight];
    else if (which == REFERENCE_CONV2D_INPUT)
        ((double *)op->x_gradient)[at->x] +=
            ((const double *)op->y_gradient)[at->y] * ((const double *)op->weight)[at->weight];
    else
        ((double *)(void *)op->weight_gradient)[at->weight] +=
            ((const double *)op->y_gradient)[at->y] * ((const double *)op->x)[at->x];
}

/* All products of pixel (i, j) of y, channel o. */
static void meet(const struct device_conv2d *op, enum reference_conv2d which, size_t row, size_t i, size_t j, size_t o)
{
    const size_t height = (op->height + 2 * op->window.padding - op->window.height) / op->window.stride + 1;
    const size_t width = (op->width + 2 * op->window.padding - op->window.width) / op->window.stride + 1;
    const size_t in = op->n_in / op->n_groups, group = o / (op->n_out / op->n_groups);

    for (size_t ky = 0; ky < op->window.height; ky++)
        for (size_t kx = 0; kx < op->window.width; kx++) {
            const ptrdiff_t y = (ptrdiff_t)(i * op->window.stride + ky) - (ptrdiff_t)op->window.padding;
            const ptrdiff_t x = (ptrdiff_t)(j * op->window.stride + kx) - (ptrdiff_t)op->window.padding;
            if (y < 0 || x < 0 || y >= (ptrdiff_t)op->height || x >= (ptrdiff_t)op->width)
                continue;
            for (size_t c = 0; c < in; c++)
                multiply(op, which,
                         &(struct meeting){((row * op->height + (size_t)y) * op->width + (size_t)x) * op->n_in +
                                               group * in + c,
                                           ((o * op->window.height + ky) * op->window.width + kx) * in + c,
                                           ((row * height + i) * width + j) * op->n_out + o});
        }
}

void reference_conv2d(const struct device_conv2d *op, enum reference_conv2d which)
{
    const size_t height = (op->height + 2 * op->window.padding - op->window.height) / op->window.stride + 1;
    const size_t width = (op->width + 2 * op->window.padding - op->window.width) / op->window.stride + 1;
    const size_t n_x = op->n_rows * op->height * op->width * op->n_in, n_y = op->n_rows * height * width * op->n_out;
    const size_t n_weights = op->n_out * op->window.height * op->window.width * op->n_in / op->n_groups;

    for (size_t i = 0; which == REFERENCE_CONV2D_FORWARD && i < n_y; i++)
        ((double *)op->y)[i] = op->bias ? ((const double *)op->bias)[i % op->n_out] : 0;
    for (size_t i = 0; which == REFERENCE_CONV2D_INPUT && !op->accumulate && i < n_x; i++)
        ((double *)op->x_gradient)[i] = 0;
    for (size_t i = 0; which == REFERENCE_CONV2D_WEIGHT && op->beta == 0 && i < n_weights; i++)
        ((double *)(void *)op->weight_gradient)[i] = 0;
    for (size_t i = 0; i < n_y; i++)
        meet(op, which, i / (height * width * op->n_out), i / (width * op->n_out) % height, i / op->n_out % width,
             i % op->n_out);
}

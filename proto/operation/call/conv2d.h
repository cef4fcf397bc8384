/* proto/operation/call/conv2d.h - convolution of images: conv2d, conv2d_input_gradient, conv2d_weight_gradient. */
#ifndef PROTO_OPERATION_CALL_CONV2D_H
#define PROTO_OPERATION_CALL_CONV2D_H

#include "proto/operation/image.h"

#include <stdbool.h>

/* y[i][j][o] = bias[o] + sum over ky, kx and c of weight[o][ky][kx][c] * x[i*stride + ky - padding][j*stride + kx -
 * padding][c]
 *
 * of each image, where x counts as 0 beyond the edges. With several groups, the channels of x and of y are divided into
 * as many runs, and a run of y is of the same run of x alone.
 *
 * y and x's gradient are sums whose order depends on the window and channels alone. weight_gradient gets the images'
 * sums one after another, or those of fixed parts of each image, summed by themselves; so images may be divided into
 * calls (with beta 1) without a change of a bit, unless a library computes it. Layouts are those that libraries call
 * NHWC and KRSC. */
struct device_conv2d {
    size_t n_rows, height, width; /* images, and the size of x's */
    size_t n_in, n_out, n_groups; /* channels of x and y; n_groups divides both */
    struct image_window window;   /* at most IMAGE_MOST_TAPS pixels */
    const void *x;                /* (n_rows, height, width, n_in): forward, weight_gradient */
    const void *weight;           /* (n_out, window.height, window.width, n_in / n_groups): forward, input_gradient */
    const void *bias;             /* (n_out), forward; NULL: none */
    void *y;                      /* (n_rows, windows down, windows across, n_out), forward */
    const void *y_gradient;       /* shaped as y: both gradients */
    void *x_gradient;             /* shaped as x: written by input_gradient, or added to */
    bool accumulate;              /* x_gradient += */
    float *weight_gradient;       /* shaped as weight */
    float beta;                   /* weight_gradient = its sum + beta * weight_gradient: 0 or 1 */
};

static inline size_t device_conv2d_height(const struct device_conv2d *op)
{
    return image_windows(op->height, op->window.height, &op->window);
}

static inline size_t device_conv2d_width(const struct device_conv2d *op)
{
    return image_windows(op->width, op->window.width, &op->window);
}

/* Pixels of y, in all rows. */
static inline size_t device_conv2d_pixels(const struct device_conv2d *op)
{
    return op->n_rows * device_conv2d_height(op) * device_conv2d_width(op);
}

/* Weights of one output channel. */
static inline size_t device_conv2d_taps(const struct device_conv2d *op)
{
    assert(op->n_groups > 0 && op->n_in % op->n_groups == 0 && op->n_out % op->n_groups == 0);
    assert(op->window.height * op->window.width <= IMAGE_MOST_TAPS);
    return op->window.height * op->window.width * (op->n_in / op->n_groups);
}

#endif

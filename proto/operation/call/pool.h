/* proto/operation/call/pool.h - pooling of images: max_pool, average_pool and their gradients; sum_blocks. */
#ifndef PROTO_OPERATION_CALL_POOL_H
#define PROTO_OPERATION_CALL_POOL_H

#include "proto/operation/image.h"

#include <stdbool.h>

/* y[i][j][c] = the largest, or the mean, of x[i*stride + ky - padding][j*stride + kx - padding][c] over the window's
 * ky, kx.
 *
 * The largest number is one within the image; a NaN is larger than any. The mean counts what lies beyond the edges, as
 * 0. The gradient of a largest number goes to the first pixel of its window that has it; of NaNs, to the last. */
struct device_pool {
    size_t n_rows, height, width, n; /* images, the size of x's, and channels */
    struct image_window window; /* padding at most half its height and width; of max_pool, IMAGE_MOST_TAPS pixels */
    const void *x;              /* (n_rows, height, width, n): forward, max_pool_backward */
    void *y;                    /* (n_rows, windows down, windows across, n), forward */
    const void *y_gradient;     /* shaped as y, backward */
    void *x_gradient;           /* shaped as x: written backward, or added to */
    bool accumulate;            /* x_gradient += */
    uint8_t *largest;           /* scratch of max_pool_backward, shaped as y */
};

/* An image of height x width pixels is divided into blocks of side x side, the last ones of a line or column of what is
 * left:
 *
 * y[a][b][c] = the sum, or the mean, of g[i][j][c] over the windows i, j of which tap (down, across) lies in block a,
 * b, which is pixel (i*stride + down - padding, j*stride + across - padding) of the image. Of no window: 0. */
struct device_sum_blocks {
    size_t n_rows, height, width, n; /* images, their size, and channels of g */
    uint32_t side;                   /* > 0 */
    struct image_window window;
    uint32_t down, across; /* the tap: less than the window's height and width */
    bool mean;
    const void *g; /* (n_rows, windows down, windows across, n) */
    void *y;       /* (n_rows, blocks down, blocks across, n) */
};

/* How many blocks n pixels are. */
static inline size_t device_blocks(size_t n, uint32_t side)
{
    return (n + side - 1) / side;
}

/* First of the windows of which a tap lies in pixel `pixel` or behind it; n_windows: none does. */
static inline size_t device_first_window(size_t pixel, uint32_t tap, size_t n_windows, const struct image_window *w)
{
    const size_t at = pixel + w->padding, first = at > tap ? (at - tap + w->stride - 1) / w->stride : 0;

    return first < n_windows ? first : n_windows;
}

static inline size_t device_pool_height(const struct device_pool *op)
{
    assert(2 * op->window.padding <= op->window.height);
    return image_windows(op->height, op->window.height, &op->window);
}

static inline size_t device_pool_width(const struct device_pool *op)
{
    assert(2 * op->window.padding <= op->window.width);
    return image_windows(op->width, op->window.width, &op->window);
}

/* Pixels of y, in all rows. */
static inline size_t device_pool_pixels(const struct device_pool *op)
{
    return op->n_rows * device_pool_height(op) * device_pool_width(op);
}

#endif

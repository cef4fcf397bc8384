/* proto/operation/call/pool.h - pooling of images: max_pool, average_pool and their gradients. */
#ifndef PROTO_OPERATION_CALL_POOL_H
#define PROTO_OPERATION_CALL_POOL_H

#include "proto/operation/image.h"

#include <stdbool.h>

/* y[i][j][c] = the largest, or the mean, of x[i*stride + ky - padding][j*stride + kx - padding][c] over the window's ky, kx.
 *
 * The largest number is one within the image; a NaN is larger than any. The mean counts what lies beyond the edges, as 0.
 * The gradient of a largest number goes to the first pixel of its window that has it; of NaNs, to the last. */
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

#include "tests/kit/reference/reference_pool.h"

#include <math.h>

/* Result i of all, and the window it is of. */
struct window {
    size_t row, line, column, channel;
};

static size_t count(size_t n, size_t size, const struct image_window *w)
{
    return (n + 2 * w->padding - size) / w->stride + 1;
}

static struct window window_of(const struct device_pool *op, size_t i)
{
    const size_t height = count(op->height, op->window.height, &op->window),
                 width = count(op->width, op->window.width, &op->window), pixel = i / op->n;

    return (struct window){pixel / width / height, pixel / width % height, pixel % width, i % op->n};
}

static size_t count_results(const struct device_pool *op)
{
    return op->n_rows * count(op->height, op->window.height, &op->window) *
           count(op->width, op->window.width, &op->window) * op->n;
}

/* The element of x that a tap meets. False: none. */
static bool meet(size_t *at, const struct device_pool *op, const struct window *w, size_t tap)
{
    const size_t padding = op->window.padding, y = w->line * op->window.stride + tap / op->window.width,
                 x = w->column * op->window.stride + tap % op->window.width;

    *at = ((w->row * op->height + y - padding) * op->width + x - padding) * op->n + w->channel;
    return y >= padding && x >= padding && y - padding < op->height && x - padding < op->width;
}

/* Of the largest, where it is; it may be a NaN. */
static size_t find_largest(const struct device_pool *op, const struct window *w)
{
    const double *x = op->x;
    size_t largest = SIZE_MAX, at;

    for (size_t tap = 0; tap < op->window.height * op->window.width; tap++)
        if (meet(&at, op, w, tap) && (largest == SIZE_MAX || isnan(x[at]) || x[at] > x[largest]))
            largest = at;
    return largest;
}

void reference_pool(const struct device_pool *op, bool largest)
{
    const size_t n_taps = op->window.height * op->window.width;

    for (size_t i = 0; i < count_results(op); i++) {
        const struct window w = window_of(op, i);
        double sum = 0;
        size_t at;

        for (size_t tap = 0; tap < n_taps; tap++)
            sum += meet(&at, op, &w, tap) ? ((const double *)op->x)[at] : 0;
        ((double *)op->y)[i] = largest ? ((const double *)op->x)[find_largest(op, &w)] : sum / (double)n_taps;
    }
}

void reference_pool_backward(const struct device_pool *op, bool largest)
{
    const size_t n_taps = op->window.height * op->window.width;
    double *const dx = op->x_gradient;

    for (size_t i = 0; !op->accumulate && i < op->n_rows * op->height * op->width * op->n; i++)
        dx[i] = 0;
    for (size_t i = 0; i < count_results(op); i++) {
        const struct window w = window_of(op, i);
        const double dy = ((const double *)op->y_gradient)[i];
        size_t at;

        if (largest)
            dx[find_largest(op, &w)] += dy;
        for (size_t tap = 0; !largest && tap < n_taps; tap++)
            if (meet(&at, op, &w, tap))
                dx[at] += dy / (double)n_taps;
    }
}

/* The block, in one direction, where a window's tap lies; false: beyond the edges. */
static bool find_block(size_t *block, size_t window, size_t tap, size_t n, const struct device_sum_blocks *op)
{
    const size_t at = window * op->window.stride + tap;

    *block = (at - op->window.padding) / op->side;
    return at >= op->window.padding && at - op->window.padding < n;
}

void reference_sum_blocks(const struct device_sum_blocks *op)
{
    const size_t lines = count(op->height, op->window.height, &op->window),
                 columns = count(op->width, op->window.width, &op->window);
    const size_t down = (op->height + op->side - 1) / op->side, across = (op->width + op->side - 1) / op->side;
    double *const y = op->y;

    for (size_t i = 0; i < op->n_rows * down * across * op->n; i++) {
        const size_t channel = i % op->n, of = i / op->n, row = of / across / down;
        size_t a, b, n = 0;

        y[i] = 0;
        for (size_t w = 0; w < lines * columns; w++)
            if (find_block(&a, w / columns, op->down, op->height, op) && a == of / across % down &&
                find_block(&b, w % columns, op->across, op->width, op) && b == of % across) {
                y[i] += ((const double *)op->g)[(row * lines * columns + w) * op->n + channel];
                n++;
            }
        y[i] /= op->mean && n > 0 ? (double)n : 1;
    }
}

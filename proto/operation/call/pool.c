/* Windows may overlap or leave pixels out; of x only pixels that some window covers are read, but a gradient is written
 * for every pixel. The tie between equal numbers of a window is found again in backward, from x, into scratch that
 * neither direction keeps. */
#include "proto/operation/call/pool.h"

#include "proto/operation/call.h"

static size_t pool_covered(const struct device_pool *op)
{
    return op->n_rows * op->n * image_covered(op->height, op->window.height, &op->window) *
           image_covered(op->width, op->window.width, &op->window);
}

static void describe_x(struct call_work *out, struct device_pool *op)
{
    call_add_array(out, "x", &op->x, CALL_VALUES, CALL_READ,
                   call_some(op->n_rows * op->height * op->width * op->n, pool_covered(op)));
}

static void describe_forward(struct call_work *out, struct device_pool *op)
{
    describe_x(out, op);
    call_add_array(out, "y", &op->y, CALL_VALUES, CALL_WRITTEN, call_all(device_pool_pixels(op) * op->n));
}

static void describe_backward(struct call_work *out, struct device_pool *op)
{
    const struct call_extent y = call_all(device_pool_pixels(op) * op->n);

    call_add_array(out, "y_gradient", &op->y_gradient, CALL_VALUES, CALL_READ, y);
    call_add_array(out, "x_gradient", &op->x_gradient, CALL_VALUES,
                   op->accumulate ? CALL_READ | CALL_WRITTEN : CALL_WRITTEN,
                   call_all(op->n_rows * op->height * op->width * op->n));
}

/* Windows of which a tap lies in the image, in one direction. */
static size_t windows_within(size_t n, size_t size, uint32_t tap, const struct image_window *w)
{
    const size_t n_windows = image_windows(n, size, w);

    return device_first_window(n, tap, n_windows, w) - device_first_window(0, tap, n_windows, w);
}

void device_sum_blocks_describe(struct call_work *out, struct device_sum_blocks *op)
{
    const struct image_window *w = &op->window;
    const size_t n_windows = image_windows(op->height, w->height, w) * image_windows(op->width, w->width, w);
    const size_t within =
        windows_within(op->height, w->height, op->down, w) * windows_within(op->width, w->width, op->across, w);
    const size_t n_blocks = device_blocks(op->height, op->side) * device_blocks(op->width, op->side);

    call_add_array(out, "g", &op->g, CALL_VALUES, CALL_READ,
                   call_some(op->n_rows * n_windows * op->n, op->n_rows * within * op->n));
    call_add_array(out, "y", &op->y, CALL_VALUES, CALL_WRITTEN, call_all(op->n_rows * n_blocks * op->n));
}

void device_max_pool_describe(struct call_work *out, struct device_pool *op)
{
    describe_forward(out, op);
}

void device_max_pool_backward_describe(struct call_work *out, struct device_pool *op)
{
    describe_x(out, op);
    describe_backward(out, op);
    call_add_array(out, "largest", &op->largest, CALL_BYTES, 0, call_all(device_pool_pixels(op) * op->n));
}

void device_average_pool_describe(struct call_work *out, struct device_pool *op)
{
    describe_forward(out, op);
}

void device_average_pool_backward_describe(struct call_work *out, struct device_pool *op)
{
    describe_backward(out, op);
}

#include "proto/operation/call/pool.h"

#include "proto/operation/call.h"

static size_t covered(const struct device_pool *op)
{
    return op->n_rows * op->n * image_covered(op->height, op->window.height, &op->window) *
           image_covered(op->width, op->window.width, &op->window);
}

static void describe_x(struct call_work *out, struct device_pool *op)
{
    call_add_array(out, "x", &op->x, CALL_VALUES, CALL_READ,
                   call_some(op->n_rows * op->height * op->width * op->n, covered(op)));
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

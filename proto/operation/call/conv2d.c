/* The three products differ in their path and in what fills its tiles, not in the number of multiplications. Forward
 * and the weights' gradient read only the pixels of x that some window covers, as a stride may skip some; the gradient
 * of x writes all of them, zeros where no window reached. */
#include "proto/operation/call/conv2d.h"

#include "proto/operation/call.h"

static struct call_extent extent_of_x(const struct device_conv2d *op, bool covered)
{
    const size_t n = op->n_rows * op->n_in, pixels = op->height * op->width;

    return call_some(n * pixels, covered ? n * image_covered(op->height, op->window.height, &op->window) *
                                               image_covered(op->width, op->window.width, &op->window)
                                         : n * pixels);
}

static struct call_extent extent_of_y(const struct device_conv2d *op)
{
    return call_all(device_conv2d_pixels(op) * op->n_out);
}

static struct call_extent extent_of_weight(const struct device_conv2d *op)
{
    return call_all(op->n_out * device_conv2d_taps(op));
}

/* Each of the three is the same number of products. */
static void conv2d_count(struct call_work *out, const struct device_conv2d *op, enum conv2d_kind kind)
{
    out->rate = CALL_RATE_CONV2D;
    out->conv2d = kind;
    out->conv2d_path = conv2d_path_of(out->on.type, op, kind, out->on.has_conv2d);
    out->n_launches = conv2d_launches(op, kind, out->conv2d_path);
    out->filled = conv2d_filled(op, out->conv2d_path);
    out->rows = device_conv2d_pixels(op);
    out->operations = 2 * (double)out->rows * (double)op->n_out * (double)device_conv2d_taps(op);
}

void device_conv2d_describe(struct call_work *out, struct device_conv2d *op)
{
    conv2d_count(out, op, CONV2D_FORWARD);
    call_add_array(out, "x", &op->x, CALL_VALUES, CALL_READ, extent_of_x(op, true));
    call_add_array(out, "weight", &op->weight, CALL_VALUES, CALL_READ, extent_of_weight(op));
    call_add_array(out, "bias", &op->bias, CALL_VALUES, CALL_READ | CALL_OPTIONAL, call_all(op->n_out));
    call_add_array(out, "y", &op->y, CALL_VALUES, CALL_WRITTEN, extent_of_y(op));
}

void device_conv2d_input_gradient_describe(struct call_work *out, struct device_conv2d *op)
{
    conv2d_count(out, op, CONV2D_INPUT);
    call_add_array(out, "y_gradient", &op->y_gradient, CALL_VALUES, CALL_READ, extent_of_y(op));
    call_add_array(out, "weight", &op->weight, CALL_VALUES, CALL_READ, extent_of_weight(op));
    call_add_array(out, "x_gradient", &op->x_gradient, CALL_VALUES,
                   op->accumulate ? CALL_READ | CALL_WRITTEN : CALL_WRITTEN, extent_of_x(op, false));
}

void device_conv2d_weight_gradient_describe(struct call_work *out, struct device_conv2d *op)
{
    conv2d_count(out, op, CONV2D_WEIGHTS);
    call_add_array(out, "x", &op->x, CALL_VALUES, CALL_READ, extent_of_x(op, true));
    call_add_array(out, "y_gradient", &op->y_gradient, CALL_VALUES, CALL_READ, extent_of_y(op));
    call_add_array(out, "weight_gradient", &op->weight_gradient, CALL_FP32,
                   op->beta != 0 ? CALL_READ | CALL_WRITTEN : CALL_WRITTEN, extent_of_weight(op));
}

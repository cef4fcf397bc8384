/* A block that the step drops: what it would add to, and that gradient, pass unchanged. To the gradients of its other
 * inputs it adds nothing. */
#include "proto/plan/memory/values.h"
#include "proto/step/layers.h"

static const struct model_shape *dropped_shape_of(const struct layer_pass *pass, uint32_t value)
{
    return &pass->model->values.shapes[pass->model->values.of[value].shape];
}

/* Elements of a value, or of its gradient, in the microbatch. */
static size_t elements(const struct layer_pass *pass, const struct model_shape *shape)
{
    return plan_shape_elements(shape, pass->n_rows, pass->n_tokens);
}

static void dropped_copy(const struct layer_pass *pass, void *to, const void *from)
{
    const struct model_shape *shape = dropped_shape_of(pass, pass->edges->reads[0]);
    const struct device_dropout_add op = {
        .n_rows = 1, .n_tokens = elements(pass, shape), .n = shape->columns, .h = from, .y = to};

    if (to != from)
        pass->ops->dropout_add(pass->dev, &op);
}

static void dropped_forward(const struct layer_pass *pass)
{
    dropped_copy(pass, pass->at[MODEL_OUTPUT][0], pass->at[MODEL_INPUT][0]);
}

/* Begins the gradient of an input with zeros, where the layer would be the first to add to it. Small ones are zero by
 * now. */
static void clear_gradient(const struct layer_pass *pass, uint32_t input)
{
    const struct model_shape *shape = dropped_shape_of(pass, pass->edges->reads[input]);
    void *const gradient = pass->at[MODEL_INPUT_GRADIENT][input];
    const size_t n = elements(pass, shape) * shape->columns;

    if (gradient && !model_is_small(shape))
        pass->ops->zero(pass->dev, &(struct device_zero){gradient, n * number_bytes(pass->setting->goal.precision)});
}

/* Nobody reads the gradient below the lowest trained layer. */
static void dropped_backward(const struct layer_pass *pass)
{
    if (pass->lowest)
        return;
    dropped_copy(pass, pass->at[MODEL_INPUT_GRADIENT][0], pass->at[MODEL_OUTPUT_GRADIENT][0]);
    for (uint32_t i = 1; i < pass->edges->n_reads; i++)
        clear_gradient(pass, i);
}

const struct layer_ops layer_dropped = {dropped_forward, dropped_backward};

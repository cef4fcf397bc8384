/* A block that the step drops: the stream, and its gradient, pass unchanged. */
#include "proto/step/layers.h"

static void copy(const struct layer_pass *pass, void *to, const void *from)
{
    const struct device_dropout_add op = {
        .n_rows = 1, .n_tokens = layer_tokens(pass), .n = pass->model->config.width, .h = from, .y = to};

    if (to != from)
        pass->ops->dropout_add(pass->dev, &op);
}

static void forward(const struct layer_pass *pass)
{
    copy(pass, pass->at[MODEL_OUTPUT][0], pass->at[MODEL_INPUT][0]);
}

/* Nobody reads the gradient below the lowest trained layer. */
static void backward(const struct layer_pass *pass)
{
    if (!pass->lowest)
        copy(pass, pass->at[MODEL_INPUT_GRADIENT][0], pass->at[MODEL_OUTPUT_GRADIENT][0]);
}

const struct layer_ops layer_dropped = {forward, backward};

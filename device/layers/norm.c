/* y = norm(x) * weight + bias: GPT-2's ln_f, a layer of its own between the blocks and the head. */
#include "device/layers/layers.h"

/* The unit's two pieces, in weights and contribution alike. */
enum { WEIGHT, BIAS };

static uint64_t offset(const struct layer_pass *pass, int piece)
{
    return pass->model->pieces[pass->unit->first_piece + (uint32_t)piece].offset;
}

static const void *weights_of(const struct layer_pass *pass, int piece)
{
    return layer_element(pass, pass->weights, offset(pass, piece));
}

/* Into output, which in backward is free and gets the same values again; the statistics are what backward is after. */
static void forward(const struct layer_pass *pass)
{
    const struct device_norm op = {.m = layer_tokens(pass),
                                   .n = pass->model->config.width,
                                   .epsilon = pass->model->config.norm_epsilon,
                                   .x = pass->input,
                                   .weight = weights_of(pass, WEIGHT),
                                   .bias = weights_of(pass, BIAS),
                                   .y = pass->output,
                                   .statistics = pass->workspace};

    pass->ops->norm(pass->dev, &op);
}

static void backward(const struct layer_pass *pass)
{
    const struct device_norm op = {.m = layer_tokens(pass),
                                   .n = pass->model->config.width,
                                   .x = pass->input,
                                   .weight = weights_of(pass, WEIGHT),
                                   .statistics = pass->workspace,
                                   .y_gradient = pass->gradient,
                                   .x_gradient = pass->gradient,
                                   .weight_gradient = pass->contribution + offset(pass, WEIGHT),
                                   .bias_gradient = pass->contribution + offset(pass, BIAS)};

    forward(pass);
    if (pass->fresh)
        pass->ops->zero(pass->dev, pass->contribution, pass->unit->n * sizeof(float));
    pass->ops->norm_backward(pass->dev, &op);
}

const struct layer_ops layer_norm = {forward, backward};

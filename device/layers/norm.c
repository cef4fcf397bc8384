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
    pass->ops->norm(pass->dev, pass->output, pass->workspace, pass->input, weights_of(pass, WEIGHT),
                    weights_of(pass, BIAS), layer_tokens(pass), pass->model->config.width,
                    pass->model->config.norm_epsilon);
}

static void backward(const struct layer_pass *pass)
{
    forward(pass);
    if (pass->fresh)
        pass->ops->zero(pass->dev, pass->contribution, pass->unit->n * sizeof(float));
    pass->ops->norm_backward(pass->dev, pass->gradient, false, pass->contribution + offset(pass, WEIGHT),
                             pass->contribution + offset(pass, BIAS), pass->gradient, pass->input, pass->workspace,
                             weights_of(pass, WEIGHT), layer_tokens(pass), pass->model->config.width);
}

const struct layer_ops layer_norm = {forward, backward};

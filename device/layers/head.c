/* logits = h W^T, loss = -log softmax(logits)[label]. A visit holds the rows of W for one chunk of the vocabulary;
 * logits exist for PLAN_HEAD_TILE tokens at a time only. Forward, each row's log-sum-exp runs along over the chunks, so
 * that backward can turn any chunk's logits, computed again, into their gradient without seeing the others. */
#include "device/layers/layers.h"

struct chunk {
    uint32_t first;
    size_t n; /* labels */
};

static struct chunk chunk_of(const struct layer_pass *pass)
{
    const struct model_piece *piece = &pass->model->pieces[pass->unit->first_piece];

    return (struct chunk){.first = (uint32_t)piece->first_row, .n = piece->n_rows};
}

static size_t tile_tokens(size_t first, size_t tokens)
{
    return tokens - first < PLAN_HEAD_TILE ? tokens - first : PLAN_HEAD_TILE;
}

/* Tokens first .. first+m-1: logits (m, n) into `to`. */
static void multiply(const struct layer_pass *pass, struct chunk chunk, size_t first, size_t m, float *to)
{
    const size_t width = pass->model->config.width;
    const struct device_matmul op = {.transpose_b = true,
                                     .m = m,
                                     .n = chunk.n,
                                     .k = width,
                                     .a = layer_element(pass, pass->input, first * width),
                                     .a_stride = width,
                                     .b = pass->weights,
                                     .b_stride = width,
                                     .c = to,
                                     .c_stride = chunk.n,
                                     .wide = true};

    pass->ops->matmul(pass->dev, &op);
}

/* The same into the workspace. */
static float *tile_logits(const struct layer_pass *pass, struct chunk chunk, size_t first, size_t m)
{
    multiply(pass, chunk, first, m, pass->workspace);
    return pass->workspace;
}

static void forward(const struct layer_pass *pass)
{
    const struct chunk chunk = chunk_of(pass);
    const size_t tokens = layer_tokens(pass);

    if (pass->logits) {
        multiply(pass, chunk, 0, 1, pass->logits + chunk.first);
        return;
    }
    for (size_t first = 0; first < tokens; first += PLAN_HEAD_TILE) {
        const size_t m = tile_tokens(first, tokens);
        const float *logits = tile_logits(pass, chunk, first, m);
        pass->ops->log_sum_exp(pass->dev, pass->running + first * 3, pass->bottom, logits, chunk.n,
                               pass->labels + first, m, chunk.first, chunk.n);
    }
    if (pass->top)
        pass->ops->loss(pass->dev, pass->losses, pass->running, pass->labels, tokens);
}

/* dh = or += g W, W's gradient += g^T h, for g (m, n) the gradient of the logits of tokens first .. first+m-1, in the
 * logits' place. */
static void tile_backward(const struct layer_pass *pass, struct chunk chunk, const void *g, size_t first, size_t m)
{
    const size_t width = pass->model->config.width, g_stride = chunk.n * device_wide(pass->setting->precision);
    const void *h = layer_element(pass, pass->input, first * width);
    const struct device_matmul input = {.m = m,
                                        .n = width,
                                        .k = chunk.n,
                                        .a = g,
                                        .a_stride = g_stride,
                                        .b = pass->weights,
                                        .b_stride = width,
                                        .c = layer_element(pass, pass->gradient, first * width),
                                        .c_stride = width,
                                        .beta = pass->top ? 0 : 1};
    const struct device_matmul weights = {.transpose_a = true,
                                          .m = chunk.n,
                                          .n = width,
                                          .k = m,
                                          .a = g,
                                          .a_stride = g_stride,
                                          .b = h,
                                          .b_stride = width,
                                          .c = pass->contribution,
                                          .c_stride = width,
                                          .wide = true,
                                          .beta = 1};

    pass->ops->matmul(pass->dev, &input);
    pass->ops->matmul(pass->dev, &weights);
}

static void backward(const struct layer_pass *pass)
{
    const struct chunk chunk = chunk_of(pass);
    const size_t tokens = layer_tokens(pass);

    for (size_t first = 0; first < tokens; first += PLAN_HEAD_TILE) {
        const size_t m = tile_tokens(first, tokens);
        float *logits = tile_logits(pass, chunk, first, m);
        pass->ops->cross_entropy_gradient(pass->dev, logits, chunk.n, pass->running + first * 3, pass->labels + first,
                                          m, chunk.first, chunk.n, pass->loss_scale);
        tile_backward(pass, chunk, logits, first, m);
    }
}

const struct layer_ops layer_head = {forward, backward};

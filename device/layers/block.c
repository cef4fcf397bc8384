/* A transformer block as in GPT-2 (Radford et al. 2019, section 2.3; norms before, not after):
 *
 *   r = x + dropout(projection(attention(qkv(norm_1(x)))))
 *   y = r + dropout(down(activation(up(norm_2(r)))))
 *
 * A linear map is y = x W + b with W (in, out). Backward first computes all of forward again but y, from x; or, if the
 * block keeps its internals, only what can be had of them element by element. */
#include "device/layers/layers.h"

#include <math.h>

/* The workspace, as proto/plan/layers.h lays it out. */
struct buffers {
    void *normed, *qkv, *attended, *residual, *pre, *active, *qkv_gradient, *scratch;
    float *statistics, *log_sum_exp;
};

static const struct model_piece *piece_of(const struct layer_pass *pass, enum model_block_piece piece)
{
    return &pass->model->pieces[pass->unit->first_piece + piece];
}

static const void *weights_of(const struct layer_pass *pass, enum model_block_piece piece)
{
    return layer_element(pass, pass->weights, piece_of(pass, piece)->offset);
}

static float *contribution_of(const struct layer_pass *pass, enum model_block_piece piece)
{
    return pass->contribution + piece_of(pass, piece)->offset;
}

/* The bias is the piece after the weight, of linear maps and norms alike. */
static enum model_block_piece bias_after(enum model_block_piece weight)
{
    return weight + 1;
}

/* y (tokens, out) = x (tokens, in) W + b; with pre, that is pre, and y its activation. */
static void linear(const struct layer_pass *pass, enum model_block_piece weight, void *y, const void *x, void *pre)
{
    const struct model_tensor *w = &pass->model->tensors[piece_of(pass, weight)->tensor];
    const struct device_matmul op = {.m = layer_tokens(pass),
                                     .n = w->shape[1],
                                     .k = w->shape[0],
                                     .a = x,
                                     .a_stride = w->shape[0],
                                     .b = weights_of(pass, weight),
                                     .b_stride = w->shape[1],
                                     .c = y,
                                     .c_stride = w->shape[1],
                                     .epilogue = pre ? DEVICE_BIAS_ACTIVATION : DEVICE_BIAS,
                                     .activation = pass->model->config.activation,
                                     .bias = weights_of(pass, bias_after(weight)),
                                     .pre = pre};

    pass->ops->matmul(pass->dev, &op);
}

/* Of a fresh contribution all but what linear_contribution's products write, run by run. */
static void clear_vectors(const struct layer_pass *pass)
{
    const struct model_piece *piece = &pass->model->pieces[pass->unit->first_piece];
    const struct model_piece *const end = piece + pass->unit->n_pieces;

    while (piece < end) {
        const uint64_t first = piece->offset;
        uint64_t n = 0;
        for (; piece < end && pass->model->tensors[piece->tensor].n_dims == 1; piece++)
            n += piece->n;
        if (n > 0)
            pass->ops->zero(pass->dev, pass->contribution + first, n * sizeof(float));
        else
            piece++;
    }
}

/* W's gradient += x^T dy, b's += the sum of dy's rows. */
static void linear_contribution(const struct layer_pass *pass, enum model_block_piece weight, const void *x,
                                const void *dy)
{
    const struct model_tensor *w = &pass->model->tensors[piece_of(pass, weight)->tensor];
    const struct device_matmul op = {.transpose_a = true,
                                     .m = w->shape[0],
                                     .n = w->shape[1],
                                     .k = layer_tokens(pass),
                                     .a = x,
                                     .a_stride = w->shape[0],
                                     .b = dy,
                                     .b_stride = w->shape[1],
                                     .c = contribution_of(pass, weight),
                                     .c_stride = w->shape[1],
                                     .wide = true,
                                     .over_rows = true,
                                     .beta = pass->fresh ? 0 : 1};

    pass->ops->matmul(pass->dev, &op);
    pass->ops->reduce_rows(pass->dev, contribution_of(pass, bias_after(weight)), dy, layer_tokens(pass), w->shape[1]);
}

/* dx (tokens, in) = dy (tokens, out) W^T; with pre, times the activation's slope there. */
static void linear_backward(const struct layer_pass *pass, enum model_block_piece weight, void *dx, const void *dy,
                            void *pre)
{
    const struct model_tensor *w = &pass->model->tensors[piece_of(pass, weight)->tensor];
    const struct device_matmul op = {.transpose_b = true,
                                     .m = layer_tokens(pass),
                                     .n = w->shape[0],
                                     .k = w->shape[1],
                                     .a = dy,
                                     .a_stride = w->shape[1],
                                     .b = weights_of(pass, weight),
                                     .b_stride = w->shape[1],
                                     .c = dx,
                                     .c_stride = w->shape[0],
                                     .epilogue = pre ? DEVICE_ACTIVATION_GRADIENT : DEVICE_NO_EPILOGUE,
                                     .activation = pass->model->config.activation,
                                     .pre = pre};

    pass->ops->matmul(pass->dev, &op);
}

static void normalize(const struct layer_pass *pass, const struct buffers *b, enum model_block_piece weight,
                      const void *x)
{
    const struct device_norm op = {.m = layer_tokens(pass),
                                   .n = pass->model->config.width,
                                   .epsilon = pass->model->config.norm_epsilon,
                                   .x = x,
                                   .weight = weights_of(pass, weight),
                                   .bias = weights_of(pass, bias_after(weight)),
                                   .y = b->normed,
                                   .statistics = b->statistics};

    pass->ops->norm(pass->dev, &op);
}

/* The gradient += that of x, for dy that of norm(x), whose statistics are there. */
static void normalize_backward(const struct layer_pass *pass, const struct buffers *b, enum model_block_piece weight,
                               const void *dy, const void *x)
{
    const struct device_norm op = {.m = layer_tokens(pass),
                                   .n = pass->model->config.width,
                                   .x = x,
                                   .weight = weights_of(pass, weight),
                                   .statistics = b->statistics,
                                   .y_gradient = dy,
                                   .x_gradient = pass->gradient,
                                   .accumulate = true,
                                   .weight_gradient = contribution_of(pass, weight),
                                   .bias_gradient = contribution_of(pass, bias_after(weight))};

    pass->ops->norm_backward(pass->dev, &op);
}

static struct device_attention attention_of(const struct layer_pass *pass, const struct buffers *b)
{
    const struct model_config *c = &pass->model->config;
    float scale = 1;

    if (c->scale_attention)
        scale /= sqrtf((float)(c->width / c->n_heads));
    if (c->scale_by_layer)
        scale /= (float)(pass->layer->index + 1);
    return (struct device_attention){.n_rows = pass->n_rows,
                                     .n_tokens = pass->n_tokens,
                                     .n_heads = c->n_heads,
                                     .width = c->width,
                                     .scale = scale,
                                     .qkv = b->qkv,
                                     .out = b->attended,
                                     .log_sum_exp = b->log_sum_exp,
                                     .out_gradient = b->normed,
                                     .qkv_gradient = b->qkv_gradient,
                                     .scratch = b->scratch,
                                     .dropout = layer_dropout(pass, c->dropout_attention, RANDOM_DROPOUT_ATTENTION)};
}

/* Of the tokens before this pass, keys and values are in the cache. */
static void attend_cached(const struct layer_pass *pass, const struct device_attention *attention)
{
    const struct device_attention_cached op = {.first = pass->position,
                                               .n_tokens = attention->n_tokens,
                                               .n_heads = attention->n_heads,
                                               .width = attention->width,
                                               .n_positions = pass->n_positions,
                                               .scale = attention->scale,
                                               .qkv = attention->qkv,
                                               .out = attention->out,
                                               .cache = pass->cache,
                                               .scratch = attention->scratch};

    pass->ops->attention_cached(pass->dev, &op);
}

static struct buffers buffers_of(const struct layer_pass *pass)
{
    struct plan_block at;
    char *base = pass->workspace, *internals = pass->kept ? pass->kept : base;

    plan_block(&at, pass->model, pass->setting, pass->n_rows, pass->n_tokens, pass->kept != NULL);
    return (struct buffers){.normed = base + at.normed,
                            .statistics = (float *)(base + at.statistics),
                            .qkv = internals + at.qkv,
                            .attended = internals + at.attended,
                            .log_sum_exp = (float *)(internals + at.log_sum_exp),
                            .residual = internals + at.residual,
                            .pre = internals + at.pre,
                            .active = base + at.active,
                            .qkv_gradient = base + at.qkv_gradient,
                            .scratch = base + at.scratch};
}

void layer_prepare_attention(const struct layer_pass *pass, bool trains, char told[DEVICE_TOLD])
{
    struct layer_pass block = *pass;

    block.layer = &pass->model->layers[1]; /* any of them: all have these shapes */
    block.unit = &pass->model->units[pass->model->visits[block.layer->first_visit]];
    const struct buffers b = buffers_of(&block);
    struct device_attention op = attention_of(&block, &b);
    if (!trains)
        op.qkv_gradient = NULL;
    pass->ops->prepare_attention(pass->dev, &op, plan_attention_way(pass->model, pass->setting), told);
}

/* y = x + dropout(h), or dropout(h) without x; all (tokens, width). */
static void add_residual(const struct layer_pass *pass, void *y, const void *x, const void *h, enum random_site site)
{
    const struct device_dropout_add op = {.n_rows = pass->n_rows,
                                          .n_tokens = pass->n_tokens,
                                          .n = pass->model->config.width,
                                          .x = x,
                                          .h = h,
                                          .y = y,
                                          .dropout = layer_dropout(pass, pass->model->config.dropout_residual, site)};

    pass->ops->dropout_add(pass->dev, &op);
}

/* dh for the gradient at hand, which is that of y: in `room`, or without dropout, which changes nothing then, where it
 * is. */
static const void *residual_backward(const struct layer_pass *pass, void *room, enum random_site site)
{
    if (layer_dropout(pass, pass->model->config.dropout_residual, site).p == 0)
        return pass->gradient;
    add_residual(pass, room, NULL, pass->gradient, site);
    return room;
}

/* All but y: the same calls in forward and in backward, so the same bits. */
static void compute_internals(const struct layer_pass *pass, const struct buffers *b)
{
    const struct device_attention attention = attention_of(pass, b);

    normalize(pass, b, BLOCK_NORM_1_WEIGHT, pass->input);
    linear(pass, BLOCK_QKV_WEIGHT, b->qkv, b->normed, NULL);
    if (pass->cache)
        attend_cached(pass, &attention);
    else
        pass->ops->attention(pass->dev, &attention);
    linear(pass, BLOCK_ATTENTION_WEIGHT, b->residual, b->attended, NULL);
    add_residual(pass, b->residual, pass->input, b->residual, RANDOM_DROPOUT_RESIDUAL_ATTENTION);
    normalize(pass, b, BLOCK_NORM_2_WEIGHT, b->residual);
    linear(pass, BLOCK_UP_WEIGHT, b->active, b->normed, b->pre);
}

/* What is not kept, from what is: elementwise, so it costs little. */
static void complete_internals(const struct layer_pass *pass, const struct buffers *b)
{
    const struct model_config *c = &pass->model->config;

    normalize(pass, b, BLOCK_NORM_2_WEIGHT, b->residual);
    pass->ops->activate(pass->dev, b->active, b->pre, layer_tokens(pass) * c->inner_width, c->activation);
}

static void forward(const struct layer_pass *pass)
{
    const struct buffers b = buffers_of(pass);

    compute_internals(pass, &b);
    linear(pass, BLOCK_DOWN_WEIGHT, pass->output, b.active, NULL);
    add_residual(pass, pass->output, b.residual, pass->output, RANDOM_DROPOUT_RESIDUAL_MLP);
}

/* From dy to dr, both in pass->gradient. */
static void mlp_backward(const struct layer_pass *pass, const struct buffers *b)
{
    void *d = pass->output; /* (tokens, width), free in backward */
    const void *dh = residual_backward(pass, d, RANDOM_DROPOUT_RESIDUAL_MLP);

    linear_contribution(pass, BLOCK_DOWN_WEIGHT, b->active, dh);
    linear_backward(pass, BLOCK_DOWN_WEIGHT, b->active, dh, b->pre);
    linear_contribution(pass, BLOCK_UP_WEIGHT, b->normed, b->active);
    linear_backward(pass, BLOCK_UP_WEIGHT, d, b->active, NULL);
    normalize_backward(pass, b, BLOCK_NORM_2_WEIGHT, d, b->residual);
}

/* From dr to dx, both in pass->gradient. */
static void attention_backward(const struct layer_pass *pass, const struct buffers *b)
{
    const struct device_attention attention = attention_of(pass, b);
    void *d = pass->output;
    const void *dh = residual_backward(pass, d, RANDOM_DROPOUT_RESIDUAL_ATTENTION);

    linear_contribution(pass, BLOCK_ATTENTION_WEIGHT, b->attended, dh);
    linear_backward(pass, BLOCK_ATTENTION_WEIGHT, b->normed, dh, NULL);
    pass->ops->attention_backward(pass->dev, &attention);
    normalize(pass, b, BLOCK_NORM_1_WEIGHT, pass->input);
    linear_contribution(pass, BLOCK_QKV_WEIGHT, b->normed, b->qkv_gradient);
    linear_backward(pass, BLOCK_QKV_WEIGHT, d, b->qkv_gradient, NULL);
    normalize_backward(pass, b, BLOCK_NORM_1_WEIGHT, d, pass->input);
}

static void backward(const struct layer_pass *pass)
{
    const struct buffers b = buffers_of(pass);

    if (pass->kept)
        complete_internals(pass, &b);
    else
        compute_internals(pass, &b);
    if (pass->fresh)
        clear_vectors(pass);
    mlp_backward(pass, &b);
    attention_backward(pass, &b);
}

const struct layer_ops layer_block = {forward, backward};

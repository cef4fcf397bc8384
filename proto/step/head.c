/* logits = h W^T, with a bias or capped in some families; loss = -log softmax(logits)[label]. A visit holds the rows of
 * W for one chunk of the vocabulary; logits exist for one tile of tokens at a time only (plan.head_tile). Forward
 * accumulates each row's log-sum-exp over the chunks, so that backward can turn any chunk's recomputed logits into
 * their gradient without the others.
 *
 * With all chunks on the device, forward does everything, tile by tile: logits, log-sum-exp, their gradient, and its
 * contribution. Operations stay chunk by chunk, in the same order for every sum, so the bits are the same; products
 * over several chunks would change them with the device's memory.
 *
 * The bias is another layer's parameter, a value by part. The operations on logits add it as they read them.
 *
 * Of pairs of texts the gradient of a token's logits depends on the losses of the whole pair, so all of forward comes
 * first: the head is never in one pass.
 *
 * A classifier's labels are in place of the vocabulary, and only the first token of a row has one. A regression's loss
 * is the square of the error.
 *
 * Chunks that the plan pads end with rows of zeros. Their logits are not read, and have gradient 0. */
#include "proto/step/layers.h"

#include "proto/plan/memory/units.h"

struct chunk {
    uint32_t first;
    size_t n;      /* labels */
    size_t padded; /* rows of weights and contribution, and the stride of logits: those beyond n are zeros */
    const void *weights;
    float *contribution;
};

enum { STREAM, BIAS }; /* what it reads */

/* (labels) fp32; NULL: the logits have none. */
static const float *bias_of(const struct layer_pass *pass)
{
    return pass->at[MODEL_INPUT][BIAS];
}

/* A chunk of the vocabulary is a unit with one piece. */
static struct chunk head_chunk_of(const struct layer_pass *pass, const struct model_unit *unit)
{
    const struct model_piece *piece = &pass->model->pieces[unit->first_piece];

    return (struct chunk){.first = (uint32_t)piece->first_row,
                          .n = piece->n_rows,
                          .padded = plan_head_pad(piece->n_rows, pass->plan->head_pad),
                          .weights = layer_piece(pass, piece),
                          .contribution = pass->contribution};
}

/* Chunk i of a head in one pass. */
static struct chunk chunk_at(const struct layer_pass *pass, uint32_t i)
{
    struct chunk chunk = head_chunk_of(pass, pass->chunks[i].unit);

    chunk.weights = pass->chunks[i].weights;
    chunk.contribution = pass->chunks[i].contribution;
    return chunk;
}

/* Generation asks for the logits of all tokens that it runs. */
static size_t predicted_tokens(const struct layer_pass *pass)
{
    return (size_t)pass->n_rows * (pass->logits ? pass->n_tokens : model_predicted(pass->model, pass->n_tokens));
}

static size_t tile_tokens(const struct layer_pass *pass, size_t first, size_t tokens)
{
    return tokens - first < pass->plan->head_tile ? tokens - first : pass->plan->head_tile;
}

/* Tokens first .. first+m-1: logits (m, n) into `to`. Those that are generated from have the plan's stride, and are not
 * padded; where the family caps logits, these are capped here, and others as they are read. */
static void head_multiply(const struct layer_pass *pass, struct chunk chunk, size_t first, size_t m, float *to)
{
    const size_t width = pass->model->config.width;
    const size_t stride = pass->logits ? pass->plan->logits_stride : chunk.padded;
    const struct device_matmul op = {.transpose_b = true,
                                     .m = m,
                                     .n = chunk.padded,
                                     .k = width,
                                     .a = layer_element(pass, pass->at[MODEL_INPUT][STREAM], first * width),
                                     .a_stride = width,
                                     .b = chunk.weights,
                                     .b_stride = width,
                                     .c = to,
                                     .c_stride = stride,
                                     .wide = true};

    const float *bias = bias_of(pass);
    pass->ops->matmul(pass->dev, &op);
    for (size_t i = 0; pass->logits && i < m; i++) { /* of what is trained, the loss does both */
        if (bias)
            pass->ops->add(pass->dev, &(struct device_add){to + i * stride, bias + chunk.first, chunk.n});
        if (pass->model->logit_cap > 0)
            pass->ops->soft_cap(pass->dev,
                                &(struct device_soft_cap){to + i * stride, chunk.padded, pass->model->logit_cap});
    }
}

/* For tokens first .. first+m-1. */
static struct device_cross_entropy head_cross_entropy_of(const struct layer_pass *pass, struct chunk chunk,
                                                         float *logits, size_t first, size_t m)
{
    const float *bias = bias_of(pass);

    return (struct device_cross_entropy){.m = m,
                                         .n = chunk.n,
                                         .logits_stride = chunk.padded,
                                         .first = chunk.first,
                                         .start = chunk.first == 0,
                                         .logits = logits,
                                         .bias = bias ? bias + chunk.first : NULL,
                                         .labels = pass->labels + first,
                                         .running = pass->running + first * 3,
                                         .scale = pass->loss_scale,
                                         .scales = pass->scales ? pass->scales + first : NULL,
                                         .cap = pass->model->logit_cap,
                                         .smoothing = pass->smooths ? (float)pass->setting->goal.smoothing : 0,
                                         .n_all = model_outputs(&pass->model->config)};
}

static struct device_squared_error squared_error_of(const struct layer_pass *pass, struct chunk chunk, float *logits,
                                                    size_t first, size_t m)
{
    return (struct device_squared_error){.m = m,
                                         .logits_stride = chunk.padded,
                                         .logits = logits,
                                         .bias = bias_of(pass),
                                         .labels = pass->labels + first,
                                         .losses = pass->losses + first,
                                         .scale = pass->loss_scale};
}

static void add_log_sum_exp(const struct layer_pass *pass, struct chunk chunk, float *logits, size_t first, size_t m)
{
    const struct device_cross_entropy op = head_cross_entropy_of(pass, chunk, logits, first, m);

    pass->ops->log_sum_exp(pass->dev, &op);
}

/* Rows' logits, with their bias, of the first tokens among tokens first .. first+m-1. */
static void copy_row_logits(const struct layer_pass *pass, struct chunk chunk, const float *logits, size_t first,
                            size_t m)
{
    const size_t n_tokens = model_predicted(pass->model, pass->n_tokens), bytes = chunk.n * sizeof(float);

    for (size_t row = (first + n_tokens - 1) / n_tokens; row * n_tokens < first + m; row++) {
        float *to = pass->row_logits + row * pass->model->config.n_labels + chunk.first;
        pass->ops->zero(pass->dev, &(struct device_zero){to, bytes});
        pass->ops->add(pass->dev, &(struct device_add){to, logits + (row * n_tokens - first) * chunk.padded, chunk.n});
        pass->ops->add(pass->dev, &(struct device_add){to, bias_of(pass) + chunk.first, chunk.n});
    }
}

/* What forward takes from the logits of tokens first .. first+m-1. */
static void head_read_logits(const struct layer_pass *pass, struct chunk chunk, float *logits, size_t first, size_t m)
{
    const struct device_squared_error op = squared_error_of(pass, chunk, logits, first, m);

    if (pass->row_logits)
        copy_row_logits(pass, chunk, logits, first, m);
    if (pass->model->config.regression)
        pass->ops->squared_error(pass->dev, &op);
    else
        add_log_sum_exp(pass, chunk, logits, first, m);
}

/* Judges the microbatch's pairs by the losses of all their tokens. */
static void judge_pairs(const struct layer_pass *pass)
{
    pass->ops->preference(pass->dev, &(struct device_preference){.n_pairs = pass->n_rows / 2,
                                                                 .n_tokens = pass->n_tokens,
                                                                 .preference = pass->setting->goal.preference,
                                                                 .losses = pass->losses,
                                                                 .references = pass->references,
                                                                 .scale = pass->loss_scale,
                                                                 .log_p = pass->log_p,
                                                                 .scales = pass->scales});
}

/* Logits become their gradient. */
static void head_differentiate(const struct layer_pass *pass, struct chunk chunk, float *logits, size_t first, size_t m)
{
    const struct device_cross_entropy softmax = head_cross_entropy_of(pass, chunk, logits, first, m);
    const struct device_squared_error square = squared_error_of(pass, chunk, logits, first, m);

    if (pass->model->config.regression)
        pass->ops->squared_error_gradient(pass->dev, &square);
    else
        pass->ops->cross_entropy_gradient(pass->dev, &softmax);
}

/* The bias's gradient += column sums of g (m, n). */
static void head_sum_bias(const struct layer_pass *pass, struct chunk chunk, const float *g, size_t g_stride, size_t m)
{
    float *const sum = (float *)pass->at[MODEL_INPUT_GRADIENT][BIAS] + chunk.first;

    pass->ops->reduce_rows(pass->dev, &(struct device_reduce_rows){sum, g, m, chunk.n, g_stride});
}

/* dh += g W, or = for the topmost chunk, in fp32 if there is a sum (m, width) for it; W's gradient += g^T h; g (m, n)
 * is the gradient of the logits of tokens first .. first+m-1, in their place. Computes only what is needed. */
static void head_tile_backward(const struct layer_pass *pass, struct chunk chunk, float *g, float *sum, size_t first,
                               size_t m)
{
    const size_t width = pass->model->config.width,
                 g_stride = chunk.padded * device_wide(pass->setting->goal.precision);
    const void *h = layer_element(pass, pass->at[MODEL_INPUT][STREAM], first * width);
    const struct device_matmul input = {.m = m,
                                        .n = width,
                                        .k = chunk.padded,
                                        .a = g,
                                        .a_stride = g_stride,
                                        .b = chunk.weights,
                                        .b_stride = width,
                                        .c = sum ? sum
                                                 : layer_element(pass, pass->at[MODEL_INPUT_GRADIENT][STREAM],
                                                                 first * width),
                                        .c_stride = width,
                                        .wide = sum != NULL,
                                        .beta = chunk.first + chunk.n == model_outputs(&pass->model->config) ? 0 : 1};
    const struct device_matmul weights = {.transpose_a = true,
                                          .m = chunk.padded,
                                          .n = width,
                                          .k = m,
                                          .a = g,
                                          .a_stride = g_stride,
                                          .b = h,
                                          .b_stride = width,
                                          .c = chunk.contribution,
                                          .c_stride = width,
                                          .wide = true,
                                          .over_rows = true,
                                          .beta = pass->fresh && first == 0 ? 0 : 1};

    head_differentiate(pass, chunk, g, first, m);
    if (!pass->lowest)
        pass->ops->matmul(pass->dev, &input);
    if (chunk.contribution)
        pass->ops->matmul(pass->dev, &weights);
    if (pass->at[MODEL_INPUT_GRADIENT][BIAS])
        head_sum_bias(pass, chunk, g, g_stride, m);
}

/* All chunks of one tile: logits side by side, then backward from the top chunk down. */
static void tile_in_one_pass(const struct layer_pass *pass, size_t first, size_t m)
{
    const size_t width = pass->model->config.width;
    float *logits = pass->workspace;

    for (uint32_t i = 0; i < pass->layer->n_visits; i++) {
        const struct chunk chunk = chunk_at(pass, i);
        head_multiply(pass, chunk, first, m, logits);
        head_read_logits(pass, chunk, logits, first, m);
        logits += m * chunk.padded;
    }
    float *const sum = pass->plan->head_sums ? logits : NULL; /* after all logits */
    for (uint32_t i = pass->layer->n_visits; i-- > 0;) {
        const struct chunk chunk = chunk_at(pass, i);
        logits -= m * chunk.padded;
        head_tile_backward(pass, chunk, logits, sum, first, m);
    }
    if (sum && !pass->lowest)
        pass->ops->round_half(pass->dev,
                              &(struct device_round_half){layer_element(pass, pass->at[MODEL_INPUT_GRADIENT][STREAM],
                                                                        first * width),
                                                          sum, m * width, pass->setting->goal.precision});
}

static void head_forward(const struct layer_pass *pass)
{
    const struct chunk chunk = head_chunk_of(pass, pass->unit);
    const size_t tokens = predicted_tokens(pass);

    if (pass->logits) {
        head_multiply(pass, chunk, 0, tokens, pass->logits + chunk.first);
        return;
    }
    for (size_t first = 0; first < tokens; first += pass->plan->head_tile) {
        const size_t m = tile_tokens(pass, first, tokens);
        if (pass->chunks) {
            tile_in_one_pass(pass, first, m);
        } else {
            head_multiply(pass, chunk, first, m, pass->workspace);
            head_read_logits(pass, chunk, pass->workspace, first, m);
        }
    }
    if (pass->top && !pass->model->config.regression)
        pass->ops->loss(pass->dev, &(struct device_loss){tokens, pass->losses, pass->running, pass->labels});
    if (pass->top && pass->log_p)
        judge_pairs(pass);
}

/* Logits are computed again, as forward kept their log-sum-exp alone. */
static void head_backward(const struct layer_pass *pass)
{
    const struct chunk chunk = head_chunk_of(pass, pass->unit);
    const size_t tokens = predicted_tokens(pass), width = pass->model->config.width;
    float *const sum = pass->gradient_sum;

    for (size_t first = 0; first < tokens; first += pass->plan->head_tile) {
        const size_t m = tile_tokens(pass, first, tokens);
        head_multiply(pass, chunk, first, m, pass->workspace);
        head_tile_backward(pass, chunk, pass->workspace, sum ? sum + first * width : NULL, first, m);
    }
    if (sum && pass->bottom && !pass->lowest)
        pass->ops->round_half(pass->dev, &(struct device_round_half){pass->at[MODEL_INPUT_GRADIENT][STREAM], sum,
                                                                     tokens * width, pass->setting->goal.precision});
}

const struct layer_ops layer_head = {head_forward, head_backward};

#include "tests/kit/reference_gpt2.h"

#include "proto/base/random.h"
#include "proto/wire/message.h"

#include <assert.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

/* Central differences err by step^2 (third derivative) and by rounding / step: about 1e-10 of the loss, both. */
static const double difference_step = 1e-5;

void reference_gpt2_init(struct reference_gpt2 *ref, const struct model *model, const float *weights)
{
    *ref = (struct reference_gpt2){.model = model, .tensors = calloc(model->n_tensors, sizeof *ref->tensors)};
    assert(ref->tensors);
    for (uint32_t i = 0; i < model->n_tensors; i++) {
        ref->tensors[i] = calloc(model->tensors[i].n, sizeof **ref->tensors);
        assert(ref->tensors[i]);
    }
    for (uint32_t u = 0; u < model->n_units; u++)
        for (uint32_t p = 0; p < model->units[u].n_pieces; p++) {
            const struct model_piece *piece = &model->pieces[model->units[u].first_piece + p];
            const float *from = weights + model->units[u].offset + piece->offset;
            double *to = ref->tensors[piece->tensor] + piece->first_row * model->tensors[piece->tensor].shape[1];
            for (uint64_t i = 0; i < piece->n; i++)
                to[i] = from[i];
        }
}

void reference_gpt2_free(struct reference_gpt2 *ref)
{
    for (uint32_t i = 0; i < ref->model->n_tensors; i++)
        free(ref->tensors[i]);
    free(ref->tensors);
}

static const double *named(const struct reference_gpt2 *ref, const char *name)
{
    const struct model_tensor *t = model_find(ref->model, name);

    assert(t);
    return ref->tensors[t - ref->model->tensors];
}

static const double *of_block(const struct reference_gpt2 *ref, uint32_t block, const char *name)
{
    char whole[64];

    snprintf(whole, sizeof whole, "h.%u.%s", block, name);
    return named(ref, whole);
}

/* What one element is multiplied with: 0 or 1/(1-p). */
static double dropped(const struct reference_batch *batch, float p, uint64_t unit, enum random_site site, uint64_t row,
                      uint64_t element)
{
    uint32_t words[4];

    if (!batch->dropout || p <= 0)
        return 1;
    random_quad(words, random_site_key(batch->seed, batch->step, unit, site), row, element / 4);
    return words[element % 4] >= random_threshold(p) ? 1 / (1 - (double)p) : 0;
}

/* y (n_tokens, out) = x (n_tokens, in) W (in, out) + b. */
static void linear(double *y, const double *x, const double *w, const double *b, size_t n_tokens, size_t in, size_t out)
{
    for (size_t t = 0; t < n_tokens; t++) {
        for (size_t j = 0; j < out; j++)
            y[t * out + j] = b[j];
        for (size_t i = 0; i < in; i++)
            for (size_t j = 0; j < out; j++)
                y[t * out + j] += x[t * in + i] * w[i * out + j];
    }
}

static void norm(double *y, const double *x, const double *w, const double *b, size_t n_tokens, size_t n,
                 double epsilon)
{
    for (size_t t = 0; t < n_tokens; t++) {
        double mean = 0, variance = 0;
        for (size_t i = 0; i < n; i++)
            mean += x[t * n + i] / (double)n;
        for (size_t i = 0; i < n; i++)
            variance += (x[t * n + i] - mean) * (x[t * n + i] - mean) / (double)n;
        for (size_t i = 0; i < n; i++)
            y[t * n + i] = (x[t * n + i] - mean) / sqrt(variance + epsilon) * w[i] + b[i];
    }
}

static double activate(enum model_activation activation, double x)
{
    switch (activation) {
    case MODEL_GELU_NEW:
        return 0.5 * x * (1 + tanh(sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
    case MODEL_GELU:
        return 0.5 * x * (1 + erf(x / sqrt(2)));
    case MODEL_RELU:
        return x > 0 ? x : 0;
    case MODEL_SILU:
        return x / (1 + exp(-x));
    }
    abort();
}

/* One sequence at work. */
struct row {
    const struct reference_gpt2 *ref;
    const struct reference_batch *batch;
    uint64_t number; /* in the minibatch */
    uint32_t block;
    uint64_t unit;               /* of the block */
    double *x, *y, *z, *qkv, *h; /* (seq, width) three times, (seq, 3 width), (seq, inner) */
};

static void attend_head(const struct row *r, uint32_t head)
{
    const struct model_config *c = &r->ref->model->config;
    const size_t width = c->width, seq = r->batch->seq, n = width / c->n_heads;
    double probability[seq];

    for (size_t query = 0; query < seq; query++) {
        const double *q = r->qkv + query * 3 * width + head * n;
        double *out = r->y + query * width + head * n, sum = 0;
        for (size_t key = 0; key <= query; key++) {
            const double *k = r->qkv + key * 3 * width + width + head * n;
            double score = 0;
            for (size_t i = 0; i < n; i++)
                score += q[i] * k[i];
            score /= (c->scale_attention ? sqrt((double)n) : 1) * (c->scale_by_layer ? r->block + 1.0 : 1.0);
            sum += probability[key] = exp(score);
        }
        for (size_t i = 0; i < n; i++)
            out[i] = 0;
        for (size_t key = 0; key <= query; key++) {
            const double kept = dropped(r->batch, c->dropout_attention, r->unit, RANDOM_DROPOUT_ATTENTION, r->number,
                                        (head * seq + query) * seq + key);
            for (size_t i = 0; i < n; i++)
                out[i] += probability[key] / sum * kept * r->qkv[key * 3 * width + 2 * width + head * n + i];
        }
    }
}

/* x += dropout(z). */
static void add_residual(const struct row *r, enum random_site site)
{
    const struct model_config *c = &r->ref->model->config;

    for (size_t i = 0; i < (size_t)r->batch->seq * c->width; i++)
        r->x[i] += r->z[i] * dropped(r->batch, c->dropout_residual, r->unit, site, r->number, i);
}

static void run_block(struct row *r)
{
    const struct model_config *c = &r->ref->model->config;
    const size_t seq = r->batch->seq, width = c->width, inner = c->inner_width;
    const struct reference_gpt2 *ref = r->ref;
    const uint32_t b = r->block;

    norm(r->y, r->x, of_block(ref, b, "ln_1.weight"), of_block(ref, b, "ln_1.bias"), seq, width, c->norm_epsilon);
    linear(r->qkv, r->y, of_block(ref, b, "attn.c_attn.weight"), of_block(ref, b, "attn.c_attn.bias"), seq, width,
           3 * width);
    for (uint32_t head = 0; head < c->n_heads; head++)
        attend_head(r, head);
    linear(r->z, r->y, of_block(ref, b, "attn.c_proj.weight"), of_block(ref, b, "attn.c_proj.bias"), seq, width, width);
    add_residual(r, RANDOM_DROPOUT_RESIDUAL_ATTENTION);

    norm(r->y, r->x, of_block(ref, b, "ln_2.weight"), of_block(ref, b, "ln_2.bias"), seq, width, c->norm_epsilon);
    linear(r->h, r->y, of_block(ref, b, "mlp.c_fc.weight"), of_block(ref, b, "mlp.c_fc.bias"), seq, width, inner);
    for (size_t i = 0; i < seq * inner; i++)
        r->h[i] = activate(c->activation, r->h[i]);
    linear(r->z, r->h, of_block(ref, b, "mlp.c_proj.weight"), of_block(ref, b, "mlp.c_proj.bias"), seq, inner, width);
    add_residual(r, RANDOM_DROPOUT_RESIDUAL_MLP);
}

static void embed(const struct row *r)
{
    const struct model *m = r->ref->model;
    const size_t seq = r->batch->seq, width = m->config.width;
    const double *wte = named(r->ref, "wte.weight"), *wpe = named(r->ref, "wpe.weight");
    const struct model_layer *layer = &m->layers[0];
    const uint64_t unit = m->units[m->visits[layer->first_visit + layer->n_visits - 1]].id;

    for (size_t t = 0; t < seq; t++)
        for (size_t i = 0; i < width; i++)
            r->x[t * width + i] = (wte[r->batch->ids[r->number * seq + t] * width + i] + wpe[t * width + i]) *
                                  dropped(r->batch, m->config.dropout_embedding, unit, RANDOM_DROPOUT_EMBEDDING,
                                          r->number, t * width + i);
}

/* -log p of the label of one token whose normed activation is h (width). */
static double token_loss(const struct reference_gpt2 *ref, const double *h, uint32_t label)
{
    const struct model_config *c = &ref->model->config;
    const double *w = named(ref, c->tied ? "wte.weight" : "lm_head.weight");
    double sum = 0, of_label = 0;

    if (label == MESSAGE_NO_LABEL)
        return 0;
    for (uint32_t v = 0; v < c->vocabulary; v++) {
        double logit = 0;
        for (size_t i = 0; i < c->width; i++)
            logit += h[i] * w[v * (size_t)c->width + i];
        sum += exp(logit);
        if (v == label)
            of_label = logit;
    }
    return log(sum) - of_label;
}

static double row_loss(struct row *r)
{
    const struct model *m = r->ref->model;
    double loss = 0;

    embed(r);
    for (uint32_t l = 0; l < m->n_layers; l++) {
        if (m->layers[l].kind != MODEL_BLOCK)
            continue;
        r->block = m->layers[l].index;
        r->unit = m->units[m->visits[m->layers[l].first_visit]].id;
        run_block(r);
    }
    norm(r->y, r->x, named(r->ref, "ln_f.weight"), named(r->ref, "ln_f.bias"), r->batch->seq, m->config.width,
         m->config.norm_epsilon);
    for (size_t t = 0; t < r->batch->seq; t++)
        loss += token_loss(r->ref, r->y + t * m->config.width, r->batch->labels[r->number * r->batch->seq + t]);
    return loss;
}

double reference_gpt2_loss(const struct reference_gpt2 *ref, const struct reference_batch *batch)
{
    const struct model_config *c = &ref->model->config;
    const size_t n = (size_t)batch->seq * c->width;
    double *all = malloc((6 * n + (size_t)batch->seq * c->inner_width) * sizeof *all), loss = 0;

    assert(all);
    for (uint32_t i = 0; i < batch->n_rows; i++) {
        struct row r = {.ref = ref, .batch = batch, .number = batch->first_row + i};
        r.x = all, r.y = all + n, r.z = all + 2 * n, r.qkv = all + 3 * n, r.h = all + 6 * n;
        loss += row_loss(&r);
    }
    free(all);
    return loss;
}

double reference_gpt2_slope(struct reference_gpt2 *ref, const struct reference_batch *batch, uint32_t tensor,
                            uint64_t element)
{
    double *w = &ref->tensors[tensor][element], kept = *w;

    *w = kept + difference_step;
    double above = reference_gpt2_loss(ref, batch);
    *w = kept - difference_step;
    double below = reference_gpt2_loss(ref, batch);
    *w = kept;
    return (above - below) / (2 * difference_step);
}

static void move(double *w, const double *direction, uint64_t n, double by)
{
    for (uint64_t i = 0; i < n; i++)
        w[i] += by * direction[i];
}

double reference_gpt2_slope_along(struct reference_gpt2 *ref, const struct reference_batch *batch, uint32_t tensor,
                                  const double *direction)
{
    const uint64_t n = ref->model->tensors[tensor].n;
    double *w = ref->tensors[tensor];

    move(w, direction, n, difference_step);
    double above = reference_gpt2_loss(ref, batch);
    move(w, direction, n, -2 * difference_step);
    double below = reference_gpt2_loss(ref, batch);
    move(w, direction, n, difference_step);
    return (above - below) / (2 * difference_step);
}

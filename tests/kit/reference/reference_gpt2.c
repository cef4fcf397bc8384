#include "tests/kit/reference/reference_gpt2.h"

#include "proto/model/gpt2.h"
#include "proto/wire/message.h"
#include "tests/kit/reference/reference.h"
#include "tests/kit/device/setting.h"

#include <assert.h>
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

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

/* y (n_tokens, out) = x (n_tokens, in) W (in, out) + b. */
static void linear(double *y, const double *x, const double *w, const double *b, size_t n_tokens, size_t in, size_t out)
{
    const struct device_matmul op = {.m = n_tokens,
                                     .n = out,
                                     .k = in,
                                     .a = x,
                                     .b = w,
                                     .c = y,
                                     .a_stride = in,
                                     .b_stride = out,
                                     .c_stride = out,
                                     .epilogue = DEVICE_BIAS,
                                     .bias = b};

    reference_run(&(struct call){.kind = CALL_matmul, .matmul = op});
}

/* One sequence at work. */
struct row {
    const struct reference_gpt2 *ref;
    const struct reference_batch *batch;
    uint64_t number; /* in the minibatch */
    uint32_t block;
    uint64_t unit;               /* of the block */
    double *x, *y, *z, *qkv, *h; /* (seq, width) three times, (seq, 3 width), (seq, inner) */
    void *room;                  /* (seq, heads + 2) */
};

/* y = norm(x) */
static void norm(const struct row *r, const double *weight, const double *bias)
{
    const struct model_config *c = &r->ref->model->config;
    const struct device_norm op = {.m = r->batch->seq,
                                   .n = c->width,
                                   .epsilon = c->norm_epsilon,
                                   .x = r->x,
                                   .weight = weight,
                                   .bias = bias,
                                   .y = r->y,
                                   .statistics = r->room};

    reference_run(&(struct call){.kind = CALL_norm, .norm = op});
}

static struct device_dropout dropout_of(const struct reference_batch *batch, float p, uint64_t unit,
                                        enum random_site site, uint64_t row)
{
    return (struct device_dropout){.p = batch->dropout ? p : 0,
                                   .key = random_site_key(batch->seed, batch->step, unit, site),
                                   .first_row = row};
}

static void attend(const struct row *r)
{
    const struct model_config *c = &r->ref->model->config;
    const double scale = gpt2_of(c)->scale_attention ? sqrt((double)c->n_heads / c->width) : 1;
    const struct device_attention op = {.n_rows = 1,
                                        .n_tokens = r->batch->seq,
                                        .n_heads = c->n_heads,
                                        .width = c->width,
                                        .scale = (float)(scale / (gpt2_of(c)->scale_by_layer ? r->block + 1 : 1)),
                                        .qkv = r->qkv,
                                        .out = r->y,
                                        .log_sum_exp = r->room,
                                        .dropout = dropout_of(r->batch, gpt2_of(c)->dropout_attention, r->unit,
                                                              RANDOM_DROPOUT_ATTENTION, r->number)};

    reference_run(&(struct call){.kind = CALL_attention, .attention = op});
}

/* x += dropout(z). */
static void add_residual(const struct row *r, enum random_site site)
{
    const struct model_config *c = &r->ref->model->config;
    const struct device_dropout dropout = dropout_of(r->batch, gpt2_of(c)->dropout_residual, r->unit, site, r->number);

    for (size_t i = 0; i < (size_t)r->batch->seq * c->width; i++)
        r->x[i] += r->z[i] * reference_dropout(&dropout, 0, i);
}

static void run_block(struct row *r)
{
    const struct model_config *c = &r->ref->model->config;
    const size_t seq = r->batch->seq, width = c->width, inner = c->inner_width;
    const struct reference_gpt2 *ref = r->ref;
    const uint32_t b = r->block;

    norm(r, of_block(ref, b, "ln_1.weight"), of_block(ref, b, "ln_1.bias"));
    linear(r->qkv, r->y, of_block(ref, b, "attn.c_attn.weight"), of_block(ref, b, "attn.c_attn.bias"), seq, width,
           3 * width);
    attend(r);
    linear(r->z, r->y, of_block(ref, b, "attn.c_proj.weight"), of_block(ref, b, "attn.c_proj.bias"), seq, width, width);
    add_residual(r, RANDOM_DROPOUT_RESIDUAL_ATTENTION);

    norm(r, of_block(ref, b, "ln_2.weight"), of_block(ref, b, "ln_2.bias"));
    linear(r->h, r->y, of_block(ref, b, "mlp.c_fc.weight"), of_block(ref, b, "mlp.c_fc.bias"), seq, width, inner);
    for (size_t i = 0; i < seq * inner; i++)
        r->h[i] = reference_activation(c->activation, r->h[i]);
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

    const struct device_dropout dropout =
        dropout_of(r->batch, gpt2_of(&m->config)->dropout_embedding, unit, RANDOM_DROPOUT_EMBEDDING, r->number);

    for (size_t t = 0; t < seq; t++)
        for (size_t i = 0; i < width; i++)
            r->x[t * width + i] = (wte[r->batch->ids[r->number * seq + t] * width + i] + wpe[t * width + i]) *
                                  reference_dropout(&dropout, 0, t * width + i);
}

/* -log p of the label of one token whose normed activation is h (width). */
static double token_loss(const struct reference_gpt2 *ref, const double *h, uint32_t label)
{
    const struct model_config *c = &ref->model->config;
    double *logits = calloc(c->vocabulary, sizeof *logits), running[3], loss;
    const struct device_matmul product = {.transpose_b = true,
                                          .m = 1,
                                          .n = c->vocabulary,
                                          .k = c->width,
                                          .a = h,
                                          .b = named(ref, c->tied ? "wte.weight" : "lm_head.weight"),
                                          .c = logits,
                                          .b_stride = c->width};
    const struct device_cross_entropy softmax = {.m = 1,
                                                 .n = c->vocabulary,
                                                 .start = true,
                                                 .logits = (void *)logits,
                                                 .labels = &label,
                                                 .running = (void *)running};

    assert(logits);
    reference_run(&(struct call){.kind = CALL_matmul, .matmul = product});
    reference_run(&(struct call){.kind = CALL_log_sum_exp, .log_sum_exp = softmax});
    reference_run(&(struct call){.kind = CALL_loss, .loss = {1, &loss, (void *)running, &label}});
    free(logits);
    return loss;
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
    norm(r, named(r->ref, "ln_f.weight"), named(r->ref, "ln_f.bias"));
    for (size_t t = 0; t < r->batch->seq; t++)
        loss += token_loss(r->ref, r->y + t * m->config.width, r->batch->labels[r->number * r->batch->seq + t]);
    return loss;
}

double reference_gpt2_loss(const struct reference_gpt2 *ref, const struct reference_batch *batch)
{
    const struct model_config *c = &ref->model->config;
    const size_t n = (size_t)batch->seq * c->width;
    double *all = malloc((6 * n + (size_t)batch->seq * (c->inner_width + c->n_heads + 2)) * sizeof *all), loss = 0;

    assert(all);
    for (uint32_t i = 0; i < batch->n_rows; i++) {
        struct row r = {.ref = ref, .batch = batch, .number = batch->first_row + i};
        r.x = all, r.y = all + n, r.z = all + 2 * n, r.qkv = all + 3 * n, r.h = all + 6 * n;
        r.room = r.h + (size_t)batch->seq * c->inner_width;
        loss += row_loss(&r);
    }
    free(all);
    return loss;
}

double reference_gpt2_loss_of(const struct reference_gpt2 *ref, const void *batch)
{
    return reference_gpt2_loss(ref, batch);
}

static double slope(struct reference_gpt2 *ref, reference_loss *loss, const void *batch, double *w,
                    const double *direction, uint64_t n)
{
    double losses[2], *kept = malloc(n * sizeof *kept);

    assert(kept);
    memcpy(kept, w, n * sizeof *kept);
    for (int side = 0; side < 2; side++) {
        for (uint64_t i = 0; i < n; i++)
            w[i] = kept[i] + (side ? -difference_step : difference_step) * direction[i];
        losses[side] = loss(ref, batch);
    }
    memcpy(w, kept, n * sizeof *kept);
    free(kept);
    return (losses[0] - losses[1]) / (2 * difference_step);
}

double reference_slope(struct reference_gpt2 *ref, reference_loss *loss, const void *batch, uint32_t tensor,
                       uint64_t element)
{
    return slope(ref, loss, batch, &ref->tensors[tensor][element], &(const double){1}, 1);
}

void reference_check_direction(struct reference_gpt2 *ref, reference_loss *loss, const void *batch, uint64_t n_valid,
                               const struct reference_gpt2 *gradient, uint32_t tensor, uint64_t *state)
{
    const uint64_t n = ref->model->tensors[tensor].n;
    double *direction = malloc(n * sizeof *direction), dot = 0, size = 0;

    assert(direction);
    for (uint64_t i = 0; i < n; i++) {
        direction[i] = setting_random(state) / sqrt((double)n);
        dot += direction[i] * gradient->tensors[tensor][i];
        size += pow(gradient->tensors[tensor][i], 2) / (double)n;
    }
    const double want = slope(ref, loss, batch, ref->tensors[tensor], direction, n) / (double)n_valid;
    ck_assert_msg(fabs(dot - want) <= 1e-5 * (fabs(want) + sqrt(size)) + 1e-7, "%s: %g, slope %g",
                  ref->model->tensors[tensor].name, dot, want);
    free(direction);
}

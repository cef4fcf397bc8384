/* Whole models of families that are described here as a family's file would: planned, run forward and backward, and
 * compared with the same models in double, tensor by tensor. */
#include "proto/model/family.h"
#include "tests/kit/device/backend.h"
#include "tests/kit/device/setting.h"
#include "tests/kit/test.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

SUITE_LABELS(on_cuda_release)

enum {
    ROWS = 3,
    SEQ = 5,
    BLOCKS = 2,
    WIDTH = 24,
    HEADS = 4,
    HEAD = WIDTH / HEADS,
    KV_HEADS = 2,
    KV_WIDTH = KV_HEADS * HEAD,
    ROTATED = 4, /* columns of a head, of the second decoder's */
    INNER = 20,
    POSITIONS = 9,
    VOCABULARY = 19,
};

/* ---- the families ---- */

static const struct program_dropout none = {0, 0};
static const struct program_norm_options rms = {.epsilon = 1e-5f, .rms = true},
                                         centred = {.epsilon = 1e-5f, .bias = true};
static const struct program_linear_options bare = {.deviation = 0.02f, .out_in = true},
                                           biased = {.deviation = 0.02f, .bias = true, .out_in = true};
static const struct program_part qkv[] = {{"self_attn.q_proj", WIDTH},
                                          {"self_attn.k_proj", KV_WIDTH},
                                          {"self_attn.v_proj", KV_WIDTH}},
                                 full_qkv[] = {{"attention.self.query", WIDTH},
                                               {"attention.self.key", WIDTH},
                                               {"attention.self.value", WIDTH}},
                                 gate_up[] = {{"mlp.gate_proj", INNER}, {"mlp.up_proj", INNER}};
static const double frequencies[ROTATED / 2] = {0.75, 0.125};

/* LlamaDecoderLayer; Qwen2's has biases of queries, keys and values. */
static void write_decoder(struct program *p, const struct program_linear_options *of_qkv,
                          const struct program_rope_options *rope)
{
    const struct program_attention_options attention = {.n_heads = HEADS,
                                                        .n_kv_heads = KV_HEADS,
                                                        .scale = 1 / sqrtf(HEAD)};

    const int x = program_begin(p, WIDTH);
    const int n1 = program_norm(p, x, "input_layernorm", &rms);
    const int turned = program_rope(p, program_linears(p, n1, qkv, 3, of_qkv), rope);
    const int a = program_attention(p, turned, &attention);
    const int r = program_add(p, x, program_linear(p, a, "self_attn.o_proj", WIDTH, &bare), &none);
    const int n2 = program_norm(p, r, "post_attention_layernorm", &rms);
    const int g = program_glu(p, program_linears(p, n2, gate_up, 2, &bare), MODEL_SILU);
    program_end(p, program_add(p, r, program_linear(p, g, "mlp.down_proj", WIDTH, &bare), &none));
}

static void write_llama(struct program *p, const struct model_config *c)
{
    (void)c;
    write_decoder(p, &bare, &(struct program_rope_options){HEADS + KV_HEADS, HEAD, 0, 10000, NULL});
}

static void write_qwen2(struct program *p, const struct model_config *c)
{
    (void)c;
    write_decoder(p, &biased, &(struct program_rope_options){HEADS + KV_HEADS, HEAD, ROTATED, 0, frequencies});
}

static void write_rms(struct program *p, const struct model_config *c)
{
    (void)c;
    program_end(p, program_norm(p, program_begin(p, WIDTH), "norm", &rms));
}

static void write_embedding_norm(struct program *p, const struct model_config *c)
{
    (void)c;
    program_end(p, program_norm(p, program_begin(p, WIDTH), "embeddings.LayerNorm", &centred));
}

/* BertLayer: norms after, and every query sees all keys. */
static void write_encoder(struct program *p, const struct model_config *c)
{
    const struct program_attention_options attention = {.n_heads = HEADS, .full = true, .scale = 1 / sqrtf(HEAD)};
    (void)c;

    const int x = program_begin(p, WIDTH);
    const int a = program_attention(p, program_linears(p, x, full_qkv, 3, &biased), &attention);
    const int h = program_linear(p, a, "attention.output.dense", WIDTH, &biased);
    const int n = program_norm(p, program_add(p, x, h, &none), "attention.output.LayerNorm", &centred);
    const int g = program_activation(p, program_linear(p, n, "intermediate.dense", INNER, &biased), MODEL_GELU);
    const int m = program_linear(p, g, "output.dense", WIDTH, &biased);
    program_end(p, program_norm(p, program_add(p, n, m, &none), "output.LayerNorm", &centred));
}

/* BertPredictionHeadTransform: an activation that no linear map reads. */
static void write_transform(struct program *p, const struct model_config *c)
{
    (void)c;
    const int h = program_linear(p, program_begin(p, WIDTH), "cls.predictions.transform.dense", WIDTH, &biased);
    const int g = program_activation(p, h, MODEL_GELU);
    program_end(p, program_norm(p, g, "cls.predictions.transform.LayerNorm", &centred));
}

#define ROWS_OF(member) offsetof(struct model_config, member)

static const struct family_table of_tokens[] = {{"embed_tokens", MODEL_BY_TOKEN, .rows = ROWS_OF(vocabulary)}, {0}},
                                 of_bert[] = {
                                     {"embeddings.word_embeddings", MODEL_BY_TOKEN, .rows = ROWS_OF(vocabulary)},
                                     {"embeddings.position_embeddings", MODEL_BY_POSITION,
                                      .rows = ROWS_OF(n_positions)},
                                     {"embeddings.token_type_embeddings", MODEL_BY_SEGMENT, .some = 2},
                                     {0},
};
static const struct family_layer llama_layers[] = {{MODEL_BLOCK, "layers.%u", .write = write_llama},
                                                   {MODEL_SINGLE, "norm", .write = write_rms},
                                                   {0}},
                                 qwen2_layers[] = {{MODEL_BLOCK, "layers.%u", .write = write_qwen2},
                                                   {MODEL_SINGLE, "norm", .write = write_rms},
                                                   {0}},
                                 bert_layers[] = {
                                     {MODEL_SINGLE, "embeddings.LayerNorm", .write = write_embedding_norm},
                                     {MODEL_BLOCK, "encoder.layer.%u", .write = write_encoder},
                                     {MODEL_SINGLE, "cls.predictions.transform", true, write_transform},
                                     {0},
};

static int accept(const struct model_config *c, struct error *err)
{
    (void)c, (void)err;
    return 0;
}

static const struct family llama = {.model_type = "llama",
                                    .prefix = "model.",
                                    .tables = of_tokens,
                                    .layers = llama_layers,
                                    .logits = "lm_head",
                                    .check = accept},
                           qwen2 = {.model_type = "qwen2",
                                    .prefix = "model.",
                                    .tables = of_tokens,
                                    .layers = qwen2_layers,
                                    .logits = "lm_head",
                                    .check = accept},
                           bert = {.model_type = "bert",
                                   .prefix = "bert.",
                                   .tables = of_bert,
                                   .layers = bert_layers,
                                   .logits = "cls.predictions.decoder",
                                   .check = accept};

/* ---- in double ---- */

typedef double vector[WIDTH];

/* "layers.1.mlp.up_proj.weight", without the family's prefix; NULL: the model has none. */
static const double *weight(const struct reference_gpt2 *ref, const char *layer, const char *name)
{
    char full[96];

    snprintf(full, sizeof full, "%s%s%s", layer, *layer ? "." : "", name);
    const struct model_tensor *t = model_find(ref->model, full);
    return t ? ref->tensors[t - ref->model->tensors] : NULL;
}

/* A linear map or a norm by its stem. */
struct stem {
    const double *weight, *bias;
};

static struct stem stem(const struct reference_gpt2 *ref, const char *layer, const char *name)
{
    char tensor[64];

    snprintf(tensor, sizeof tensor, "%s.weight", name);
    const double *of_weight = weight(ref, layer, tensor);
    ck_assert_msg(of_weight != NULL, "%s.%s", layer, tensor);
    snprintf(tensor, sizeof tensor, "%s.bias", name);
    return (struct stem){of_weight, weight(ref, layer, tensor)};
}

/* torch.nn.Linear */
static void map(double *y, const double *x, struct stem of, int in, int out)
{
    for (int j = 0; j < out; j++) {
        y[j] = of.bias ? of.bias[j] : 0;
        for (int i = 0; i < in; i++)
            y[j] += x[i] * of.weight[j * in + i];
    }
}

/* With a bias a layer norm, without one by the root mean square. */
static void norm(double *y, const double *x, struct stem of)
{
    double mean = 0, square = 0;

    for (int i = 0; i < WIDTH && of.bias; i++)
        mean += x[i] / WIDTH;
    for (int i = 0; i < WIDTH; i++)
        square += (x[i] - mean) * (x[i] - mean) / WIDTH;
    for (int i = 0; i < WIDTH; i++)
        y[i] = (x[i] - mean) / sqrt(square + 1e-5) * of.weight[i] + (of.bias ? of.bias[i] : 0);
}

/* The pairs (j, j + n/2) of each head. */
static void turn(double *heads, int n_heads, int n, const double *by, int position)
{
    for (double *head = heads; head < heads + n_heads * HEAD; head += HEAD)
        for (int j = 0; j < n / 2; j++) {
            const double angle = position * (by ? by[j] : pow(10000, -2.0 * j / n)), a = head[j], b = head[j + n / 2];
            head[j] = a * cos(angle) - b * sin(angle);
            head[j + n / 2] = b * cos(angle) + a * sin(angle);
        }
}

/* Query q over n keys; HEADS / n_kv neighbouring heads share a head of keys and values. */
static void attend(double *out, const double *q, const vector *k, const vector *v, int n, int n_kv)
{
    for (int h = 0; h < HEADS; h++) {
        const int kv = h * n_kv / HEADS * HEAD;
        double p[SEQ], sum = 0;
        for (int t = 0; t < n; t++) {
            double score = 0;
            for (int i = 0; i < HEAD; i++)
                score += q[h * HEAD + i] * k[t][kv + i];
            sum += p[t] = exp(score / sqrt(HEAD));
        }
        for (int i = 0; i < HEAD; i++) {
            out[h * HEAD + i] = 0;
            for (int t = 0; t < n; t++)
                out[h * HEAD + i] += p[t] / sum * v[t][kv + i];
        }
    }
}

static void add(double *to, const double *x)
{
    for (int i = 0; i < WIDTH; i++)
        to[i] += x[i];
}

static double gelu(double x)
{
    return 0.5 * x * (1 + erf(x / sqrt(2)));
}

static void decoder_row(const struct reference_gpt2 *ref, vector x[SEQ], const uint32_t *ids)
{
    const bool scaled = ref->model->config.family == &qwen2;
    const double *table = weight(ref, "embed_tokens", "weight");
    vector q[SEQ], k[SEQ], v[SEQ], n, a;
    double gate[INNER], up[INNER];

    for (int t = 0; t < SEQ; t++)
        memcpy(x[t], table + ids[t] * WIDTH, sizeof x[t]);
    for (unsigned block = 0; block < BLOCKS; block++) {
        char layer[16];
        snprintf(layer, sizeof layer, "layers.%u", block);
        for (int t = 0; t < SEQ; t++) {
            norm(n, x[t], stem(ref, layer, "input_layernorm"));
            map(q[t], n, stem(ref, layer, "self_attn.q_proj"), WIDTH, WIDTH);
            map(k[t], n, stem(ref, layer, "self_attn.k_proj"), WIDTH, KV_WIDTH);
            map(v[t], n, stem(ref, layer, "self_attn.v_proj"), WIDTH, KV_WIDTH);
            turn(q[t], HEADS, scaled ? ROTATED : HEAD, scaled ? frequencies : NULL, t);
            turn(k[t], KV_HEADS, scaled ? ROTATED : HEAD, scaled ? frequencies : NULL, t);
        }
        for (int t = 0; t < SEQ; t++) {
            attend(a, q[t], (const vector *)k, (const vector *)v, t + 1, KV_HEADS);
            map(n, a, stem(ref, layer, "self_attn.o_proj"), WIDTH, WIDTH);
            add(x[t], n);
            norm(n, x[t], stem(ref, layer, "post_attention_layernorm"));
            map(gate, n, stem(ref, layer, "mlp.gate_proj"), WIDTH, INNER);
            map(up, n, stem(ref, layer, "mlp.up_proj"), WIDTH, INNER);
            for (int i = 0; i < INNER; i++)
                up[i] *= gate[i] / (1 + exp(-gate[i]));
            map(n, up, stem(ref, layer, "mlp.down_proj"), INNER, WIDTH);
            add(x[t], n);
        }
    }
    for (int t = 0; t < SEQ; t++) {
        norm(n, x[t], stem(ref, "", "norm"));
        memcpy(x[t], n, sizeof n);
    }
}

static void encoder_row(const struct reference_gpt2 *ref, vector x[SEQ], const uint32_t *ids)
{
    const double *tokens = weight(ref, "embeddings", "word_embeddings.weight");
    const double *positions = weight(ref, "embeddings", "position_embeddings.weight");
    const double *segments = weight(ref, "embeddings", "token_type_embeddings.weight");
    vector q[SEQ], k[SEQ], v[SEQ], n, a;
    double g[INNER];

    for (int t = 0; t < SEQ; t++) {
        for (int i = 0; i < WIDTH; i++)
            n[i] = tokens[ids[t] * WIDTH + (unsigned)i] + positions[t * WIDTH + i] + segments[i];
        norm(x[t], n, stem(ref, "", "embeddings.LayerNorm"));
    }
    for (unsigned block = 0; block < BLOCKS; block++) {
        char layer[24];
        snprintf(layer, sizeof layer, "encoder.layer.%u", block);
        for (int t = 0; t < SEQ; t++) {
            map(q[t], x[t], stem(ref, layer, "attention.self.query"), WIDTH, WIDTH);
            map(k[t], x[t], stem(ref, layer, "attention.self.key"), WIDTH, WIDTH);
            map(v[t], x[t], stem(ref, layer, "attention.self.value"), WIDTH, WIDTH);
        }
        for (int t = 0; t < SEQ; t++) {
            attend(a, q[t], (const vector *)k, (const vector *)v, SEQ, HEADS);
            map(n, a, stem(ref, layer, "attention.output.dense"), WIDTH, WIDTH);
            add(n, x[t]);
            norm(a, n, stem(ref, layer, "attention.output.LayerNorm"));
            map(g, a, stem(ref, layer, "intermediate.dense"), WIDTH, INNER);
            for (int i = 0; i < INNER; i++)
                g[i] = gelu(g[i]);
            map(n, g, stem(ref, layer, "output.dense"), INNER, WIDTH);
            add(n, a);
            norm(x[t], n, stem(ref, layer, "output.LayerNorm"));
        }
    }
    for (int t = 0; t < SEQ; t++) {
        map(n, x[t], stem(ref, "", "cls.predictions.transform.dense"), WIDTH, WIDTH);
        for (int i = 0; i < WIDTH; i++)
            n[i] = gelu(n[i]);
        norm(x[t], n, stem(ref, "", "cls.predictions.transform.LayerNorm"));
    }
}

/* The sum of -log p over all labels that count. */
static double loss_of(const struct reference_gpt2 *ref, const struct setting *s)
{
    const struct model_config *c = &ref->model->config;
    const double *table =
        c->tied ? ref->tensors[ref->model->embedding.tables[0].tensor] : weight(ref, c->family->logits, "weight");
    double loss = 0;

    for (uint32_t row = 0; row < ROWS; row++) {
        vector x[SEQ];
        (c->family == &bert ? encoder_row : decoder_row)(ref, x, s->ids + row * SEQ);
        for (uint32_t t = 0; t < SEQ; t++) {
            const uint32_t label = s->labels[row * SEQ + t];
            double logits[VOCABULARY], sum = 0;
            map(logits, x[t], (struct stem){table, NULL}, WIDTH, VOCABULARY);
            for (int i = 0; i < VOCABULARY; i++)
                sum += exp(logits[i]);
            if (label < VOCABULARY)
                loss += log(sum) - logits[label];
        }
    }
    return loss;
}

/* ---- */

/* Of the loss along a direction (n): a central difference, good to 1e-9. */
static double slope_along(const struct reference_gpt2 *ref, const struct setting *s, uint32_t tensor,
                          const double *direction)
{
    const uint64_t n = ref->model->tensors[tensor].n;
    const double step = 1e-5;
    double loss[2];

    for (int side = 0; side < 2; side++) {
        for (uint64_t i = 0; i < n; i++)
            ref->tensors[tensor][i] += (side ? step : -step) * direction[i];
        loss[side] = loss_of(ref, s);
        for (uint64_t i = 0; i < n; i++)
            ref->tensors[tensor][i] -= (side ? step : -step) * direction[i];
    }
    return (loss[1] - loss[0]) / (2 * step);
}

/* Along a random direction the gradient's error is that of one element: 1e-5 of their root mean square. What adds the
 * same to all scores of a query, as BERT's key biases do, has a gradient of 0, which rounding misses by 1e-8 or so. */
static void check_tensor(const struct reference_gpt2 *ref, const struct reference_gpt2 *found, const struct setting *s,
                         uint32_t t, uint64_t *state)
{
    const uint64_t n = s->model.tensors[t].n;
    double *direction = malloc(n * sizeof *direction), dot = 0, size = 0;

    ck_assert_ptr_nonnull(direction);
    for (uint64_t i = 0; i < n; i++) {
        direction[i] = setting_random(state) / sqrt((double)n);
        dot += direction[i] * found->tensors[t][i];
        size += pow(found->tensors[t][i], 2) / (double)n;
    }
    const double slope = slope_along(ref, s, t, direction) / (double)s->n_valid;
    ck_assert_msg(fabs(dot - slope) <= 1e-5 * (fabs(slope) + sqrt(size)) + 1e-7, "%s: %g, slope %g",
                  s->model.tensors[t].name, dot, slope);
    free(direction);
}

/* Whatever blocks keep, the gradients have the same bits. */
static void check_every_keeping(const struct array_link *same, const struct setting *s,
                                struct device_worker_options options)
{
    for (uint32_t keeping = 1; keeping < MODEL_KEEPINGS; keeping++) {
        struct array_link link;
        options.choice.n_kept = BLOCKS, options.choice.kept = keeping;
        setting_step_whole(&link, s, &options);
        ck_assert_mem_eq(link.gradient, same->gradient, s->model.segment_n * sizeof *link.gradient);
        array_link_free(&link);
    }
}

/* Each model with what backward reads kept, and computed again; tied and not; in microbatches of 2 rows and of 1. */
TEST_EACH(a_model_of_another_family_is_what_double_says, 3 * 2)
{
    static const struct family *const families[] = {&llama, &qwen2, &bert};
    enum { DIRECTIONS = 3 };
    const struct model_config config = {.family = families[_i / 2],
                                        .n_layers = BLOCKS,
                                        .n_heads = HEADS,
                                        .width = WIDTH,
                                        .inner_width = INNER,
                                        .n_positions = POSITIONS,
                                        .vocabulary = VOCABULARY,
                                        .tied = _i % 2,
                                        .initializer_range = 0.02f};
    struct reference_gpt2 ref, found;
    struct array_link link;
    struct setting s;
    uint64_t state = 2463534242u;

    setting_open(&s, &config, ROWS, SEQ);
    struct device_worker_options options = setting_options(&s, ROWS, 2);
    options.choice.n_kept = _i % 2 ? 0 : BLOCKS;
    options.choice.kept = _i % 2 ? MODEL_KEEPS_NOTHING : MODEL_KEEPS_ALL;
    setting_step_whole(&link, &s, &options);
    reference_gpt2_init(&ref, &s.model, s.weights);
    reference_gpt2_init(&found, &s.model, link.gradient);
    ck_assert_double_eq_tol(link.losses[0], loss_of(&ref, &s), 1e-6 * link.losses[0]);
    for (uint32_t t = 0; t < s.model.n_tensors; t++)
        for (int i = 0; i < DIRECTIONS; i++)
            check_tensor(&ref, &found, &s, t, &state);
    check_every_keeping(&link, &s, options);
    reference_gpt2_free(&ref);
    reference_gpt2_free(&found);
    array_link_free(&link);
    setting_close(&s);
}

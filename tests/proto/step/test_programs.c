/* Whole models: planned, run forward and backward, and compared with the same models in double, tensor by tensor. What
 * Gemma 2 and 3 are but for windows is described here as a family's file would. */
#include "proto/model/decoder_family.h"
#include "tests/kit/device/backend.h"
#include "tests/kit/reference/reference.h"
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
    INNER = 20,
    POSITIONS = 9,
    VOCABULARY = 19,
    WINDOW = 3, /* of Mistral's attention */
};

/* ---- the families ---- */

static const struct program_dropout none = {0};
static const struct program_norm_options offset = {.epsilon = 1e-5f, .rms = true, .offset = true};
static const struct program_linear_options bare = {.deviation = 0.02f, .out_in = true};
static const struct program_part grouped_qkv[] = {{"self_attn.q_proj", WIDTH},
                                                  {"self_attn.k_proj", KV_WIDTH},
                                                  {"self_attn.v_proj", KV_WIDTH}},
                                 gate_up[] = {{"mlp.gate_proj", INNER}, {"mlp.up_proj", INNER}};

/* Gemma2DecoderLayer, with norms before and after, and Gemma 3's norms of heads; but rotated the other way. */
static void write_gemma(struct program *p, const struct model_config *c)
{
    const struct program_attention_options attention = {.n_heads = HEADS, .n_kv_heads = KV_HEADS, .scale = 0.4f};
    const struct program_rope_options rope = {.n_heads = HEADS + KV_HEADS,
                                              .head_width = HEAD,
                                              .base = 10000,
                                              .backwards = true};
    const struct program_head_norm_options heads = {
        .epsilon = 1e-5f, .n_heads = HEADS, .n_kv_heads = KV_HEADS, .head_width = HEAD, .offset = true};
    (void)c;

    const int x = program_begin(p, WIDTH);
    const int n1 = program_norm(p, x, "input_layernorm", &offset);
    const int projected = program_linears(p, n1, grouped_qkv, 3, &bare);
    const int normed = program_head_norm(p, projected, "self_attn.q_norm", "self_attn.k_norm", &heads);
    const int a = program_attention(p, program_rope(p, normed, &rope), &attention);
    const int o = program_linear(p, a, "self_attn.o_proj", WIDTH, &bare);
    const int r = program_add(p, x, program_norm(p, o, "post_attention_layernorm", &offset), &none);
    const int n2 = program_norm(p, r, "pre_feedforward_layernorm", &offset);
    const int g = program_glu(p, program_linears(p, n2, gate_up, 2, &bare), MODEL_GELU_NEW);
    const int m = program_linear(p, g, "mlp.down_proj", WIDTH, &bare);
    program_end(p, program_add(p, r, program_norm(p, m, "post_feedforward_layernorm", &offset), &none));
}

static void write_offset(struct program *p, const struct model_config *c)
{
    (void)c;
    program_end(p, program_norm(p, program_begin(p, WIDTH), "norm", &offset));
}

static const struct family_layer gemma_layers[] = {
    {MODEL_BLOCK, "layers.%u", .write = write_gemma},
    {MODEL_SINGLE, "norm", .write = write_offset},
    {0},
};

static int accept(const struct model_config *c, struct error *err)
{
    (void)c, (void)err;
    return 0;
}

static float scale_embedding(const struct model_config *c)
{
    return sqrtf((float)c->width);
}

/* Of the size of logits here. */
static float cap_logits(const struct model_config *c)
{
    (void)c;
    return 1.5f;
}

static const struct family gemma = {.model_type = "gemma3",
                                    .prefix = "model.",
                                    .tables = decoder_tables,
                                    .layers = gemma_layers,
                                    .logits = "lm_head",
                                    .embedding_scale = scale_embedding,
                                    .logit_cap = cap_logits,
                                    .check = accept};

/* Llama's block in two kinds: every second one turns by another base, and has a window. Each head has a norm with a
 * weight and a sink of its own, and the MLP is two maps around xIELU. */
static void write_mixed_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {.query = "self_attn.q_norm",
                                                 .key = "self_attn.k_norm",
                                                 .normed_each = true,
                                                 .normed_stacked = true,
                                                 .sinks = true};
    static const struct program_xielu_options xielu = {.beta = 0.5f, .bound = -1e-6f};
    struct model_config other = *c;

    decoder_edit(&other)->sliding_rope.base = 100, decoder_edit(&other)->window = WINDOW;
    const int x = program_begin(p, WIDTH);
    const int a = decoder_attention(p, &other, kind, decoder_norm(p, c, x, "input_layernorm"), &how);
    const int r = program_add(p, x, a, &none);
    const int u = program_linear(p, decoder_norm(p, c, r, "post_attention_layernorm"), "mlp.up_proj", INNER, &bare);
    const int m = program_linear(p, program_xielu(p, u, "mlp.act_fn", &xielu), "mlp.down_proj", WIDTH, &bare);
    program_end(p, program_add(p, r, m, &none));
}

static uint32_t kind_of_block(const struct model_config *c, uint32_t index)
{
    (void)c;
    return index % 2;
}

static const struct family_layer mixed_layers[] = {
    {MODEL_BLOCK, "layers.%u", .write_kind = write_mixed_block},
    {MODEL_BLOCK, "layers.%u", .write_kind = write_mixed_block},
    {MODEL_SINGLE, "norm", .write = decoder_write_norm},
    {0},
};
static const struct family mixed = {.model_type = "mixed",
                                    .prefix = "model.",
                                    .tables = decoder_tables,
                                    .layers = mixed_layers,
                                    .kind_of_block = kind_of_block,
                                    .logits = "lm_head",
                                    .check = accept};

/* The rest of config.json: what is not said of the sizes. */
static const char *const decoders[] = {
    "'model_type': 'llama'", "'model_type': 'qwen2', 'rope_parameters': {'rope_theta': 100}",
    "'model_type': 'qwen3'", "'model_type': 'mistral', 'sliding_window': 3",
    "'model_type': 'llama'",
};
enum { MIXED = COUNT(decoders) - 1, GEMMA, BERT, ROBERTA, MODELS };

static void parse(struct model_config *config, char *text)
{
    struct error err;

    for (char *c = text; *c; c++)
        *c = *c == '\'' ? '"' : *c;
    ck_assert_msg(model_config_parse(config, text, strlen(text), &err) == 0, "%s", err.text);
}

/* Tied always. */
static struct model_config encoder_config_of(const char *type)
{
    struct model_config config;
    char text[600];

    snprintf(text, sizeof text,
             "{'model_type': '%s', 'num_hidden_layers': %d, 'num_attention_heads': %d, 'hidden_size': %d, "
             "'intermediate_size': %d, 'max_position_embeddings': %d, 'vocab_size': %d, 'layer_norm_eps': 1e-5, "
             "'hidden_dropout_prob': 0, 'attention_probs_dropout_prob': 0}",
             type, BLOCKS, HEADS, WIDTH, INNER, POSITIONS, VOCABULARY);
    parse(&config, text);
    return config;
}

static struct model_config config_of(int which, bool tied)
{
    struct model_config config = {.family = &gemma,
                                  .n_layers = BLOCKS,
                                  .n_heads = HEADS,
                                  .width = WIDTH,
                                  .inner_width = INNER,
                                  .n_positions = POSITIONS,
                                  .vocabulary = VOCABULARY,
                                  .tied = tied,
                                  .initializer_range = 0.02f};
    char text[600];

    if (which >= BERT)
        return encoder_config_of(which == BERT ? "bert" : "roberta");
    if (which == GEMMA)
        return config;
    snprintf(text, sizeof text,
             "{%s, 'num_hidden_layers': %d, 'num_attention_heads': %d, 'num_key_value_heads': %d, 'head_dim': %d, "
             "'hidden_size': %d, 'intermediate_size': %d, 'max_position_embeddings': %d, 'vocab_size': %d, "
             "'rms_norm_eps': 1e-5, 'tie_word_embeddings': %s}",
             decoders[which], BLOCKS, HEADS, KV_HEADS, HEAD, WIDTH, INNER, POSITIONS, VOCABULARY,
             tied ? "true" : "false");
    parse(&config, text);
    config.family = which == MIXED ? &mixed : config.family;
    return config;
}

/* ---- in double, a sequence at a time ---- */

enum { QKV = WIDTH + 2 * KV_WIDTH, FULL_QKV = 3 * WIDTH };

/* One sequence, and the layer that is at work on it: its name before those of its tensors. */
struct row {
    const struct reference_gpt2 *ref;
    char layer[24];
    double x[SEQ * WIDTH], y[SEQ * WIDTH], qkv[SEQ * FULL_QKV], gate[SEQ * INNER], up[SEQ * INNER];
};

/* "layers.1.mlp.up_proj" ".weight", without the family's prefix; NULL: the model has none. */
static const double *tensor(const struct row *r, const char *name, const char *kind)
{
    char full[96];

    snprintf(full, sizeof full, "%s%s%s%s", r->layer, *r->layer ? "." : "", name, kind);
    const struct model_tensor *t = model_find(r->ref->model, full);
    return t ? r->ref->tensors[t - r->ref->model->tensors] : NULL;
}

/* torch.nn.Linear, into columns of y. */
static void linear(const struct row *r, double *y, size_t stride, const double *x, const char *name, size_t in,
                   size_t out)
{
    const double *bias = tensor(r, name, ".bias");
    const struct device_matmul op = {.transpose_b = true,
                                     .m = SEQ,
                                     .n = out,
                                     .k = in,
                                     .a = x,
                                     .b = tensor(r, name, ".weight"),
                                     .c = y,
                                     .a_stride = in,
                                     .b_stride = in,
                                     .c_stride = stride,
                                     .epilogue = bias ? DEVICE_BIAS : DEVICE_NO_EPILOGUE,
                                     .bias = bias};

    ck_assert_msg(op.b != NULL, "%s.%s", r->layer, name);
    reference_run(&(struct call){.kind = CALL_matmul, .matmul = op});
}

static bool is_gemma(const struct row *r)
{
    return r->ref->model->config.family == &gemma;
}

/* With a bias a layer norm, without one by the root mean square; Gemma's by 1 + weight. */
static void norm(const struct row *r, double *y, const double *x, const char *name)
{
    double statistics[2 * SEQ];
    const struct device_norm op = {.kind = tensor(r, name, ".bias") ? DEVICE_LAYER_NORM : DEVICE_RMS_NORM,
                                   .m = SEQ,
                                   .n = WIDTH,
                                   .epsilon = 1e-5f,
                                   .offset = is_gemma(r),
                                   .x = x,
                                   .weight = tensor(r, name, ".weight"),
                                   .bias = tensor(r, name, ".bias"),
                                   .y = y,
                                   .statistics = (void *)statistics};

    reference_run(&(struct call){.kind = CALL_norm, .norm = op});
}

/* Each head of queries, or of keys, by the mean, with a row of the weights. */
static void norm_each_head(struct row *r, bool keys)
{
    const double *const weights = tensor(r, keys ? "self_attn.k_norm" : "self_attn.q_norm", ".weight");
    double qkv[SEQ * QKV], statistics[2 * SEQ];

    memcpy(qkv, r->qkv, sizeof qkv);
    for (int head = 0; head < (keys ? KV_HEADS : HEADS); head++) {
        const struct device_norm op = {.kind = DEVICE_LAYER_NORM,
                                       .m = SEQ,
                                       .n = HEAD,
                                       .stride = QKV,
                                       .epsilon = 1e-5f,
                                       .x = qkv + keys * WIDTH + head * HEAD,
                                       .weight = weights + head * HEAD,
                                       .y = r->qkv + keys * WIDTH + head * HEAD,
                                       .statistics = (void *)statistics};
        reference_run(&(struct call){.kind = CALL_norm, .norm = op});
    }
}

/* Each head's queries and keys by the root mean square; values stay. */
static void norm_heads(struct row *r)
{
    double qkv[SEQ * QKV], statistics[2 * SEQ * HEADS];

    memcpy(qkv, r->qkv, sizeof qkv);
    for (int keys = 0; keys < 2; keys++) {
        const struct device_norm op = {.kind = DEVICE_RMS_NORM,
                                       .m = SEQ,
                                       .n = HEAD,
                                       .n_heads = keys ? KV_HEADS : HEADS,
                                       .stride = QKV,
                                       .epsilon = 1e-5f,
                                       .offset = is_gemma(r),
                                       .x = qkv + keys * WIDTH,
                                       .weight = tensor(r, keys ? "self_attn.k_norm" : "self_attn.q_norm", ".weight"),
                                       .y = r->qkv + keys * WIDTH,
                                       .statistics = (void *)statistics};
        reference_run(&(struct call){.kind = CALL_norm, .norm = op});
    }
}

static void attend(struct row *r, size_t n_kv_heads, bool full, size_t window, float scale)
{
    double sums[SEQ * HEADS];
    const struct device_attention op = {.n_rows = 1,
                                        .n_tokens = SEQ,
                                        .n_heads = HEADS,
                                        .width = WIDTH,
                                        .n_kv_heads = n_kv_heads,
                                        .full = full,
                                        .window = window,
                                        .scale = scale,
                                        .qkv = r->qkv,
                                        .sinks = tensor(r, "self_attn", ".sinks"),
                                        .out = r->y,
                                        .log_sum_exp = (void *)sums};

    reference_run(&(struct call){.kind = CALL_attention, .attention = op});
}

static void turn(struct row *r, double base, bool backwards)
{
    double by[HEAD / 2];

    for (int j = 0; j < HEAD / 2; j++)
        by[j] = pow(base, -2.0 * j / HEAD);
    const struct device_rope op = {.n_rows = 1,
                                   .n_tokens = SEQ,
                                   .n_heads = HEADS + KV_HEADS,
                                   .head_width = HEAD,
                                   .n_rotated = HEAD,
                                   .frequencies = by,
                                   .x = r->qkv,
                                   .stride = QKV,
                                   .inverse = backwards};
    reference_run(&(struct call){.kind = CALL_rope, .rope = op});
}

static void add(double *to, const double *x)
{
    for (int i = 0; i < SEQ * WIDTH; i++)
        to[i] += x[i];
}

static void gelu(double *x, int n)
{
    for (int i = 0; i < n; i++)
        x[i] = reference_activation(MODEL_GELU, x[i]);
}

/* r->up from r->up. */
static void xielu(struct row *r)
{
    const struct device_xielu op = {.n = SEQ * INNER,
                                    .beta = 0.5f,
                                    .bound = -1e-6f,
                                    .x = r->up,
                                    .positive = tensor(r, "mlp.act_fn", ".alpha_p"),
                                    .negative = tensor(r, "mlp.act_fn", ".alpha_n"),
                                    .y = r->up};

    reference_run(&(struct call){.kind = CALL_xielu, .xielu = op});
}

static void decoder_row(struct row *r, const uint32_t *ids)
{
    const double *table = tensor(r, "embed_tokens", ".weight");
    const struct family *family = r->ref->model->config.family;

    for (int t = 0; t < SEQ; t++)
        memcpy(r->x + t * WIDTH, table + ids[t] * WIDTH, WIDTH * sizeof *table);
    for (unsigned block = 0; block < BLOCKS; block++) {
        const bool is_other = family == &mixed && block % 2;
        snprintf(r->layer, sizeof r->layer, "layers.%u", block);
        norm(r, r->y, r->x, "input_layernorm");
        linear(r, r->qkv, QKV, r->y, "self_attn.q_proj", WIDTH, WIDTH);
        linear(r, r->qkv + WIDTH, QKV, r->y, "self_attn.k_proj", WIDTH, KV_WIDTH);
        linear(r, r->qkv + WIDTH + KV_WIDTH, QKV, r->y, "self_attn.v_proj", WIDTH, KV_WIDTH);
        if (family == &mixed)
            norm_each_head(r, false), norm_each_head(r, true);
        else if (tensor(r, "self_attn.q_norm", ".weight"))
            norm_heads(r);
        turn(r, is_other || tensor(r, "self_attn.q_proj", ".bias") ? 100 : 10000, false);
        attend(r, KV_HEADS, false, is_other || strcmp(family->model_type, "mistral") == 0 ? WINDOW : 0,
               1 / sqrtf(HEAD));
        linear(r, r->qkv, WIDTH, r->y, "self_attn.o_proj", WIDTH, WIDTH);
        add(r->x, r->qkv);
        norm(r, r->y, r->x, "post_attention_layernorm");
        linear(r, r->up, INNER, r->y, "mlp.up_proj", WIDTH, INNER);
        if (family == &mixed) {
            xielu(r);
        } else {
            linear(r, r->gate, INNER, r->y, "mlp.gate_proj", WIDTH, INNER);
            for (int i = 0; i < SEQ * INNER; i++)
                r->up[i] *= r->gate[i] / (1 + exp(-r->gate[i]));
        }
        linear(r, r->y, WIDTH, r->up, "mlp.down_proj", INNER, WIDTH);
        add(r->x, r->y);
    }
    r->layer[0] = 0;
    norm(r, r->y, r->x, "norm");
}

static void gemma_row(struct row *r, const uint32_t *ids)
{
    const double *table = tensor(r, "embed_tokens", ".weight");

    for (unsigned i = 0; i < SEQ * WIDTH; i++)
        r->x[i] = sqrt(WIDTH) * table[ids[i / WIDTH] * WIDTH + i % WIDTH];
    for (unsigned block = 0; block < BLOCKS; block++) {
        snprintf(r->layer, sizeof r->layer, "layers.%u", block);
        norm(r, r->y, r->x, "input_layernorm");
        linear(r, r->qkv, QKV, r->y, "self_attn.q_proj", WIDTH, WIDTH);
        linear(r, r->qkv + WIDTH, QKV, r->y, "self_attn.k_proj", WIDTH, KV_WIDTH);
        linear(r, r->qkv + WIDTH + KV_WIDTH, QKV, r->y, "self_attn.v_proj", WIDTH, KV_WIDTH);
        norm_heads(r);
        turn(r, 10000, true);
        attend(r, KV_HEADS, false, 0, 0.4f);
        linear(r, r->qkv, WIDTH, r->y, "self_attn.o_proj", WIDTH, WIDTH);
        norm(r, r->y, r->qkv, "post_attention_layernorm");
        add(r->x, r->y);
        norm(r, r->y, r->x, "pre_feedforward_layernorm");
        linear(r, r->gate, INNER, r->y, "mlp.gate_proj", WIDTH, INNER);
        linear(r, r->up, INNER, r->y, "mlp.up_proj", WIDTH, INNER);
        for (int i = 0; i < SEQ * INNER; i++)
            r->up[i] *= reference_activation(MODEL_GELU_NEW, r->gate[i]);
        linear(r, r->qkv, WIDTH, r->up, "mlp.down_proj", INNER, WIDTH);
        norm(r, r->y, r->qkv, "post_feedforward_layernorm");
        add(r->x, r->y);
    }
    r->layer[0] = 0;
    norm(r, r->y, r->x, "norm");
}

static void encoder_row(struct row *r, const uint32_t *ids)
{
    const double *tokens = tensor(r, "embeddings.word_embeddings", ".weight");
    const double *positions = tensor(r, "embeddings.position_embeddings", ".weight");
    const double *segments = tensor(r, "embeddings.token_type_embeddings", ".weight");
    const bool roberta = strcmp(r->ref->model->config.family->model_type, "roberta") == 0;

    if (roberta)
        positions += 2 * WIDTH; /* padding's id is 1 */
    for (unsigned i = 0; i < SEQ * WIDTH; i++)
        r->y[i] = tokens[ids[i / WIDTH] * WIDTH + i % WIDTH] + positions[i] + segments[i % WIDTH];
    norm(r, r->x, r->y, "embeddings.LayerNorm");
    for (unsigned block = 0; block < BLOCKS; block++) {
        snprintf(r->layer, sizeof r->layer, "encoder.layer.%u", block);
        linear(r, r->qkv, FULL_QKV, r->x, "attention.self.query", WIDTH, WIDTH);
        linear(r, r->qkv + WIDTH, FULL_QKV, r->x, "attention.self.key", WIDTH, WIDTH);
        linear(r, r->qkv + 2 * WIDTH, FULL_QKV, r->x, "attention.self.value", WIDTH, WIDTH);
        attend(r, HEADS, true, 0, 1 / sqrtf(HEAD));
        linear(r, r->qkv, WIDTH, r->y, "attention.output.dense", WIDTH, WIDTH);
        add(r->qkv, r->x);
        norm(r, r->x, r->qkv, "attention.output.LayerNorm");
        linear(r, r->gate, INNER, r->x, "intermediate.dense", WIDTH, INNER);
        gelu(r->gate, SEQ * INNER);
        linear(r, r->y, WIDTH, r->gate, "output.dense", INNER, WIDTH);
        add(r->y, r->x);
        norm(r, r->x, r->y, "output.LayerNorm");
    }
    r->layer[0] = 0;
    linear(r, r->qkv, WIDTH, r->x, roberta ? "lm_head.dense" : "cls.predictions.transform.dense", WIDTH, WIDTH);
    gelu(r->qkv, SEQ * WIDTH);
    norm(r, r->y, r->qkv, roberta ? "lm_head.layer_norm" : "cls.predictions.transform.LayerNorm");
}

/* The sum of -log p over all labels that count, of a setting. */
static double loss_of(const struct reference_gpt2 *ref, const void *batch)
{
    const struct setting *s = batch;
    const struct model_config *c = &ref->model->config;
    double loss = 0;

    for (uint32_t row = 0; row < ROWS; row++) {
        struct row r = {.ref = ref};
        const double *table =
            c->tied ? ref->tensors[ref->model->embedding.tables[0].tensor] : tensor(&r, c->family->logits, ".weight");
        (c->family->masked ? encoder_row : is_gemma(&r) ? gemma_row : decoder_row)(&r, s->ids + row * SEQ);
        const double *bias = tensor(&r, c->family->prefix[0] == 'b' ? "cls.predictions" : "lm_head", ".bias");
        for (uint32_t t = 0; t < SEQ; t++) {
            const uint32_t label = s->labels[row * SEQ + t];
            double logits[VOCABULARY] = {0}, sum = 0;
            for (int i = 0; i < VOCABULARY * WIDTH; i++)
                logits[i / WIDTH] += r.y[t * WIDTH + (unsigned)i % WIDTH] * table[i];
            for (int i = 0; i < VOCABULARY && bias; i++)
                logits[i] += bias[i];
            for (int i = 0; i < VOCABULARY && is_gemma(&r); i++)
                logits[i] = 1.5 * tanh(logits[i] / 1.5);
            for (int i = 0; i < VOCABULARY; i++)
                sum += exp(logits[i]);
            if (label < VOCABULARY)
                loss += log(sum) - logits[label];
        }
    }
    return loss;
}

/* ---- */

/* Whatever blocks keep, the gradients have the same bits; on the simulated device, each group by itself. */
static void check_every_keeping(const struct array_link *same, const struct setting *s,
                                struct device_worker_options options)
{
    for (uint32_t keeping = 1; keeping < MODEL_KEEPINGS;
         keeping = backend_get()->simulated ? 2 * keeping : keeping + 1) {
        options.choice.keeping[0] = (struct plan_keeping){BLOCKS, keeping, 0};
        setting_check_bits(same, s, &options);
    }
}

/* Each model with what backward reads kept, and computed again; tied and not; in microbatches of 2 rows and of 1. */
TEST_EACH(a_model_of_another_family_is_what_double_says, MODELS * 2)
{
    const int n_directions = backend_get()->simulated ? 1 : 3;
    const struct model_config config = config_of(_i / 2, _i % 2);
    struct reference_gpt2 ref, found;
    struct array_link link;
    struct setting s;
    uint64_t state = 2463534242u;

    setting_open(&s, &config, ROWS, SEQ);
    struct device_worker_options options = setting_options(&s, ROWS, 2);
    if (_i % 2 == 0)
        options.choice.keeping[0] = (struct plan_keeping){BLOCKS, MODEL_KEEPS_ALL, 0};
    setting_step_whole(&link, &s, &options);
    reference_gpt2_init(&ref, &s.model, s.weights);
    reference_gpt2_init(&found, &s.model, link.gradient);
    ck_assert_double_eq_tol(link.losses[0], loss_of(&ref, &s), 1e-6 * link.losses[0]);
    for (uint32_t t = 0; t < s.model.n_tensors; t++)
        for (int i = 0; i < n_directions; i++)
            reference_check_direction(&ref, loss_of, &s, s.n_valid, &found, t, &state);
    if (_i % 2 || !backend_get()->simulated)
        check_every_keeping(&link, &s, options);
    reference_gpt2_free(&ref);
    reference_gpt2_free(&found);
    array_link_free(&link);
    setting_close(&s);
}

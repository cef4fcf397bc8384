/* GPT-2 (Radford et al. 2019), tensors named and laid out as in Hugging Face's GPT2LMHeadModel. */
#include "proto/model/family.h"
#include "proto/model/gpt2.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const architectures[] = {"GPT2LMHeadModel", "GPT2Model", NULL};

static const struct family_key keys[] = {
    {"n_layer", FAMILY_COUNT, .offset = FAMILY_AT(n_layers), .required = true, .most = 4096},
    {"n_head", FAMILY_COUNT, .offset = FAMILY_AT(n_heads), .required = true, .most = 65536},
    {"n_embd", FAMILY_COUNT, .offset = FAMILY_AT(width), .required = true, .most = 65536},
    {"n_positions", FAMILY_COUNT, .offset = FAMILY_AT(n_positions), .required = true, .most = 1 << 24},
    {"vocab_size", FAMILY_COUNT, .offset = FAMILY_AT(vocabulary), .required = true, .most = 1 << 24},
    {"n_inner", FAMILY_WIDTHS_OR_NULL, .offset = FAMILY_AT(inner_width), .most = MODEL_WIDEST},
    {"n_ctx", FAMILY_SAME, .other = "n_positions"},
    {"activation_function", FAMILY_ACTIVATION, .offset = FAMILY_AT(activation)},
    {"tie_word_embeddings", FAMILY_SWITCH, .offset = FAMILY_AT(tied)},
    {"scale_attn_weights", FAMILY_SWITCH, .offset = FAMILY_OWN(struct gpt2_config, scale_attention)},
    {"scale_attn_by_inverse_layer_idx", FAMILY_SWITCH, .offset = FAMILY_OWN(struct gpt2_config, scale_by_layer)},
    {"layer_norm_epsilon", FAMILY_REAL, .offset = FAMILY_AT(norm_epsilon), .range = FAMILY_EPSILON},
    {"attn_pdrop", FAMILY_REAL, .offset = FAMILY_OWN(struct gpt2_config, dropout_attention),
     .range = FAMILY_PROBABILITY},
    {"embd_pdrop", FAMILY_REAL, .offset = FAMILY_OWN(struct gpt2_config, dropout_embedding),
     .range = FAMILY_PROBABILITY},
    {"resid_pdrop", FAMILY_REAL, .offset = FAMILY_OWN(struct gpt2_config, dropout_residual),
     .range = FAMILY_PROBABILITY},
    {"initializer_range", FAMILY_REAL, .offset = FAMILY_AT(initializer_range), .range = FAMILY_FRACTION},
    {0},
};

/* Keys of other heads, and a key that reorders the same mathematics. */
static const char *const harmless[] = {"reorder_and_upcast_attn", "summary_*", NULL};

static const char *const unsupported[] = {"add_cross_attention", "cross_attention_hidden_size", "rope_*",
                                          "sliding_window", NULL};

static void gpt2_complete(struct model_config *c)
{
    if (c->inner_width == 0 && c->width <= UINT32_MAX / 4)
        c->inner_width = 4 * c->width;
}

static int gpt2_check(const struct model_config *c, struct error *err)
{
    if (c->width % c->n_heads != 0)
        return error_set(err, -EINVAL, "n_embd is %u: it must be a multiple of n_head, which is %u", c->width,
                         c->n_heads);
    return 0;
}

static struct program_dropout gpt2_embedding_dropout(const struct model_config *c)
{
    return (struct program_dropout){.p = gpt2_of(c)->dropout_embedding, .site = RANDOM_DROPOUT_EMBEDDING};
}

/* Norms before, not after (section 2.3): r = x + attention(norm(x)), y = r + mlp(norm(r)). */
static void gpt2_write_block(struct program *p, const struct model_config *c)
{
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon, .bias = true};
    const struct program_linear_options linear = {.deviation = c->initializer_range, .bias = true};
    /* Both write to the residual stream, on which 2 n_layers of them accumulate (section 2.3). */
    const struct program_linear_options residual = {.deviation =
                                                        (float)(c->initializer_range / sqrt(2.0 * c->n_layers)),
                                                    .bias = true};
    const struct program_attention_options attention = {
        .n_heads = c->n_heads,
        .scale = gpt2_of(c)->scale_attention ? 1 / sqrtf((float)(c->width / c->n_heads)) : 1,
        .scale_by_layer = gpt2_of(c)->scale_by_layer,
        .dropout = {.p = gpt2_of(c)->dropout_attention, .site = RANDOM_DROPOUT_ATTENTION},
    };
    const struct program_dropout after_attention = {.p = gpt2_of(c)->dropout_residual,
                                                    .site = RANDOM_DROPOUT_RESIDUAL_ATTENTION};
    const struct program_dropout after_mlp = {.p = gpt2_of(c)->dropout_residual, .site = RANDOM_DROPOUT_RESIDUAL_MLP};

    const int x = program_begin(p, c->width);
    const int n1 = program_norm(p, x, "ln_1", &norm);
    const int qkv = program_linear(p, n1, "attn.c_attn", 3 * c->width, &linear);
    const int a = program_attention(p, qkv, &attention);
    const int h = program_linear(p, a, "attn.c_proj", c->width, &residual);
    const int r = program_add(p, x, h, &after_attention);
    const int n2 = program_norm(p, r, "ln_2", &norm);
    const int u = program_linear(p, n2, "mlp.c_fc", c->inner_width, &linear);
    const int g = program_activation(p, u, c->activation);
    const int m = program_linear(p, g, "mlp.c_proj", c->width, &residual);
    program_end(p, program_add(p, r, m, &after_mlp));
}

static void write_norm(struct program *p, const struct model_config *c)
{
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon, .bias = true};
    const int x = program_begin(p, c->width);

    program_end(p, program_norm(p, x, "ln_f", &norm));
}

static const struct family_table tables[] = {
    {"wte", MODEL_BY_TOKEN, .rows = FAMILY_AT(vocabulary)},
    {"wpe", MODEL_BY_POSITION, .rows = FAMILY_AT(n_positions)},
    {0},
};

static const struct family_layer layers[] = {
    {MODEL_BLOCK, "h.%u", .write = gpt2_write_block},
    {MODEL_SINGLE, "ln_f", .write = write_norm},
    {0},
};

/* A causal mask: "h.0.attn.bias", "h.11.attn.masked_bias". */
static bool gpt2_is_mask(const char *name)
{
    unsigned layer;
    int n = 0;

    if (sscanf(name, "h.%u.attn.%n", &layer, &n) != 1 || n == 0)
        return false;
    return strcmp(name + n, "bias") == 0 || strcmp(name + n, "masked_bias") == 0;
}

const struct family family_gpt2 = {
    .model_type = "gpt2",
    .architectures = architectures,
    .keys = keys,
    .harmless = harmless,
    .unsupported = unsupported,
    .defaults = {.family = &family_gpt2,
                 .width = 768,
                 .n_layers = 12,
                 .n_heads = 12,
                 .vocabulary = 50257,
                 .n_positions = 1024,
                 .tied = true,
                 .norm_epsilon = 1e-5f,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct gpt2_config, .scale_attention = true, .dropout_attention = 0.1f,
                        .dropout_embedding = 0.1f, .dropout_residual = 0.1f),
    .end_token = 50256,
    .padding = FAMILY_NO_TOKEN,
    .trains_padding = true,
    .complete = gpt2_complete,
    .check = gpt2_check,
    .prefix = "transformer.",
    .tables = tables,
    .layers = layers,
    .logits = "lm_head",
    .embedding_dropout = gpt2_embedding_dropout,
    .is_mask = gpt2_is_mask,
};

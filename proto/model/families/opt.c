/* OPT (Zhang et al., arXiv:2205.01068), tensors named and laid out as in Hugging Face's OPTForCausalLM: norms before
 * attention and MLP, and learned positions, of which position 0 has row 2. The files of the 350 M model have norms
 * behind the sums, and a table that is narrower than its blocks: they are refused by these keys. */
#include "proto/model/config/model_config.h"
#include "proto/model/family.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

static const char *const architectures[] = {"OPTForCausalLM", NULL};

enum { FIRST_ROW = 2 };

struct opt_config {
    uint32_t n_rows, first_row; /* of the table of positions; that of position 0 */
    uint32_t table_width;       /* 0 in the file: width */
    bool norm_before, no_last_norm, bias, weighs;
    float dropout, dropout_attention, dropout_layers; /* the last one leaves whole blocks out */
} MODEL_OWN;
MODEL_OWN_HOLDS(struct opt_config);

static const struct opt_config *opt_of(const struct model_config *config)
{
    return (const void *)config->own.bytes;
}

static const struct family_key keys[] = {
    {"hidden_size", FAMILY_COUNT, .offset = FAMILY_AT(width), .required = true, .most = 65536},
    {"num_hidden_layers", FAMILY_COUNT, .offset = FAMILY_AT(n_layers), .required = true, .most = 4096},
    {"num_attention_heads", FAMILY_COUNT, .offset = FAMILY_AT(n_heads), .required = true, .most = 65536},
    {"ffn_dim", FAMILY_WIDTHS, .offset = FAMILY_AT(inner_width), .required = true, .most = MODEL_WIDEST},
    {"vocab_size", FAMILY_COUNT, .offset = FAMILY_AT(vocabulary), .required = true, .most = 1 << 24},
    {"max_position_embeddings", FAMILY_COUNT, .offset = FAMILY_AT(n_positions), .most = 1 << 24},
    {"activation_function", FAMILY_ACTIVATION, .offset = FAMILY_AT(activation)},
    {"init_std", FAMILY_REAL, .offset = FAMILY_AT(initializer_range), .range = FAMILY_FRACTION},
    {"tie_word_embeddings", FAMILY_SWITCH, .offset = FAMILY_AT(tied)},
    {"word_embed_proj_dim", FAMILY_COUNT_OR_NULL, .offset = FAMILY_OWN(struct opt_config, table_width)},
    {"do_layer_norm_before", FAMILY_SWITCH, .offset = FAMILY_OWN(struct opt_config, norm_before)},
    {"_remove_final_layer_norm", FAMILY_SWITCH, .offset = FAMILY_OWN(struct opt_config, no_last_norm)},
    {"enable_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct opt_config, bias)},
    {"layer_norm_elementwise_affine", FAMILY_SWITCH, .offset = FAMILY_OWN(struct opt_config, weighs)},
    {"dropout", FAMILY_REAL, .offset = FAMILY_OWN(struct opt_config, dropout), .range = FAMILY_PROBABILITY},
    {"layerdrop", FAMILY_REAL, .offset = FAMILY_OWN(struct opt_config, dropout_layers), .range = FAMILY_FRACTION},
    {"attention_dropout", FAMILY_REAL, .offset = FAMILY_OWN(struct opt_config, dropout_attention),
     .range = FAMILY_PROBABILITY},
    {0},
};

/* Nothing reads the activations' dropout of the files as published. */
static const char *const harmless[] = {"activation_dropout", NULL};

static void opt_complete(struct model_config *c)
{
    struct opt_config *o = (void *)c->own.bytes;

    o->first_row = FIRST_ROW;
    o->n_rows = c->n_positions + FIRST_ROW;
    if (o->table_width == 0)
        o->table_width = c->width;
}

static int opt_check(const struct model_config *c, struct error *err)
{
    if (c->width % c->n_heads != 0)
        return error_set(err, -EINVAL, "hidden_size is %u: it must be a multiple of num_attention_heads, which is %u",
                         c->width, c->n_heads);
    if (opt_of(c)->table_width != c->width)
        return error_set(err, -EINVAL, "word_embed_proj_dim is %u: it must be the same as hidden_size, which is %u",
                         opt_of(c)->table_width, c->width);
    if (!opt_of(c)->norm_before)
        return error_set(err, -EINVAL, "do_layer_norm_before is false: this is not supported, it must be true");
    if (opt_of(c)->dropout_layers > 0)
        return error_set(err, -EINVAL, "layerdrop is %g: this is not supported, it must be 0",
                         (double)opt_of(c)->dropout_layers);
    if (opt_of(c)->no_last_norm)
        return error_set(err, -EINVAL, "_remove_final_layer_norm is true: this is not supported, it must be false");
    return 0;
}

static int opt_norm(struct program *p, const struct model_config *c, int x, const char *name)
{
    const bool weighs = opt_of(c)->weighs;

    return program_norm(p, x, name,
                        &(struct program_norm_options){.epsilon = c->norm_epsilon, .bare = !weighs, .bias = weighs});
}

static void opt_write_block(struct program *p, const struct model_config *c)
{
    const struct program_linear_options linear = {.deviation = c->initializer_range,
                                                  .bias = opt_of(c)->bias,
                                                  .out_in = true};
    const struct program_part parts[] = {{"self_attn.q_proj", c->width},
                                         {"self_attn.k_proj", c->width},
                                         {"self_attn.v_proj", c->width}};
    const struct program_attention_options attention = {
        .n_heads = c->n_heads,
        .scale = 1 / sqrtf((float)(c->width / c->n_heads)),
        .dropout = {.p = opt_of(c)->dropout_attention, .site = RANDOM_DROPOUT_ATTENTION},
    };
    const struct program_dropout after_attention = {.p = opt_of(c)->dropout, .site = RANDOM_DROPOUT_RESIDUAL_ATTENTION};
    const struct program_dropout after_mlp = {.p = opt_of(c)->dropout, .site = RANDOM_DROPOUT_RESIDUAL_MLP};

    const int x = program_begin(p, c->width);
    const int qkv = program_linears(p, opt_norm(p, c, x, "self_attn_layer_norm"), parts, 3, &linear);
    const int a = program_linear(p, program_attention(p, qkv, &attention), "self_attn.out_proj", c->width, &linear);
    const int r = program_add(p, x, a, &after_attention);
    const int u = program_linear(p, opt_norm(p, c, r, "final_layer_norm"), "fc1", c->inner_width, &linear);
    const int m = program_linear(p, program_activation(p, u, c->activation), "fc2", c->width, &linear);

    program_end(p, program_add(p, r, m, &after_mlp));
}

static void opt_write_norm(struct program *p, const struct model_config *c)
{
    program_end(p, opt_norm(p, c, program_begin(p, c->width), "final_layer_norm"));
}

static const struct family_table tables[] = {
    {"embed_tokens", MODEL_BY_TOKEN, .rows = FAMILY_AT(vocabulary)},
    {"embed_positions", MODEL_BY_POSITION, .rows = FAMILY_OWN(struct opt_config, n_rows),
     .first = FAMILY_OWN(struct opt_config, first_row)},
    {0},
};

static const struct family_layer layers[] = {
    {MODEL_BLOCK, "layers.%u", .write = opt_write_block},
    {MODEL_SINGLE, "final_layer_norm", .write = opt_write_norm},
    {0},
};

/* Files of OPTModel, as some that are published: "decoder.embed_tokens.weight". */
static bool opt_old_name(char *out, size_t size, const char *name)
{
    static const char outer[] = "model.";
    const size_t n = sizeof outer - 1;

    if (strncmp(name, outer, n) != 0)
        return false;
    snprintf(out, size, "%s", name + n);
    return true;
}

const struct family family_opt = {
    .model_type = "opt",
    .architectures = architectures,
    .keys = keys,
    .harmless = harmless,
    .defaults = {.family = &family_opt,
                 .width = 768,
                 .n_layers = 12,
                 .n_heads = 12,
                 .inner_width = 3072,
                 .vocabulary = 50272,
                 .n_positions = 2048,
                 .tied = true,
                 .norm_epsilon = 1e-5f,
                 .activation = MODEL_RELU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct opt_config, .norm_before = true, .bias = true, .weighs = true, .dropout = 0.1f),
    .end_token = 2,
    .padding = 1,
    .complete = opt_complete,
    .check = opt_check,
    .prefix = "model.decoder.",
    .tables = tables,
    .layers = layers,
    .logits = "lm_head",
    .old_name = opt_old_name,
};

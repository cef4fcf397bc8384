/* GPT-NeoX (Black et al., arXiv:2204.06745) and Pythia, tensors named and laid out as in Hugging Face's
 * GPTNeoXForCausalLM: layer norms, of which attention and the MLP have one each, side by side unless
 * use_parallel_residual is false; one map whose result is, head by head, a query, a key and a value. */
#include "proto/model/decoder_family.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char *const architectures[] = {"GPTNeoXForCausalLM", "GPTNeoXModel", NULL};

/* rope_parameters and rope_scaling are stronger than rotary_pct and rotary_emb_base. A key rope_theta, which
 * transformers passes over here, is refused. */
static const struct family_key keys[] = {
    FAMILY_KEYS("hidden_act"),
    {"max_position_embeddings", FAMILY_COUNT, .offset = FAMILY_AT(n_positions), .most = 1 << 24},
    {"layer_norm_eps", FAMILY_REAL, .offset = FAMILY_AT(norm_epsilon), .range = FAMILY_EPSILON},
    {"attention_dropout", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, dropout_attention),
     .range = FAMILY_PROBABILITY},
    {"hidden_dropout", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, dropout_residual),
     .range = FAMILY_PROBABILITY},
    {"attention_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, qkv_bias)},
    {"use_parallel_residual", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, parallel)},
    {"rotary_emb_base", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, rope.base)},
    {"rotary_pct", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, rope.share)},
    DECODER_ROPE_KEYS,
    {"rope_scaling.partial_rotary_factor", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, rope.share)},
    {"rope_parameters.partial_rotary_factor", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, rope.share)},
    {0},
};

/* Of another head; and of old files, where nothing reads them. */
static const char *const harmless[] = {"attention_probs_dropout_prob", "classifier_dropout", "hidden_dropout_prob",
                                       NULL};

static void neox_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {.qkv = "attention.query_key_value",
                                                 .by_head = true,
                                                 .output = "attention.dense"};
    const int x = program_begin(p, c->width);
    const int a = decoder_attention(p, c, kind, decoder_layer_norm(p, c, x, "input_layernorm", true), &how);
    const int r = decoder_add(p, c, x, a, RANDOM_DROPOUT_RESIDUAL_ATTENTION);
    const int n = decoder_layer_norm(p, c, decoder_of(c)->parallel ? x : r, "post_attention_layernorm", true);
    const int m = decoder_plain(p, c, n, "mlp.dense_h_to_4h", "mlp.dense_4h_to_h");

    program_end(p, decoder_add(p, c, r, m, RANDOM_DROPOUT_RESIDUAL_MLP));
}

static void neox_write_norm(struct program *p, const struct model_config *c)
{
    program_end(p, decoder_layer_norm(p, c, program_begin(p, c->width), "final_layer_norm", true));
}

static const struct family_layer layers[] = {
    {MODEL_BLOCK, "layers.%u", .write_kind = neox_write_block},
    {MODEL_SINGLE, "final_layer_norm", .write = neox_write_norm},
    {0},
};

static const struct family_table tables[] = {{"embed_in", MODEL_BY_TOKEN, .rows = FAMILY_AT(vocabulary)}, {0}};

static void neox_complete(struct model_config *c)
{
    struct decoder_config *d = decoder_edit(c);

    d->output_bias = d->qkv_bias;
    d->dropout_embedding = d->dropout_residual;
    decoder_complete(c);
}

static int neox_check(const struct model_config *c, struct error *err)
{
    if (c->width % c->n_heads != 0)
        return error_set(err, -EINVAL, "hidden_size is %u: it must be a multiple of num_attention_heads, which is %u",
                         c->width, c->n_heads);
    return decoder_check(c, err);
}

/* Causal masks and frequencies: "layers.0.attention.bias", "layers.0.attention.rotary_emb.inv_freq". */
static bool neox_is_mask(const char *name)
{
    unsigned layer;
    int n = 0;

    if (sscanf(name, "layers.%u.attention.%n", &layer, &n) != 1 || n == 0)
        return false;
    return strcmp(name + n, "bias") == 0 || strcmp(name + n, "masked_bias") == 0 || decoder_is_mask(name);
}

const struct family family_gpt_neox = {
    .model_type = "gpt_neox",
    .architectures = architectures,
    .keys = keys,
    .harmless = harmless,
    .defaults = {.family = &family_gpt_neox,
                 .width = 6144,
                 .n_layers = 44,
                 .n_heads = 64,
                 .inner_width = 24576,
                 .vocabulary = 50432,
                 .n_positions = 2048,
                 .norm_epsilon = 1e-5f,
                 .activation = MODEL_GELU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .qkv_bias = true, .mlp_bias = true, .parallel = true,
                        .rope = {.base = 10000, .share = 0.25f}),
    .end_token = 2,
    .padding = FAMILY_NO_TOKEN,
    .trains_padding = true,
    .complete = neox_complete,
    .check = neox_check,
    .prefix = "gpt_neox.",
    .tables = tables,
    .layers = layers,
    .kind_of_block = decoder_kind_of_block,
    .logits = "embed_out",
    .embedding_dropout = decoder_embedding_dropout,
    .is_mask = neox_is_mask,
};

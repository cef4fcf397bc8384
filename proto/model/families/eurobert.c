/* EuroBERT (Boizard et al., arXiv:2503.05500), tensors named and laid out as in Hugging Face's EuroBertForMaskedLM:
 * Llama's block in which every token sees all others, trained to restore masked tokens. The head has a bias where the
 * MLPs have, and is not tied by default. Its norm is `bare` as its bias is outside the prefix. */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"EuroBertForMaskedLM", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    DECODER_ROPE_KEYS,
    {"attention_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, qkv_bias)},
    {"mlp_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, mlp_bias)},
    {0},
};
static const char *const harmless[] = {"classifier_pooling", "clf_pooling",    "mask_token",
                                       "mask_token_id",      "pretraining_tp", NULL};

static void eurobert_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {.full = true};
    const int x = program_begin(p, c->width);
    const int a = decoder_attention(p, c, kind, decoder_norm(p, c, x, "input_layernorm"), &how);
    const int r = decoder_add(p, c, x, a, RANDOM_DROPOUT_RESIDUAL_ATTENTION);
    const int m = decoder_gated(p, c, decoder_norm(p, c, r, "post_attention_layernorm"), NULL);

    program_end(p, decoder_add(p, c, r, m, RANDOM_DROPOUT_RESIDUAL_MLP));
}

static void eurobert_write_norm(struct program *p, const struct model_config *c)
{
    program_end(p, decoder_norm(p, c, program_begin(p, c->width), "model.norm"));
    if (decoder_of(c)->mlp_bias)
        program_logit_bias(p, "lm_head.bias", c->vocabulary);
}

static const struct family_layer layers[] = {
    {MODEL_BLOCK, "layers.%u", .write_kind = eurobert_write_block},
    {MODEL_SINGLE, "norm", .bare = true, .write = eurobert_write_norm},
    {0},
};

const struct family family_eurobert = {
    .model_type = "eurobert",
    .architectures = architectures,
    .keys = keys,
    .harmless = harmless,
    .defaults = {.family = &family_eurobert,
                 .width = 768,
                 .n_layers = 12,
                 .n_heads = 12,
                 .inner_width = 3072,
                 .vocabulary = 128256,
                 .n_positions = 8192,
                 .activation = MODEL_SILU,
                 .norm_epsilon = 1e-5f,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .rope = {.base = 10000}),
    .end_token = 128001,
    .padding = 128001,
    .complete = decoder_complete_biases,
    .check = decoder_check,
    .prefix = "model.",
    .tables = decoder_tables,
    .layers = layers,
    .logits = "lm_head",
    .masked = true,
    .is_mask = decoder_is_mask,
};

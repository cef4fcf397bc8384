/* Command R (Cohere 2024), tensors named and laid out as in Hugging Face's CohereForCausalLM: attention and MLP read
 * the same layer norm, which has no bias; neighbouring columns are rotated; logits are multiplied. With use_qk_norm
 * each head of queries and of keys has a layer norm with a weight of its own. */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"CohereForCausalLM", "CohereModel", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS_OF("hidden_act", "layer_norm_eps"),
    DECODER_ROPE_KEYS,
    {"attention_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, qkv_bias)},
    {"use_qk_norm", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, norms_heads)},
    {"logit_scale", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, logit_scale)},
    {0},
};

static void cohere_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    const struct decoder_attention how = {.query = decoder_of(c)->norms_heads ? "self_attn.q_norm" : NULL,
                                          .key = "self_attn.k_norm",
                                          .normed_each = true,
                                          .normed_stacked = true};

    decoder_write_side_by_side(p, c, kind, &how);
}

static const struct family_layer layers[] = DECODER_LAYERS(cohere_write_block, decoder_write_bare_layer_norm);

const struct family family_cohere = {
    .model_type = "cohere",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_cohere,
                 .width = 8192,
                 .n_layers = 40,
                 .n_heads = 64,
                 .inner_width = 22528,
                 .vocabulary = 256000,
                 .n_positions = 8192,
                 .tied = true,
                 .norm_epsilon = 1e-5f,
                 .activation = MODEL_SILU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .interleaved = true, .logit_scale = 0.0625f, .rope = {.base = 500000}),
    .end_token = 255001,
    .padding = 0,
    .complete = decoder_complete_biases,
    .check = decoder_check_logit_scale,
    DECODER_PARTS_OF(layers),
};

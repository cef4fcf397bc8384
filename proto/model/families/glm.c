/* GLM-4 9B and GLM-Edge (GLM Team, arXiv:2406.12793), tensors named and laid out as in Hugging Face's GlmForCausalLM:
 * Llama's block, in which neighbouring columns of half of each head are rotated, and gate and up are one map. */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"GlmForCausalLM", "GlmModel", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    DECODER_ROPE_KEYS,
    DECODER_SHARE_KEYS,
    {"attention_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, qkv_bias)},
    {0},
};

static void glm_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {0};

    decoder_write_normed_before(p, c, kind, &how, "mlp.gate_up_proj");
}

static const struct family_layer layers[] = DECODER_LAYERS(glm_write_block, decoder_write_norm);

const struct family family_glm = {
    .model_type = "glm",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_glm,
                 .width = 4096,
                 .n_layers = 40,
                 .n_heads = 32,
                 .inner_width = 13696,
                 .vocabulary = 151552,
                 .n_positions = 131072,
                 .norm_epsilon = 1.5625e-7f,
                 .activation = MODEL_SILU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .n_kv_heads = 2, .head_width = 128, .qkv_bias = true,
                        .interleaved = true, .rope = {.base = 10000, .share = 0.5f}),
    .end_token = 151329,
    .padding = 151329,
    .complete = decoder_complete,
    .check = decoder_check,
    DECODER_PARTS_OF(layers),
};

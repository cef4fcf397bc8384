/* GLM-4-0414 (Z.ai 2025), tensors named and laid out as in Hugging Face's Glm4ForCausalLM: GLM's block, with norms
 * after attention and MLP as well. */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"Glm4ForCausalLM", "Glm4Model", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    DECODER_ROPE_KEYS,
    DECODER_SHARE_KEYS,
    {"attention_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, qkv_bias)},
    {0},
};

static void glm4_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {0};
    const int x = program_begin(p, c->width);
    const int a = decoder_attention(p, c, kind, decoder_norm(p, c, x, "input_layernorm"), &how);
    const int r =
        decoder_add(p, c, x, decoder_norm(p, c, a, "post_self_attn_layernorm"), RANDOM_DROPOUT_RESIDUAL_ATTENTION);
    const int m = decoder_gated(p, c, decoder_norm(p, c, r, "post_attention_layernorm"), "mlp.gate_up_proj");

    program_end(p, decoder_add(p, c, r, decoder_norm(p, c, m, "post_mlp_layernorm"), RANDOM_DROPOUT_RESIDUAL_MLP));
}

static const struct family_layer layers[] = DECODER_LAYERS(glm4_write_block, decoder_write_norm);

const struct family family_glm4 = {
    .model_type = "glm4",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_glm4,
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

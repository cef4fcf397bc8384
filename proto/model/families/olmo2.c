/* OLMo 2 (Walsh et al., arXiv:2501.00656), tensors named and laid out as in Hugging Face's Olmo2ForCausalLM: norms
 * follow attention and MLP, and none precedes them; queries and keys are normed over all heads at once. */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"Olmo2ForCausalLM", "Olmo2Model", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    DECODER_ROPE_KEYS,
    {"attention_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, qkv_bias)},
    {0},
};

static void olmo2_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {.query = "self_attn.q_norm",
                                                 .key = "self_attn.k_norm",
                                                 .normed_whole = true};

    decoder_write_normed_after(p, c, kind, &how);
}

static const struct family_layer layers[] = DECODER_LAYERS(olmo2_write_block, decoder_write_norm);

const struct family family_olmo2 = {
    .model_type = "olmo2",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_olmo2,
                 .width = 4096,
                 .n_layers = 32,
                 .n_heads = 32,
                 .inner_width = 11008,
                 .vocabulary = 50304,
                 .n_positions = 2048,
                 .norm_epsilon = 1e-5f,
                 .activation = MODEL_SILU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .rope = {.base = 10000}),
    .end_token = 50279,
    .padding = 1,
    .complete = decoder_complete_biases,
    .check = decoder_check,
    DECODER_PARTS_OF(layers),
};

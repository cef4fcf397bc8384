/* Qwen 3 (Yang et al., arXiv:2505.09388), tensors named and laid out as in Hugging Face's Qwen3ForCausalLM: Llama's
 * block, with norms of each head's queries and keys. */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"Qwen3ForCausalLM", "Qwen3Model", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    DECODER_ROPE_KEYS,
    {"attention_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, qkv_bias)},
    DECODER_QWEN_KEYS,
    {0},
};

static void qwen3_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {.query = "self_attn.q_norm", .key = "self_attn.k_norm"};

    decoder_write_normed_before(p, c, kind, &how, NULL);
}

static const struct family_layer layers[] = DECODER_LAYERS(qwen3_write_block, decoder_write_norm);

static void qwen3_complete(struct model_config *c)
{
    decoder_edit(c)->output_bias = decoder_of(c)->qkv_bias;
    decoder_complete_qwen(c);
}

const struct family family_qwen3 = {
    .model_type = "qwen3",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_qwen3,
                 .width = 4096,
                 .n_layers = 32,
                 .n_heads = 32,
                 .inner_width = 22016,
                 .vocabulary = 151936,
                 .n_positions = 32768,
                 .activation = MODEL_SILU,
                 .norm_epsilon = 1e-6f,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .window = 4096, .n_full = 28, .n_kv_heads = 32, .head_width = 128,
                        .rope = {.base = 10000}),
    .end_token = FAMILY_NO_TOKEN,
    .padding = FAMILY_NO_TOKEN,
    .complete = qwen3_complete,
    .check = decoder_check,
    DECODER_PARTS_OF(layers),
};

/* Qwen 3's mixtures of experts (Yang et al., arXiv:2505.09388), tensors named and laid out as in Hugging Face's
 * Qwen3MoeForCausalLM: Qwen 3's block, with experts in the place of the MLP. All blocks slide, or none. */
#include "proto/model/decoder_moe.h"

static const char *const architectures[] = {"Qwen3MoeForCausalLM", "Qwen3MoeModel", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    DECODER_ROPE_KEYS,
    {"attention_bias", FAMILY_SWITCH, .offset = DECODER_MOE_OWN(decoder.qkv_bias)},
    {"sliding_window", FAMILY_COUNT_OR_NULL, .offset = DECODER_MOE_OWN(decoder.window)},
    {"use_sliding_window", FAMILY_SWITCH, .offset = DECODER_MOE_OWN(decoder.slides)},
    DECODER_MOE_KEYS,
    DECODER_MOE_SPARSE_KEYS,
    {0},
};

/* transformers does not read it here. */
static const char *const harmless[] = {"max_window_layers", NULL};

static void qwen3_moe_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {.query = "self_attn.q_norm", .key = "self_attn.k_norm"};

    decoder_moe_write_block(p, c, kind, &how, "mlp.gate", &decoder_moe_names);
}

static const struct family_layer layers[] = DECODER_LAYERS(qwen3_moe_write_block, decoder_write_norm);

static void qwen3_moe_complete(struct model_config *c)
{
    decoder_edit(c)->output_bias = decoder_of(c)->qkv_bias;
    if (!decoder_of(c)->slides)
        decoder_edit(c)->window = 0;
    decoder_complete_window(c);
}

const struct family family_qwen3_moe = {
    .model_type = "qwen3_moe",
    .architectures = architectures,
    .keys = keys,
    .harmless = harmless,
    .defaults = {.family = &family_qwen3_moe,
                 .width = 2048,
                 .n_layers = 24,
                 .n_heads = 32,
                 .inner_width = 6144,
                 .vocabulary = 151936,
                 .n_positions = 32768,
                 .activation = MODEL_SILU,
                 .norm_epsilon = 1e-6f,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_moe_config,
                        .decoder = {.n_kv_heads = 4, .window = 4096, .rope = {.base = 10000}}, .n_experts = 128,
                        .n_chosen = 8, .expert_width = 768, .step = 1, .balance = 0.001f),
    .end_token = FAMILY_NO_TOKEN,
    .padding = FAMILY_NO_TOKEN,
    .complete = qwen3_moe_complete,
    .check = decoder_moe_check,
    .prefix = "model.",
    .tables = decoder_tables,
    .layers = layers,
    .kind_of_block = decoder_moe_kind_of_block,
    .logits = "lm_head",
    .adapts_experts = true,
    .left_out = decoder_moe_left_out,
};

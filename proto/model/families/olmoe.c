/* OLMoE (Muennighoff et al., arXiv:2409.02060), tensors named and laid out as in Hugging Face's OlmoeForCausalLM: Llama's
 * block, whose queries and keys are normed over all heads at once, with experts in the place of the MLP in all blocks. */
#include "proto/model/decoder_moe.h"

static const char *const architectures[] = {"OlmoeForCausalLM", "OlmoeModel", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    DECODER_ROPE_KEYS,
    {"attention_bias", FAMILY_SWITCH, .offset = DECODER_MOE_OWN(decoder.qkv_bias)},
    {"clip_qkv", FAMILY_REAL_OR_NULL, .offset = DECODER_MOE_OWN(clip)},
    DECODER_MOE_KEYS,
    {"norm_topk_prob", FAMILY_SWITCH, .offset = DECODER_MOE_OWN(normalises)},
    {0},
};

static void olmoe_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {.query = "self_attn.q_norm",
                                                 .key = "self_attn.k_norm",
                                                 .normed_whole = true};

    decoder_moe_write_block(p, c, kind, &how, "mlp.gate", &decoder_moe_names);
}

static const struct family_layer layers[] = DECODER_LAYERS(olmoe_write_block, decoder_write_norm);

const struct family family_olmoe = {
    .model_type = "olmoe",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_olmoe,
                 .width = 2048,
                 .n_layers = 16,
                 .n_heads = 16,
                 .inner_width = 2048,
                 .vocabulary = 50304,
                 .n_positions = 4096,
                 .activation = MODEL_SILU,
                 .norm_epsilon = 1e-5f,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_moe_config, .decoder = {.rope = {.base = 10000}}, .n_experts = 64, .n_chosen = 8,
                        .step = 1, .balance = 0.01f),
    .end_token = 50279,
    .padding = 1,
    .complete = decoder_complete_biases,
    .check = decoder_moe_check,
    .prefix = "model.",
    .tables = decoder_tables,
    .layers = layers,
    .kind_of_block = decoder_moe_kind_of_block,
    .logits = "lm_head",
    .adapts_experts = true,
    .left_out = decoder_moe_left_out,
};

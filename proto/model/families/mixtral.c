/* Mixtral (Jiang et al., arXiv:2401.04088), tensors named and laid out as in Hugging Face's MixtralForCausalLM: Mistral's
 * block, with experts in the place of the MLP in all blocks, whose weights are normalised. */
#include "proto/model/decoder_moe.h"

static const char *const architectures[] = {"MixtralForCausalLM", "MixtralModel", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    DECODER_ROPE_KEYS,
    {"sliding_window", FAMILY_COUNT_OR_NULL, .offset = DECODER_MOE_OWN(decoder.window)},
    DECODER_MOE_KEYS,
    {"router_jitter_noise", FAMILY_REAL, .offset = DECODER_MOE_OWN(jitter)},
    {0},
};

static void mixtral_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {0};
    static const struct program_experts_names names = {.gate = "block_sparse_moe.experts.%u.w1.weight",
                                                       .up = "block_sparse_moe.experts.%u.w3.weight",
                                                       .down = "block_sparse_moe.experts.%u.w2.weight"};

    decoder_moe_write_block(p, c, kind, &how, "block_sparse_moe.gate", &names);
}

static const struct family_layer layers[] = DECODER_LAYERS(mixtral_write_block, decoder_write_norm);

const struct family family_mixtral = {
    .model_type = "mixtral",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_mixtral,
                 .width = 4096,
                 .n_layers = 32,
                 .n_heads = 32,
                 .inner_width = 14336,
                 .vocabulary = 32000,
                 .n_positions = 4096 * 32,
                 .activation = MODEL_SILU,
                 .norm_epsilon = 1e-5f,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_moe_config, .decoder = {.n_kv_heads = 8, .rope = {.base = 1000000}},
                        .n_experts = 8, .n_chosen = 2, .step = 1, .normalises = true, .balance = 0.001f),
    .end_token = 2,
    .padding = FAMILY_NO_TOKEN,
    .complete = decoder_complete_window,
    .check = decoder_moe_check,
    .prefix = "model.",
    .tables = decoder_tables,
    .layers = layers,
    .kind_of_block = decoder_moe_kind_of_block,
    .logits = "lm_head",
    .adapts_experts = true,
    .left_out = decoder_moe_left_out,
};

/* Seed-OSS (ByteDance Seed 2025), tensors named and laid out as in Hugging Face's SeedOssForCausalLM: Llama's block,
 * with biases of queries, keys and values. */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"SeedOssForCausalLM", "SeedOssModel", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    DECODER_ROPE_KEYS,
    {"attention_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, qkv_bias)},
    {"attention_out_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, output_bias)},
    {"mlp_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, mlp_bias)},
    {"residual_dropout", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, dropout_residual),
     .range = FAMILY_PROBABILITY},
    {0},
};

static const char *const harmless[] = {"pretraining_tp", NULL};

const struct family family_seed_oss = {
    .model_type = "seed_oss",
    .architectures = architectures,
    .keys = keys,
    .harmless = harmless,
    .defaults = {.family = &family_seed_oss,
                 .width = 4096,
                 .n_layers = 64,
                 .n_heads = 80,
                 .inner_width = 27648,
                 .vocabulary = 155136,
                 .n_positions = 524288,
                 .norm_epsilon = 1e-6f,
                 .activation = MODEL_SILU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .n_kv_heads = 8, .head_width = 128, .qkv_bias = true,
                        .dropout_attention = 0.1f, .dropout_residual = 0.1f, .rope = {.base = 10000}),
    .end_token = 2,
    .padding = 1,
    .complete = decoder_complete,
    .check = decoder_check,
    DECODER_PARTS,
};

/* Llama 2 and 3 (Touvron et al., arXiv:2307.09288; Grattafiori et al., arXiv:2407.21783), tensors named and laid out as
 * in Hugging Face's LlamaForCausalLM. */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"LlamaForCausalLM", "LlamaModel", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    DECODER_ROPE_KEYS,
    {"attention_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, qkv_bias)},
    {"mlp_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, mlp_bias)},
    {0},
};

/* Products cut for several devices, which is the same mathematics; and what SmolLM2 says of itself. */
static const char *const harmless[] = {"is_llama_config", "pretraining_tp", NULL};
static const char *const unsupported[] = {"rope_interleaved", "sliding_window", NULL};

const struct family family_llama = {
    .model_type = "llama",
    .architectures = architectures,
    .keys = keys,
    .harmless = harmless,
    .unsupported = unsupported,
    .defaults = {.family = &family_llama,
                 .width = 4096,
                 .n_layers = 32,
                 .n_heads = 32,
                 .inner_width = 11008,
                 .vocabulary = 32000,
                 .n_positions = 2048,
                 .activation = MODEL_SILU,
                 .norm_epsilon = 1e-6f,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .rope = {.base = 10000}),
    .end_token = 2,
    .padding = FAMILY_NO_TOKEN,
    .complete = decoder_complete_biases,
    .check = decoder_check,
    DECODER_PARTS,
    .is_mask = decoder_is_mask,
};

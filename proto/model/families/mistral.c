/* Mistral (Jiang et al., arXiv:2310.06825), tensors named and laid out as in Hugging Face's MistralForCausalLM: Llama's
 * block, in which a query sees a window of keys if the configuration has one. */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"MistralForCausalLM", "MistralModel", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    DECODER_ROPE_KEYS,
    {"sliding_window", FAMILY_COUNT_OR_NULL, .offset = FAMILY_OWN(struct decoder_config, window)},
    {0},
};

const struct family family_mistral = {
    .model_type = "mistral",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_mistral,
                 .width = 4096,
                 .n_layers = 32,
                 .n_heads = 32,
                 .inner_width = 14336,
                 .vocabulary = 32000,
                 .n_positions = 131072,
                 .activation = MODEL_SILU,
                 .norm_epsilon = 1e-6f,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .n_kv_heads = 8, .window = 4096, .rope = {.base = 10000}),
    .end_token = 2,
    .padding = FAMILY_NO_TOKEN,
    .complete = decoder_complete_window,
    .check = decoder_check,
    DECODER_PARTS,
    .is_mask = decoder_is_mask,
};

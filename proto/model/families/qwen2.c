/* Qwen 2 and 2.5 (Yang et al., arXiv:2407.10671, arXiv:2412.15115), tensors named and laid out as in Hugging Face's
 * Qwen2ForCausalLM: Llama's block, with biases of queries, keys and values alone. */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"Qwen2ForCausalLM", "Qwen2Model", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    DECODER_ROPE_KEYS,
    DECODER_QWEN_KEYS,
    {0},
};

/* Rotary positions in three dimensions, of models that see images. */
static const char *const unsupported[] = {"use_mrope", NULL};

const struct family family_qwen2 = {
    .model_type = "qwen2",
    .architectures = architectures,
    .keys = keys,
    .unsupported = unsupported,
    .defaults = {.family = &family_qwen2,
                 .width = 4096,
                 .n_layers = 32,
                 .n_heads = 32,
                 .inner_width = 22016,
                 .vocabulary = 151936,
                 .n_positions = 32768,
                 .activation = MODEL_SILU,
                 .norm_epsilon = 1e-6f,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .window = 4096, .n_full = 28, .qkv_bias = true, .rope = {.base = 10000}),
    .end_token = FAMILY_NO_TOKEN,
    .padding = FAMILY_NO_TOKEN,
    .complete = decoder_complete_qwen,
    .check = decoder_check,
    DECODER_PARTS,
};

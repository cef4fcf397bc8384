/* Qwen 3 (Yang et al., arXiv:2505.09388), tensors named and laid out as in Hugging Face's Qwen3ForCausalLM: Llama's block,
 * with norms of each head's queries and keys. */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"Qwen3ForCausalLM", "Qwen3Model", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS,
    {"attention_bias", FAMILY_SWITCH, .offset = DECODER_AT(decoder.qkv_bias)},
    {"layer_types", FAMILY_ALL, .other = "full_attention"},
    {0},
};

/* Windows, which use_sliding_window would turn on. */
static const char *const harmless[] = {"sliding_window", "max_window_layers", NULL};
static const char *const unsupported[] = {"use_sliding_window", NULL};

static void complete(struct model_config *c)
{
    c->decoder.output_bias = c->decoder.qkv_bias;
    decoder_complete(c);
}

const struct family family_qwen3 = {
    .model_type = "qwen3",
    .architectures = architectures,
    .keys = keys,
    .harmless = harmless,
    .unsupported = unsupported,
    .defaults =
        {.family = &family_qwen3,
         .n_positions = 32768,
         .activation = MODEL_SILU,
         .norm_epsilon = 1e-6f,
         .initializer_range = 0.02f,
         .decoder = {.n_kv_heads = 32, .head_width = 128, .head_norm = true, .rope = {.base = 10000, .partial = 1}}},
    .end_token = FAMILY_NO_TOKEN,
    .complete = complete,
    .check = decoder_check,
    .prefix = "model.",
    .tables = decoder_tables,
    .layers = decoder_layers,
    .logits = "lm_head",
};

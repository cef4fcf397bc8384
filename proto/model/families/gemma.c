/* Gemma (Gemma Team, arXiv:2403.08295), tensors named and laid out as in Hugging Face's GemmaForCausalLM: Llama's
 * block, with norms that multiply by 1 + weight, and embeddings multiplied by sqrt(width). */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"GemmaForCausalLM", "GemmaModel", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    DECODER_ROPE_KEYS,
    {"attention_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, qkv_bias)},
    {0},
};

/* Files from 2024 have hidden_activation; transformers no longer reads it. */
static const char *const harmless[] = {"hidden_activation", NULL};
static const char *const unsupported[] = {"use_bidirectional_attention", NULL};

/* The first files said gelu of models that were trained with its tanh form: transformers takes it for that. */
static void gemma_complete(struct model_config *c)
{
    if (c->activation == MODEL_GELU)
        c->activation = MODEL_GELU_NEW;
    decoder_edit(c)->output_bias = decoder_of(c)->qkv_bias;
    decoder_complete(c);
}

const struct family family_gemma = {
    .model_type = "gemma",
    .architectures = architectures,
    .keys = keys,
    .harmless = harmless,
    .unsupported = unsupported,
    .defaults = {.family = &family_gemma,
                 .width = 3072,
                 .n_layers = 28,
                 .n_heads = 16,
                 .inner_width = 24576,
                 .vocabulary = 256000,
                 .n_positions = 8192,
                 .activation = MODEL_GELU_NEW,
                 .tied = true,
                 .norm_epsilon = 1e-6f,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .n_kv_heads = 16, .head_width = 256, .norm_offset = true,
                        .rope = {.base = 10000}),
    .end_token = 1,
    .padding = 0,
    .complete = gemma_complete,
    .check = decoder_check,
    DECODER_PARTS,
    .embedding_scale = decoder_embedding_scale,
};

/* Granite 3 and 4, dense (Granite Team 2024), tensors named and laid out as in Hugging Face's GraniteForCausalLM:
 * Llama's block, with multipliers of embedding, scores, branches and logits. */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"GraniteForCausalLM", "GraniteModel", NULL};

static const struct family_key keys[] = {DECODER_GRANITE_KEYS, {0}};

const struct family family_granite = {
    .model_type = "granite",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_granite,
                 .width = 4096,
                 .n_layers = 32,
                 .n_heads = 32,
                 .inner_width = 11008,
                 .vocabulary = 32000,
                 .n_positions = 2048,
                 .norm_epsilon = 1e-6f,
                 .activation = MODEL_SILU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .embedding_scale = 1, .score_scale = 1, .branch_scale = 1,
                        .logit_divisor = 1, .rope = {.base = 10000}),
    .end_token = 2,
    .padding = FAMILY_NO_TOKEN,
    .complete = decoder_complete_biases,
    .check = decoder_check_multipliers,
    DECODER_PARTS,
    .embedding_scale = decoder_given_embedding_scale,
};

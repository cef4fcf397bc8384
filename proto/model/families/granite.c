/* Granite 3 and 4, dense (Granite Team 2024), tensors named and laid out as in Hugging Face's GraniteForCausalLM:
 * Llama's block, with multipliers of embedding, scores, branches and logits. */
#include "proto/model/decoder_family.h"

#include <errno.h>

static const char *const architectures[] = {"GraniteForCausalLM", "GraniteModel", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    DECODER_ROPE_KEYS,
    {"attention_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, qkv_bias)},
    {"mlp_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, mlp_bias)},
    {"embedding_multiplier", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, embedding_scale)},
    {"attention_multiplier", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, score_scale)},
    {"residual_multiplier", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, branch_scale)},
    {"logits_scaling", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, logit_divisor)},
    {0},
};

static int granite_check(const struct model_config *c, struct error *err)
{
    const struct decoder_config *d = decoder_of(c);
    const float all[] = {d->embedding_scale, d->score_scale, d->branch_scale, d->logit_divisor};
    static const char *const names[] = {"embedding_multiplier", "attention_multiplier", "residual_multiplier",
                                        "logits_scaling"};

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (!(all[i] >= 1e-6f && all[i] <= 1e6f))
            return error_set(err, -EINVAL, "%s is %g: it must be from 1e-6 to 1e6", names[i], (double)all[i]);
    return decoder_check(c, err);
}

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
    .check = granite_check,
    DECODER_PARTS,
    .embedding_scale = decoder_given_embedding_scale,
};

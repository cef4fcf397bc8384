/* Ministral 3 and Mistral Small 3.x (Mistral AI 2025), tensors named and laid out as in Hugging Face's
 * Ministral3ForCausalLM: Llama's block with YaRN, and queries that grow with the logarithm of the position beyond those
 * that were trained. A file without an object of rotary positions has the whole one below, as transformers gives it. */
#include "proto/model/decoder_family.h"

#include <errno.h>

static const char *const architectures[] = {"Ministral3ForCausalLM", "Ministral3Model", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    DECODER_ROPE_KEYS,
    {"rope_parameters.llama_4_scaling_beta", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, query_growth)},
    {"rope_scaling.llama_4_scaling_beta", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, query_growth)},
    {"sliding_window", FAMILY_COUNT_OR_NULL, .offset = FAMILY_OWN(struct decoder_config, window)},
    {0},
};

static const char *const harmless[] = {"rope_parameters.max_position_embeddings",
                                       "rope_scaling.max_position_embeddings", NULL};

/* An object that has none of these is not one that transformers could read. */
static void ministral3_complete(struct model_config *c)
{
    struct decoder_config *d = decoder_edit(c);

    if (d->rope.scaling == DECODER_NOT_SCALED && d->rope.n_trained == 0) {
        d->rope = (struct decoder_rope){
            .base = 1000000, .scaling = DECODER_YARN, .factor = 16, .n_trained = 16384, .mscale = 1, .mscale_all = 1};
        d->query_growth = 0.1f;
    }
    decoder_complete_window(c);
}

static int ministral3_check(const struct model_config *c, struct error *err)
{
    const float growth = decoder_of(c)->query_growth;

    if (!(growth >= 0 && growth <= 1e6f))
        return error_set(err, -EINVAL, "llama_4_scaling_beta is %g: it must be from 0 to 1e6", (double)growth);
    return decoder_check(c, err);
}

const struct family family_ministral3 = {
    .model_type = "ministral3",
    .architectures = architectures,
    .keys = keys,
    .harmless = harmless,
    .defaults = {.family = &family_ministral3,
                 .width = 4096,
                 .n_layers = 34,
                 .n_heads = 32,
                 .inner_width = 14336,
                 .vocabulary = 131072,
                 .n_positions = 262144,
                 .norm_epsilon = 1e-5f,
                 .activation = MODEL_SILU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .n_kv_heads = 8, .head_width = 128, .rope = {.base = 10000}),
    .end_token = 2,
    .padding = 11,
    .complete = ministral3_complete,
    .check = ministral3_check,
    DECODER_PARTS,
};

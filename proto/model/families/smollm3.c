/* SmolLM3 (Bakouch et al. 2025, huggingface.co/blog/smollm3), tensors named and laid out as in Hugging Face's
 * SmolLM3ForCausalLM: Llama's block; in every fourth one queries and keys are not rotated. An entry of no_rope_layers
 * is 1 where a block is rotated. */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"SmolLM3ForCausalLM", "SmolLM3Model", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    DECODER_ROPE_KEYS,
    {"attention_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, qkv_bias)},
    {"mlp_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, mlp_bias)},
    {"sliding_window", FAMILY_COUNT_OR_NULL, .offset = FAMILY_OWN(struct decoder_config, window)},
    {"use_sliding_window", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, slides)},
    {"layer_types", FAMILY_LAYERS, .offset = FAMILY_OWN(struct decoder_config, sliding), .words = decoder_kinds},
    {"no_rope_layers", FAMILY_SWITCHES, .offset = FAMILY_OWN(struct decoder_config, unrotated)},
    {"no_rope_layer_interval", FAMILY_COUNT, .offset = FAMILY_OWN(struct decoder_config, pattern), .most = 4096},
    {0},
};

/* Without a list of kinds, the blocks that slide are those that are not rotated, if any do. */
static void smollm3_complete(struct model_config *c)
{
    struct decoder_config *d = decoder_edit(c);

    for (uint32_t i = 0; d->unrotated.n == 0 && i < c->n_layers && i < CONFIG_LAYERS; i++)
        if (d->pattern > 0 && (i + 1) % d->pattern == 0)
            config_layers_add(&d->unrotated, i);
    if (!d->slides)
        d->sliding = (struct config_layers){.n = d->sliding.n}, d->window = 0;
    else if (d->sliding.n == 0 && d->window > 0)
        d->sliding = d->unrotated;
    d->output_bias = d->qkv_bias;
    decoder_complete(c);
}

const struct family family_smollm3 = {
    .model_type = "smollm3",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_smollm3,
                 .width = 2048,
                 .n_layers = 36,
                 .n_heads = 16,
                 .inner_width = 11008,
                 .vocabulary = 128256,
                 .n_positions = 32768,
                 .tied = true,
                 .norm_epsilon = 1e-6f,
                 .activation = MODEL_SILU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .n_kv_heads = 4, .pattern = 4, .rope = {.base = 2000000}),
    .end_token = 128001,
    .padding = 128004,
    .complete = smollm3_complete,
    .check = decoder_check,
    DECODER_PARTS,
};

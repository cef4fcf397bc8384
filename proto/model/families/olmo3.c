/* OLMo 3 (Olmo Team, arXiv:2512.13961), tensors named and laid out as in Hugging Face's Olmo3ForCausalLM: OLMo 2's
 * block, of which three in four slide. What scales rotary positions holds in the others alone. */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"Olmo3ForCausalLM", "Olmo3Model", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    {"rope_theta", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, sliding_rope.base)},
    DECODER_ROPE_KEYS_OF("rope_parameters.full_attention.", rope),
    DECODER_ROPE_LISTS_OF("rope_parameters.full_attention."),
    DECODER_ROPE_NUMBERS_OF("rope_scaling.", rope),
    DECODER_ROPE_LISTS_OF("rope_scaling."),
    {"rope_scaling", FAMILY_SAME, .other = "rope_parameters"},
    DECODER_ROPE_KEYS_OF("rope_parameters.sliding_attention.", sliding_rope),
    {"attention_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, qkv_bias)},
    {"sliding_window", FAMILY_COUNT_OR_NULL, .offset = FAMILY_OWN(struct decoder_config, window)},
    {"layer_types", FAMILY_LAYERS, .offset = FAMILY_OWN(struct decoder_config, sliding), .words = decoder_kinds},
    {0},
};

/* Beside a rope_scaling the rope_type is "default" until that says another. */
static const char *const harmless[] = {"rope_scaling.type", NULL};

static void olmo3_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {.query = "self_attn.q_norm",
                                                 .key = "self_attn.k_norm",
                                                 .normed_whole = true};

    decoder_write_normed_after(p, c, kind, &how);
}

static const struct family_layer layers[] = DECODER_LAYERS(olmo3_write_block, decoder_write_norm);

static void olmo3_complete(struct model_config *c)
{
    struct decoder_config *d = decoder_edit(c);

    decoder_slide(c, 0, 4);
    d->output_bias = d->qkv_bias;
    decoder_complete(c);
}

const struct family family_olmo3 = {
    .model_type = "olmo3",
    .architectures = architectures,
    .keys = keys,
    .harmless = harmless,
    .ignored = decoder_ignored,
    .defaults = {.family = &family_olmo3,
                 .width = 4096,
                 .n_layers = 32,
                 .n_heads = 32,
                 .inner_width = 11008,
                 .vocabulary = 50304,
                 .n_positions = 2048,
                 .norm_epsilon = 1e-5f,
                 .activation = MODEL_SILU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .window = 4096, .rope = {.base = 500000},
                        .sliding_rope = {.base = 500000}),
    .end_token = 50279,
    .padding = 1,
    .complete = olmo3_complete,
    .check = decoder_check,
    DECODER_PARTS_OF(layers),
};

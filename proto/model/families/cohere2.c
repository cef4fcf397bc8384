/* Command R7B and A (Cohere 2025, arXiv:2504.00698), tensors named and laid out as in Hugging Face's
 * Cohere2ForCausalLM: Cohere's block, of which three in four slide. The others are not rotated. */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"Cohere2ForCausalLM", "Cohere2Model", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS_OF("hidden_act", "layer_norm_eps"),
    DECODER_ROPE_KEYS,
    {"attention_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, qkv_bias)},
    {"logit_scale", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, logit_scale)},
    {"sliding_window", FAMILY_COUNT_OR_NULL, .offset = FAMILY_OWN(struct decoder_config, window)},
    {"sliding_window_pattern", FAMILY_COUNT, .offset = FAMILY_OWN(struct decoder_config, pattern), .most = 4096},
    {"layer_types", FAMILY_LAYERS, .offset = FAMILY_OWN(struct decoder_config, sliding), .words = decoder_kinds},
    {0},
};

/* What published files say of themselves, and transformers does not read. */
static const char *const harmless[] = {"cache_implementation",
                                       "layer_switch",
                                       "order_of_interleaved_layers",
                                       "position_embedding_type",
                                       "rotary_pct",
                                       "use_embedding_sharing",
                                       "use_gated_activation",
                                       "use_parallel_block",
                                       "use_parallel_embedding",
                                       "use_qk_norm",
                                       NULL};

static void cohere2_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {0};

    decoder_write_side_by_side(p, c, kind, &how);
}

static const struct family_layer layers[] = DECODER_LAYERS(cohere2_write_block, decoder_write_bare_layer_norm);

static void cohere2_complete(struct model_config *c)
{
    decoder_slide(c, 0, decoder_of(c)->pattern);
    decoder_unrotate(c);
    decoder_complete_biases(c);
}

const struct family family_cohere2 = {
    .model_type = "cohere2",
    .architectures = architectures,
    .keys = keys,
    .harmless = harmless,
    .defaults = {.family = &family_cohere2,
                 .width = 8192,
                 .n_layers = 40,
                 .n_heads = 64,
                 .inner_width = 22528,
                 .vocabulary = 256000,
                 .n_positions = 8192,
                 .tied = true,
                 .norm_epsilon = 1e-5f,
                 .activation = MODEL_SILU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .window = 4096, .pattern = 4, .interleaved = true,
                        .logit_scale = 0.0625f, .rope = {.base = 10000}),
    .end_token = 255001,
    .padding = 0,
    .complete = cohere2_complete,
    .check = decoder_check_logit_scale,
    DECODER_PARTS_OF(layers),
};

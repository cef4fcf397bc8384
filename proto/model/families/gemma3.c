/* Gemma 3, of text alone (Gemma Team, arXiv:2503.19786), tensors named and laid out as in Hugging Face's
 * Gemma3ForCausalLM: Gemma's block with norms before and after attention and MLP, norms of each head's queries and
 * keys, and blocks that see a window between those that see all. */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"Gemma3ForCausalLM", "Gemma3TextModel", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_activation"),
    {"attention_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, qkv_bias)},
    {"query_pre_attn_scalar", FAMILY_COUNT, .offset = FAMILY_OWN(struct decoder_config, score_width), .most = 1 << 24},
    {"final_logit_softcapping", FAMILY_REAL_OR_NULL, .offset = FAMILY_OWN(struct decoder_config, logit_cap)},
    {"sliding_window", FAMILY_COUNT_OR_NULL, .offset = FAMILY_OWN(struct decoder_config, window)},
    {"sliding_window_pattern", FAMILY_COUNT, .offset = FAMILY_OWN(struct decoder_config, pattern), .most = 4096},
    {"layer_types", FAMILY_LAYERS, .offset = FAMILY_OWN(struct decoder_config, sliding), .words = decoder_kinds},
    {"rope_local_base_freq", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, sliding_rope.base)},
    DECODER_ROPE_KEYS_OF("rope_parameters.full_attention.", rope),
    DECODER_ROPE_LISTS_OF("rope_parameters.full_attention."),
    DECODER_ROPE_NUMBERS_OF("rope_scaling.", rope),
    DECODER_ROPE_LISTS_OF("rope_scaling."),
    {"rope_scaling", FAMILY_SAME, .other = "rope_parameters"},
    DECODER_ROPE_KEYS_OF("rope_parameters.sliding_attention.", sliding_rope),
    {0},
};

/* transformers does not read these here: beside a rope_scaling the rope_type is "default" until that says another. */
static const char *const harmless[] = {"_sliding_window_pattern", "cache_implementation", "hidden_act",
                                       "rope_scaling.type", NULL};
/* transformers has attn_logit_softcapping here and does not apply it, so what a file means by it is unknown. */
static const char *const unsupported[] = {"attn_logit_softcapping", "use_bidirectional_attention", NULL};

static void gemma3_complete(struct model_config *c)
{
    struct decoder_config *d = decoder_edit(c);

    decoder_slide(c, 0, d->pattern);
    d->output_bias = d->qkv_bias;
    decoder_complete(c);
}

static void gemma3_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {.query = "self_attn.q_norm", .key = "self_attn.k_norm"};
    const int x = program_begin(p, c->width);
    const int a = decoder_attention(p, c, kind, decoder_norm(p, c, x, "input_layernorm"), &how);
    const int r =
        decoder_add(p, c, x, decoder_norm(p, c, a, "post_attention_layernorm"), RANDOM_DROPOUT_RESIDUAL_ATTENTION);
    const int m = decoder_gated(p, c, decoder_norm(p, c, r, "pre_feedforward_layernorm"), NULL);

    program_end(p,
                decoder_add(p, c, r, decoder_norm(p, c, m, "post_feedforward_layernorm"), RANDOM_DROPOUT_RESIDUAL_MLP));
}

static const struct family_layer layers[] = DECODER_LAYERS(gemma3_write_block, decoder_write_norm);

const struct family family_gemma3 = {
    .model_type = "gemma3_text",
    .architectures = architectures,
    .keys = keys,
    .harmless = harmless,
    .ignored = decoder_ignored,
    .unsupported = unsupported,
    .defaults = {.family = &family_gemma3,
                 .width = 2304,
                 .n_layers = 26,
                 .n_heads = 8,
                 .inner_width = 9216,
                 .vocabulary = 262208,
                 .n_positions = 131072,
                 .activation = MODEL_GELU_NEW,
                 .tied = true,
                 .norm_epsilon = 1e-6f,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .n_kv_heads = 4, .head_width = 256, .score_width = 256, .window = 4096,
                        .pattern = 6, .norm_offset = true, .rope = {.base = 1000000}, .sliding_rope = {.base = 10000}),
    .end_token = 1,
    .padding = 0,
    .complete = gemma3_complete,
    .check = decoder_check_caps,
    DECODER_PARTS_OF(layers),
    .embedding_scale = decoder_embedding_scale,
    .logit_cap = decoder_logit_cap,
    .is_mask = decoder_is_mask,
};

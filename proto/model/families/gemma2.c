/* Gemma 2 (Gemma Team, arXiv:2408.00118), tensors named and laid out as in Hugging Face's Gemma2ForCausalLM: Gemma's
 * block with norms before and after attention and MLP, every second block seeing a window, and bounds on attention's
 * scores and on logits. The caps are on unless the file says null. */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"Gemma2ForCausalLM", "Gemma2Model", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_activation"),
    DECODER_ROPE_KEYS,
    {"attention_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, qkv_bias)},
    {"query_pre_attn_scalar", FAMILY_COUNT, .offset = FAMILY_OWN(struct decoder_config, score_width), .most = 1 << 24},
    {"final_logit_softcapping", FAMILY_REAL_OR_NULL, .offset = FAMILY_OWN(struct decoder_config, logit_cap)},
    {"attn_logit_softcapping", FAMILY_REAL_OR_NULL, .offset = FAMILY_OWN(struct decoder_config, score_cap)},
    {"sliding_window", FAMILY_COUNT_OR_NULL, .offset = FAMILY_OWN(struct decoder_config, window)},
    {"layer_types", FAMILY_LAYERS, .offset = FAMILY_OWN(struct decoder_config, sliding), .words = decoder_kinds},
    {0},
};

/* transformers does not read these here. */
static const char *const harmless[] = {"cache_implementation", "hidden_act", "sliding_window_size", NULL};
static const char *const unsupported[] = {"use_bidirectional_attention", NULL};

static void gemma2_complete(struct model_config *c)
{
    decoder_slide(c, 0, 2);
    decoder_edit(c)->output_bias = decoder_of(c)->qkv_bias;
    decoder_complete(c);
}

static void gemma2_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {0};
    const int x = program_begin(p, c->width);
    const int a = decoder_attention(p, c, kind, decoder_norm(p, c, x, "input_layernorm"), &how);
    const int r =
        decoder_add(p, c, x, decoder_norm(p, c, a, "post_attention_layernorm"), RANDOM_DROPOUT_RESIDUAL_ATTENTION);
    const int m = decoder_gated(p, c, decoder_norm(p, c, r, "pre_feedforward_layernorm"), NULL);

    program_end(p,
                decoder_add(p, c, r, decoder_norm(p, c, m, "post_feedforward_layernorm"), RANDOM_DROPOUT_RESIDUAL_MLP));
}

static const struct family_layer layers[] = DECODER_LAYERS(gemma2_write_block, decoder_write_norm);

const struct family family_gemma2 = {
    .model_type = "gemma2",
    .architectures = architectures,
    .keys = keys,
    .harmless = harmless,
    .unsupported = unsupported,
    .defaults = {.family = &family_gemma2,
                 .width = 2304,
                 .n_layers = 26,
                 .n_heads = 8,
                 .inner_width = 9216,
                 .vocabulary = 256000,
                 .n_positions = 8192,
                 .activation = MODEL_GELU_NEW,
                 .tied = true,
                 .norm_epsilon = 1e-6f,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .n_kv_heads = 4, .head_width = 256, .score_width = 256, .window = 4096,
                        .norm_offset = true, .logit_cap = 30, .score_cap = 50, .rope = {.base = 10000}),
    .end_token = 1,
    .padding = 0,
    .complete = gemma2_complete,
    .check = decoder_check_caps,
    DECODER_PARTS_OF(layers),
    .embedding_scale = decoder_embedding_scale,
    .logit_cap = decoder_logit_cap,
    .is_mask = decoder_is_mask,
};

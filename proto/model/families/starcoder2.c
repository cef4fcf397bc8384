/* StarCoder 2 (Lozhkov et al., arXiv:2402.19173), tensors named and laid out as in Hugging Face's
 * Starcoder2ForCausalLM: layer norms, and an MLP of two maps. */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"Starcoder2ForCausalLM", "Starcoder2Model", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS_OF("hidden_act", "norm_epsilon"),
    DECODER_ROPE_KEYS,
    {"sliding_window", FAMILY_COUNT_OR_NULL, .offset = FAMILY_OWN(struct decoder_config, window)},
    {"use_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, qkv_bias)},
    {"embedding_dropout", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, dropout_embedding),
     .range = FAMILY_PROBABILITY},
    {"residual_dropout", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, dropout_residual),
     .range = FAMILY_PROBABILITY},
    {0},
};

static void starcoder2_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {0};
    const int x = program_begin(p, c->width);
    const int a = decoder_attention(p, c, kind, decoder_layer_norm(p, c, x, "input_layernorm", true), &how);
    const int r = decoder_add(p, c, x, a, RANDOM_DROPOUT_RESIDUAL_ATTENTION);
    const int n = decoder_layer_norm(p, c, r, "post_attention_layernorm", true);
    const int m = decoder_plain(p, c, n, "mlp.c_fc", "mlp.c_proj");

    program_end(p, decoder_add(p, c, r, m, RANDOM_DROPOUT_RESIDUAL_MLP));
}

static const struct family_layer layers[] = DECODER_LAYERS(starcoder2_write_block, decoder_write_layer_norm);

static void starcoder2_complete(struct model_config *c)
{
    decoder_edit(c)->output_bias = decoder_edit(c)->mlp_bias = decoder_of(c)->qkv_bias;
    decoder_complete_window(c);
}

const struct family family_starcoder2 = {
    .model_type = "starcoder2",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_starcoder2,
                 .width = 3072,
                 .n_layers = 30,
                 .n_heads = 24,
                 .inner_width = 12288,
                 .vocabulary = 49152,
                 .n_positions = 4096,
                 .tied = true,
                 .norm_epsilon = 1e-5f,
                 .activation = MODEL_GELU_NEW,
                 .initializer_range = 0.018042f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .n_kv_heads = 2, .qkv_bias = true, .rope = {.base = 10000}),
    .end_token = 50256,
    .padding = FAMILY_NO_TOKEN,
    .complete = starcoder2_complete,
    .check = decoder_check,
    DECODER_PARTS_OF(layers),
    .embedding_dropout = decoder_embedding_dropout,
};

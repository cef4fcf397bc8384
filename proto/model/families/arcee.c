/* Arcee's AFM (2025), tensors named and laid out as in Hugging Face's ArceeForCausalLM: Llama's block with an MLP of
 * two maps, and relu squared between them. */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"ArceeForCausalLM", "ArceeModel", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    DECODER_ROPE_KEYS,
    {"attention_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, qkv_bias)},
    {"mlp_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, mlp_bias)},
    {0},
};

static void arcee_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {0};
    const int x = program_begin(p, c->width);
    const int a = decoder_attention(p, c, kind, decoder_norm(p, c, x, "input_layernorm"), &how);
    const int r = decoder_add(p, c, x, a, RANDOM_DROPOUT_RESIDUAL_ATTENTION);
    const int n = decoder_norm(p, c, r, "post_attention_layernorm");
    const int m = decoder_plain(p, c, n, "mlp.up_proj", "mlp.down_proj");

    program_end(p, decoder_add(p, c, r, m, RANDOM_DROPOUT_RESIDUAL_MLP));
}

static const struct family_layer layers[] = DECODER_LAYERS(arcee_write_block, decoder_write_norm);

const struct family family_arcee = {
    .model_type = "arcee",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_arcee,
                 .width = 2560,
                 .n_layers = 32,
                 .n_heads = 32,
                 .inner_width = 18432,
                 .vocabulary = 32000,
                 .n_positions = 4096,
                 .norm_epsilon = 1e-5f,
                 .activation = MODEL_RELU2,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .rope = {.base = 10000}),
    .end_token = 128001,
    .padding = FAMILY_NO_TOKEN,
    .complete = decoder_complete_biases,
    .check = decoder_check,
    DECODER_PARTS_OF(layers),
};

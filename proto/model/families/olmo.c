/* OLMo (Groeneveld et al., arXiv:2402.00838), tensors named and laid out as in Hugging Face's OlmoForCausalLM: Llama's
 * block with layer norms that have no tensors, and one epsilon, which is no key. */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"OlmoForCausalLM", "OlmoModel", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS_BUT_EPSILON("hidden_act"),
    DECODER_ROPE_KEYS,
    {"attention_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, qkv_bias)},
    {0},
};

/* Bounds on queries, keys and values. */
static const char *const unsupported[] = {"clip_qkv", NULL};

static int olmo_norm(struct program *p, const struct model_config *c, int x)
{
    return program_norm(p, x, "", &(struct program_norm_options){.epsilon = c->norm_epsilon, .bare = true});
}

static void olmo_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {0};
    const int x = program_begin(p, c->width);
    const int a = decoder_attention(p, c, kind, olmo_norm(p, c, x), &how);
    const int r = decoder_add(p, c, x, a, RANDOM_DROPOUT_RESIDUAL_ATTENTION);
    const int m = decoder_gated(p, c, olmo_norm(p, c, r), NULL);

    program_end(p, decoder_add(p, c, r, m, RANDOM_DROPOUT_RESIDUAL_MLP));
}

static void olmo_write_norm(struct program *p, const struct model_config *c)
{
    program_end(p, olmo_norm(p, c, program_begin(p, c->width)));
}

static const struct family_layer layers[] = DECODER_LAYERS(olmo_write_block, olmo_write_norm);

const struct family family_olmo = {
    .model_type = "olmo",
    .architectures = architectures,
    .keys = keys,
    .unsupported = unsupported,
    .defaults = {.family = &family_olmo,
                 .width = 4096,
                 .n_layers = 32,
                 .n_heads = 32,
                 .inner_width = 11008,
                 .vocabulary = 50304,
                 .n_positions = 2048,
                 .norm_epsilon = 1e-5f,
                 .activation = MODEL_SILU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .rope = {.base = 10000}),
    .end_token = 50279,
    .padding = 1,
    .complete = decoder_complete_biases,
    .check = decoder_check,
    DECODER_PARTS_OF(layers),
};

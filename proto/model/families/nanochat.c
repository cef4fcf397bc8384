/* nanochat (Karpathy 2025), tensors named and laid out as in Hugging Face's NanoChatForCausalLM: norms have no weights,
 * the embedding has one, too, and so have queries and keys once they are rotated, by the negative angle; an MLP of two
 * maps; logits are capped, unless the file says null. */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"NanoChatForCausalLM", "NanoChatModel", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    DECODER_ROPE_KEYS,
    {"attention_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, qkv_bias)},
    {"final_logit_softcapping", FAMILY_REAL_OR_NULL, .offset = FAMILY_OWN(struct decoder_config, logit_cap)},
    {0},
};

static int nanochat_norm(struct program *p, const struct model_config *c, int x)
{
    return program_norm(p, x, "",
                        &(struct program_norm_options){.epsilon = c->norm_epsilon, .rms = true, .bare = true});
}

static void nanochat_write_norm(struct program *p, const struct model_config *c)
{
    program_end(p, nanochat_norm(p, c, program_begin(p, c->width)));
}

static void nanochat_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {.normed_bare = true, .normed_rotated = true};
    const int x = program_begin(p, c->width);
    const int a = decoder_attention(p, c, kind, nanochat_norm(p, c, x), &how);
    const int r = decoder_add(p, c, x, a, RANDOM_DROPOUT_RESIDUAL_ATTENTION);
    const int m = decoder_plain(p, c, nanochat_norm(p, c, r), "mlp.fc1", "mlp.fc2");

    program_end(p, decoder_add(p, c, r, m, RANDOM_DROPOUT_RESIDUAL_MLP));
}

static const struct family_layer layers[] = {
    {MODEL_SINGLE, "embeddings.norm", .write = nanochat_write_norm},
    {MODEL_BLOCK, "layers.%u", .write_kind = nanochat_write_block},
    {MODEL_SINGLE, "norm", .write = nanochat_write_norm},
    {0},
};

const struct family family_nanochat = {
    .model_type = "nanochat",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_nanochat,
                 .width = 768,
                 .n_layers = 12,
                 .n_heads = 6,
                 .inner_width = 8192,
                 .vocabulary = 50304,
                 .n_positions = 2048,
                 .norm_epsilon = 1e-6f,
                 .activation = MODEL_RELU2,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .backwards = true, .logit_cap = 15, .rope = {.base = 10000}),
    .end_token = 1,
    .padding = 1,
    .complete = decoder_complete_biases,
    .check = decoder_check_caps,
    DECODER_PARTS_OF(layers),
    .logit_cap = decoder_logit_cap,
};

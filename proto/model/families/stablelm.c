/* StableLM 2 (Bellagente et al., arXiv:2402.17834), tensors named and laid out as in Hugging Face's
 * StableLmForCausalLM: layer norms, and a quarter of each head's columns rotated. With use_parallel_residual attention
 * and MLP read one norm; with qk_layernorm each head has a norm. */
#include "proto/model/decoder_family.h"

#include <errno.h>

static const char *const architectures[] = {"StableLmForCausalLM", "StableLmModel", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS_OF("hidden_act", "layer_norm_eps"),
    DECODER_ROPE_KEYS,
    DECODER_SHARE_KEYS,
    {"use_qkv_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, qkv_bias)},
    {"qk_layernorm", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, norms_heads)},
    {"use_parallel_residual", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, parallel)},
    {"hidden_dropout", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, dropout_residual),
     .range = FAMILY_PROBABILITY},
    {0},
};

/* Dropout is of the MLP's result alone. */
static void stablelm_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    const struct decoder_attention how = {.query = decoder_of(c)->norms_heads ? "self_attn.q_layernorm" : NULL,
                                          .key = "self_attn.k_layernorm",
                                          .normed_each = true};
    static const struct program_dropout none = {0};
    const bool parallel = decoder_of(c)->parallel;
    const int x = program_begin(p, c->width);
    const int n = decoder_layer_norm(p, c, x, "input_layernorm", true);
    const int r = program_add(p, x, decoder_attention(p, c, kind, n, &how), &none);
    const int m =
        decoder_gated(p, c, parallel ? n : decoder_layer_norm(p, c, r, "post_attention_layernorm", true), NULL);

    program_end(p, decoder_add(p, c, r, m, RANDOM_DROPOUT_RESIDUAL_MLP));
}

static int stablelm_check(const struct model_config *c, struct error *err)
{
    const struct decoder_config *d = decoder_of(c);

    if (d->norms_heads && c->n_heads + d->n_kv_heads > PROGRAM_NORMED_HEADS)
        return error_set(err, -EINVAL, "qk_layernorm is true: this is supported for up to %d heads of queries and keys",
                         PROGRAM_NORMED_HEADS);
    return decoder_check(c, err);
}

static const struct family_layer layers[] = DECODER_LAYERS(stablelm_write_block, decoder_write_layer_norm);

const struct family family_stablelm = {
    .model_type = "stablelm",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_stablelm,
                 .width = 2560,
                 .n_layers = 32,
                 .n_heads = 32,
                 .inner_width = 6912,
                 .vocabulary = 50304,
                 .n_positions = 4096,
                 .norm_epsilon = 1e-5f,
                 .activation = MODEL_SILU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .n_kv_heads = 32, .rope = {.base = 10000, .share = 0.25f}),
    .end_token = 0,
    .padding = FAMILY_NO_TOKEN,
    .complete = decoder_complete,
    .check = stablelm_check,
    DECODER_PARTS_OF(layers),
};

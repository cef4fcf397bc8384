/* Phi-1, Phi-1.5 and Phi-2 (Gunasekar et al., arXiv:2306.11644), tensors named and laid out as in Hugging Face's
 * PhiForCausalLM: attention and MLP side by side, which read one layer norm, and a head with a bias. All maps have
 * one. */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"PhiForCausalLM", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS_OF("hidden_act", "layer_norm_eps"),
    DECODER_ROPE_KEYS,
    DECODER_SHARE_KEYS,
    {"resid_pdrop", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, dropout_residual),
     .range = FAMILY_PROBABILITY},
    {"qk_layernorm", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, norms_heads)},
    {"embd_pdrop", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, dropout_embedding),
     .range = FAMILY_PROBABILITY},
    {0},
};

static void phi_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    const struct decoder_attention how = {.output = "self_attn.dense",
                                          .query = decoder_of(c)->norms_heads ? "self_attn.q_layernorm" : NULL,
                                          .key = "self_attn.k_layernorm",
                                          .normed_by_mean = true};
    const int x = program_begin(p, c->width);
    const int n = decoder_layer_norm(p, c, x, "input_layernorm", true);
    const int r = decoder_add(p, c, x, decoder_attention(p, c, kind, n, &how), RANDOM_DROPOUT_RESIDUAL_ATTENTION);
    const int m = decoder_plain(p, c, n, "mlp.fc1", "mlp.fc2");

    program_end(p, decoder_add(p, c, r, m, RANDOM_DROPOUT_RESIDUAL_MLP));
}

/* The head's bias has another prefix, so all names are whole. */
static void phi_write_norm(struct program *p, const struct model_config *c)
{
    program_end(p, decoder_layer_norm(p, c, program_begin(p, c->width), "model.final_layernorm", true));
    program_logit_bias(p, "lm_head.bias", c->vocabulary);
}

static const struct family_layer layers[] = {
    {MODEL_BLOCK, "layers.%u", .write_kind = phi_write_block},
    {MODEL_SINGLE, "final_layernorm", .bare = true, .write = phi_write_norm},
    {0},
};

const struct family family_phi = {
    .model_type = "phi",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_phi,
                 .width = 2048,
                 .n_layers = 24,
                 .n_heads = 32,
                 .inner_width = 8192,
                 .vocabulary = 51200,
                 .n_positions = 2048,
                 .norm_epsilon = 1e-5f,
                 .activation = MODEL_GELU_NEW,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .qkv_bias = true, .output_bias = true, .mlp_bias = true,
                        .rope = {.base = 10000, .share = 0.5f}),
    .end_token = 2,
    .padding = FAMILY_NO_TOKEN,
    .complete = decoder_complete,
    .check = decoder_check,
    DECODER_PARTS_OF(layers),
    .embedding_dropout = decoder_embedding_dropout,
    .is_mask = decoder_is_mask,
};

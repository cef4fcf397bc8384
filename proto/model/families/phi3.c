/* Phi-3 and Phi-4 (Abdin et al., arXiv:2404.14219, arXiv:2412.08905), tensors named and laid out as in Hugging Face's
 * Phi3ForCausalLM: Llama's block, with one map for queries, keys and values, and one for gate and up. Rotary positions
 * are plain or those of LongRoPE, which early files call su or yarn; what they were trained on stands outside them. */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"Phi3ForCausalLM", "Phi3Model", NULL};

static const char *const phi3_scalings[] = {"default", "longrope", "su", "yarn", NULL};

#define PHI3_ROPE_KEYS_OF(object)                                                                                      \
    {object "type", FAMILY_WORD, .offset = FAMILY_OWN(struct decoder_config, rope.scaling), .words = phi3_scalings},   \
        {object "rope_type", FAMILY_WORD, .offset = FAMILY_OWN(struct decoder_config, rope.scaling),                   \
         .words = phi3_scalings},                                                                                      \
        DECODER_ROPE_VALUES_OF(object, rope), DECODER_ROPE_LISTS_OF(object)

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    PHI3_ROPE_KEYS_OF("rope_parameters."),
    PHI3_ROPE_KEYS_OF("rope_scaling."),
    {"rope_scaling", FAMILY_SAME, .other = "rope_parameters"},
    DECODER_SHARE_KEYS,
    {"sliding_window", FAMILY_COUNT_OR_NULL, .offset = FAMILY_OWN(struct decoder_config, window)},
    {"original_max_position_embeddings", FAMILY_COUNT, .offset = FAMILY_OWN(struct decoder_config, rope.n_trained)},
    {"resid_pdrop", FAMILY_REAL, .offset = FAMILY_OWN(struct decoder_config, dropout_residual),
     .range = FAMILY_PROBABILITY},
    {0},
};

/* transformers makes no dropout of embd_pdrop, and no bias of attention_bias. */
static const char *const harmless[] = {"attention_bias", "embd_pdrop",
                                       "rope_parameters.original_max_position_embeddings",
                                       "rope_scaling.original_max_position_embeddings", NULL};

static void phi3_complete(struct model_config *c)
{
    struct decoder_config *d = decoder_edit(c);

    if (d->rope.scaling != DECODER_NOT_SCALED)
        d->rope.scaling = DECODER_LONGROPE;
    decoder_complete_window(c);
}

static void phi3_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {.qkv = "self_attn.qkv_proj"};

    decoder_write_normed_before(p, c, kind, &how, "mlp.gate_up_proj");
}

static const struct family_layer layers[] = DECODER_LAYERS(phi3_write_block, decoder_write_norm);

const struct family family_phi3 = {
    .model_type = "phi3",
    .architectures = architectures,
    .keys = keys,
    .harmless = harmless,
    .defaults = {.family = &family_phi3,
                 .width = 3072,
                 .n_layers = 32,
                 .n_heads = 32,
                 .inner_width = 8192,
                 .vocabulary = 32064,
                 .n_positions = 4096,
                 .norm_epsilon = 1e-5f,
                 .activation = MODEL_SILU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .rope = {.base = 10000, .n_trained = 4096}),
    .end_token = 32000,
    .padding = 32000,
    .complete = phi3_complete,
    .check = decoder_check,
    DECODER_PARTS_OF(layers),
};

/* Hunyuan, dense (Tencent 2025), tensors named and laid out as in Hugging Face's HunYuanDenseV1ForCausalLM: Llama's
 * block, with norms of each head's queries and keys after the rotation, whose base a constant alpha stretches. */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"HunYuanDenseV1ForCausalLM", "HunYuanDenseV1Model", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    DECODER_ROPE_KEYS,
    {"rope_parameters.alpha", FAMILY_REAL_OR_DEFAULT, .offset = FAMILY_OWN(struct decoder_config, rope.alpha)},
    {"rope_scaling.alpha", FAMILY_REAL_OR_DEFAULT, .offset = FAMILY_OWN(struct decoder_config, rope.alpha)},
    {"attention_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, qkv_bias)},
    {0},
};

/* What published files say of this model and of relatives, and transformers does not read. */
static const char *const harmless[] = {"add_classification_head",
                                       "attention_head_dim",
                                       "cla_share_factor",
                                       "class_num",
                                       "dense_list",
                                       "eod_token_id",
                                       "enable_*",
                                       "im_*",
                                       "image_*",
                                       "mask_init_id",
                                       "mlp_bias",
                                       "norm_type",
                                       "org_vocab_size",
                                       "pad_id",
                                       "pool_type",
                                       "pretraining_tp",
                                       "text_*",
                                       "use_cla",
                                       "use_qk_norm",
                                       "use_rotary_pos_emb",
                                       "video_*",
                                       "vit_*",
                                       "position_embedding_xdrope",
                                       NULL};

static void hunyuan_v1_dense_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {.query = "self_attn.query_layernorm",
                                                 .key = "self_attn.key_layernorm",
                                                 .normed_rotated = true};

    decoder_write_normed_before(p, c, kind, &how, NULL);
}

static const struct family_layer layers[] = DECODER_LAYERS(hunyuan_v1_dense_write_block, decoder_write_norm);

static void hunyuan_v1_dense_complete(struct model_config *c)
{
    struct decoder_config *d = decoder_edit(c);

    d->output_bias = d->qkv_bias;
    if (d->rope.scaling != DECODER_DYNAMIC)
        d->rope.alpha = 0;
    decoder_complete(c);
}

const struct family family_hunyuan_v1_dense = {
    .model_type = "hunyuan_v1_dense",
    .architectures = architectures,
    .keys = keys,
    .harmless = harmless,
    .defaults = {.family = &family_hunyuan_v1_dense,
                 .width = 4096,
                 .n_layers = 32,
                 .n_heads = 32,
                 .inner_width = 11008,
                 .vocabulary = 290943,
                 .n_positions = 2048,
                 .norm_epsilon = 1e-5f,
                 .activation = MODEL_SILU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .rope = {.base = 10000}),
    .end_token = 2,
    .padding = 0,
    .complete = hunyuan_v1_dense_complete,
    .check = decoder_check,
    DECODER_PARTS_OF(layers),
};

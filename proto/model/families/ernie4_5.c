/* ERNIE 4.5, dense (Baidu 2025), tensors named and laid out as in Hugging Face's Ernie4_5ForCausalLM: Llama's block, in
 * which neighbouring columns are rotated, with biases of all maps or of none. */
#include "proto/model/decoder_family.h"

static const char *const architectures[] = {"Ernie4_5ForCausalLM", "Ernie4_5Model", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    DECODER_ROPE_KEYS,
    {"use_bias", FAMILY_SWITCH, .offset = FAMILY_OWN(struct decoder_config, qkv_bias)},
    {0},
};

/* transformers does not read attention_dropout here. */
static void ernie4_5_complete(struct model_config *c)
{
    struct decoder_config *d = decoder_edit(c);

    d->output_bias = d->mlp_bias = d->qkv_bias;
    d->dropout_attention = 0;
    decoder_complete(c);
}

const struct family family_ernie4_5 = {
    .model_type = "ernie4_5",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_ernie4_5,
                 .width = 1024,
                 .n_layers = 18,
                 .n_heads = 16,
                 .inner_width = 3072,
                 .vocabulary = 103424,
                 .n_positions = 131072,
                 .tied = true,
                 .norm_epsilon = 1e-5f,
                 .activation = MODEL_SILU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct decoder_config, .n_kv_heads = 2, .head_width = 128, .interleaved = true,
                        .rope = {.base = 500000}),
    .end_token = 2,
    .padding = 0,
    .complete = ernie4_5_complete,
    .check = decoder_check,
    DECODER_PARTS,
};

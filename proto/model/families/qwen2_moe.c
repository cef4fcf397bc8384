/* Qwen 2's mixtures of experts (Yang et al., arXiv:2407.10671), tensors named and laid out as in Hugging Face's
 * Qwen2MoeForCausalLM: Qwen 2's block, with experts in the place of the MLP, beside one that every token has. Where
 * blocks slide, it is every other one of the first max_window_layers; where none does, transformers writes a window of
 * 0. */
#include "proto/model/decoder_moe.h"

#include <errno.h>

static const char *const architectures[] = {"Qwen2MoeForCausalLM", "Qwen2MoeModel", NULL};

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    DECODER_ROPE_KEYS,
    {"qkv_bias", FAMILY_SWITCH, .offset = DECODER_MOE_OWN(decoder.qkv_bias)},
    {"sliding_window", FAMILY_COUNT_OR_NONE, .offset = DECODER_MOE_OWN(decoder.window)},
    {"use_sliding_window", FAMILY_SWITCH, .offset = DECODER_MOE_OWN(decoder.slides)},
    {"max_window_layers", FAMILY_COUNT, .offset = DECODER_MOE_OWN(decoder.n_full)},
    {"layer_types", FAMILY_LAYERS, .offset = DECODER_MOE_OWN(decoder.sliding), .words = decoder_kinds},
    DECODER_MOE_KEYS,
    DECODER_MOE_SPARSE_KEYS,
    {"shared_expert_intermediate_size", FAMILY_COUNT, .offset = DECODER_MOE_OWN(shared_width), .most = MODEL_WIDEST},
    {0},
};

static void qwen2_moe_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {0};

    decoder_moe_write_block(p, c, kind, &how, "mlp.gate", &decoder_moe_names);
}

static const struct family_layer layers[] = DECODER_LAYERS(qwen2_moe_write_block, decoder_write_norm);

static void qwen2_moe_complete(struct model_config *c)
{
    struct decoder_config *d = decoder_edit(c);

    if (!d->slides)
        d->window = 0;
    for (uint32_t i = 0; d->sliding.n == 0 && d->window > 0 && i < c->n_layers && i < d->n_full && i < CONFIG_LAYERS;
         i += 2)
        config_layers_add(&d->sliding, i);
    decoder_complete(c);
}

static int qwen2_moe_check(const struct model_config *c, struct error *err)
{
    if (decoder_of(c)->slides && decoder_of(c)->window == 0)
        return error_set(err, -EINVAL,
                         "use_sliding_window is true, and sliding_window is null or 0: it must be positive");
    return decoder_moe_check(c, err);
}

const struct family family_qwen2_moe = {
    .model_type = "qwen2_moe",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_qwen2_moe,
                 .width = 2048,
                 .n_layers = 24,
                 .n_heads = 16,
                 .inner_width = 5632,
                 .vocabulary = 151936,
                 .n_positions = 32768,
                 .activation = MODEL_SILU,
                 .norm_epsilon = 1e-6f,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(
        struct decoder_moe_config,
        .decoder = {.n_kv_heads = 16, .window = 4096, .n_full = 28, .qkv_bias = true, .rope = {.base = 10000}},
        .n_experts = 60, .n_chosen = 4, .expert_width = 1408, .shared_width = 5632, .step = 1, .balance = 0.001f),
    .end_token = FAMILY_NO_TOKEN,
    .padding = FAMILY_NO_TOKEN,
    .complete = qwen2_moe_complete,
    .check = qwen2_moe_check,
    .prefix = "model.",
    .tables = decoder_tables,
    .layers = layers,
    .kind_of_block = decoder_moe_kind_of_block,
    .logits = "lm_head",
    .left_out = decoder_moe_left_out,
};

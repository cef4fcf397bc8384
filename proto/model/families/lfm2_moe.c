/* LFM2's mixtures of experts (Liquid AI, arXiv:2511.23404), tensors named and laid out as in Hugging Face's
 * Lfm2MoeForCausalLM: LFM2's block, with experts in the place of the MLP above the lowest blocks, chosen by sigmoids. The
 * MLP's width is the file's. */
#include "proto/model/decoder_moe.h"
#include "proto/model/families/lfm2.h"

#include <errno.h>

static const char *const architectures[] = {"Lfm2MoeForCausalLM", "Lfm2MoeModel", NULL};

struct lfm2_moe_config {
    struct decoder_moe_config moe;
    struct config_layers conv; /* layer_types: blocks that convolve */
    uint32_t n_taps;
    bool conv_bias; /* of the convolution and its two maps */
} MODEL_OWN;
MODEL_OWN_HOLDS(struct lfm2_moe_config);

/* Kinds of block: as DECODER_MOE_DENSE, and */
enum { CONVOLVES = 1 };
static const char *const kinds[] = {"full_attention", "conv", NULL};

#define OWN(member) FAMILY_OWN(struct lfm2_moe_config, member)

static const struct family_key keys[] = {
    LFM2_KEYS(struct lfm2_moe_config, moe.decoder),
    {"layer_types", FAMILY_LAYERS, .offset = OWN(conv), .words = kinds},
    {"num_experts", FAMILY_COUNT, .offset = OWN(moe.n_experts)},
    {"num_experts_per_tok", FAMILY_COUNT, .offset = OWN(moe.n_chosen)},
    {"moe_intermediate_size", FAMILY_COUNT, .offset = OWN(moe.expert_width), .most = MODEL_WIDEST},
    {"num_dense_layers", FAMILY_COUNT_OR_NONE, .offset = OWN(moe.n_dense)},
    {"use_expert_bias", FAMILY_SWITCH, .offset = OWN(moe.biased)},
    DECODER_MOE_SIGMOID_KEYS,
    {0},
};

/* transformers adds no loss here, and does not read the others. */
static const char *const harmless[] = {"output_router_logits", "theta", "use_pos_enc", NULL};

static const struct lfm2_moe_config *lfm2_moe_of(const struct model_config *c)
{
    return (const void *)c->own.bytes;
}

static int lfm2_moe_feed_forward(struct program *p, const struct model_config *c, uint32_t kind, int x)
{
    static const struct program_experts_names bare = {.gate = "feed_forward.experts.%u.w1.weight",
                                                      .up = "feed_forward.experts.%u.w3.weight",
                                                      .down = "feed_forward.experts.%u.w2.weight"};
    struct program_experts_names names = bare;

    if (lfm2_moe_of(c)->moe.biased)
        names.bias = "feed_forward.expert_bias";
    return kind & DECODER_MOE_DENSE ? decoder_feed_forward(p, c, x, c->inner_width)
                                    : decoder_moe_experts(p, c, x, "feed_forward.gate", &names);
}

static void lfm2_moe_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {.output = "self_attn.out_proj",
                                                 .query = "self_attn.q_layernorm",
                                                 .key = "self_attn.k_layernorm"};
    const struct lfm2_moe_config *own = lfm2_moe_of(c);
    const int x = program_begin(p, c->width), n = decoder_norm(p, c, x, "operator_norm");
    const int mixed = kind & CONVOLVES ? decoder_convolution(p, c, n, own->n_taps, own->conv_bias)
                                       : decoder_attention(p, c, 0, n, &how);
    const int r = decoder_add(p, c, x, mixed, RANDOM_DROPOUT_RESIDUAL_ATTENTION);
    const int m = lfm2_moe_feed_forward(p, c, kind, decoder_norm(p, c, r, "ffn_norm"));

    program_end(p, decoder_add(p, c, r, m, RANDOM_DROPOUT_RESIDUAL_MLP));
}

static const struct family_layer layers[] = {
    {MODEL_BLOCK, "layers.%u", .write_kind = lfm2_moe_write_block},
    {MODEL_BLOCK, "layers.%u", .write_kind = lfm2_moe_write_block},
    {MODEL_BLOCK, "layers.%u", .write_kind = lfm2_moe_write_block},
    {MODEL_BLOCK, "layers.%u", .write_kind = lfm2_moe_write_block},
    {MODEL_SINGLE, "embedding_norm", .write = lfm2_write_norm},
    {0},
};

static uint32_t lfm2_moe_kind_of_block(const struct model_config *c, uint32_t index)
{
    return decoder_moe_kind_of_block(c, index) | (config_layers_has(&lfm2_moe_of(c)->conv, index) ? CONVOLVES : 0);
}

static int lfm2_moe_check(const struct model_config *c, struct error *err)
{
    const struct lfm2_moe_config *own = lfm2_moe_of(c);

    if (own->conv.n > 0 && own->conv.n != c->n_layers)
        return error_set(err, -EINVAL, "layer_types has %u entries: num_hidden_layers is %u", own->conv.n, c->n_layers);
    return decoder_moe_check(c, err);
}

const struct family family_lfm2_moe = {
    .model_type = "lfm2_moe",
    .architectures = architectures,
    .keys = keys,
    .harmless = harmless,
    .defaults = {.family = &family_lfm2_moe,
                 .width = 2048,
                 .n_layers = 32,
                 .n_heads = 32,
                 .inner_width = 7168,
                 .vocabulary = 65536,
                 .n_positions = 128000,
                 .tied = true,
                 .norm_epsilon = 1e-5f,
                 .activation = MODEL_SILU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct lfm2_moe_config,
                        .moe = {.decoder = {.n_kv_heads = 8, .rope = {.base = 1000000}},
                                .n_experts = 32,
                                .n_chosen = 4,
                                .expert_width = 1792,
                                .n_dense = 2,
                                .step = 1,
                                .normalises = true,
                                .sigmoid = true,
                                .biased = true,
                                .epsilon = 1e-6f,
                                .scale = 1},
                        .n_taps = 3),
    .end_token = 2,
    .padding = 0,
    .complete = decoder_complete,
    .check = lfm2_moe_check,
    .prefix = "model.",
    .tables = decoder_tables,
    .layers = layers,
    .kind_of_block = lfm2_moe_kind_of_block,
    .logits = "lm_head",
};

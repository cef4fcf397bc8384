/* GLM-4.5 to 4.7 (Zeng et al., arXiv:2508.06471), tensors named and laid out as in Hugging Face's Glm4MoeForCausalLM:
 * Llama's block, of whose heads a share is rotated, with experts in the place of the MLP above the lowest blocks. These
 * are chosen by sigmoids, as DeepSeek-V3's are. The block that drafts tokens (MTP), beyond the last one, is outside
 * (proto/model/outside.h). */
#include "proto/model/decoder_moe.h"

#include <errno.h>

static const char *const architectures[] = {"Glm4MoeForCausalLM", "Glm4MoeModel", NULL};

struct glm4_moe_config {
    struct decoder_moe_config moe;
    bool normed; /* queries and keys, head by head */
} MODEL_OWN;
MODEL_OWN_HOLDS(struct glm4_moe_config);

#define OWN(member) FAMILY_OWN(struct glm4_moe_config, member)

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    DECODER_ROPE_KEYS,
    DECODER_SHARE_KEYS,
    {"attention_bias", FAMILY_SWITCH, .offset = OWN(moe.decoder.qkv_bias)},
    {"use_qk_norm", FAMILY_SWITCH, .offset = OWN(normed)},
    {"n_routed_experts", FAMILY_COUNT, .offset = OWN(moe.n_experts)},
    {"num_local_experts", FAMILY_COUNT, .offset = OWN(moe.n_experts)},
    {"num_experts_per_tok", FAMILY_COUNT, .offset = OWN(moe.n_chosen)},
    {"moe_intermediate_size", FAMILY_COUNT, .offset = OWN(moe.expert_width), .most = MODEL_WIDEST},
    {"n_shared_experts", FAMILY_COUNT, .offset = OWN(moe.n_shared), .most = 1 << 10},
    {"first_k_dense_replace", FAMILY_COUNT_OR_NONE, .offset = OWN(moe.n_dense)},
    {"n_group", FAMILY_COUNT, .offset = OWN(moe.n_groups)},
    {"topk_group", FAMILY_COUNT, .offset = OWN(moe.n_chosen_groups)},
    DECODER_MOE_SIGMOID_KEYS,
    {0},
};

/* transformers adds no loss here, and drafts nothing where a loss is computed. */
static const char *const harmless[] = {"output_router_logits", "num_nextn_predict_layers", "num_mtp_layers", NULL};

static void glm4_moe_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention bare = {0}, normed = {.query = "self_attn.q_norm", .key = "self_attn.k_norm"};
    const struct glm4_moe_config *own = (const void *)c->own.bytes;
    struct program_experts_names names = decoder_moe_names;

    names.bias = "mlp.gate.e_score_correction_bias";
    decoder_moe_write_block(p, c, kind, own->normed ? &normed : &bare, "mlp.gate", &names);
}

static const struct family_layer layers[] = DECODER_LAYERS(glm4_moe_write_block, decoder_write_norm);

static int glm4_moe_check(const struct model_config *c, struct error *err)
{
    const struct decoder_moe_config *own = decoder_moe_of(c);

    if ((uint64_t)own->n_shared * own->expert_width > MODEL_WIDEST)
        return error_set(err, -EINVAL, "n_shared_experts is %u, of %u columns each: together they have at most %d",
                         own->n_shared, own->expert_width, MODEL_WIDEST);
    return decoder_moe_check(c, err);
}

const struct family family_glm4_moe = {
    .model_type = "glm4_moe",
    .architectures = architectures,
    .keys = keys,
    .harmless = harmless,
    .defaults = {.family = &family_glm4_moe,
                 .width = 4096,
                 .n_layers = 46,
                 .n_heads = 96,
                 .inner_width = 10944,
                 .vocabulary = 151552,
                 .n_positions = 131072,
                 .norm_epsilon = 1e-5f,
                 .activation = MODEL_SILU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct glm4_moe_config,
                        .moe = {.decoder = {.n_kv_heads = 8, .rope = {.base = 10000, .share = 0.5f}},
                                .n_experts = 128,
                                .n_chosen = 8,
                                .expert_width = 1408,
                                .n_shared = 1,
                                .n_dense = 1,
                                .step = 1,
                                .normalises = true,
                                .sigmoid = true,
                                .n_groups = 1,
                                .n_chosen_groups = 1,
                                .epsilon = 1e-20f,
                                .scale = 1}),
    .end_token = FAMILY_NO_TOKEN,
    .padding = FAMILY_NO_TOKEN,
    .complete = decoder_complete,
    .check = glm4_moe_check,
    .prefix = "model.",
    .tables = decoder_tables,
    .layers = layers,
    .kind_of_block = decoder_moe_kind_of_block,
    .logits = "lm_head",
    .adapts_experts = true,
};

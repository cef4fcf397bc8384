/* Qwen 3.5 and 3.6's mixtures of experts (Qwen Team, 2026), tensors named and laid out as in Hugging Face's
 * Qwen3_5MoeForCausalLM: Qwen 3.5's blocks (qwen3_5_text.c), with experts in the place of each MLP, whose weights always
 * sum to 1, beside one that every token has. Published files have a block's experts joined, in two tensors; those that
 * transformers saves have each by itself. */
#include "proto/model/decoder_moe.h"
#include "proto/model/families/qwen3_5.h"

static const char *const architectures[] = {"Qwen3_5MoeForCausalLM", "Qwen3_5MoeTextModel", NULL};

struct qwen3_5_moe_config {
    struct decoder_moe_config moe;
    struct decoder_delta delta;
} MODEL_OWN;
MODEL_OWN_HOLDS(struct qwen3_5_moe_config);

#define OWN(member) FAMILY_OWN(struct qwen3_5_moe_config, member)

static const struct family_key keys[] = {
    {"hidden_size", FAMILY_COUNT, .offset = FAMILY_AT(width), .required = true, .most = 65536},
    {"moe_intermediate_size", FAMILY_WIDTHS, .offset = FAMILY_AT(inner_width), .required = true, .most = MODEL_WIDEST},
    FAMILY_KEYS_BUT_WIDTHS("hidden_act"),
    DECODER_OWN_KEYS,
    {"rms_norm_eps", FAMILY_REAL, .offset = FAMILY_AT(norm_epsilon), .range = FAMILY_EPSILON},
    {"hidden_act", FAMILY_WORD, .offset = OWN(delta.activation), .words = decoder_delta_activations},
    DECODER_ROPE_KEYS,
    DECODER_SHARE_KEYS,
    {"attention_bias", FAMILY_SWITCH, .offset = OWN(moe.decoder.qkv_bias)},
    DECODER_MOE_KEYS,
    {"shared_expert_intermediate_size", FAMILY_COUNT, .offset = OWN(moe.shared_width), .most = MODEL_WIDEST},
    {"full_attention_interval", FAMILY_COUNT, .offset = OWN(delta.interval), .most = 4096},
    DECODER_DELTA_KEYS(struct qwen3_5_moe_config, FAMILY_COUNT),
    {0},
};

/* Of published files, what transformers does not read, or what tells of pictures and drafts. */
static const char *const harmless[] = {"attn_output_gate",
                                       "intermediate_size",
                                       "mamba_ssm_dtype",
                                       "mlp_only_layers",
                                       "mtp_*",
                                       "rope_parameters.mrope_interleaved",
                                       "rope_parameters.mrope_section",
                                       "rope_scaling.mrope_interleaved",
                                       "rope_scaling.mrope_section",
                                       NULL};

static const struct qwen3_5_moe_config *qwen3_5_moe_of(const struct model_config *c)
{
    return (const void *)c->own.bytes;
}

static void qwen3_5_moe_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    const int x = program_begin(p, c->width), n = decoder_norm(p, c, x, "input_layernorm");
    const int mixed = qwen3_5_mix(p, c, n, kind, &qwen3_5_moe_of(c)->delta);
    const int r = decoder_add(p, c, x, mixed, RANDOM_DROPOUT_RESIDUAL_ATTENTION);
    const int m =
        decoder_moe_experts(p, c, decoder_norm(p, c, r, "post_attention_layernorm"), "mlp.gate", &decoder_moe_names);

    program_end(p, decoder_add(p, c, r, m, RANDOM_DROPOUT_RESIDUAL_MLP));
}

static const struct family_layer layers[] = {
    [DECODER_ATTENDS] = {MODEL_BLOCK, "layers.%u", .write_kind = qwen3_5_moe_write_block},
    [DECODER_DELTA] = {MODEL_BLOCK, "layers.%u", .write_kind = qwen3_5_moe_write_block},
    {MODEL_SINGLE, "norm", .write = decoder_write_norm},
    {0},
};

static uint32_t qwen3_5_moe_kind_of_block(const struct model_config *c, uint32_t index)
{
    return config_layers_has(&qwen3_5_moe_of(c)->delta.linear, index) ? DECODER_DELTA : DECODER_ATTENDS;
}

static void qwen3_5_moe_complete(struct model_config *c)
{
    struct qwen3_5_moe_config *own = (void *)c->own.bytes;

    decoder_complete_delta(c, &own->delta);
    own->moe.decoder.output_bias = own->moe.decoder.qkv_bias;
    decoder_complete(c);
}

static int qwen3_5_moe_check(const struct model_config *c, struct error *err)
{
    const int rc = decoder_moe_check(c, err);

    return rc ? rc : decoder_check_delta(c, &qwen3_5_moe_of(c)->delta, err);
}

const struct family family_qwen3_5_moe_text = {
    .model_type = "qwen3_5_moe_text",
    .architectures = architectures,
    .keys = keys,
    .harmless = harmless,
    .defaults = {.family = &family_qwen3_5_moe_text,
                 .width = 2048,
                 .n_layers = 40,
                 .n_heads = 16,
                 .inner_width = 512,
                 .vocabulary = 248320,
                 .n_positions = 32768,
                 .norm_epsilon = 1e-6f,
                 .activation = MODEL_SILU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct qwen3_5_moe_config,
                        .moe = {.decoder = {.n_kv_heads = 2,
                                            .head_width = 256,
                                            .norm_offset = true,
                                            .rope = {.base = 10000, .share = 0.25f}},
                                .n_experts = 256,
                                .n_chosen = 8,
                                .shared_width = 512,
                                .normalises = true,
                                .balance = 0.001f},
                        .delta = {.interval = 4,
                                  .n_taps = 4,
                                  .n_key_heads = 16,
                                  .n_heads = 32,
                                  .key_width = 128,
                                  .value_width = 128,
                                  .largest_rate = 16}),
    .end_token = FAMILY_NO_TOKEN,
    .padding = FAMILY_NO_TOKEN,
    .complete = qwen3_5_moe_complete,
    .check = qwen3_5_moe_check,
    .prefix = "model.",
    .tables = decoder_tables,
    .layers = layers,
    .kind_of_block = qwen3_5_moe_kind_of_block,
    .logits = "lm_head",
    .joined = decoder_moe_joined,
    .left_out = decoder_moe_left_out,
};

/* Qwen 3.5, 3.6 and 3.8 (Qwen Team, 2026), tensors named and laid out as in Hugging Face's Qwen3_5ForCausalLM: three
 * blocks with Gated DeltaNet to one with attention, whose result is multiplied by gates. Norms multiply by 1 + weight,
 * but the one within Gated DeltaNet by weight.
 *
 * Rotary positions in three dimensions (mrope) are equal in all three where there is text alone. */
#include "proto/model/families/qwen3_5.h"

static const char *const architectures[] = {"Qwen3_5ForCausalLM", "Qwen3_5TextModel", NULL};

struct qwen3_5_config {
    struct decoder_config decoder;
    struct decoder_delta delta;
} MODEL_OWN;
MODEL_OWN_HOLDS(struct qwen3_5_config);

#define OWN(member) FAMILY_OWN(struct qwen3_5_config, member)

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    {"hidden_act", FAMILY_WORD, .offset = OWN(delta.activation), .words = decoder_delta_activations},
    DECODER_ROPE_KEYS,
    DECODER_SHARE_KEYS,
    {"attention_bias", FAMILY_SWITCH, .offset = OWN(decoder.qkv_bias)},
    {"full_attention_interval", FAMILY_COUNT, .offset = OWN(delta.interval), .most = 4096},
    DECODER_DELTA_KEYS(struct qwen3_5_config, FAMILY_COUNT),
    {0},
};

/* Of published files, what transformers does not read, or what tells of pictures and drafts. */
static const char *const harmless[] = {"attn_output_gate",
                                       "mamba_ssm_dtype",
                                       "mlp_only_layers",
                                       "mtp_*",
                                       "rope_parameters.mrope_interleaved",
                                       "rope_parameters.mrope_section",
                                       "rope_scaling.mrope_interleaved",
                                       "rope_scaling.mrope_section",
                                       NULL};

static const struct qwen3_5_config *qwen3_5_of(const struct model_config *c)
{
    return (const void *)c->own.bytes;
}

int qwen3_5_mix(struct program *p, const struct model_config *c, int x, uint32_t kind,
                const struct decoder_delta *delta)
{
    static const struct decoder_attention how = {.query = "self_attn.q_norm", .key = "self_attn.k_norm", .gated = true};
    const struct decoder_delta_names names = {.query = "linear_attn.in_proj_qkv",
                                              .convs = {"linear_attn.conv1d"},
                                              .a = "linear_attn.in_proj_a",
                                              .b = "linear_attn.in_proj_b",
                                              .gate = "linear_attn.in_proj_z",
                                              .norm = "linear_attn.norm",
                                              .output = "linear_attn.out_proj",
                                              .epsilon = c->norm_epsilon};

    return kind == DECODER_DELTA ? decoder_delta(p, c, x, delta, &names) : decoder_attention(p, c, 0, x, &how);
}

static void qwen3_5_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    const int x = program_begin(p, c->width), n = decoder_norm(p, c, x, "input_layernorm");
    const int mixed = qwen3_5_mix(p, c, n, kind, &qwen3_5_of(c)->delta);
    const int r = decoder_add(p, c, x, mixed, RANDOM_DROPOUT_RESIDUAL_ATTENTION);
    const int m = decoder_gated(p, c, decoder_norm(p, c, r, "post_attention_layernorm"), NULL);

    program_end(p, decoder_add(p, c, r, m, RANDOM_DROPOUT_RESIDUAL_MLP));
}

static const struct family_layer layers[] = {
    [DECODER_ATTENDS] = {MODEL_BLOCK, "layers.%u", .write_kind = qwen3_5_write_block},
    [DECODER_DELTA] = {MODEL_BLOCK, "layers.%u", .write_kind = qwen3_5_write_block},
    {MODEL_SINGLE, "norm", .write = decoder_write_norm},
    {0},
};

static uint32_t qwen3_5_kind_of_block(const struct model_config *c, uint32_t index)
{
    return config_layers_has(&qwen3_5_of(c)->delta.linear, index) ? DECODER_DELTA : DECODER_ATTENDS;
}

static void qwen3_5_complete(struct model_config *c)
{
    struct qwen3_5_config *own = (void *)c->own.bytes;

    decoder_complete_delta(c, &own->delta);
    own->decoder.output_bias = own->decoder.qkv_bias;
    decoder_complete(c);
}

static int qwen3_5_check(const struct model_config *c, struct error *err)
{
    return decoder_check_delta(c, &qwen3_5_of(c)->delta, err);
}

const struct family family_qwen3_5_text = {
    .model_type = "qwen3_5_text",
    .architectures = architectures,
    .keys = keys,
    .harmless = harmless,
    .defaults = {.family = &family_qwen3_5_text,
                 .width = 4096,
                 .n_layers = 32,
                 .n_heads = 16,
                 .inner_width = 12288,
                 .vocabulary = 248320,
                 .n_positions = 32768,
                 .norm_epsilon = 1e-6f,
                 .activation = MODEL_SILU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(
        struct qwen3_5_config,
        .decoder = {.n_kv_heads = 4, .head_width = 256, .norm_offset = true, .rope = {.base = 10000, .share = 0.25f}},
        .delta = {.interval = 4,
                  .n_taps = 4,
                  .n_key_heads = 16,
                  .n_heads = 32,
                  .key_width = 128,
                  .value_width = 128,
                  .largest_rate = 16}),
    .end_token = FAMILY_NO_TOKEN,
    .padding = FAMILY_NO_TOKEN,
    .complete = qwen3_5_complete,
    .check = qwen3_5_check,
    .prefix = "model.",
    .tables = decoder_tables,
    .layers = layers,
    .kind_of_block = qwen3_5_kind_of_block,
    .logits = "lm_head",
};

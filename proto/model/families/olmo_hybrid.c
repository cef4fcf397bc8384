/* OLMo Hybrid (Olmo Team, 2026), tensors named and laid out as in Hugging Face's files of OlmoHybridForCausalLM: OLMo 3's
 * block, whose norms follow its branches, in every fourth place, and Gated DeltaNet, whose norms precede them, in the
 * others. Positions are rotated only if the config has a rope_theta.
 *
 * transformers joins the three convolutions' weights when it reads them. As it saves them it cuts that in equal thirds,
 * which are not queries, keys and values where values are wider: such files are of other shapes, and are refused. */
#include "proto/model/decoder_delta.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char *const architectures[] = {"OlmoHybridForCausalLM", "OlmoHybridModel", NULL};

struct olmo_hybrid_config {
    struct decoder_config decoder;
    struct decoder_delta delta;
    float floor;    /* linear_dt_init_floor */
    bool unrotated; /* no rope_theta */
} MODEL_OWN;
MODEL_OWN_HOLDS(struct olmo_hybrid_config);

#define OWN(member) FAMILY_OWN(struct olmo_hybrid_config, member)

static const struct family_key keys[] = {
    DECODER_KEYS("hidden_act"),
    {"hidden_act", FAMILY_WORD, .offset = OWN(delta.activation), .words = decoder_delta_activations},
    DECODER_ROPE_KEYS,
    {"attention_bias", FAMILY_SWITCH, .offset = OWN(decoder.qkv_bias)},
    DECODER_DELTA_KEYS(struct olmo_hybrid_config, FAMILY_COUNT_OR_NULL),
    {"linear_allow_neg_eigval", FAMILY_SWITCH, .offset = OWN(delta.doubled)},
    {"linear_a_log_min", FAMILY_REAL, .offset = OWN(delta.least_rate)},
    {"linear_a_log_max", FAMILY_REAL, .offset = OWN(delta.largest_rate)},
    {"linear_dt_min", FAMILY_REAL, .offset = OWN(delta.least_step)},
    {"linear_dt_max", FAMILY_REAL, .offset = OWN(delta.largest_step)},
    {"linear_dt_init_floor", FAMILY_REAL, .offset = OWN(floor)},
    {0},
};

static const struct olmo_hybrid_config *olmo_hybrid_of(const struct model_config *c)
{
    return (const void *)c->own.bytes;
}

static void olmo_hybrid_write_linear(struct program *p, const struct model_config *c)
{
    static const struct decoder_delta_names names = {.query = "linear_attn.q_proj",
                                                     .key = "linear_attn.k_proj",
                                                     .value = "linear_attn.v_proj",
                                                     .convs = {"linear_attn.q_conv1d", "linear_attn.k_conv1d",
                                                               "linear_attn.v_conv1d"},
                                                     .a = "linear_attn.a_proj",
                                                     .b = "linear_attn.b_proj",
                                                     .gate = "linear_attn.g_proj",
                                                     .norm = "linear_attn.o_norm",
                                                     .output = "linear_attn.o_proj",
                                                     .epsilon = 1e-5f};
    const int x = program_begin(p, c->width), n = decoder_norm(p, c, x, "input_layernorm");
    const int mixed = decoder_delta(p, c, n, &olmo_hybrid_of(c)->delta, &names);
    const int r = decoder_add(p, c, x, mixed, RANDOM_DROPOUT_RESIDUAL_ATTENTION);
    const int m = decoder_gated(p, c, decoder_norm(p, c, r, "post_attention_layernorm"), NULL);

    program_end(p, decoder_add(p, c, r, m, RANDOM_DROPOUT_RESIDUAL_MLP));
}

static void olmo_hybrid_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {.query = "self_attn.q_norm",
                                                 .key = "self_attn.k_norm",
                                                 .normed_whole = true};

    if (kind == DECODER_DELTA)
        olmo_hybrid_write_linear(p, c);
    else
        decoder_write_normed_after(p, c, olmo_hybrid_of(c)->unrotated ? DECODER_UNROTATED : 0, &how);
}

static const struct family_layer layers[] = {
    [DECODER_ATTENDS] = {MODEL_BLOCK, "layers.%u", .write_kind = olmo_hybrid_write_block},
    [DECODER_DELTA] = {MODEL_BLOCK, "layers.%u", .write_kind = olmo_hybrid_write_block},
    {MODEL_SINGLE, "norm", .write = decoder_write_norm},
    {0},
};

static uint32_t olmo_hybrid_kind_of_block(const struct model_config *c, uint32_t index)
{
    return config_layers_has(&olmo_hybrid_of(c)->delta.linear, index) ? DECODER_DELTA : DECODER_ATTENDS;
}

/* What transformers calls these norms of all blocks in files. */
static bool olmo_hybrid_old_name(char *out, size_t size, const char *name)
{
    static const char *const names[][2] = {{"input_layernorm", "attention_layer_norm"},
                                           {"post_attention_layernorm", "feedforward_layer_norm"}};

    for (int i = 0; i < 2; i++) {
        const char *at = strstr(name, names[i][0]);
        if (!at)
            continue;
        snprintf(out, size, "%.*s%s%s", (int)(at - name), name, names[i][1], at + strlen(names[i][0]));
        return true;
    }
    return false;
}

static void olmo_hybrid_complete(struct model_config *c)
{
    struct olmo_hybrid_config *own = (void *)c->own.bytes;
    struct decoder_delta *d = &own->delta;

    for (uint32_t i = 0; d->linear.n == 0 && i < c->n_layers && i < CONFIG_LAYERS; i++)
        if (i % 4 != 3 && (i + 1 < c->n_layers || c->n_layers > 3))
            config_layers_add(&d->linear, i);
    if (d->n_key_heads == 0)
        d->n_key_heads = c->n_heads;
    if (d->n_heads == 0)
        d->n_heads = c->n_heads;
    if (d->key_width == 0 && d->n_key_heads > 0)
        d->key_width = (uint32_t)(0.75 * c->width / d->n_key_heads);
    if (d->value_width == 0)
        d->value_width = 2 * d->key_width;
    own->unrotated = own->decoder.rope.base == 0;
    if (own->unrotated)
        own->decoder.rope = (struct decoder_rope){.base = 10000};
    own->decoder.output_bias = own->decoder.qkv_bias;
    decoder_complete(c);
}

/* Bounds of what a fresh model's A_log and dt_bias are drawn from. */
static int olmo_hybrid_check_draws(const struct olmo_hybrid_config *own, struct error *err)
{
    const struct decoder_delta *d = &own->delta;

    if (!(d->least_rate >= 0 && d->largest_rate > d->least_rate && d->largest_rate >= 0.01f && d->largest_rate <= 1e6f))
        return error_set(
            err, -EINVAL,
            "linear_a_log_min is %g and linear_a_log_max is %g: the first must be at least 0 and less than "
            "the second, which is from 0.01 to 1e6",
            (double)d->least_rate, (double)d->largest_rate);
    if (!(d->least_step >= 1e-12f && d->largest_step >= d->least_step && d->largest_step <= 1e6f))
        return error_set(
            err, -EINVAL,
            "linear_dt_min is %g and linear_dt_max is %g: the first must be at least 1e-12 and not greater "
            "than the second, which is at most 1e6",
            (double)d->least_step, (double)d->largest_step);
    if (!(own->floor <= d->least_step))
        return error_set(err, -EINVAL, "linear_dt_init_floor is %g: it must not be greater than linear_dt_min",
                         (double)own->floor);
    return 0;
}

static int olmo_hybrid_check(const struct model_config *c, struct error *err)
{
    const struct olmo_hybrid_config *own = olmo_hybrid_of(c);
    uint32_t n_linear = 0;
    int rc = olmo_hybrid_check_draws(own, err);

    for (uint32_t i = 0; i < c->n_layers; i++)
        n_linear += olmo_hybrid_kind_of_block(c, i) == DECODER_DELTA;
    if (!rc && (n_linear == 0 || n_linear == c->n_layers))
        rc = error_set(err, -EINVAL, "layer_types must have both full_attention and linear_attention");
    return rc ? rc : decoder_check_delta(c, &own->delta, err);
}

const struct family family_olmo_hybrid = {
    .model_type = "olmo_hybrid",
    .architectures = architectures,
    .keys = keys,
    .defaults = {.family = &family_olmo_hybrid,
                 .width = 3840,
                 .n_layers = 32,
                 .n_heads = 30,
                 .inner_width = 11008,
                 .vocabulary = 100352,
                 .n_positions = 65536,
                 .norm_epsilon = 1e-6f,
                 .activation = MODEL_SILU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(
        struct olmo_hybrid_config, .decoder = {.rope = {.base = 10000}},
        .delta = {.n_taps = 4, .doubled = true, .largest_rate = 16, .least_step = 0.001f, .largest_step = 0.1f},
        .floor = 1e-4f),
    .end_token = 100257,
    .padding = 100277,
    .complete = olmo_hybrid_complete,
    .check = olmo_hybrid_check,
    .prefix = "model.",
    .tables = decoder_tables,
    .layers = layers,
    .kind_of_block = olmo_hybrid_kind_of_block,
    .logits = "lm_head",
    .old_name = olmo_hybrid_old_name,
    .keeps_old_names = true,
};

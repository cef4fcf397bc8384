/* LFM3 (Liquid AI), tensors named and laid out as in Hugging Face's Lfm3ForCausalLM: LFM2's block in three kinds, of
 * which one convolves, one attends in a window, and one to all; branches are normed again before they are added, and
 * each head of attention has a gate. Frequencies differ by kind; in full blocks half of them are 0. */
#include "proto/model/decoder_family.h"
#include "proto/operation/call/short_conv.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

static const char *const architectures[] = {"Lfm3ForCausalLM", "Lfm3Model", NULL};

struct lfm3_config {
    struct decoder_config decoder; /* rope is that of full blocks */
    struct config_layers conv;     /* layer_types: blocks that convolve */
    uint32_t n_taps;
    bool conv_bias; /* of the convolution and its two maps */
    bool sandwich;  /* branches are normed before they are added */
    bool gates;     /* each head has one */
} MODEL_OWN;
MODEL_OWN_HOLDS(struct lfm3_config);

enum { FULL, SLIDES = DECODER_SLIDES, CONVOLVES };
static const char *const kinds[] = {"full_attention", "sliding_attention", "conv", NULL};

/* By enum decoder_scaling. */
static const char *const scalings[] = {"default",  "linear",  "llama3",       "yarn",
                                       "longrope", "dynamic", "proportional", NULL};
enum { UNSAID = DECODER_PROPORTIONAL + 1 }; /* a scaling that the file does not give */

#define OWN(member) FAMILY_OWN(struct lfm3_config, member)

#define LFM3_ROPE_KEYS(object, member)                                                                                 \
    {object "rope_type", FAMILY_WORD, .offset = OWN(decoder.member.scaling), .words = scalings},                       \
        {object "partial_rotary_factor", FAMILY_REAL, .offset = OWN(decoder.member.share)},                            \
        {object "original_max_position_embeddings", FAMILY_COUNT, .offset = OWN(decoder.member.n_trained)},            \
        DECODER_ROPE_VALUES_OF(object, member)

static const struct family_key keys[] = {
    {"hidden_size", FAMILY_COUNT, .offset = FAMILY_AT(width), .required = true, .most = 65536},
    {"num_hidden_layers", FAMILY_COUNT, .offset = FAMILY_AT(n_layers), .required = true, .most = 4096},
    {"num_attention_heads", FAMILY_COUNT, .offset = FAMILY_AT(n_heads), .required = true, .most = 65536},
    {"num_key_value_heads", FAMILY_COUNT, .offset = OWN(decoder.n_kv_heads), .most = 65536},
    {"head_dim", FAMILY_COUNT, .offset = OWN(decoder.head_width), .most = 1024},
    {"intermediate_size", FAMILY_WIDTHS, .offset = FAMILY_AT(inner_width), .most = MODEL_WIDEST},
    {"vocab_size", FAMILY_COUNT, .offset = FAMILY_AT(vocabulary), .required = true, .most = 1 << 24},
    {"max_position_embeddings", FAMILY_COUNT, .offset = FAMILY_AT(n_positions), .most = 1 << 24},
    {"initializer_range", FAMILY_REAL, .offset = FAMILY_AT(initializer_range), .range = FAMILY_FRACTION},
    {"norm_eps", FAMILY_REAL, .offset = FAMILY_AT(norm_epsilon), .range = FAMILY_EPSILON},
    {"tie_word_embeddings", FAMILY_SWITCH, .offset = FAMILY_AT(tied)},
    {"attention_bias", FAMILY_SWITCH, .offset = OWN(decoder.qkv_bias)},
    {"attention_dropout", FAMILY_REAL, .offset = OWN(decoder.dropout_attention), .range = FAMILY_PROBABILITY},
    LFM3_ROPE_KEYS("rope_parameters.full_attention.", rope),
    DECODER_ROPE_LISTS_OF("rope_parameters.full_attention."),
    LFM3_ROPE_KEYS("rope_parameters.sliding_attention.", sliding_rope),
    {"conv_bias", FAMILY_SWITCH, .offset = OWN(conv_bias)},
    {"conv_L_cache", FAMILY_COUNT, .offset = OWN(n_taps), .most = DEVICE_SHORT_TAPS},
    {"sliding_window", FAMILY_COUNT_OR_NULL, .offset = OWN(decoder.window)},
    {"use_sandwich_norm", FAMILY_SWITCH, .offset = OWN(sandwich)},
    {"use_attention_gate", FAMILY_SWITCH, .offset = OWN(gates)},
    {"layer_types", FAMILY_LAYERS, .offset = OWN(decoder.sliding), .words = kinds, .counted = SLIDES},
    {"layer_types", FAMILY_LAYERS, .offset = OWN(conv), .words = kinds, .counted = CONVOLVES},
    {0},
};

static const struct lfm3_config *lfm3_of(const struct model_config *c)
{
    return (const void *)c->own.bytes;
}

/* What a branch adds, normed if the model norms it. */
static int lfm3_add(struct program *p, const struct model_config *c, int x, int branch, const char *norm,
                    enum random_site site)
{
    return decoder_add(p, c, x, lfm3_of(c)->sandwich ? decoder_norm(p, c, branch, norm) : branch, site);
}

static void lfm3_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    const struct lfm3_config *own = lfm3_of(c);
    const struct decoder_attention how = {.query = "self_attn.q_norm",
                                          .key = "self_attn.k_norm",
                                          .head_gate = own->gates ? "self_attn.g_proj" : NULL};
    const int x = program_begin(p, c->width), n = decoder_norm(p, c, x, "operator_norm");
    const int mixed = kind == CONVOLVES ? decoder_convolution(p, c, n, own->n_taps, own->conv_bias)
                                        : decoder_attention(p, c, kind, n, &how);
    const int r = lfm3_add(p, c, x, mixed, "post_operator_norm", RANDOM_DROPOUT_RESIDUAL_ATTENTION);
    const int m = decoder_feed_forward(p, c, decoder_norm(p, c, r, "ffn_norm"), c->inner_width);

    program_end(p, lfm3_add(p, c, r, m, "post_ffn_norm", RANDOM_DROPOUT_RESIDUAL_MLP));
}

static void lfm3_write_norm(struct program *p, const struct model_config *c)
{
    program_end(p, decoder_norm(p, c, program_begin(p, c->width), "embedding_norm"));
}

static const struct family_layer layers[] = {
    [FULL] = {MODEL_BLOCK, "layers.%u", .write_kind = lfm3_write_block},
    [SLIDES] = {MODEL_BLOCK, "layers.%u", .write_kind = lfm3_write_block},
    [CONVOLVES] = {MODEL_BLOCK, "layers.%u", .write_kind = lfm3_write_block},
    {MODEL_SINGLE, "embedding_norm", .write = lfm3_write_norm},
    {0},
};

static uint32_t lfm3_kind_of_block(const struct model_config *c, uint32_t index)
{
    if (config_layers_has(&lfm3_of(c)->conv, index))
        return CONVOLVES;
    return config_layers_has(&decoder_of(c)->sliding, index) ? SLIDES : FULL;
}

/* transformers renames the gates' maps as it reads and writes files. */
static bool lfm3_old_name(char *out, size_t size, const char *name)
{
    static const char inside[] = "self_attn.g_proj", file[] = "self_attn.gate_proj";
    const char *at = strstr(name, inside);

    if (!at)
        return false;
    snprintf(out, size, "%.*s%s%s", (int)(at - name), name, file, at + sizeof inside - 1);
    return true;
}

/* Of every four blocks the third attends to all, and the first, but block 0, in a window. */
static void lfm3_complete_kinds(struct model_config *c)
{
    struct lfm3_config *own = (void *)c->own.bytes;

    for (uint32_t i = 0; own->conv.n == 0 && i < c->n_layers && i < CONFIG_LAYERS; i++)
        if (i % 4 == 0 && i > 0)
            config_layers_add(&own->decoder.sliding, i);
        else if (i % 4 != 2)
            config_layers_add(&own->conv, i);
}

/* An object that the file gives stands for all of the default one; its base alone has a default. transformers does not
 * read the share unless it is proportional. */
static void lfm3_complete_rope(struct decoder_rope *rope, const struct decoder_rope *otherwise)
{
    if ((int)rope->scaling == UNSAID && rope->base == 0 && rope->share == 0)
        *rope = *otherwise;
    else if ((int)rope->scaling == UNSAID)
        rope->scaling = DECODER_NOT_SCALED;
    if (rope->base == 0)
        rope->base = 1000000;
    if (rope->share == 0 || rope->scaling == DECODER_NOT_SCALED)
        rope->share = 1;
}

static void lfm3_complete(struct model_config *c)
{
    static const struct decoder_rope full = {.base = 1000000, .scaling = DECODER_PROPORTIONAL, .share = 0.5f},
                                     sliding = {.base = 10000};
    struct decoder_config *d = decoder_edit(c);

    lfm3_complete_kinds(c);
    lfm3_complete_rope(&d->rope, &full);
    lfm3_complete_rope(&d->sliding_rope, &sliding);
    d->output_bias = d->qkv_bias;
    decoder_complete(c);
}

static int lfm3_check(const struct model_config *c, struct error *err)
{
    const struct lfm3_config *own = lfm3_of(c);
    const struct decoder_rope *const ropes[] = {&own->decoder.rope, &own->decoder.sliding_rope};

    if (own->conv.n > 0 && own->conv.n != c->n_layers)
        return error_set(err, -EINVAL, "layer_types has %u entries: num_hidden_layers is %u", own->conv.n, c->n_layers);
    for (int i = 0; i < 2; i++)
        if (ropes[i]->scaling != DECODER_PROPORTIONAL && ropes[i]->share != 1)
            return error_set(err, -EINVAL, "partial_rotary_factor is %g: with rope_type %s it must be 1",
                             (double)ropes[i]->share, scalings[ropes[i]->scaling]);
    return decoder_check(c, err);
}

const struct family family_lfm3 = {
    .model_type = "lfm3",
    .architectures = architectures,
    .keys = keys,
    .ignored = decoder_ignored,
    .defaults = {.family = &family_lfm3,
                 .width = 2048,
                 .n_layers = 24,
                 .n_heads = 16,
                 .inner_width = 7680,
                 .vocabulary = 128000,
                 .n_positions = 128000,
                 .tied = true,
                 .norm_epsilon = 1e-5f,
                 .activation = MODEL_SILU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct lfm3_config,
                        .decoder = {.n_kv_heads = 4,
                                    .head_width = 128,
                                    .window = 256,
                                    .rope = {.scaling = (enum decoder_scaling)UNSAID},
                                    .sliding_rope = {.scaling = (enum decoder_scaling)UNSAID}},
                        .n_taps = 7, .sandwich = true, .gates = true),
    .end_token = 124900,
    .padding = 124893,
    .complete = lfm3_complete,
    .check = lfm3_check,
    .prefix = "model.",
    .tables = decoder_tables,
    .layers = layers,
    .kind_of_block = lfm3_kind_of_block,
    .logits = "lm_head",
    .old_name = lfm3_old_name,
    .keeps_old_names = true,
};

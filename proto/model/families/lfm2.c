/* LFM2 and LFM2.5 (Liquid AI, arXiv:2511.23404), tensors named and laid out as in Hugging Face's Lfm2ForCausalLM: most
 * blocks mix tokens by a gated short convolution, the others by attention with normed heads; all have a gated MLP. The
 * MLP's width follows from a number of the file by Llama's rule of two thirds.
 *
 * Published files have older keys beside those that transformers writes: block_ff_dim, tie_embedding, and
 * full_attn_idxs, the blocks that attend where layer_types lists no kinds. */
#include "proto/model/families/lfm2.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

static const char *const architectures[] = {"Lfm2ForCausalLM", "Lfm2Model", NULL};

struct lfm2_config {
    struct decoder_config decoder;
    struct config_layers conv;      /* layer_types: blocks that convolve */
    struct config_layers attending; /* full_attn_idxs; n: any, if the file has the list */
    uint32_t n_taps, multiple;
    float multiplier; /* of the MLP's width, which is then rounded up to `multiple` */
    bool adjusts;     /* the MLP's width is not intermediate_size, but follows from it */
    bool conv_bias;   /* of the convolution and its two maps */
} MODEL_OWN;
MODEL_OWN_HOLDS(struct lfm2_config);

enum { ATTENDS, CONVOLVES };
static const char *const kinds[] = {"full_attention", "conv", NULL};

#define OWN(member) FAMILY_OWN(struct lfm2_config, member)

static const struct family_key keys[] = {
    LFM2_KEYS(struct lfm2_config, decoder),
    {"block_ff_dim", FAMILY_COUNT, .offset = FAMILY_AT(inner_width), .most = MODEL_WIDEST},
    {"block_multiple_of", FAMILY_COUNT, .offset = OWN(multiple), .most = 1 << 20},
    {"block_ffn_dim_multiplier", FAMILY_REAL, .offset = OWN(multiplier)},
    {"block_auto_adjust_ff_dim", FAMILY_SWITCH, .offset = OWN(adjusts)},
    {"layer_types", FAMILY_LAYERS, .offset = OWN(conv), .words = kinds},
    {"full_attn_idxs", FAMILY_INDICES, .offset = OWN(attending)},
    {0},
};

/* Of published files, what transformers does not read. */
static const char *const harmless[] = {"block_dim",
                                       "block_mlp_init_scale",
                                       "block_norm_eps",
                                       "block_out_init_scale",
                                       "block_use_swiglu",
                                       "block_use_xavier_init",
                                       "conv_dim",
                                       "conv_dim_out",
                                       "conv_use_xavier_init",
                                       "num_heads",
                                       "theta",
                                       "use_pos_enc",
                                       NULL};

static const struct lfm2_config *lfm2_of(const struct model_config *c)
{
    return (const void *)c->own.bytes;
}

/* The number as the file has it: the shortest decimal that rounds to this float. Widths are products with it, rounded
 * down: with 1.3 as a float, ten would become twelve. */
static double as_written(float x)
{
    char digits[32];

    for (int n = 1; n < 9; n++) {
        snprintf(digits, sizeof digits, "%.*g", n, (double)x);
        if (strtof(digits, NULL) == x)
            return strtod(digits, NULL);
    }
    return (double)x;
}

/* Touvron et al., arXiv:2302.13971, section 2.2: three maps of two thirds of the width that two would have. */
static uint64_t lfm2_inner_width(const struct model_config *c)
{
    const struct lfm2_config *own = lfm2_of(c);

    if (!own->adjusts)
        return c->inner_width;
    const uint64_t two_thirds = 2 * (uint64_t)c->inner_width / 3;
    const uint64_t width = (uint64_t)(as_written(own->multiplier) * (double)two_thirds);
    return (width + own->multiple - 1) / own->multiple * own->multiple;
}

static void lfm2_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {.output = "self_attn.out_proj",
                                                 .query = "self_attn.q_layernorm",
                                                 .key = "self_attn.k_layernorm"};
    const int x = program_begin(p, c->width), n = decoder_norm(p, c, x, "operator_norm");
    const int mixed = kind == CONVOLVES ? decoder_convolution(p, c, n, lfm2_of(c)->n_taps, lfm2_of(c)->conv_bias)
                                        : decoder_attention(p, c, 0, n, &how);
    const int r = decoder_add(p, c, x, mixed, RANDOM_DROPOUT_RESIDUAL_ATTENTION);
    const int m = decoder_feed_forward(p, c, decoder_norm(p, c, r, "ffn_norm"), (uint32_t)lfm2_inner_width(c));

    program_end(p, decoder_add(p, c, r, m, RANDOM_DROPOUT_RESIDUAL_MLP));
}

void lfm2_write_norm(struct program *p, const struct model_config *c)
{
    program_end(p, decoder_norm(p, c, program_begin(p, c->width), "embedding_norm"));
}

static const struct family_layer layers[] = {
    [ATTENDS] = {MODEL_BLOCK, "layers.%u", .write_kind = lfm2_write_block},
    [CONVOLVES] = {MODEL_BLOCK, "layers.%u", .write_kind = lfm2_write_block},
    {MODEL_SINGLE, "embedding_norm", .write = lfm2_write_norm},
    {0},
};

static uint32_t lfm2_kind_of_block(const struct model_config *c, uint32_t index)
{
    return config_layers_has(&lfm2_of(c)->conv, index) ? CONVOLVES : ATTENDS;
}

/* Without either list all blocks attend. */
static void lfm2_complete(struct model_config *c)
{
    struct lfm2_config *own = (void *)c->own.bytes;

    for (uint32_t i = 0; own->conv.n == 0 && own->attending.n > 0 && i < c->n_layers && i < CONFIG_LAYERS; i++)
        if (!config_layers_has(&own->attending, i))
            config_layers_add(&own->conv, i);
    decoder_complete(c);
}

static int lfm2_check(const struct model_config *c, struct error *err)
{
    const struct lfm2_config *own = lfm2_of(c);
    if (own->conv.n > 0 && own->conv.n != c->n_layers)
        return error_set(err, -EINVAL, "layer_types has %u entries: num_hidden_layers is %u", own->conv.n, c->n_layers);
    if (!(own->multiplier >= 1e-3f && own->multiplier <= 1e3f))
        return error_set(err, -EINVAL, "block_ffn_dim_multiplier is %g: it must be from 0.001 to 1000",
                         (double)own->multiplier);
    const uint64_t inner = lfm2_inner_width(c);
    if (inner < 1 || inner > MODEL_WIDEST)
        return error_set(err, -EINVAL,
                         "intermediate_size is %u, from which follows a width of %llu: it must be from 1 to %d",
                         c->inner_width, (unsigned long long)inner, MODEL_WIDEST);
    return decoder_check(c, err);
}

const struct family family_lfm2 = {
    .model_type = "lfm2",
    .architectures = architectures,
    .keys = keys,
    .harmless = harmless,
    .defaults = {.family = &family_lfm2,
                 .width = 2560,
                 .n_layers = 32,
                 .n_heads = 32,
                 .inner_width = 12288,
                 .vocabulary = 65536,
                 .n_positions = 128000,
                 .tied = true,
                 .norm_epsilon = 1e-5f,
                 .activation = MODEL_SILU,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct lfm2_config, .decoder = {.n_kv_heads = 8, .rope = {.base = 1000000}}, .n_taps = 3,
                        .multiple = 256, .multiplier = 1, .adjusts = true),
    .end_token = 2,
    .padding = 0,
    .complete = lfm2_complete,
    .check = lfm2_check,
    .prefix = "model.",
    .tables = decoder_tables,
    .layers = layers,
    .kind_of_block = lfm2_kind_of_block,
    .logits = "lm_head",
};

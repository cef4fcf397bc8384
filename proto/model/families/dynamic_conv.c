/* Encoder-decoders with dynamic convolutions in the place of self-attention (Wu et al., arXiv:1901.10430), as fairseq's
 * lightconv with --encoder-conv-type dynamic computes them. The config and the tensors' names are eps's own.
 *
 * Norms come after the sums; embeddings are scaled by d_model^1/2, and positions, which count from 0 in source and
 * target, are sines and cosines. In a row beyond its length, what a convolution of the encoder reads is 0.
 *
 *   embed_tokens.weight             (vocab_size, d_model): of targets, and of sources without source_vocab_size
 *   source_embed_tokens.weight      (source_vocab_size, d_model)
 *   encoder.layers.N.  decoder.layers.N.
 *     linear1.weight, .bias         (d_model, d_model); with glu (2 d_model, d_model): rows of the gate, then of what
 *                                   it gates
 *     conv.weight                   (num_heads * kernel, d_model): row h * kernel + k scores tap k of head h
 *     linear2.weight, .bias         (d_model, d_model)
 *     conv_layer_norm.weight, .bias
 *     encoder_attn.{q,k,v,out}_proj.weight, .bias, encoder_attn_layer_norm.weight, .bias     of the decoder alone
 *     fc1.weight, .bias, fc2.weight, .bias, final_layer_norm.weight, .bias
 *   output_projection.weight        (vocab_size, d_model), unless tie_word_embeddings */
#include "proto/model/dynamic_conv.h"
#include "proto/model/family.h"

#include <errno.h>
#include <math.h>

static const char *const architectures[] = {"DynamicConvForConditionalGeneration", NULL};

static const struct family_key keys[] = {
    {"d_model", FAMILY_COUNT, .offset = FAMILY_AT(width), .required = true, .most = 65536},
    {"encoder_layers", FAMILY_COUNT, .offset = FAMILY_OWN(struct dynamic_conv_config, n_encoder), .required = true,
     .most = CONFIG_KERNELS},
    {"decoder_layers", FAMILY_COUNT, .offset = FAMILY_OWN(struct dynamic_conv_config, n_decoder), .required = true,
     .most = CONFIG_KERNELS},
    {"encoder_kernel_sizes", FAMILY_KERNELS, .offset = FAMILY_OWN(struct dynamic_conv_config, encoder),
     .required = true},
    {"decoder_kernel_sizes", FAMILY_KERNELS, .offset = FAMILY_OWN(struct dynamic_conv_config, decoder),
     .required = true},
    {"num_heads", FAMILY_COUNT, .offset = FAMILY_AT(n_heads), .required = true, .most = 1024},
    {"ffn_dim", FAMILY_WIDTHS, .offset = FAMILY_AT(inner_width), .required = true, .most = MODEL_WIDEST},
    {"vocab_size", FAMILY_COUNT, .offset = FAMILY_AT(vocabulary), .required = true, .most = 1 << 24},
    {"source_vocab_size", FAMILY_COUNT_OR_NULL, .offset = FAMILY_AT(source_vocabulary)},
    {"glu", FAMILY_SWITCH, .offset = FAMILY_OWN(struct dynamic_conv_config, gated)},
    {"dropout", FAMILY_REAL, .offset = FAMILY_OWN(struct dynamic_conv_config, dropout), .range = FAMILY_PROBABILITY},
    {"attention_dropout", FAMILY_REAL, .offset = FAMILY_OWN(struct dynamic_conv_config, attention_dropout),
     .range = FAMILY_PROBABILITY},
    {"activation_dropout", FAMILY_REAL, .offset = FAMILY_OWN(struct dynamic_conv_config, activation_dropout),
     .range = FAMILY_PROBABILITY},
    {"weight_dropout", FAMILY_REAL, .offset = FAMILY_OWN(struct dynamic_conv_config, weight_dropout),
     .range = FAMILY_PROBABILITY},
    {"layer_norm_eps", FAMILY_REAL, .offset = FAMILY_AT(norm_epsilon), .range = FAMILY_EPSILON},
    {"tie_word_embeddings", FAMILY_SWITCH, .offset = FAMILY_AT(tied)},
    {"is_encoder_decoder", FAMILY_SWITCH, .offset = FAMILY_OWN(struct dynamic_conv_config, is_encoder_decoder)},
    {"decoder_start_token_id", FAMILY_COUNT, .offset = FAMILY_AT(start)},
    {0},
};

/* As fairseq draws tables. */
static void dynamic_conv_complete(struct model_config *c)
{
    c->initializer_range = (float)(1 / sqrt((double)c->width));
    c->n_layers = dynamic_conv_of(c)->n_encoder + dynamic_conv_of(c)->n_decoder;
}

/* ---- kinds of blocks: one for each size of kernel in a stack ---- */

/* The index of a block's kernel among the different ones, in the order in which blocks have them. */
static uint32_t dynamic_conv_kind_of(const struct config_kernels *kernels, uint32_t block)
{
    bool seen[UINT8_MAX + 1] = {false};
    uint32_t kind = 0;

    for (const uint8_t *taps = kernels->taps; *taps != kernels->taps[block]; taps++) {
        kind += !seen[*taps];
        seen[*taps] = true;
    }
    return kind;
}

/* Taps of a kind; where there are not so many kinds, those of the first: no block has it. */
static uint32_t taps_of(const struct config_kernels *kernels, uint32_t kind)
{
    for (uint32_t i = 0; i < kernels->n; i++)
        if (dynamic_conv_kind_of(kernels, i) == kind)
            return kernels->taps[i];
    return kernels->taps[0];
}

static uint32_t dynamic_conv_kind_of_block(const struct model_config *c, uint32_t index)
{
    const struct dynamic_conv_config *d = dynamic_conv_of(c);

    return index < d->n_encoder ? dynamic_conv_kind_of(&d->encoder, index)
                                : DYNAMIC_CONV_KINDS + dynamic_conv_kind_of(&d->decoder, index - d->n_encoder);
}

static uint32_t dynamic_conv_number_of_block(const struct model_config *c, uint32_t index)
{
    return index < dynamic_conv_of(c)->n_encoder ? index : index - dynamic_conv_of(c)->n_encoder;
}

/* ---- what is refused ---- */

static int check_kernels(const struct config_kernels *kernels, const char *stack, uint32_t n_blocks, struct error *err)
{
    if (kernels->n != n_blocks)
        return error_set(err, -EINVAL, "%s_kernel_sizes has %u entries: it must have one for each of %u %s_layers",
                         stack, kernels->n, n_blocks, stack);
    for (uint32_t i = 0; i < n_blocks; i++)
        if (dynamic_conv_kind_of(kernels, i) >= DYNAMIC_CONV_KINDS)
            return error_set(err, -EINVAL, "%s_kernel_sizes has more than %d different sizes: use fewer", stack,
                             DYNAMIC_CONV_KINDS);
    return 0;
}

/* An even kernel has no middle. */
static int check_odd(const struct config_kernels *kernels, struct error *err)
{
    for (uint32_t i = 0; i < kernels->n; i++)
        if (kernels->taps[i] % 2 == 0)
            return error_set(
                err, -EINVAL,
                "encoder_kernel_sizes has %u: it must be odd, as the encoder sees as many tokens to either "
                "side",
                kernels->taps[i]);
    return 0;
}

static int dynamic_conv_check(const struct model_config *c, struct error *err)
{
    const struct dynamic_conv_config *d = dynamic_conv_of(c);

    if (!d->is_encoder_decoder)
        return error_set(err, -EINVAL, "is_encoder_decoder is false: this is not supported, it must be true");
    if (c->width % 2)
        return error_set(err, -EINVAL, "d_model is %u: it must be even, for sines and cosines of positions", c->width);
    if (c->width % c->n_heads)
        return error_set(err, -EINVAL, "d_model is %u: it must be a multiple of num_heads, which is %u", c->width,
                         c->n_heads);
    if (c->source_vocabulary > 1 << 24)
        return error_set(err, -EINVAL, "source_vocab_size is %u: it must be from 1 to 16777216", c->source_vocabulary);
    if (c->start >= c->vocabulary)
        return error_set(err, -EINVAL, "decoder_start_token_id is %u: it must be less than vocab_size, which is %u",
                         c->start, c->vocabulary);
    if (c->has_padding && c->source_vocabulary > 0 && c->padding >= c->source_vocabulary)
        return error_set(err, -EINVAL, "pad_token_id is %u: it must be less than source_vocab_size, which is %u",
                         c->padding, c->source_vocabulary);
    int rc = check_kernels(&d->encoder, "encoder", d->n_encoder, err);
    rc = rc ? rc : check_kernels(&d->decoder, "decoder", d->n_decoder, err);
    return rc ? rc : check_odd(&d->encoder, err);
}

/* ---- programs ---- */

static float embedding_scale(const struct model_config *c)
{
    return (float)sqrt((double)c->width);
}

/* Glorot & Bengio's deviation, AISTATS 2010. */
static struct program_linear_options dynamic_conv_linear_of(uint64_t in, uint64_t out, bool bias)
{
    return (
        struct program_linear_options){.deviation = (float)sqrt(2 / (double)(in + out)), .bias = bias, .out_in = true};
}

static int dynamic_conv_map(struct program *p, int x, const char *stem, uint32_t in, uint32_t out)
{
    const struct program_linear_options linear = dynamic_conv_linear_of(in, out, true);

    return program_linear(p, x, stem, out, &linear);
}

static struct program_dropout dynamic_conv_dropout_of(const struct model_config *c, enum random_site site)
{
    return (struct program_dropout){.p = dynamic_conv_of(c)->dropout, .site = site};
}

/* norm(x + dropout(y)) */
static int add_normed(struct program *p, int x, int y, const char *stem, const struct model_config *c,
                      enum random_site site)
{
    const struct program_norm_options norm = {.epsilon = c->norm_epsilon, .bias = true};
    const struct program_dropout after = dynamic_conv_dropout_of(c, site);

    return program_norm(p, program_add(p, x, y, &after), stem, &norm);
}

static void write_positions(struct program *p, const struct model_config *c)
{
    const struct program_dropout of_target = dynamic_conv_dropout_of(c, RANDOM_DROPOUT_EMBEDDING),
                                 of_source = dynamic_conv_dropout_of(c, RANDOM_DROPOUT_SOURCE);
    const int x = program_begin(p, c->width);

    program_output(p, "", program_drop(p, program_sinusoid(p, program_take(p, x, PROGRAM_TARGET)), &of_target));
    program_output(p, "source", program_drop(p, program_sinusoid(p, program_take(p, x, PROGRAM_SOURCE)), &of_source));
}

static int families_dynamic_conv_convolve(struct program *p, int x, const struct model_config *c, uint32_t n_taps,
                                          bool causal)
{
    const uint32_t width = c->width, inner = dynamic_conv_of(c)->gated ? 2 * width : width;
    const struct program_linear_options of_scores = dynamic_conv_linear_of(width, c->n_heads * n_taps, false);
    const struct program_dynamic_conv_options conv = {.n_heads = c->n_heads,
                                                      .n_taps = n_taps,
                                                      .causal = causal,
                                                      .dropout = {.p = dynamic_conv_of(c)->weight_dropout,
                                                                  .site = RANDOM_DROPOUT_FILTER}};
    const int h = dynamic_conv_map(p, x, "linear1", width, inner);
    const int gated = dynamic_conv_of(c)->gated ? program_glu(p, h, MODEL_SIGMOID) : h;
    const int scores = program_linear(p, gated, "conv", c->n_heads * n_taps, &of_scores);
    const int y = dynamic_conv_map(p, program_dynamic_conv(p, gated, scores, &conv), "linear2", width, width);

    return add_normed(p, x, y, "conv_layer_norm", c, RANDOM_DROPOUT_RESIDUAL_ATTENTION);
}

static int dynamic_conv_look(struct program *p, int x, int source, const struct model_config *c)
{
    const struct program_linear_options in = dynamic_conv_linear_of(c->width, c->width, true);
    const struct program_part kv[] = {{"encoder_attn.k_proj", c->width}, {"encoder_attn.v_proj", c->width}};
    const struct program_cross_attention_options attention = {.n_heads = c->n_heads,
                                                              .scale = 1 / sqrtf((float)(c->width / c->n_heads)),
                                                              .dropout = {.p = dynamic_conv_of(c)->attention_dropout,
                                                                          .site = RANDOM_DROPOUT_CROSS_ATTENTION}};
    const int queries = dynamic_conv_map(p, x, "encoder_attn.q_proj", c->width, c->width);
    const int a = program_cross_attention(p, queries, program_linears(p, source, kv, 2, &in), &attention);

    return add_normed(p, x, dynamic_conv_map(p, a, "encoder_attn.out_proj", c->width, c->width),
                      "encoder_attn_layer_norm", c, RANDOM_DROPOUT_RESIDUAL_CROSS_ATTENTION);
}

static int dynamic_conv_mix(struct program *p, int x, const struct model_config *c)
{
    const struct program_dropout within = {.p = dynamic_conv_of(c)->activation_dropout, .site = RANDOM_DROPOUT_MLP};
    const int u = program_activation(p, dynamic_conv_map(p, x, "fc1", c->width, c->inner_width), MODEL_RELU);

    return add_normed(p, x, dynamic_conv_map(p, program_drop(p, u, &within), "fc2", c->inner_width, c->width),
                      "final_layer_norm", c, RANDOM_DROPOUT_RESIDUAL_MLP);
}

static void write_encoder_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    program_init(p);
    const int x = program_input(p, "source", PROGRAM_SOURCE, c->width);
    program_output(
        p, "source",
        dynamic_conv_mix(p, families_dynamic_conv_convolve(p, x, c, taps_of(&dynamic_conv_of(c)->encoder, kind), false),
                         c));
}

static void write_decoder_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    const uint32_t n_taps = taps_of(&dynamic_conv_of(c)->decoder, kind - DYNAMIC_CONV_KINDS);

    program_init(p);
    const int x = program_input(p, "", PROGRAM_TARGET, c->width);
    const int source = program_input(p, "source", PROGRAM_SOURCE, c->width);
    program_output(
        p, "",
        dynamic_conv_mix(p, dynamic_conv_look(p, families_dynamic_conv_convolve(p, x, c, n_taps, true), source, c), c));
}

static const struct family_table tables[] = {
    {"embed_tokens", MODEL_BY_TOKEN, .rows = FAMILY_AT(vocabulary)},
    {"source_embed_tokens", MODEL_BY_SOURCE, .rows = FAMILY_AT(source_vocabulary)},
    {0},
};

#define ENCODER                                                                                                        \
    {                                                                                                                  \
        MODEL_BLOCK, "encoder.layers.%u", .write_kind = write_encoder_block                                            \
    }
#define DECODER                                                                                                        \
    {                                                                                                                  \
        MODEL_BLOCK, "decoder.layers.%u", .write_kind = write_decoder_block                                            \
    }

static const struct family_layer layers[] = {
    {MODEL_SINGLE, "positions", .write = write_positions},
    ENCODER,
    ENCODER,
    ENCODER,
    ENCODER,
    DECODER,
    DECODER,
    DECODER,
    DECODER,
    {0},
};
_Static_assert(sizeof layers / sizeof *layers == 2 + 2 * DYNAMIC_CONV_KINDS, "a row for each kind");

const struct family family_dynamic_conv = {
    .model_type = "dynamic_conv",
    .is_own = true,
    .architectures = architectures,
    .keys = keys,
    /* Sizes: the paper's, for English and German. */
    .defaults = {.family = &family_dynamic_conv,
                 .width = 1024,
                 .n_heads = 16,
                 .inner_width = 4096,
                 .vocabulary = 32768,
                 .n_positions = 1 << 24,
                 .tied = true,
                 .norm_epsilon = 1e-5f,
                 .start = 2},
    FAMILY_OWN_DEFAULTS(struct dynamic_conv_config, .n_encoder = 7, .n_decoder = 6,
                        .encoder = {7, {3, 7, 15, 31, 31, 31, 31}}, .decoder = {6, {3, 7, 15, 31, 31, 31}},
                        .is_encoder_decoder = true, .dropout = 0.1f, .weight_dropout = 0.1f),
    .end_token = 2,
    .padding = FAMILY_NO_TOKEN,
    .complete = dynamic_conv_complete,
    .check = dynamic_conv_check,
    .prefix = "",
    .tables = tables,
    .layers = layers,
    .kind_of_block = dynamic_conv_kind_of_block,
    .number_of_block = dynamic_conv_number_of_block,
    .has_source = true,
    .logits = "output_projection",
    .embedding_scale = embedding_scale,
};

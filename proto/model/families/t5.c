/* T5 (Raffel et al., arXiv:1910.10683), its version 1.1, and Flan-T5 (Chung et al., arXiv:2210.11416), tensors named
 * and laid out as in Hugging Face's T5ForConditionalGeneration.
 *
 * An encoder whose tokens see each other, and a decoder whose tokens see those before them and the whole encoded
 * source. Root mean square norms before, no biases in linear maps, scores that are not scaled; what tells positions
 * apart is a bias on them by distance, one of a stack's blocks together. */
#include "proto/model/family.h"
#include "proto/model/t5.h"

#include <errno.h>
#include <math.h>
#include <string.h>

static const char *const architectures[] = {"T5ForConditionalGeneration", NULL};

enum t5_feed_forward { T5_RELU, T5_GATED_GELU, T5_GELU, T5_GATED_SILU, T5_SILU };
static const char *const feed_forwards[] = {"relu", "gated-gelu", "gelu", "gated-silu", "silu", NULL};

static const struct family_key keys[] = {
    {"d_model", FAMILY_COUNT, .offset = FAMILY_AT(width), .required = true, .most = 65536},
    {"d_kv", FAMILY_COUNT, .offset = FAMILY_OWN(struct t5_config, head_width), .required = true, .most = 1024},
    {"d_ff", FAMILY_WIDTHS, .offset = FAMILY_AT(inner_width), .required = true, .most = MODEL_WIDEST},
    {"num_layers", FAMILY_COUNT, .offset = FAMILY_OWN(struct t5_config, n_encoder), .required = true, .most = 2048},
    {"num_decoder_layers", FAMILY_COUNT_OR_NULL, .offset = FAMILY_OWN(struct t5_config, n_decoder), .most = 2048},
    {"num_heads", FAMILY_COUNT, .offset = FAMILY_AT(n_heads), .required = true, .most = 65536},
    {"vocab_size", FAMILY_COUNT, .offset = FAMILY_AT(vocabulary), .required = true, .most = 1 << 24},
    {"relative_attention_num_buckets", FAMILY_COUNT, .offset = FAMILY_OWN(struct t5_config, n_buckets),
     .most = DEVICE_BUCKETS},
    {"relative_attention_max_distance", FAMILY_COUNT, .offset = FAMILY_OWN(struct t5_config, max_distance),
     .most = 1 << 16},
    {"feed_forward_proj", FAMILY_WORD, .offset = FAMILY_OWN(struct t5_config, feed_forward), .words = feed_forwards},
    {"layer_norm_epsilon", FAMILY_REAL, .offset = FAMILY_AT(norm_epsilon), .range = FAMILY_EPSILON},
    {"dropout_rate", FAMILY_REAL, .offset = FAMILY_OWN(struct t5_config, dropout), .range = FAMILY_PROBABILITY},
    {"initializer_factor", FAMILY_REAL, .offset = FAMILY_AT(initializer_range), .range = FAMILY_FRACTION},
    {"tie_word_embeddings", FAMILY_SWITCH, .offset = FAMILY_AT(tied)},
    {"tie_word_embeddings", FAMILY_SWITCH, .offset = FAMILY_OWN(struct t5_config, scales)}, /* which version it is */
    {"scale_decoder_outputs", FAMILY_SWITCH, .offset = FAMILY_OWN(struct t5_config, scales)},
    {"is_encoder_decoder", FAMILY_SWITCH, .offset = FAMILY_OWN(struct t5_config, is_encoder_decoder)},
    {"decoder_start_token_id", FAMILY_COUNT, .offset = FAMILY_AT(start)},
    {0},
};

/* What follows from feed_forward_proj; and keys of other heads. */
static const char *const harmless[] = {"classifier_dropout", "dense_act_fn", "is_gated_act", "n_positions", NULL};

static void t5_complete(struct model_config *c)
{
    struct t5_config *t = t5_edit(c);

    if (t->n_decoder == 0)
        t->n_decoder = t->n_encoder;
    c->n_layers = t->n_encoder + t->n_decoder;
}

static int t5_check(const struct model_config *c, struct error *err)
{
    const struct t5_config *t = t5_of(c);

    if ((uint64_t)c->n_heads * t->head_width > 65536)
        return error_set(err, -EINVAL, "%u heads of d_kv %u are wider than 65536", c->n_heads, t->head_width);
    if (!t->is_encoder_decoder)
        return error_set(err, -EINVAL, "is_encoder_decoder is false: this is not supported, it must be true");
    if (t->n_buckets < 4 || t->n_buckets % 4)
        return error_set(err, -EINVAL, "relative_attention_num_buckets is %u: it must be a multiple of 4",
                         t->n_buckets);
    if (t->max_distance <= t->n_buckets / 2)
        return error_set(err, -EINVAL,
                         "relative_attention_max_distance is %u: it must be more than half of "
                         "relative_attention_num_buckets, which is %u",
                         t->max_distance, t->n_buckets);
    if (c->start >= c->vocabulary)
        return error_set(err, -EINVAL, "decoder_start_token_id is %u: it must be less than vocab_size, which is %u",
                         c->start, c->vocabulary);
    return 0;
}

/* The bucket of a distance, of n in one direction: half of them for a distance each, the others wider and wider
 * (section 2.1). In fp32, in which transformers counts. */
static uint32_t bucket_of(uint32_t distance, uint32_t n, uint32_t max_distance)
{
    const uint32_t exact = n / 2;
    const float far = logf((float)distance / (float)exact) / (float)log((double)max_distance / exact);

    if (distance < exact)
        return distance;
    const uint32_t bucket = exact + (uint32_t)(far * (float)(n - exact));
    return bucket < n ? bucket : n - 1;
}

static struct device_buckets buckets_of(const struct model_config *c, bool both)
{
    struct device_buckets buckets = {.n = t5_of(c)->n_buckets, .both = both};
    const uint32_t n = device_buckets_of_direction(&buckets);

    for (uint32_t i = 1; i < n; i++)
        buckets.starts[i] = UINT32_MAX;
    for (uint32_t distance = t5_of(c)->max_distance; distance > 0; distance--)
        for (uint32_t i = 1; i <= bucket_of(distance, n, t5_of(c)->max_distance); i++)
            buckets.starts[i] = distance;
    return buckets;
}

/* Deviations of transformers' fresh weights. */
static float deviation_of(const struct model_config *c, uint64_t inputs)
{
    return (float)(c->initializer_range / sqrt((double)inputs));
}

static uint32_t attended(const struct model_config *c)
{
    return c->n_heads * t5_of(c)->head_width;
}

static struct program_norm_options t5_norm_of(const struct model_config *c)
{
    return (struct program_norm_options){.epsilon = c->norm_epsilon, .rms = true};
}

static struct program_linear_options t5_linear_of(const struct model_config *c, uint64_t inputs)
{
    return (struct program_linear_options){.deviation = deviation_of(c, inputs), .out_in = true};
}

/* Queries begin smaller, as scores are not scaled. */
static struct program_linear_options queries_of(const struct model_config *c)
{
    struct program_linear_options linear = t5_linear_of(c, c->width);

    linear.first = deviation_of(c, (uint64_t)c->width * t5_of(c)->head_width);
    return linear;
}

static struct program_dropout t5_dropout_of(const struct model_config *c, enum random_site site)
{
    return (struct program_dropout){.p = t5_of(c)->dropout, .site = site};
}

static struct program_dropout t5_embedding_dropout(const struct model_config *c)
{
    return t5_dropout_of(c, RANDOM_DROPOUT_EMBEDDING);
}

/* Source and target of a row, and both stacks' biases. */
static void write_inputs(struct program *p, const struct model_config *c)
{
    const float deviation = deviation_of(c, c->width);
    const int x = program_begin(p, c->width);

    program_output(p, "", program_take(p, x, PROGRAM_TARGET));
    program_output(p, "source", program_take(p, x, PROGRAM_SOURCE));
    program_output(p, "encoder bias",
                   program_matrix(p, "encoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
                                  t5_of(c)->n_buckets, c->n_heads, deviation));
    program_output(p, "decoder bias",
                   program_matrix(p, "decoder.block.0.layer.0.SelfAttention.relative_attention_bias.weight",
                                  t5_of(c)->n_buckets, c->n_heads, deviation));
}

/* x + attention(norm(x)). */
static int t5_attend(struct program *p, int x, int bias, const struct model_config *c, bool full)
{
    const struct program_norm_options norm = t5_norm_of(c);
    const struct program_linear_options of_queries = queries_of(c), out = t5_linear_of(c, attended(c));
    const struct program_part qkv[] = {{"layer.0.SelfAttention.q", attended(c)},
                                       {"layer.0.SelfAttention.k", attended(c)},
                                       {"layer.0.SelfAttention.v", attended(c)}};
    const struct program_attention_options attention = {.n_heads = c->n_heads,
                                                        .full = full,
                                                        .scale = 1,
                                                        .dropout = t5_dropout_of(c, RANDOM_DROPOUT_ATTENTION),
                                                        .buckets = buckets_of(c, full)};
    const struct program_dropout after = t5_dropout_of(c, RANDOM_DROPOUT_RESIDUAL_ATTENTION);
    const int n = program_norm(p, x, "layer.0.layer_norm", &norm);
    const int a = program_biased_attention(p, program_linears(p, n, qkv, 3, &of_queries), bias, &attention);

    return program_add(p, x, program_linear(p, a, "layer.0.SelfAttention.o", c->width, &out), &after);
}

/* x + attention(norm(x), source). */
static int t5_look(struct program *p, int x, int source, const struct model_config *c)
{
    const struct program_norm_options norm = t5_norm_of(c);
    const struct program_linear_options of_queries = queries_of(c), in = t5_linear_of(c, c->width),
                                        out = t5_linear_of(c, attended(c));
    const struct program_part kv[] = {{"layer.1.EncDecAttention.k", attended(c)},
                                      {"layer.1.EncDecAttention.v", attended(c)}};
    const struct program_cross_attention_options attention = {.n_heads = c->n_heads,
                                                              .scale = 1,
                                                              .dropout =
                                                                  t5_dropout_of(c, RANDOM_DROPOUT_CROSS_ATTENTION)};
    const struct program_dropout after = t5_dropout_of(c, RANDOM_DROPOUT_RESIDUAL_CROSS_ATTENTION);
    const int n = program_norm(p, x, "layer.1.layer_norm", &norm);
    const int queries = program_linear(p, n, "layer.1.EncDecAttention.q", attended(c), &of_queries);
    const int a = program_cross_attention(p, queries, program_linears(p, source, kv, 2, &in), &attention);

    return program_add(p, x, program_linear(p, a, "layer.1.EncDecAttention.o", c->width, &out), &after);
}

static int t5_activate(struct program *p, int n, const struct model_config *c, const char *const names[3])
{
    static const enum model_activation activations[] = {[T5_RELU] = MODEL_RELU,
                                                        [T5_GATED_GELU] = MODEL_GELU_NEW,
                                                        [T5_GELU] = MODEL_GELU,
                                                        [T5_GATED_SILU] = MODEL_SILU,
                                                        [T5_SILU] = MODEL_SILU};
    const enum model_activation activation = activations[t5_of(c)->feed_forward];
    const struct program_linear_options in = t5_linear_of(c, c->width);
    const struct program_part gate_up[] = {{names[1], c->inner_width}, {names[2], c->inner_width}};

    if (t5_of(c)->feed_forward == T5_GATED_GELU || t5_of(c)->feed_forward == T5_GATED_SILU)
        return program_glu(p, program_linears(p, n, gate_up, 2, &in), activation);
    return program_activation(p, program_linear(p, n, names[0], c->inner_width, &in), activation);
}

/* x + mlp(norm(x)). names: of its norm, its first maps (plain; gate and up), its last one. */
static int t5_mix(struct program *p, int x, const struct model_config *c, const char *const names[5])
{
    const struct program_norm_options norm = t5_norm_of(c);
    const struct program_linear_options out = t5_linear_of(c, c->inner_width);
    const struct program_dropout within = t5_dropout_of(c, RANDOM_DROPOUT_MLP);
    const struct program_dropout after = t5_dropout_of(c, RANDOM_DROPOUT_RESIDUAL_MLP);
    const int g = t5_activate(p, program_norm(p, x, names[0], &norm), c, names + 1);

    return program_add(p, x, program_linear(p, program_drop(p, g, &within), names[4], c->width, &out), &after);
}

static void t5_write_encoder_block(struct program *p, const struct model_config *c)
{
    static const char *const names[] = {"layer.1.layer_norm", "layer.1.DenseReluDense.wi",
                                        "layer.1.DenseReluDense.wi_0", "layer.1.DenseReluDense.wi_1",
                                        "layer.1.DenseReluDense.wo"};

    program_init(p);
    const int x = program_input(p, "source", PROGRAM_SOURCE, c->width);
    const int bias = program_input(p, "encoder bias", PROGRAM_PART, t5_of(c)->n_buckets * c->n_heads);
    program_output(p, "source", t5_mix(p, t5_attend(p, x, bias, c, true), c, names));
}

static void write_encoder_norm(struct program *p, const struct model_config *c)
{
    const struct program_norm_options norm = t5_norm_of(c);
    const struct program_dropout after = t5_dropout_of(c, RANDOM_DROPOUT_NORM);

    program_init(p);
    const int x = program_input(p, "source", PROGRAM_SOURCE, c->width);
    program_output(p, "source", program_drop(p, program_norm(p, x, "final_layer_norm", &norm), &after));
}

static void t5_write_decoder_block(struct program *p, const struct model_config *c)
{
    static const char *const names[] = {"layer.2.layer_norm", "layer.2.DenseReluDense.wi",
                                        "layer.2.DenseReluDense.wi_0", "layer.2.DenseReluDense.wi_1",
                                        "layer.2.DenseReluDense.wo"};

    program_init(p);
    const int x = program_input(p, "", PROGRAM_TARGET, c->width);
    const int source = program_input(p, "source", PROGRAM_SOURCE, c->width);
    const int bias = program_input(p, "decoder bias", PROGRAM_PART, t5_of(c)->n_buckets * c->n_heads);
    program_output(p, "", t5_mix(p, t5_look(p, t5_attend(p, x, bias, c, false), source, c), c, names));
}

static void write_decoder_norm(struct program *p, const struct model_config *c)
{
    const struct program_norm_options norm = t5_norm_of(c);
    struct program_dropout after = t5_dropout_of(c, RANDOM_DROPOUT_NORM);

    after.scale = t5_of(c)->scales ? (float)(1 / sqrt((double)c->width)) : 1;
    program_init(p);
    const int x = program_input(p, "", PROGRAM_TARGET, c->width);
    program_output(p, "", program_drop(p, program_norm(p, x, "decoder.final_layer_norm", &norm), &after));
}

static const struct family_table tables[] = {
    {"shared", MODEL_BY_TOKEN, .rows = FAMILY_AT(vocabulary)},
    {0},
};

enum { ENCODER, LAST_OF_ENCODER, DECODER }; /* kinds of blocks */

static const struct family_layer layers[] = {
    {MODEL_SINGLE, "relative_attention_bias", .write = write_inputs},
    {MODEL_BLOCK, "encoder.block.%u", .write = t5_write_encoder_block},
    {MODEL_BLOCK, "encoder.block.%u", .write = t5_write_encoder_block},
    {MODEL_BLOCK, "encoder", .goes_on = true, .write = write_encoder_norm},
    {MODEL_BLOCK, "decoder.block.%u", .write = t5_write_decoder_block},
    {MODEL_SINGLE, "decoder.final_layer_norm", .write = write_decoder_norm},
    {0},
};

static uint32_t t5_kind_of_block(const struct model_config *c, uint32_t index)
{
    return index >= t5_of(c)->n_encoder ? DECODER : index + 1 == t5_of(c)->n_encoder ? LAST_OF_ENCODER : ENCODER;
}

static uint32_t t5_number_of_block(const struct model_config *c, uint32_t index)
{
    return index < t5_of(c)->n_encoder ? index : index - t5_of(c)->n_encoder;
}

/* A bias in old files that was never used. */
static bool t5_is_mask(const char *name)
{
    return strcmp(name, "decoder.block.0.layer.1.EncDecAttention.relative_attention_bias.weight") == 0;
}

static const char *const copies[] = {"encoder.embed_tokens.weight", "decoder.embed_tokens.weight", NULL};

const struct family family_t5 = {
    .model_type = "t5",
    .architectures = architectures,
    .keys = keys,
    .harmless = harmless,
    .defaults = {.family = &family_t5,
                 .width = 512,
                 .n_heads = 8,
                 .inner_width = 2048,
                 .vocabulary = 32128,
                 .n_positions = 1 << 24,
                 .tied = true,
                 .norm_epsilon = 1e-6f,
                 .initializer_range = 1},
    FAMILY_OWN_DEFAULTS(struct t5_config, .n_encoder = 6, .head_width = 64, .n_buckets = 32, .max_distance = 128,
                        .scales = true, .is_encoder_decoder = true, .dropout = 0.1f),
    .end_token = 1,
    .padding = FAMILY_NO_TOKEN,
    .trains_padding = true,
    .complete = t5_complete,
    .check = t5_check,
    .prefix = "",
    .tables = tables,
    .layers = layers,
    .kind_of_block = t5_kind_of_block,
    .number_of_block = t5_number_of_block,
    .has_source = true,
    .logits = "lm_head",
    .ties_by_files = "scale_decoder_outputs",
    .embedding_dropout = t5_embedding_dropout,
    .is_mask = t5_is_mask,
    .copies = copies,
};

/* ModernBERT (Warner et al., arXiv:2412.13663), tensors named and laid out as in Hugging Face's ModernBertForMaskedLM
 * and ModernBertForSequenceClassification: a decoder's block in which queries see all keys, or those near them on both
 * sides. Block 0 has no norm before attention, as the embedding's norm has just been: so there are two kinds of either
 * reach. local_attention counts both sides: a query sees keys up to its half away. Layer norms have no bias by default.
 *
 * Above the blocks one layer holds the last norm and the head, whose names are outside the prefix: so it is `bare`. */
#include "proto/model/decoder_family.h"

#include <errno.h>

static const char *const architectures[] = {"ModernBertForMaskedLM", NULL};

struct modernbert_config {
    struct decoder_config decoder; /* first: decoder_of reads it */
    uint32_t local;                /* keys of a sliding block's query, its own not counted */
    uint32_t every;                /* blocks see all keys where their index is a multiple of this, unless listed */
    bool norm_bias, logit_bias, head_bias;
    enum model_activation head_activation;
    float dropout_mlp, dropout_classifier; /* in [0, 1) */
    int pooling;                           /* by modernbert_poolings */
} MODEL_OWN;
MODEL_OWN_HOLDS(struct modernbert_config);

static const struct modernbert_config *modernbert_of(const struct model_config *c)
{
    return (const void *)c->own.bytes;
}

enum { POOLS_FIRST };
static const char *const modernbert_poolings[] = {"cls", "mean", NULL};

#define OWN(member) FAMILY_OWN(struct modernbert_config, member)

static const struct family_key keys[] = {
    FAMILY_KEYS("hidden_activation"),
    {"max_position_embeddings", FAMILY_COUNT, .offset = FAMILY_AT(n_positions), .most = 1 << 24},
    {"norm_eps", FAMILY_REAL, .offset = FAMILY_AT(norm_epsilon), .range = FAMILY_EPSILON},
    {"norm_bias", FAMILY_SWITCH, .offset = OWN(norm_bias)},
    {"attention_bias", FAMILY_SWITCH, .offset = OWN(decoder.qkv_bias)},
    {"mlp_bias", FAMILY_SWITCH, .offset = OWN(decoder.mlp_bias)},
    {"decoder_bias", FAMILY_SWITCH, .offset = OWN(logit_bias)},
    {"classifier_bias", FAMILY_SWITCH, .offset = OWN(head_bias)},
    {"classifier_activation", FAMILY_ACTIVATION, .offset = OWN(head_activation)},
    {"classifier_pooling", FAMILY_WORD, .offset = OWN(pooling), .words = modernbert_poolings},
    {"classifier_dropout", FAMILY_REAL, .offset = OWN(dropout_classifier), .range = FAMILY_PROBABILITY},
    {"attention_dropout", FAMILY_REAL, .offset = OWN(decoder.dropout_attention), .range = FAMILY_PROBABILITY},
    {"embedding_dropout", FAMILY_REAL, .offset = OWN(decoder.dropout_embedding), .range = FAMILY_PROBABILITY},
    {"mlp_dropout", FAMILY_REAL, .offset = OWN(dropout_mlp), .range = FAMILY_PROBABILITY},
    {"local_attention", FAMILY_COUNT, .offset = OWN(local), .most = 1 << 24},
    {"global_attn_every_n_layers", FAMILY_COUNT, .offset = OWN(every), .most = 4096},
    {"layer_types", FAMILY_LAYERS, .offset = OWN(decoder.sliding), .words = decoder_kinds},
    {"global_rope_theta", FAMILY_REAL, .offset = OWN(decoder.rope.base)},
    {"local_rope_theta", FAMILY_REAL, .offset = OWN(decoder.sliding_rope.base)},
    DECODER_ROPE_KEYS_OF("rope_parameters.full_attention.", rope),
    DECODER_ROPE_KEYS_OF("rope_parameters.sliding_attention.", sliding_rope),
    {0},
};

/* How transformers computes, not what; and what its old files have. */
static const char *const harmless[] = {"cls_token_id",
                                       "deterministic_flash_attn",
                                       "initializer_cutoff_factor",
                                       "layer_norm_eps",
                                       "position_embedding_type",
                                       "reference_compile",
                                       "repad_logits_with_grad",
                                       "sparse_pred*",
                                       NULL};
static const char *const unsupported[] = {"rope_scaling", NULL};

static void modernbert_complete(struct model_config *c)
{
    const struct modernbert_config *m = modernbert_of(c);
    struct decoder_config *d = decoder_edit(c);

    for (uint32_t i = 0; d->sliding.n == 0 && i < c->n_layers && i < CONFIG_LAYERS; i++)
        if (i % m->every != 0)
            config_layers_add(&d->sliding, i);
    d->window = m->local / 2 + 1; /* to each side, its own key counted */
    d->output_bias = d->qkv_bias;
    decoder_complete(c);
}

static int modernbert_check(const struct model_config *c, struct error *err)
{
    if (c->width % c->n_heads != 0)
        return error_set(err, -EINVAL, "hidden_size is %u: it must be a multiple of num_attention_heads, which is %u",
                         c->width, c->n_heads);
    if (c->n_labels && modernbert_of(c)->pooling != POOLS_FIRST)
        return error_set(err, -EINVAL,
                         "classifier_pooling is mean: this is not supported for a classifier, it must be "
                         "cls");
    return decoder_check(c, err);
}

enum { WITHOUT_NORM = DECODER_UNROTATED }; /* the other bit of a block's kind: all blocks are rotated */

static uint32_t modernbert_kind_of_block(const struct model_config *c, uint32_t index)
{
    return (config_layers_has(&decoder_of(c)->sliding, index) ? DECODER_SLIDES : 0) | (index == 0 ? WITHOUT_NORM : 0);
}

static int modernbert_norm(struct program *p, const struct model_config *c, int x, const char *name)
{
    return decoder_layer_norm(p, c, x, name, modernbert_of(c)->norm_bias);
}

static struct program_linear_options modernbert_linear(const struct model_config *c, bool bias)
{
    return (struct program_linear_options){.deviation = c->initializer_range, .bias = bias, .out_in = true};
}

static void modernbert_write_embedding(struct program *p, const struct model_config *c)
{
    const struct program_dropout dropout = decoder_embedding_dropout(c);
    const int x = program_begin(p, c->width);

    program_end(p, program_drop(p, modernbert_norm(p, c, x, "embeddings.norm"), &dropout));
}

static void modernbert_write_block(struct program *p, const struct model_config *c, uint32_t kind)
{
    static const struct decoder_attention how = {.qkv = "attn.Wqkv", .output = "attn.Wo", .full = true};
    const struct program_linear_options linear = modernbert_linear(c, decoder_of(c)->mlp_bias);
    const struct program_dropout none = {0};
    const struct program_dropout behind_attention = {.p = decoder_of(c)->dropout_attention,
                                                     .site = RANDOM_DROPOUT_RESIDUAL_ATTENTION};
    const struct program_dropout in_mlp = {.p = modernbert_of(c)->dropout_mlp, .site = RANDOM_DROPOUT_RESIDUAL_MLP};

    const int x = program_begin(p, c->width);
    const int n = kind & WITHOUT_NORM ? x : modernbert_norm(p, c, x, "attn_norm");
    const int a = decoder_attention(p, c, kind & DECODER_SLIDES, n, &how);
    const int r = program_add(p, x, a, &behind_attention);
    const int u = program_linear(p, modernbert_norm(p, c, r, "mlp_norm"), "mlp.Wi", 2 * c->inner_width, &linear);
    const int g = program_drop(p, program_glu(p, u, c->activation), &in_mlp);
    program_end(p, program_add(p, r, program_linear(p, g, "mlp.Wo", c->width, &linear), &none));
}

static int modernbert_transform(struct program *p, const struct model_config *c)
{
    const struct program_linear_options linear = modernbert_linear(c, modernbert_of(c)->head_bias);
    const int x = modernbert_norm(p, c, program_begin(p, c->width), "model.final_norm");
    const int d = program_linear(p, x, "head.dense", c->width, &linear);

    return modernbert_norm(p, c, program_activation(p, d, modernbert_of(c)->head_activation), "head.norm");
}

static void modernbert_write_head(struct program *p, const struct model_config *c)
{
    program_end(p, modernbert_transform(p, c));
    if (modernbert_of(c)->logit_bias)
        program_logit_bias(p, "decoder.bias", c->vocabulary);
}

static void modernbert_write_classifier(struct program *p, const struct model_config *c)
{
    const struct program_dropout dropout = {.p = modernbert_of(c)->dropout_classifier,
                                            .site = RANDOM_DROPOUT_CLASSIFIER};

    program_end(p, program_drop(p, modernbert_transform(p, c), &dropout));
    program_logit_bias(p, "classifier.bias", c->n_labels);
}

#define BELOW_THE_HEAD                                                                                                 \
    {MODEL_SINGLE, "embeddings.norm", .write = modernbert_write_embedding},                                            \
        {MODEL_BLOCK, "layers.%u", .write_kind = modernbert_write_block},                                              \
        {MODEL_BLOCK, "layers.%u", .write_kind = modernbert_write_block},                                              \
        {MODEL_BLOCK, "layers.%u", .write_kind = modernbert_write_block},                                              \
    {                                                                                                                  \
        MODEL_BLOCK, "layers.%u", .write_kind = modernbert_write_block                                                 \
    }

static const struct family_layer layers[] = {BELOW_THE_HEAD,
                                             {MODEL_SINGLE, "head", .bare = true, .write = modernbert_write_head},
                                             {0}};
static const struct family_layer classifier_layers[] = {
    BELOW_THE_HEAD, {MODEL_SINGLE, "head", .bare = true, .write = modernbert_write_classifier}, {0}};
static const char *const other_heads[] = {"decoder.*", NULL};
static const struct family_classifier classifier = {.architecture = "ModernBertForSequenceClassification",
                                                    .layers = classifier_layers,
                                                    .logits = "classifier",
                                                    .others = other_heads};

static const struct family_table tables[] = {{"embeddings.tok_embeddings", MODEL_BY_TOKEN,
                                              .rows = FAMILY_AT(vocabulary)},
                                             {0}};

const struct family family_modernbert = {
    .model_type = "modernbert",
    .architectures = architectures,
    .classifier = &classifier,
    .keys = keys,
    .harmless = harmless,
    .ignored = decoder_ignored,
    .unsupported = unsupported,
    .defaults = {.family = &family_modernbert,
                 .width = 768,
                 .n_layers = 22,
                 .n_heads = 12,
                 .inner_width = 1152,
                 .vocabulary = 50368,
                 .n_positions = 8192,
                 .activation = MODEL_GELU,
                 .tied = true,
                 .norm_epsilon = 1e-5f,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct modernbert_config,
                        .decoder = {.rope = {.base = 160000}, .sliding_rope = {.base = 10000}}, .local = 128,
                        .every = 3, .logit_bias = true, .head_activation = MODEL_GELU),
    .end_token = 50282,
    .padding = 50283,
    .complete = modernbert_complete,
    .check = modernbert_check,
    .prefix = "model.",
    .tables = tables,
    .layers = layers,
    .kind_of_block = modernbert_kind_of_block,
    .logits = "decoder",
    .masked = true,
};

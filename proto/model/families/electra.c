/* ELECTRA (Clark et al., arXiv:2003.10555), tensors named and laid out as in Hugging Face's ElectraForMaskedLM and
 * ElectraForSequenceClassification: BERT's blocks between an embedding and a head that may be narrower.
 *
 * To all other code a model's width is that of its tables, which the embedding reads and the head multiplies by. So
 * hidden_size is a number of this family: the layer above the embedding maps to it, the head's back. */
#include "proto/model/encoder_family.h"

#include <errno.h>

static const char *const architectures[] = {"ElectraForMaskedLM", NULL};

static const struct family_key keys[] = {
    ENCODER_KEYS_OF(FAMILY_KEYS_BUT_WIDTH),
    {"embedding_size", FAMILY_COUNT, .offset = FAMILY_AT(width), .most = 65536},
    {"hidden_size", FAMILY_COUNT, .offset = FAMILY_OWN(struct encoder_config, inner), .required = true, .most = 65536},
    {0},
};
static const char *const harmless[] = {"directionality", "pooler_*", "summary_*", NULL};

static void electra_complete(struct model_config *c)
{
    encoder_complete(c, 0);
}

static int electra_check(const struct model_config *c, struct error *err)
{
    if (c->n_labels && c->width != encoder_width(c))
        return error_set(err, -EINVAL,
                         "embedding_size is %u: this is not supported for a classifier, it must be hidden_size, %u",
                         c->width, encoder_width(c));
    return encoder_check(c, err);
}

static void electra_write_embedding(struct program *p, const struct model_config *c)
{
    static const struct encoder_embedding names = {"electra.embeddings.LayerNorm", "electra.embeddings_project"};

    encoder_write_embedding_of(p, c, &names);
}

/* The activation is not the config's. */
static void electra_write_head(struct program *p, const struct model_config *c)
{
    static const struct encoder_head names = {"generator_predictions.dense", "generator_predictions.LayerNorm",
                                              "generator_lm_head.bias"};

    encoder_write_head(p, c, &names, MODEL_GELU);
}

static const struct family_layer layers[] = {
    {MODEL_SINGLE, "embeddings.LayerNorm", .bare = true, .write = electra_write_embedding},
    {MODEL_BLOCK, "encoder.layer.%u", .write = encoder_write_block},
    {MODEL_SINGLE, "generator_predictions", .bare = true, .write = electra_write_head},
    {0},
};

static void electra_write_classifier(struct program *p, const struct model_config *c)
{
    static const struct encoder_classifier names = {"classifier.dense", "classifier.out_proj.bias", true, MODEL_GELU};

    encoder_write_classifier(p, c, &names);
}

static const struct family_layer classifier_layers[] = {
    {MODEL_SINGLE, "embeddings.LayerNorm", .bare = true, .write = electra_write_embedding},
    {MODEL_BLOCK, "encoder.layer.%u", .write = encoder_write_block},
    {MODEL_SINGLE, "classifier", .bare = true, .write = electra_write_classifier},
    {0},
};
static const char *const other_heads[] = {"generator_*", "discriminator_predictions.*", NULL};
static const struct family_classifier classifier = {.architecture = "ElectraForSequenceClassification",
                                                    .layers = classifier_layers,
                                                    .logits = "classifier.out_proj",
                                                    .others = other_heads};

const struct family family_electra = {
    .model_type = "electra",
    .architectures = architectures,
    .classifier = &classifier,
    .keys = keys,
    .defaults = {.family = &family_electra,
                 .width = 128,
                 .n_layers = 12,
                 .n_heads = 4,
                 .inner_width = 1024,
                 .vocabulary = 30522,
                 .activation = MODEL_GELU,
                 .tied = true,
                 .norm_epsilon = 1e-12f,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct encoder_config, .n_segments = 2, .n_rows = 512, .inner = 256, .dropout_attention = 0.1f,
                        .dropout_hidden = 0.1f, .dropout_classifier = NAN),
    .end_token = FAMILY_NO_TOKEN,
    .padding = 0,
    .complete = electra_complete,
    .check = electra_check,
    .prefix = "electra.",
    .layers = layers,
    .logits = "generator_lm_head",
    ENCODER_PARTS_OF(harmless),
};

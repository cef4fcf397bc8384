/* BERT (Devlin et al., arXiv:1810.04805), tensors named and laid out as in Hugging Face's BertForMaskedLM and
 * BertForSequenceClassification. */
#include "proto/model/encoder_family.h"

static const char *const architectures[] = {"BertForMaskedLM", NULL};

static const struct family_key keys[] = {ENCODER_KEYS, {0}};

static void bert_complete(struct model_config *c)
{
    encoder_complete(c, 0);
}

static void bert_write_head(struct program *p, const struct model_config *c)
{
    static const struct encoder_head names = {"cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm",
                                              "cls.predictions.bias"};

    encoder_write_head(p, c, &names, c->activation);
}

static const struct family_layer layers[] = {
    {MODEL_SINGLE, "embeddings.LayerNorm", .write = encoder_write_embedding},
    {MODEL_BLOCK, "encoder.layer.%u", .write = encoder_write_block},
    {MODEL_SINGLE, "cls.predictions", .bare = true, .write = bert_write_head},
    {0},
};

static void write_pooler(struct program *p, const struct model_config *c)
{
    static const struct encoder_classifier names = {"bert.pooler.dense", "classifier.bias", false, MODEL_TANH};

    encoder_write_classifier(p, c, &names);
}

static const struct family_layer classifier_layers[] = {
    {MODEL_SINGLE, "embeddings.LayerNorm", .write = encoder_write_embedding},
    {MODEL_BLOCK, "encoder.layer.%u", .write = encoder_write_block},
    {MODEL_SINGLE, "pooler", .bare = true, .write = write_pooler},
    {0},
};
static const char *const other_heads[] = {"cls.*", NULL};
static const struct family_classifier classifier = {.architecture = "BertForSequenceClassification",
                                                    .layers = classifier_layers,
                                                    .logits = "classifier",
                                                    .others = other_heads};

const struct family family_bert = {
    .model_type = "bert",
    .architectures = architectures,
    .classifier = &classifier,
    .keys = keys,
    ENCODER_DEFAULTS(family_bert, 30522),
    .end_token = FAMILY_NO_TOKEN,
    .padding = 0,
    .complete = bert_complete,
    .check = encoder_check_tied,
    .prefix = "bert.",
    .layers = layers,
    .logits = "cls.predictions.decoder",
    ENCODER_PARTS,
};

/* RoBERTa (Liu et al., arXiv:1907.11692), tensors named and laid out as in Hugging Face's RobertaForMaskedLM and
 * RobertaForSequenceClassification: BERT's layers, with positions that begin after that of padding. */
#include "proto/model/encoder_family.h"

static const char *const architectures[] = {"RobertaForMaskedLM", NULL};

const struct family_key roberta_keys[] = {
    ENCODER_KEYS,
    {"pad_token_id", FAMILY_COUNT, .offset = FAMILY_OWN(struct encoder_config, pad)},
    {0},
};

void roberta_complete(struct model_config *c)
{
    encoder_complete(c, encoder_of(c)->pad < UINT32_MAX ? encoder_of(c)->pad + 1 : UINT32_MAX);
}

/* The activation is not the config's. */
static void roberta_write_head(struct program *p, const struct model_config *c)
{
    static const struct encoder_head names = {"lm_head.dense", "lm_head.layer_norm", "lm_head.bias"};

    encoder_write_head(p, c, &names, MODEL_GELU);
}

const struct family_layer roberta_layers[] = {
    {MODEL_SINGLE, "embeddings.LayerNorm", .write = encoder_write_embedding},
    {MODEL_BLOCK, "encoder.layer.%u", .write = encoder_write_block},
    {MODEL_SINGLE, "lm_head", .bare = true, .write = roberta_write_head},
    {0},
};

static void roberta_write_classifier(struct program *p, const struct model_config *c)
{
    static const struct encoder_classifier names = {"classifier.dense", "classifier.out_proj.bias", true, MODEL_TANH};

    encoder_write_classifier(p, c, &names);
}

const struct family_layer roberta_classifier_layers[] = {
    {MODEL_SINGLE, "embeddings.LayerNorm", .write = encoder_write_embedding},
    {MODEL_BLOCK, "encoder.layer.%u", .write = encoder_write_block},
    {MODEL_SINGLE, "classifier", .bare = true, .write = roberta_write_classifier},
    {0},
};
const char *const roberta_other_heads[] = {"lm_head.*", NULL};
static const struct family_classifier classifier = {.architecture = "RobertaForSequenceClassification",
                                                    .layers = roberta_classifier_layers,
                                                    .logits = "classifier.out_proj",
                                                    .others = roberta_other_heads};

const struct family family_roberta = {
    .model_type = "roberta",
    .architectures = architectures,
    .classifier = &classifier,
    ROBERTA_PARTS(family_roberta, 50265),
};

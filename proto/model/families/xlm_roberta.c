/* XLM-RoBERTa (Conneau et al., arXiv:1911.02116), tensors named and laid out as in Hugging Face's
 * XLMRobertaForMaskedLM and XLMRobertaForSequenceClassification: RoBERTa under another name. */
#include "proto/model/encoder_family.h"

static const char *const architectures[] = {"XLMRobertaForMaskedLM", NULL};

static const struct family_classifier classifier = {.architecture = "XLMRobertaForSequenceClassification",
                                                    .layers = roberta_classifier_layers,
                                                    .logits = "classifier.out_proj",
                                                    .others = roberta_other_heads};

const struct family family_xlm_roberta = {
    .model_type = "xlm-roberta",
    .architectures = architectures,
    .classifier = &classifier,
    ROBERTA_PARTS(family_xlm_roberta, 30522),
};

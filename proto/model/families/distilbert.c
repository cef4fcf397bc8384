/* DistilBERT (Sanh et al., arXiv:1910.01108), tensors named and laid out as in Hugging Face's DistilBertForMaskedLM and
 * DistilBertForSequenceClassification: BERT's layers under names of its own, without types of tokens, and without
 * dropout behind attention's output. Its norms' epsilon is in no config. The table of positions is trained also where
 * it began as sinusoids, so sinusoidal_pos_embds tells nothing of a model that has weights. */
#include "proto/model/encoder_family.h"

static const char *const architectures[] = {"DistilBertForMaskedLM", NULL};

static const struct family_key keys[] = {
    {"dim", FAMILY_COUNT, .offset = FAMILY_AT(width), .required = true, .most = 65536},
    {"n_layers", FAMILY_COUNT, .offset = FAMILY_AT(n_layers), .required = true, .most = 4096},
    {"n_heads", FAMILY_COUNT, .offset = FAMILY_AT(n_heads), .required = true, .most = 65536},
    {"hidden_dim", FAMILY_WIDTHS, .offset = FAMILY_AT(inner_width), .required = true, .most = MODEL_WIDEST},
    {"vocab_size", FAMILY_COUNT, .offset = FAMILY_AT(vocabulary), .required = true, .most = 1 << 24},
    {"activation", FAMILY_ACTIVATION, .offset = FAMILY_AT(activation)},
    {"initializer_range", FAMILY_REAL, .offset = FAMILY_AT(initializer_range), .range = FAMILY_FRACTION},
    {"tie_word_embeddings", FAMILY_SWITCH, .offset = FAMILY_AT(tied)},
    {"max_position_embeddings", FAMILY_COUNT, .offset = FAMILY_OWN(struct encoder_config, n_rows), .most = 1 << 24},
    {"dropout", FAMILY_REAL, .offset = FAMILY_OWN(struct encoder_config, dropout_hidden), .range = FAMILY_PROBABILITY},
    {"attention_dropout", FAMILY_REAL, .offset = FAMILY_OWN(struct encoder_config, dropout_attention),
     .range = FAMILY_PROBABILITY},
    {"seq_classif_dropout", FAMILY_REAL, .offset = FAMILY_OWN(struct encoder_config, dropout_classifier),
     .range = FAMILY_PROBABILITY},
    {0},
};
static const char *const harmless[] = {"qa_dropout", "sinusoidal_pos_embds", "tie_weights_", NULL};

static void distilbert_complete(struct model_config *c)
{
    encoder_complete(c, 0);
}

static void distilbert_write_block(struct program *p, const struct model_config *c)
{
    static const struct encoder_block names = {.query = "attention.q_lin",
                                               .key = "attention.k_lin",
                                               .value = "attention.v_lin",
                                               .output = "attention.out_lin",
                                               .attention_norm = "sa_layer_norm",
                                               .up = "ffn.lin1",
                                               .down = "ffn.lin2",
                                               .mlp_norm = "output_layer_norm",
                                               .keeps_attention = true};

    encoder_write_block_of(p, c, &names);
}

static void distilbert_write_head(struct program *p, const struct model_config *c)
{
    static const struct encoder_head names = {"vocab_transform", "vocab_layer_norm", "vocab_projector.bias"};

    encoder_write_head(p, c, &names, c->activation);
}

static const struct family_layer layers[] = {
    {MODEL_SINGLE, "embeddings.LayerNorm", .write = encoder_write_embedding},
    {MODEL_BLOCK, "transformer.layer.%u", .write = distilbert_write_block},
    {MODEL_SINGLE, "vocab_transform", .bare = true, .write = distilbert_write_head},
    {0},
};

static void distilbert_write_classifier(struct program *p, const struct model_config *c)
{
    static const struct encoder_classifier names = {"pre_classifier", "classifier.bias", false, MODEL_RELU};

    encoder_write_classifier(p, c, &names);
}

static const struct family_layer classifier_layers[] = {
    {MODEL_SINGLE, "embeddings.LayerNorm", .write = encoder_write_embedding},
    {MODEL_BLOCK, "transformer.layer.%u", .write = distilbert_write_block},
    {MODEL_SINGLE, "pre_classifier", .bare = true, .write = distilbert_write_classifier},
    {0},
};
static const char *const other_heads[] = {"vocab_*", NULL};
static const struct family_classifier classifier = {.architecture = "DistilBertForSequenceClassification",
                                                    .layers = classifier_layers,
                                                    .logits = "classifier",
                                                    .others = other_heads};

const struct family family_distilbert = {
    .model_type = "distilbert",
    .architectures = architectures,
    .classifier = &classifier,
    .keys = keys,
    .defaults = {.family = &family_distilbert,
                 .width = 768,
                 .n_layers = 6,
                 .n_heads = 12,
                 .inner_width = 3072,
                 .vocabulary = 30522,
                 .activation = MODEL_GELU,
                 .tied = true,
                 .norm_epsilon = 1e-12f,
                 .initializer_range = 0.02f},
    FAMILY_OWN_DEFAULTS(struct encoder_config, .n_rows = 512, .dropout_attention = 0.1f, .dropout_hidden = 0.1f,
                        .dropout_classifier = 0.2f),
    .end_token = FAMILY_NO_TOKEN,
    .padding = 0,
    .complete = distilbert_complete,
    .check = encoder_check,
    .prefix = "distilbert.",
    .layers = layers,
    .logits = "vocab_projector",
    ENCODER_PARTS_OF(harmless),
};

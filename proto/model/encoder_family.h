/* proto/model/encoder_family.h - for the files of families that followed BERT: what their models have in common.
 *
 * The sum of three embeddings is normed; a block has its norms after attention and MLP, and every token sees all
 * others; a dense layer, its activation and a norm come before the head, whose logits have a bias. A classifier has a
 * dense layer and its hyperbolic tangent there. A family's file names the layer before the head, and says where
 * positions begin. */
#ifndef PROTO_MODEL_ENCODER_FAMILY_H
#define PROTO_MODEL_ENCODER_FAMILY_H

#include "proto/model/encoder.h"
#include "proto/model/family.h"

#include <math.h>

/* For struct family. */
int encoder_check(const struct model_config *config, struct error *err);
int encoder_check_tied(const struct model_config *config, struct error *err); /* the same, and the head is tied */
bool encoder_is_mask(const char *name);
bool encoder_is_other(const char *name);
extern const struct family_table encoder_tables[];
extern const char *const encoder_harmless[], *const encoder_unsupported[];

/* For struct family_layer. */
void encoder_write_embedding(struct program *program, const struct model_config *config);
void encoder_write_block(struct program *program, const struct model_config *config);

/* Names of the embedding's norm, and of the map from there to the blocks where these have another width. */
struct encoder_embedding {
    const char *norm, *map;
};
void encoder_write_embedding_of(struct program *program, const struct model_config *config,
                                const struct encoder_embedding *names);

/* Names of a block's maps and norms, where they are not BERT's. */
struct encoder_block {
    const char *query, *key, *value, *output, *attention_norm, *up, *down, *mlp_norm;
    bool keeps_attention; /* no dropout behind `output` */
};
void encoder_write_block_of(struct program *program, const struct model_config *config,
                            const struct encoder_block *names);

/* Names of the layer before the head. */
struct encoder_head {
    const char *dense, *norm, *bias;
};
void encoder_write_head(struct program *program, const struct model_config *config, const struct encoder_head *names,
                        enum model_activation activation);

/* Names of a classifier's layer before its head. */
struct encoder_classifier {
    const char *dense, *bias;
    bool drops_input; /* dropout precedes the dense layer too */
    enum model_activation activation;
};
void encoder_write_classifier(struct program *program, const struct model_config *config,
                              const struct encoder_classifier *names);

/* Sets derived numbers; row: that of position 0. For a family's `complete`. */
void encoder_complete(struct model_config *config, uint32_t row);

/* Lines for a family's list of keys. */
#define ENCODER_KEYS ENCODER_KEYS_OF(FAMILY_KEYS)
#define ENCODER_KEYS_OF(family_keys)                                                                                   \
    family_keys("hidden_act"),                                                                                         \
        {"max_position_embeddings", FAMILY_COUNT, .offset = FAMILY_OWN(struct encoder_config, n_rows),                 \
         .most = 1 << 24},                                                                                             \
        {"type_vocab_size", FAMILY_COUNT, .offset = FAMILY_OWN(struct encoder_config, n_segments), .most = 16},        \
        {"layer_norm_eps", FAMILY_REAL, .offset = FAMILY_AT(norm_epsilon), .range = FAMILY_EPSILON},                   \
        {"hidden_dropout_prob", FAMILY_REAL, .offset = FAMILY_OWN(struct encoder_config, dropout_hidden),              \
         .range = FAMILY_PROBABILITY},                                                                                 \
        {"attention_probs_dropout_prob", FAMILY_REAL, .offset = FAMILY_OWN(struct encoder_config, dropout_attention),  \
         .range = FAMILY_PROBABILITY},                                                                                 \
        {"classifier_dropout", FAMILY_REAL_OR_DEFAULT,                                                                 \
         .offset = FAMILY_OWN(struct encoder_config, dropout_classifier), .range = FAMILY_PROBABILITY},                \
        {"position_embedding_type", FAMILY_WORD, .offset = FAMILY_OWN(struct encoder_config, positions),               \
         .words = encoder_positions},                                                                                  \
    {                                                                                                                  \
        "is_decoder", FAMILY_SWITCH, .offset = FAMILY_OWN(struct encoder_config, is_decoder)                           \
    }

extern const char *const encoder_positions[];

/* Members of struct family: defaults of transformers. */
#define ENCODER_DEFAULTS(name, n_tokens)                                                                               \
    .defaults = {.family = &name,                                                                                      \
                 .width = 768,                                                                                         \
                 .n_layers = 12,                                                                                       \
                 .n_heads = 12,                                                                                        \
                 .inner_width = 3072,                                                                                  \
                 .vocabulary = n_tokens,                                                                               \
                 .activation = MODEL_GELU,                                                                             \
                 .tied = true,                                                                                         \
                 .norm_epsilon = 1e-12f,                                                                               \
                 .initializer_range = 0.02f},                                                                          \
    FAMILY_OWN_DEFAULTS(struct encoder_config, .n_segments = 2, .n_rows = 512, .pad = 1, .dropout_attention = 0.1f,    \
                        .dropout_hidden = 0.1f, .dropout_classifier = NAN)

/* Those that all these families share. */
#define ENCODER_PARTS ENCODER_PARTS_OF(encoder_harmless)
#define ENCODER_PARTS_OF(own_harmless)                                                                                 \
    .harmless = own_harmless, .unsupported = encoder_unsupported, .masked = true, .tables = encoder_tables,            \
    .is_mask = encoder_is_mask, .is_other = encoder_is_other, .old_name = encoder_old_name

/* Old files name a norm's tensors gamma and beta. */
bool encoder_old_name(char *out, size_t size, const char *name);

/* What RoBERTa's family shares with those that are it under other names. */
void roberta_complete(struct model_config *config);

extern const struct family_key roberta_keys[];
extern const struct family_layer roberta_layers[], roberta_classifier_layers[];
extern const char *const roberta_other_heads[];

/* Members of struct family that all of them share. */
#define ROBERTA_PARTS(name, n_tokens)                                                                                  \
    .keys = roberta_keys, ENCODER_DEFAULTS(name, n_tokens), .end_token = 2, .padding = 1,                              \
    .complete = roberta_complete, .check = encoder_check_tied, .prefix = "roberta.", .layers = roberta_layers,         \
    .logits = "lm_head.decoder", ENCODER_PARTS

#endif

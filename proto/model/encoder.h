/* proto/model/encoder.h - the numbers of encoders that followed BERT (Devlin et al., arXiv:1810.04805). */
#ifndef PROTO_MODEL_ENCODER_H
#define PROTO_MODEL_ENCODER_H

#include "proto/model/config/model_config.h"

#include <stdbool.h>
#include <stdint.h>

/* The numbers of config.json that only these have. */
struct encoder_config {
    uint32_t n_segments; /* rows of the table of token types */
    uint32_t n_rows;     /* rows of the table of positions */
    uint32_t first_row;  /* row of position 0 in that table */
    uint32_t inner;      /* ELECTRA: columns between blocks, where config.width is the embedding's; 0: the same */
    uint32_t pad;        /* RoBERTa: the id of padding, whose row precedes that of position 0 */
    int positions;       /* "absolute" */
    bool is_decoder;
    float dropout_attention, dropout_hidden; /* in [0, 1) */
    float dropout_classifier;                /* in [0, 1); NAN in the file's absence, completed to dropout_hidden */
} MODEL_OWN;
MODEL_OWN_HOLDS(struct encoder_config);

/* Of a config of these families. */
static inline const struct encoder_config *encoder_of(const struct model_config *config)
{
    return (const void *)config->own.bytes;
}

/* Columns between blocks. */
static inline uint32_t encoder_width(const struct model_config *config)
{
    return encoder_of(config)->inner ? encoder_of(config)->inner : config->width;
}

static inline struct encoder_config *encoder_edit(struct model_config *config)
{
    return (void *)config->own.bytes;
}

#endif

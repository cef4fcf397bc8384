/* proto/model/encoder.h - the numbers of encoders that followed BERT (Devlin et al., arXiv:1810.04805). */
#ifndef PROTO_MODEL_ENCODER_H
#define PROTO_MODEL_ENCODER_H

#include <stdbool.h>
#include <stdint.h>

/* The numbers of config.json that only these have. */
struct encoder_config {
    uint32_t n_segments; /* rows of the table of token types, of which the first is used */
    uint32_t n_rows;     /* of the table of positions */
    uint32_t first_row;  /* of these: that of position 0 */
    uint32_t pad;        /* RoBERTa: the id of padding, whose row precedes that of position 0 */
    int positions;       /* "absolute" */
    bool is_decoder;
    float dropout_attention, dropout_hidden; /* in [0, 1) */
    float dropout_classifier;                /* the same; NAN until it is completed: dropout_hidden */
};

#endif

/* proto/model/t5.h - the numbers of T5 (Raffel et al., arXiv:1910.10683). */
#ifndef PROTO_MODEL_T5_H
#define PROTO_MODEL_T5_H

#include "proto/model/config/model_config.h"

#include <stdbool.h>
#include <stdint.h>

/* The numbers of config.json that only T5 has. */
struct t5_config {
    uint32_t n_encoder, n_decoder;    /* blocks of each; n_decoder 0 in the file: n_encoder */
    uint32_t head_width;              /* all heads together may be narrower or wider than the model */
    uint32_t n_buckets, max_distance; /* of relative positions; those from max_distance on share the last bucket */
    int feed_forward;                 /* enum t5_feed_forward */
    bool scales;                      /* the decoder's last values are multiplied by width^-1/2, as in version 1.0 */
    bool is_encoder_decoder;
    float dropout; /* in [0, 1) */
} MODEL_OWN;
MODEL_OWN_HOLDS(struct t5_config);

/* Of a config of this family. */
static inline const struct t5_config *t5_of(const struct model_config *config)
{
    return (const void *)config->own.bytes;
}

static inline struct t5_config *t5_edit(struct model_config *config)
{
    return (void *)config->own.bytes;
}

#endif

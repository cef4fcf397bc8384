/* proto/model/dynamic_conv.h - the numbers of encoder-decoders with dynamic convolutions (Wu et al.,
 * arXiv:1901.10430). */
#ifndef PROTO_MODEL_DYNAMIC_CONV_H
#define PROTO_MODEL_DYNAMIC_CONV_H

#include "proto/model/config/config_lists.h"
#include "proto/model/config/model_config.h"

#include <stdbool.h>
#include <stdint.h>

/* Most different kernels in a stack: each is a kind of block, with a program of its own. */
enum { DYNAMIC_CONV_KINDS = 4 };

/* The numbers of config.json that only this family has. */
struct dynamic_conv_config {
    uint32_t n_encoder, n_decoder; /* blocks of each */
    struct config_kernels encoder, decoder;
    bool gated; /* the map before a convolution is twice as wide, for a gated linear unit */
    bool is_encoder_decoder;
    float dropout, attention_dropout, activation_dropout; /* in [0, 1) */
    float weight_dropout;                                 /* of filters */
} MODEL_OWN;
MODEL_OWN_HOLDS(struct dynamic_conv_config);

/* Of a config of this family. */
static inline const struct dynamic_conv_config *dynamic_conv_of(const struct model_config *config)
{
    return (const void *)config->own.bytes;
}

#endif

/* proto/model/dynamic_conv.h - the numbers of encoder-decoders with dynamic convolutions (Wu et al.,
 * arXiv:1901.10430). */
#ifndef PROTO_MODEL_DYNAMIC_CONV_H
#define PROTO_MODEL_DYNAMIC_CONV_H

#include <stdbool.h>
#include <stdint.h>

/* Most blocks of a stack, and most different kernels in it: each is a kind of block, with a program of its own. */
enum { DYNAMIC_CONV_BLOCKS = 256, DYNAMIC_CONV_KINDS = 4 };

/* Taps of the filters in each block of a stack. */
struct dynamic_conv_kernels {
    uint32_t n;
    uint8_t taps[DYNAMIC_CONV_BLOCKS]; /* (n) */
};

/* The numbers of config.json that only this family has. */
struct dynamic_conv_config {
    uint32_t n_encoder, n_decoder; /* blocks of each */
    struct dynamic_conv_kernels encoder, decoder;
    bool gated; /* the map before a convolution is twice as wide, for a gated linear unit */
    bool is_encoder_decoder;
    float dropout, attention_dropout, activation_dropout; /* in [0, 1) */
    float weight_dropout;                                 /* of filters */
};

#endif

/* proto/operation/kind/short_conv.h - y = a short causal convolution of x over the tokens of each document, channel by
 * channel: proto/operation/call/short_conv.h. */
#ifndef PROTO_OPERATION_KIND_SHORT_CONV_H
#define PROTO_OPERATION_KIND_SHORT_CONV_H

#include "proto/operation/kind/linear.h"

#include <stdbool.h>
#include <stdint.h>

struct program_short_conv_options {
    uint32_t n_taps;  /* at most DEVICE_SHORT_TAPS */
    bool bias;        /* a vector, besides the weight */
    bool gated, silu; /* struct device_short_conv; gated: x has three times as many columns as y */
    float deviation;  /* of the weight in a fresh model */
};

/* The operation's options. Its tensors are all parts' weights, then all biases. */
struct program_short_conv_parts {
    struct program_short_conv_options of;
    int n_parts;
    uint32_t columns[PROGRAM_PARTS]; /* of y */
};

/* stem: of the tensors' names, "conv.conv" for "conv.conv.weight", which files have as (channels, 1, n_taps). No other
 * operation may read x. */
int program_short_conv(struct program *p, int x, const char *stem, const struct program_short_conv_options *conv);

/* The same where files have the weight of so many channels, one after the other, under names of their own. Not gated. */
int program_short_convs(struct program *p, int x, const struct program_part *parts, int n_parts,
                        const struct program_short_conv_options *conv);

#endif

/* proto/operation/kind/short_conv.h - y = a short causal convolution of x over the tokens of each document, channel by
 * channel: proto/operation/call/short_conv.h. */
#ifndef PROTO_OPERATION_KIND_SHORT_CONV_H
#define PROTO_OPERATION_KIND_SHORT_CONV_H

#include <stdbool.h>
#include <stdint.h>

struct program;

struct program_short_conv_options {
    uint32_t n_taps;  /* at most DEVICE_SHORT_TAPS */
    bool bias;        /* a vector, besides the weight */
    bool gated, silu; /* struct device_short_conv; gated: x has three times as many columns as y */
    float deviation;  /* of the weight in a fresh model */
};

/* stem: of the tensors' names, "conv.conv" for "conv.conv.weight", which files have as (channels, 1, n_taps). No other
 * operation may read x. */
int program_short_conv(struct program *p, int x, const char *stem, const struct program_short_conv_options *conv);

#endif

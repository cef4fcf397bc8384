/* proto/operation/kind/pixels.h - y = the row's image: a row's tokens are its pixels, row by row, and the bytes of a token's
 * id its channels. */
#ifndef PROTO_OPERATION_KIND_PIXELS_H
#define PROTO_OPERATION_KIND_PIXELS_H

#include "proto/operation/call/pixels.h"

#include <stdint.h>

struct program;

/* (byte / 255 - mean) / deviation, by channel. */
struct program_pixels_options {
    uint32_t n; /* channels, at most DEVICE_MAX_CHANNELS */
    float mean[DEVICE_MAX_CHANNELS], deviation[DEVICE_MAX_CHANNELS];
};

/* Reads no value: a layer at the bottom, in a model without tables, begins with it. Nothing needs its gradient. */
int program_pixels(struct program *p, const struct program_pixels_options *options);

#endif

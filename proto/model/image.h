/* proto/model/image.h - what a model of images sees. */
#ifndef PROTO_MODEL_IMAGE_H
#define PROTO_MODEL_IMAGE_H

#include <stdint.h>

enum {
    IMAGE_STAGES = 4,      /* of a ResNet: runs of blocks at one resolution */
    IMAGE_CHANNELS = 4,    /* of an image, at most */
    IMAGE_MOST_DEPTH = 64, /* blocks of a stage */
    IMAGE_MOST_SIDE = 4096,
    IMAGE_MOST_GHOSTS = 65536,
};

/* A number for each channel. */
struct image_channels {
    uint32_t n;
    float of[IMAGE_CHANNELS]; /* (n) */
};

/* A model's images, and how their bytes become values: (byte / 255 - mean) / deviation. */
struct model_image {
    uint32_t height, width, channels;      /* height 0: the model sees none */
    struct image_channels mean, deviation; /* n: channels */
    uint32_t ghost_batch;                  /* rows over which a batch norm's statistics are; 0: those of a part */
};

#endif

/* proto/operation/kind/pool.h - y = the largest number, or the mean, of each window of the images x. */
#ifndef PROTO_OPERATION_KIND_POOL_H
#define PROTO_OPERATION_KIND_POOL_H

#include "proto/operation/image.h"

struct program;

struct program_pool_options {
    struct image_window window; /* height 0: all of the image */
};

/* x and y: of domains of pixels; y has as many as windows fit (program_own). */
int program_max_pool(struct program *p, int x, uint32_t domain, const struct image_window *window);
int program_average_pool(struct program *p, int x, uint32_t domain, const struct image_window *window);

/* The mean of all pixels, in a domain of one pixel. */
int program_average_image(struct program *p, int x, uint32_t domain);

#endif

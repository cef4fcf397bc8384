/* client/images/image.h - one image in memory: rows of pixels from the top, channels last, a byte each. */
#ifndef CLIENT_IMAGES_IMAGE_H
#define CLIENT_IMAGES_IMAGE_H

#include "proto/base/error.h"

#include <stddef.h>
#include <stdint.h>

enum { CLIENT_IMAGE_CHANNELS = 3, CLIENT_IMAGE_MOST_SIDE = 65535 }; /* at most; the latter is JPEG's limit, too */

/* An image of more pixels is refused before memory is taken for it: 192 MiB, and twice that again while a progressive
 * JPEG is decoded. */
#define CLIENT_IMAGE_MOST_PIXELS ((uint64_t)64 << 20)

struct client_image {
    uint32_t height, width; /* at least 1 each */
    uint32_t channels;      /* 1: grey; 3: red, green, blue */
    uint8_t *pixels;        /* (height, width, channels), owned */
    size_t cap;             /* bytes of room, which serves the next image, too */
};

/* Sets the size. -EINVAL with a sentence: no pixels, or too many. */
int client_image_set(struct client_image *image, uint64_t height, uint64_t width, uint32_t channels, struct error *err);
/* Makes room for the pixels of that size; what was in it is lost. -ENOMEM. */
int client_image_make_room(struct client_image *image, struct error *err);
void client_image_free(struct client_image *image); /* safe on a zeroed struct */

static inline size_t client_image_bytes(const struct client_image *image)
{
    return (size_t)image->height * image->width * image->channels;
}

#endif

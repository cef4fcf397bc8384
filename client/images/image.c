/* Limits are checked on the 64-bit numbers of a header, each side before their product, so nothing overflows and
 * nothing is allocated for a size that a file merely claims. Room grows and is kept: a run decodes millions of images
 * into few buffers. */
#include "client/images/image.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

int client_image_set(struct client_image *image, uint64_t height, uint64_t width, uint32_t channels, struct error *err)
{
    if (height == 0 || width == 0)
        return error_set(err, -EINVAL, "an image of %" PRIu64 "x%" PRIu64 " has no pixels", height, width);
    if (height > CLIENT_IMAGE_MOST_SIDE || width > CLIENT_IMAGE_MOST_SIDE || height * width > CLIENT_IMAGE_MOST_PIXELS)
        return error_set(err, -EINVAL,
                         "an image of %" PRIu64 "x%" PRIu64 " is too large: at most %" PRIu64
                         " pixels, and %d on a side: shrink it",
                         height, width, CLIENT_IMAGE_MOST_PIXELS, CLIENT_IMAGE_MOST_SIDE);
    image->height = (uint32_t)height, image->width = (uint32_t)width, image->channels = channels;
    return 0;
}

int client_image_make_room(struct client_image *image, struct error *err)
{
    const size_t bytes = client_image_bytes(image);

    if (bytes <= image->cap)
        return 0;
    free(image->pixels);
    image->pixels = malloc(bytes);
    image->cap = image->pixels ? bytes : 0;
    return image->pixels ? 0 : error_memory(err);
}

void client_image_free(struct client_image *image)
{
    free(image->pixels);
    *image = (struct client_image){0};
}

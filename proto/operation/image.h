/* proto/operation/image.h - windows that move over an image: of a convolution, of pooling.
 *
 * An image's values are channels-last: line by line, pixel by pixel, all channels of a pixel side by side. */
#ifndef PROTO_OPERATION_IMAGE_H
#define PROTO_OPERATION_IMAGE_H

#include <assert.h>
#include <stddef.h>
#include <stdint.h>

enum { IMAGE_MOST_TAPS = 256 }; /* pixels of a window that does more than add them */

struct image_window {
    uint32_t height, width;
    uint32_t stride;  /* > 0, in both directions */
    uint32_t padding; /* pixels beyond each edge that windows cover as well */
};

/* How many windows of this size fit into n pixels and the padding. */
static inline size_t image_windows(size_t n, size_t size, const struct image_window *w)
{
    assert(w->stride > 0 && size > 0 && n + 2 * w->padding >= size);
    return (n + 2 * w->padding - size) / w->stride + 1;
}

/* How many of the n pixels lie in a window. */
static inline size_t image_covered(size_t n, size_t size, const struct image_window *w)
{
    size_t covered = 0, done = w->padding; /* pixels counted from the padding's first */

    for (size_t i = 0; i < image_windows(n, size, w); i++) {
        const size_t begin = i * w->stride > done ? i * w->stride : done;
        const size_t end = i * w->stride + size < n + w->padding ? i * w->stride + size : n + w->padding;
        covered += end > begin ? end - begin : 0;
        done = end > done ? end : done;
    }
    return covered;
}

#endif

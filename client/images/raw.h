/* client/images/raw.h - files of uncompressed images of one size, one behind the other: records.
 *
 *   CIFAR-10   a record is a label, then 32 x 32 bytes of red, of green and of blue: 3073 bytes. No header.
 *   CIFAR-100  the same with two labels, coarse and fine: 3074 bytes. Images have the fine one.
 *   IDX        u32, big-endian: 0x00000803 | images | height | width; then grey pixels. Labels are a file of their own:
 *              0x00000801 | labels; then a byte each.
 *   .npy       |u1, (images, height, width) or (images, height, width, 1 or 3), in C order; labels a file of their own
 *              of one dimension of integers.
 *
 * Sources: cs.toronto.edu/~kriz/cifar.html; Yann LeCun, "The MNIST database", file formats; client/data/npy.h. */
#ifndef CLIENT_IMAGES_RAW_H
#define CLIENT_IMAGES_RAW_H

#include "client/data/npy.h"
#include "client/images/image.h"
#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum client_raw_format { CLIENT_RAW_CIFAR10, CLIENT_RAW_CIFAR100, CLIENT_RAW_IDX, CLIENT_RAW_NPY };

struct client_raw {
    enum client_raw_format format;
    uint64_t n;                       /* images */
    uint64_t offset;                  /* of the first record, in bytes */
    uint32_t skip;                    /* bytes of a record before its pixels: labels */
    uint32_t height, width, channels; /* of each image */
    bool planes;                      /* channels come first */
};

/* Labels apart from their images. */
struct client_raw_labels {
    uint64_t n, offset;
    enum client_integer type;
};

/* Bytes of a record: at most those of the largest image, and skip. */
static inline size_t client_raw_bytes(const struct client_raw *raw)
{
    return raw->skip + (size_t)raw->height * raw->width * raw->channels;
}

/* Classes of the format: 0: its labels decide. */
uint32_t client_raw_classes(enum client_raw_format format);

/* Recognises a file of `bytes` bytes by its first n, head, which are not trusted; if nothing else, a file whose name
 * ends in .bin (is_bin) is CIFAR's, by its size. -EINVAL with a sentence: none of these formats, a header that promises
 * more or fewer bytes than there are, an image that is too large or has no pixels. */
int client_raw_parse(struct client_raw *out, const uint8_t *head, size_t n, uint64_t bytes, bool is_bin,
                     struct error *err);

/* Recognises a file of labels, IDX or .npy, as client_raw_parse does one of images. */
int client_raw_parse_labels(struct client_raw_labels *out, const uint8_t *head, size_t n, uint64_t bytes,
                            struct error *err);

/* The pixels of a record (client_raw_bytes) into an image of the same size. */
void client_raw_take(struct client_image *out, const struct client_raw *raw, const uint8_t *record);

#endif

/* A header is a stranger's: a count is believed if the file has exactly its bytes, no more and no fewer. So what is
 * allocated by a count is in proportion to the file. */
#include "client/images/raw.h"

#include "client/data/data_file.h"

#include <errno.h>
#include <inttypes.h>
#include <string.h>

enum {
    CIFAR_SIDE = 32,
    CIFAR10_BYTES = 1 + 3 * CIFAR_SIDE * CIFAR_SIDE,
    CIFAR100_BYTES = 2 + 3 * CIFAR_SIDE * CIFAR_SIDE,
    IDX_U8 = 0x08,
    IDX_HEAD = 4
};

uint32_t client_raw_classes(enum client_raw_format format)
{
    return format == CLIENT_RAW_CIFAR10 ? 10 : format == CLIENT_RAW_CIFAR100 ? 100 : 0;
}

/* Checks the size of an image and that `bytes` bytes behind the offset are those of n images. */
static int set_images(struct client_raw *out, const uint64_t sizes[3], uint64_t bytes, struct error *err)
{
    struct client_image image;
    const uint64_t there = bytes - out->offset;
    int rc = client_image_set(&image, sizes[1], sizes[2], out->channels, err);

    if (rc)
        return rc;
    out->n = sizes[0], out->height = image.height, out->width = image.width;
    const uint64_t each = client_raw_bytes(out);
    if (out->n == there / each && there % each == 0)
        return 0;
    return error_set(err, -EINVAL,
                     "its header promises %" PRIu64 " images of %ux%u, but it has the bytes of %" PRIu64 "%s: it is %s",
                     out->n, out->height, out->width, there / each, there % each ? " and a part of one" : "",
                     there / each < out->n ? "truncated" : "damaged");
}

/* ---- CIFAR ---- */

/* Sizes that are a whole number of records of both are those of 3074 records or more, which no file of CIFAR's has but
 * CIFAR-10's ones are of 10,000: it is taken for one. */
static int parse_cifar(struct client_raw *out, uint64_t bytes, struct error *err)
{
    const bool ten = bytes % CIFAR10_BYTES == 0, hundred = !ten && bytes % CIFAR100_BYTES == 0;

    if (bytes == 0)
        return error_set(err, -EINVAL, "it is empty");
    if (!ten && !hundred)
        return error_set(err, -EINVAL,
                         "%" PRIu64 " bytes are not a whole number of records of CIFAR-10 (%d bytes each) or CIFAR-100 "
                         "(%d): it is truncated, or another kind of file",
                         bytes, CIFAR10_BYTES, CIFAR100_BYTES);
    *out = (struct client_raw){.format = ten ? CLIENT_RAW_CIFAR10 : CLIENT_RAW_CIFAR100,
                               .n = bytes / (ten ? CIFAR10_BYTES : CIFAR100_BYTES),
                               .skip = ten ? 1 : 2,
                               .height = CIFAR_SIDE,
                               .width = CIFAR_SIDE,
                               .channels = 3,
                               .planes = true};
    return 0;
}

/* ---- IDX ---- */

static uint32_t get32(const uint8_t *at)
{
    return (uint32_t)at[0] << 24 | (uint32_t)at[1] << 16 | (uint32_t)at[2] << 8 | at[3];
}

static bool is_idx(const uint8_t *head, size_t n)
{
    return n >= IDX_HEAD && head[0] == 0 && head[1] == 0 && head[2] >= IDX_U8 && head[2] <= 0x0E && head[3] > 0;
}

/* Reads the sizes of n_sizes dimensions of bytes; *offset is where they end. */
static int parse_idx(uint64_t *sizes, unsigned n_sizes, uint64_t *offset, const uint8_t *head, size_t n,
                     struct error *err)
{
    if (head[2] != IDX_U8)
        return error_set(err, -EINVAL, "its IDX has elements of type 0x%02X: only bytes, 0x08, are images or labels",
                         head[2]);
    if (head[3] != n_sizes)
        return error_set(err, -EINVAL, "its IDX has %u dimension%s, and %s: %s", head[3], head[3] == 1 ? "" : "s",
                         n_sizes == 3 ? "images are three" : "labels are one",
                         n_sizes == 3 ? head[3] == 1 ? "it has labels, which are found beside their images: name those"
                                                     : "only grey images are known"
                                      : "is it a file of images?");
    *offset = IDX_HEAD + 4 * (uint64_t)n_sizes;
    if (n < *offset)
        return error_set(err, -EINVAL, "its IDX header is truncated");
    for (unsigned i = 0; i < n_sizes; i++)
        sizes[i] = get32(head + IDX_HEAD + 4 * i);
    return 0;
}

/* ---- .npy ---- */

static bool is_npy(const uint8_t *head, size_t n)
{
    return n >= 6 && memcmp(head, "\x93NUMPY", 6) == 0;
}

static int parse_npy(struct client_raw *out, const uint8_t *head, size_t n, uint64_t bytes, struct error *err)
{
    struct client_npy_array array;
    int rc = client_npy_parse_array(&array, head, n, err);

    if (rc)
        return rc;
    if (array.type != CLIENT_U8)
        return error_set(err, -EINVAL,
                         "the pixels of its array are not uint8: save it as array.astype('u1'), 0 to 255");
    if (array.n_sizes < 3 || (array.n_sizes == 4 && array.sizes[3] != 1 && array.sizes[3] != 3))
        return error_set(err, -EINVAL,
                         "the array must have the dimensions images, height, width, and maybe 1 or 3 channels: it has "
                         "%zu%s",
                         array.n_sizes, array.n_sizes == 4 ? ", and the last is neither" : "");
    if (array.fortran)
        return error_set(err, -EINVAL, "the array is in Fortran's order: save it as numpy.ascontiguousarray(array)");
    *out = (struct client_raw){.format = CLIENT_RAW_NPY,
                               .offset = array.offset,
                               .channels = array.n_sizes == 4 ? (uint32_t)array.sizes[3] : 1};
    return set_images(out, array.sizes, bytes, err);
}

/* ---- All ---- */

int client_raw_parse(struct client_raw *out, const uint8_t *head, size_t n, uint64_t bytes, bool is_bin,
                     struct error *err)
{
    uint64_t sizes[3];

    *out = (struct client_raw){.format = CLIENT_RAW_IDX, .channels = 1};
    if (is_npy(head, n))
        return parse_npy(out, head, n, bytes, err);
    if (is_bin)
        return parse_cifar(out, bytes, err);
    if (!is_idx(head, n))
        return error_set(err, -EINVAL, "it is none of CIFAR's .bin, IDX and .npy%s",
                         n >= 3 && (memcmp(head, "\x89PN", 3) == 0 || memcmp(head, "\xFF\xD8\xFF", 3) == 0)
                             ? ", but a single image: name a directory with a folder of images for each class"
                             : "");
    const int rc = parse_idx(sizes, 3, &out->offset, head, n, err);
    return rc ? rc : set_images(out, sizes, bytes, err);
}

int client_raw_parse_labels(struct client_raw_labels *out, const uint8_t *head, size_t n, uint64_t bytes,
                            struct error *err)
{
    struct client_npy_array array;
    int rc;

    *out = (struct client_raw_labels){.type = CLIENT_U8};
    if (is_npy(head, n)) {
        rc = client_npy_parse_array(&array, head, n, err);
        if (!rc && array.n_sizes != 1)
            rc = error_set(err, -EINVAL, "labels must have one dimension: save them as array.reshape(-1)");
        if (!rc)
            *out = (struct client_raw_labels){array.sizes[0], array.offset, array.type};
    } else if (is_idx(head, n)) {
        rc = parse_idx(&out->n, 1, &out->offset, head, n, err);
    } else {
        rc = error_set(err, -EINVAL, "it has no labels: it is neither IDX nor .npy");
    }
    if (rc)
        return rc;
    const uint64_t there = bytes - out->offset, each = client_data_width(out->type);
    if (there % each == 0 && there / each == out->n)
        return 0;
    return error_set(err, -EINVAL,
                     "its header promises %" PRIu64 " labels, but it has the bytes of %" PRIu64 ": it is %s", out->n,
                     there / each, there / each < out->n ? "truncated" : "damaged");
}

void client_raw_take(struct client_image *out, const struct client_raw *raw, const uint8_t *record)
{
    const size_t n = (size_t)raw->height * raw->width;

    record += raw->skip;
    if (!raw->planes) {
        memcpy(out->pixels, record, n * raw->channels);
        return;
    }
    for (size_t i = 0; i < n; i++)
        for (uint32_t c = 0; c < raw->channels; c++)
            out->pixels[i * raw->channels + c] = record[c * n + i];
}

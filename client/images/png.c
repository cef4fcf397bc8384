/* libpng's errors leave by longjmp over its frames and ours, as in jpeg.c. The first sentence counts: png_error is also
 * how our own refusals leave, and then has nothing to add. A few bytes may promise an image of gigabytes, so the size
 * is checked twice before room is taken: against the limits, and against what so few bytes can hold at all. */
#include "client/images/encoded.h"

#include <errno.h>
#include <png.h>
#include <stdlib.h>
#include <string.h>

/* Deflate's best: 258 bytes from two bits. */
enum { MOST_TIMES = 1032 };

/* All that survives a longjmp is here. */
struct reading {
    struct error *err;
    struct client_image *out;
    const uint8_t *bytes;
    size_t n, at;
    uint8_t **rows; /* (height), owned */
    int rc;
};

static void png_on_error(png_structp png, png_const_charp why)
{
    struct reading *r = png_get_error_ptr(png);

    if (!r->rc)
        r->rc = error_set(r->err, -EINVAL, "its PNG cannot be decoded: %s", why);
    png_longjmp(png, 1);
}

static void on_warning(png_structp png, png_const_charp why)
{
    (void)png, (void)why;
}

static void png_read_bytes(png_structp png, png_bytep out, size_t n)
{
    struct reading *r = png_get_io_ptr(png);

    if (n > r->n - r->at) {
        r->rc = error_set(r->err, -EINVAL, "its PNG ends too early: it is truncated");
        png_error(png, "truncated");
    }
    memcpy(out, r->bytes + r->at, n);
    r->at += n;
}

static void png_fail(png_structp png, struct reading *r, int rc)
{
    r->rc = rc;
    png_error(png, "refused");
}

/* The bytes of the rows before they are compressed, of which the file cannot hold more than so many. */
static void png_check_size(png_structp png, png_infop info, struct reading *r)
{
    const uint64_t raw = (uint64_t)png_get_rowbytes(png, info) * png_get_image_height(png, info);
    const int rc = client_image_set(r->out, png_get_image_height(png, info), png_get_image_width(png, info), 1, r->err);

    if (rc)
        png_fail(png, r, rc);
    if (raw / MOST_TIMES > r->n)
        png_fail(png, r,
                 error_set(r->err, -EINVAL,
                           "its PNG promises %ux%u pixels, more than its %zu bytes can hold: it is damaged",
                           r->out->height, r->out->width, r->n));
}

static void read_image(png_structp png, png_infop info, struct reading *r)
{
    png_read_info(png, info);
    png_check_size(png, info, r);
    const int type = png_get_color_type(png, info);

    png_set_strip_16(png);
    if (type == PNG_COLOR_TYPE_PALETTE)
        png_set_palette_to_rgb(png);
    if (type == PNG_COLOR_TYPE_GRAY && png_get_bit_depth(png, info) < 8)
        png_set_expand_gray_1_2_4_to_8(png);
    png_set_strip_alpha(png); /* a palette's, too */
    png_set_interlace_handling(png);
    png_read_update_info(png, info);
    r->out->channels = type & PNG_COLOR_MASK_COLOR ? 3 : 1;
    if (png_get_rowbytes(png, info) != (size_t)r->out->width * r->out->channels)
        png_fail(png, r, error_set(r->err, -EINVAL, "its PNG has rows of another length than its header says"));
    int rc = client_image_make_room(r->out, r->err);
    r->rows = rc ? NULL : calloc(r->out->height, sizeof *r->rows);
    if (!r->rows)
        png_fail(png, r, error_memory(r->err));
    for (uint32_t y = 0; y < r->out->height; y++)
        r->rows[y] = r->out->pixels + (size_t)y * r->out->width * r->out->channels;
    png_read_image(png, r->rows);
    png_read_end(png, NULL);
}

int client_png_decode(struct client_image *out, const uint8_t *bytes, size_t n, struct error *err)
{
    struct reading r = {.err = err, .out = out, .bytes = bytes, .n = n};
    png_structp png = png_create_read_struct(PNG_LIBPNG_VER_STRING, &r, png_on_error, on_warning);
    png_infop info = png ? png_create_info_struct(png) : NULL;

    if (!info) {
        png_destroy_read_struct(&png, NULL, NULL);
        return error_memory(err);
    }
    png_set_read_fn(png, &r, png_read_bytes);
    png_set_user_limits(png, 1 << 26, 1 << 26); /* client_image_set has the sentence */
    png_set_chunk_malloc_max(png, 8 << 20);     /* texts and profiles: a compressed one may be a bomb */
    png_set_keep_unknown_chunks(png, PNG_HANDLE_CHUNK_NEVER, NULL, 0);
    if (!setjmp(png_jmpbuf(png)))
        read_image(png, info, &r);
    png_destroy_read_struct(&png, &info, NULL);
    free(r.rows);
    return r.rc;
}

/* libjpeg's errors leave by longjmp over its frames and ours: what is to be freed is in one struct, and no local of a
 * function in between owns anything. The header's size is checked before room is taken, and room is there before the
 * decoder starts. The library only warns of an image that ends early or is damaged, and makes up what it lacks; here
 * that is an error. */
#include "client/images/encoded.h"

#include <errno.h>
#include <setjmp.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include <jpeglib.h> /* first: it says which messages there are */

#include <jerror.h>

/* A progressive image of many scans, each a few bytes, keeps a decoder busy for hours. Encoders write ten or so. */
enum { MOST_SCANS = 100, CMYK = 4 };

/* All that survives a longjmp is here. */
struct reading {
    struct jpeg_decompress_struct jpeg; /* first: its callbacks find the rest */
    struct jpeg_error_mgr errors;
    struct jpeg_progress_mgr progress;
    jmp_buf out_of_it;
    struct error *err;
    struct client_image *out;
    uint8_t *line; /* (width, 4) of CMYK, owned */
    int rc;
};

static struct reading *jpeg_of(j_common_ptr jpeg)
{
    return (struct reading *)(void *)jpeg;
}

_Noreturn static void jpeg_fail(struct reading *r, int rc)
{
    r->rc = rc;
    longjmp(r->out_of_it, 1);
}

_Noreturn static void jpeg_on_error(j_common_ptr jpeg)
{
    char why[JMSG_LENGTH_MAX];

    jpeg->err->format_message(jpeg, why);
    jpeg_fail(jpeg_of(jpeg), jpeg->err->msg_code == JERR_OUT_OF_MEMORY
                                 ? error_memory(jpeg_of(jpeg)->err)
                                 : error_set(jpeg_of(jpeg)->err, -EINVAL, "its JPEG cannot be decoded: %s", why));
}

/* Warnings (level -1) are of bytes that are too many, or of a header's oddities, but for these: the library makes up the
 * rows or the blocks that cannot be read. */
static void jpeg_on_message(j_common_ptr jpeg, int level)
{
    struct reading *r = jpeg_of(jpeg);
    const int code = jpeg->err->msg_code;
    char why[JMSG_LENGTH_MAX];

    if (level < 0 && (code == JWRN_JPEG_EOF || code == JWRN_HIT_MARKER))
        jpeg_fail(r, error_set(r->err, -EINVAL, "its JPEG ends too early: it is truncated"));
    if (level < 0 && (code == JWRN_HUFF_BAD_CODE || code == JWRN_ARITH_BAD_CODE || code == JWRN_MUST_RESYNC)) {
        jpeg->err->format_message(jpeg, why);
        jpeg_fail(r, error_set(r->err, -EINVAL, "its JPEG is damaged (%s): replace or remove it", why));
    }
}

static void on_progress(j_common_ptr jpeg)
{
    struct reading *r = jpeg_of(jpeg);

    if (r->jpeg.input_scan_number > MOST_SCANS)
        jpeg_fail(r, error_set(r->err, -EINVAL, "its JPEG has more than %d scans: convert it", MOST_SCANS));
}

/* Adobe stores what is left of the paper: 255 is no ink. Rounded as Pillow does: ink x paper / 255, halves up. */
static void take_cmyk(uint8_t *out, const uint8_t *line, uint32_t width)
{
    for (uint32_t x = 0; x < width; x++) {
        const unsigned paper = line[CMYK * x + 3];
        for (unsigned c = 0; c < 3; c++) {
            const unsigned product = (255u - line[CMYK * x + c]) * paper + 128;
            out[3 * x + c] = (uint8_t)(paper - ((product >> 8) + product) / 256);
        }
    }
}

static void jpeg_read_image(struct reading *r, const uint8_t *bytes, size_t n)
{
    struct jpeg_decompress_struct *jpeg = &r->jpeg;

    jpeg_create_decompress(jpeg);
    jpeg->progress = &r->progress;
    jpeg_mem_src(jpeg, bytes, n);
    jpeg_read_header(jpeg, TRUE);
    const bool grey = jpeg->jpeg_color_space == JCS_GRAYSCALE, cmyk = jpeg->num_components == CMYK;
    int rc = client_image_set(r->out, jpeg->image_height, jpeg->image_width, grey ? 1 : 3, r->err);
    if (!rc)
        rc = client_image_make_room(r->out, r->err);
    if (rc)
        jpeg_fail(r, rc);
    jpeg->out_color_space = grey ? JCS_GRAYSCALE : cmyk ? JCS_CMYK : JCS_RGB;
    r->line = cmyk ? malloc((size_t)CMYK * r->out->width) : NULL;
    if (cmyk && !r->line)
        jpeg_fail(r, error_memory(r->err));
    jpeg_start_decompress(jpeg);
    while (jpeg->output_scanline < jpeg->output_height) {
        uint8_t *to = r->out->pixels + (size_t)jpeg->output_scanline * r->out->width * r->out->channels;
        JSAMPROW row = cmyk ? r->line : to;
        jpeg_read_scanlines(jpeg, &row, 1);
        if (cmyk)
            take_cmyk(to, r->line, r->out->width);
    }
    jpeg_finish_decompress(jpeg);
}

int client_jpeg_decode(struct client_image *out, const uint8_t *bytes, size_t n, struct error *err)
{
    struct reading r = {.err = err, .out = out};

    r.jpeg.err = jpeg_std_error(&r.errors);
    r.errors.error_exit = jpeg_on_error;
    r.errors.emit_message = jpeg_on_message;
    r.progress.progress_monitor = on_progress;
    if (!setjmp(r.out_of_it))
        jpeg_read_image(&r, bytes, n);
    jpeg_destroy_decompress(&r.jpeg);
    free(r.line);
    return r.rc;
}

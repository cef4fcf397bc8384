/* What is not PNG or JPEG is named if it is known, so that the sentence says what to convert. Only the first bytes are
 * compared; the decoders check all else. */
#include "client/images/encoded.h"

#include <errno.h>
#include <string.h>

int client_encoded_decode(struct client_image *out, const uint8_t *bytes, size_t n, struct error *err)
{
    static const struct {
        const char *magic, *name;
    } others[] = {{"GIF8", "a GIF image"},
                  {"BM", "a BMP image"},
                  {"II*", "a TIFF image"},
                  {"MM", "a TIFF image"},
                  {"RIFF", "a WebP image"},
                  {"<svg", "an SVG drawing"},
                  {"%PDF", "a PDF"},
                  {"PK", "a zip archive"},
                  {"\x1F\x8B", "compressed by gzip"},
                  {"version ", "a pointer of Git LFS"}};

    if (n >= 8 && memcmp(bytes, "\x89PNG\r\n\x1A\n", 8) == 0)
        return client_png_decode(out, bytes, n, err);
    if (n >= 3 && memcmp(bytes, "\xFF\xD8\xFF", 3) == 0)
        return client_jpeg_decode(out, bytes, n, err);
    for (size_t i = 0; i < sizeof others / sizeof *others; i++)
        if (n >= strlen(others[i].magic) && memcmp(bytes, others[i].magic, strlen(others[i].magic)) == 0)
            return error_set(err, -EINVAL, "it is %s, neither PNG nor JPEG: convert it", others[i].name);
    return error_set(err, -EINVAL, "%s", n == 0 ? "it is empty" : "it is neither PNG nor JPEG");
}

/* client/images/encoded.h - images from PNG and JPEG, as Pillow's convert("RGB") gives them, or convert("L") of a grey
 * one.
 *
 *   PNG    grey or colour of 1 to 8 bits; of 16 bits the upper 8. A palette's colours. Alpha is dropped, not blended.
 *          Interlaced, too. Gamma and colour profiles are not applied.
 *   JPEG   grey, colour, and CMYK as Adobe stores it; baseline and progressive. Orientation in EXIF is not applied.
 *          What ends before its last row is refused; bytes that are too many are passed over.
 *
 * The first bytes decide which it is, not the name. Bytes are not trusted: dimensions are checked before memory is
 * taken for them (client/images/image.h), those of a PNG also against what its bytes can hold. */
#ifndef CLIENT_IMAGES_ENCODED_H
#define CLIENT_IMAGES_ENCODED_H

#include "client/images/image.h"

/* Decodes bytes (n), a whole file, into *out, whose room grows as needed. -EINVAL with a sentence, -ENOMEM; the pixels
 * are then of no use. */
int client_encoded_decode(struct client_image *out, const uint8_t *bytes, size_t n, struct error *err);

/* The decoders behind it. */
int client_png_decode(struct client_image *out, const uint8_t *bytes, size_t n, struct error *err);
int client_jpeg_decode(struct client_image *out, const uint8_t *bytes, size_t n, struct error *err);

#endif

/* client/images/view.h - how a row of height x width pixels sees an image of any size.
 *
 * A view takes a window of the image, scales it, and takes the row from it: mirrored, and where the row reaches beyond
 * what is scaled, with zeros or with reflected pixels there.
 *
 *   evaluation     the whole image, scaled so that it just covers the row; or, with shorter=N, so that its shorter side
 *                  is N; the longer side is then rounded down. The row is in its middle: offsets are half the
 *                  difference, rounded down.
 *   crop=N         the same, but the row is anywhere in it with N more pixels on each side (He et al.,
 *                  arXiv:1512.03385)
 *   resized-crop   a window of a share of the image, uniform from A to 1, whose width / height has a logarithm that is
 *                  uniform from 3/4 to 4/3, scaled to the row; after ten windows that do not fit, the largest in the
 *                  middle that has no more than these proportions (Szegedy et al., arXiv:1409.4842; torchvision's
 *                  RandomResizedCrop)
 *   flip           mirrored, half of the time
 *
 * What is drawn depends on the key and the draw alone: words 0 and 1 of quad 0 are the row's offsets, word 2 the flip;
 * quad 1 + i has the share, proportions and offsets of the i-th window. A window is found in double, by the C library's
 * exp and log; all else is whole numbers.
 *
 * Scaling from `in` to `out` pixels along one axis is a triangle of reach r = max(in / out, 1) around the middle of
 * each pixel of the output, that is c = (x + 1/2) in / out: with w_i = max(0, 1 - |i + 1/2 - c| / r) the weight of
 * pixel i is k_i = floor(2^22 w_i / sum(w) + 1/2), and the result floor((sum(k_i p_i) + 2^21) / 2^22), at most 255.
 * First along rows, then along columns, with bytes between. It is Pillow's BILINEAR of one axis after the other, in
 * integers alone, so that it has the same bits everywhere. */
#ifndef CLIENT_IMAGES_VIEW_H
#define CLIENT_IMAGES_VIEW_H

#include "client/images/image.h"
#include "proto/base/error.h"
#include "proto/base/random.h"
#include "proto/model/model.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum { CLIENT_FRAME_MOST_SIDE = 4096 };

/* The row: a token for each pixel. */
struct client_frame {
    uint32_t height, width; /* 0: as all images are */
    uint32_t shorter;       /* 0: as little as covers the row */
};

struct client_augment {
    uint32_t crop; /* 0: none, or resized */
    bool crops, flips, reflects;
    double resized; /* the least share; 0: no resized crop */
};

struct client_view {
    uint32_t y, x, height, width;         /* the window, in pixels of the image */
    uint32_t scaled_height, scaled_width; /* what it is scaled to */
    int64_t top, left;                    /* of the row in it: may be below 0, or reach beyond it */
    bool reflects, flips;
};

/* "32x32", "224x224,shorter=256". NULL: *out is empty. -EDOM with a sentence that names --image. */
int client_frame_parse(struct client_frame *out, const char *text, struct error *err);

/* Refuses a frame with a size that a model does not see: -EDOM. */
int client_frame_check(const struct client_frame *frame, const struct model_image *sees, struct error *err);

/* "crop=4,flip,reflect", "resized-crop=0.08,flip". NULL: nothing is drawn. -EDOM with a sentence that names
 * --augment. */
int client_augment_parse(struct client_augment *out, const char *text, struct error *err);

/* Refuses what does not fit the row: -EDOM with a sentence. */
int client_augment_check(const struct client_augment *augment, const struct client_frame *frame, struct error *err);

/* The view of an evaluation. */
struct client_view client_view_centre(const struct client_frame *frame, uint32_t height, uint32_t width);

/* The view of a row to train on, by its number in the run. */
struct client_view client_view_draw(const struct client_augment *augment, const struct client_frame *frame,
                                    uint32_t height, uint32_t width, struct random_key key, uint64_t draw);

/* Memory of one thread. Zeroed at first. */
struct client_view_room {
    struct client_tap *taps; /* (cap_taps) */
    uint32_t *weights;       /* (cap_weights) */
    uint8_t *bytes;          /* (cap_bytes) */
    size_t cap_taps, cap_weights, cap_bytes;
};
void client_view_free_room(struct client_view_room *room);

/* Writes the row (frame->height * frame->width): red, green << 8, blue << 16; or of channels 1 the grey value. A grey
 * image among colours has the value thrice; channels 1 takes grey images alone. -ENOMEM. */
int client_view_write(uint32_t *row, const struct client_view *view, const struct client_frame *frame,
                      const struct client_image *image, uint32_t channels, struct client_view_room *room,
                      struct error *err);

#endif

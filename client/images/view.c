/* Views are found from an image's size, without its pixels, so that they can be tested against other programs' numbers.
 * Each word of a draw has one use, whether or not another option uses its own: so flip changes no crop. A window is
 * rounded as Python does, halves to even, since torchvision's is. A frame's sides are at most 4096 and an image's
 * 65535, so a scaled side has 32 bits at most, and products are taken in 64. */
#include "client/images/view.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { QUAD_ROW, QUAD_WINDOWS, N_WINDOWS = 10 };

/* ---- Options ---- */

/* A whole number in text (n bytes) from 1 to most; 0: it is none. */
static uint32_t view_whole(const char *text, size_t n, uint32_t most)
{
    uint64_t value = 0;

    for (size_t i = 0; i < n; i++) {
        if (text[i] < '0' || text[i] > '9' || value > most)
            return 0;
        value = 10 * value + (uint64_t)(text[i] - '0');
    }
    return n > 0 && value <= most ? (uint32_t)value : 0;
}

int client_frame_parse(struct client_frame *out, const char *text, struct error *err)
{
    static const char shorter[] = ",shorter=";

    *out = (struct client_frame){.height = 0};
    if (!text)
        return 0;
    const char *end = text + strcspn(text, ","), *by = memchr(text, 'x', (size_t)(end - text));
    out->height = by ? view_whole(text, (size_t)(by - text), CLIENT_FRAME_MOST_SIDE) : 0;
    out->width = by ? view_whole(by + 1, (size_t)(end - by - 1), CLIENT_FRAME_MOST_SIDE) : 0;
    const bool named = strncmp(end, shorter, strlen(shorter)) == 0;
    if (named)
        out->shorter = view_whole(end + strlen(shorter), strlen(end + strlen(shorter)), 2 * CLIENT_FRAME_MOST_SIDE);
    if (out->height == 0 || out->width == 0 || (*end && out->shorter == 0))
        return error_set(err, -EDOM,
                         "--image %s: expected HEIGHTxWIDTH, each from 1 to %d, as in 224x224 or 224x224,shorter=256",
                         text, CLIENT_FRAME_MOST_SIDE);
    if (named && (out->shorter < out->height || out->shorter < out->width))
        return error_set(err, -EDOM, "--image %s: the shorter side of an image must cover the row: give shorter=%u",
                         text, out->height > out->width ? out->height : out->width);
    return 0;
}

int client_frame_check(const struct client_frame *frame, const struct model_image *sees, struct error *err)
{
    if (frame->height == 0 || (frame->height == sees->height && frame->width == sees->width))
        return 0;
    return error_set(err, -EDOM, "--image %ux%u: the model sees images of %ux%u", frame->height, frame->width,
                     sees->height, sees->width);
}

/* One word (n bytes) of --augment; false: unknown, wrong or there already. */
static bool take_word(struct client_augment *a, const char *word, size_t n)
{
    static const char crop[] = "crop=", resized[] = "resized-crop";
    const size_t n_resized = strlen(resized);
    char *end = NULL;

    if (n == strlen("flip") && memcmp(word, "flip", n) == 0 && !a->flips)
        return a->flips = true;
    if (n == strlen("reflect") && memcmp(word, "reflect", n) == 0 && !a->reflects)
        return a->reflects = true;
    if (n > strlen(crop) && memcmp(word, crop, strlen(crop)) == 0 && !a->crops) {
        a->crop = view_whole(word + strlen(crop), n - strlen(crop), CLIENT_FRAME_MOST_SIDE);
        a->crops = true;
        return a->crop > 0 || (n == strlen(crop) + 1 && word[strlen(crop)] == '0');
    }
    if (n < n_resized || memcmp(word, resized, n_resized) != 0 || a->resized > 0)
        return false;
    if (n == n_resized)
        return (a->resized = 0.08) > 0;
    a->resized = word[n_resized] == '=' ? strtod(word + n_resized + 1, &end) : 0;
    return end == word + n && a->resized > 0 && a->resized <= 1;
}

int client_augment_parse(struct client_augment *out, const char *text, struct error *err)
{
    *out = (struct client_augment){.crop = 0};
    for (const char *at = text; at;) {
        const size_t n = strcspn(at, ",");
        if (!take_word(out, at, n))
            return error_set(err, -EDOM,
                             "--augment %s: expected crop=N or resized-crop=X (X above 0, at most 1), flip, and with "
                             "crop=N reflect, each once, as in crop=4,flip",
                             text);
        at = at[n] ? at + n + 1 : NULL;
    }
    if (out->crops && out->resized > 0)
        return error_set(err, -EDOM, "--augment %s: crop and resized-crop exclude each other", text);
    if (out->reflects && !out->crops)
        return error_set(err, -EDOM, "--augment %s: reflect is how crop=N fills its border: add crop=N", text);
    return 0;
}

int client_augment_check(const struct client_augment *a, const struct client_frame *frame, struct error *err)
{
    const uint32_t least = frame->height < frame->width ? frame->height : frame->width;

    if (a->crop < least)
        return 0;
    return error_set(err, -EDOM, "--augment crop=%u: a border must be narrower than the row, of %ux%u pixels", a->crop,
                     frame->height, frame->width);
}

/* ---- Views ---- */

/* The whole image, as an evaluation scales it. */
static struct client_view scaled(const struct client_frame *f, uint32_t height, uint32_t width)
{
    struct client_view v = {.height = height, .width = width, .scaled_height = f->height, .scaled_width = f->width};
    const bool by_width = f->shorter > 0 ? width <= height : (uint64_t)f->width * height >= (uint64_t)f->height * width;

    if (f->shorter > 0)
        v.scaled_height = v.scaled_width = f->shorter;
    if (by_width)
        v.scaled_height = (uint32_t)((uint64_t)height * v.scaled_width / width);
    else
        v.scaled_width = (uint32_t)((uint64_t)width * v.scaled_height / height);
    return v;
}

struct client_view client_view_centre(const struct client_frame *frame, uint32_t height, uint32_t width)
{
    struct client_view v = scaled(frame, height, width);

    v.top = (v.scaled_height - frame->height) / 2;
    v.left = (v.scaled_width - frame->width) / 2;
    return v;
}

/* Uniform in 0 .. n-1. */
static uint32_t view_below(uint32_t word, uint64_t n)
{
    return (uint32_t)(word * n >> 32);
}

/* Window i of the ten; false: it does not fit. */
static bool draw_window(struct client_view *v, double least, uint32_t height, uint32_t width, const uint32_t word[4])
{
    const double area = (double)height * width * (least + (1 - least) * ((double)word[0] * 0x1p-32));
    const double proportions = exp(log(0.75) + (log(4.0 / 3) - log(0.75)) * ((double)word[1] * 0x1p-32));
    const double w = nearbyint(sqrt(area * proportions)), h = nearbyint(sqrt(area / proportions));

    if (!(w >= 1 && w <= width && h >= 1 && h <= height))
        return false;
    v->height = (uint32_t)h, v->width = (uint32_t)w;
    v->y = view_below(word[2], (uint64_t)height - v->height + 1);
    v->x = view_below(word[3], (uint64_t)width - v->width + 1);
    return true;
}

static struct client_view resized_crop(double least, const struct client_frame *f, uint32_t height, uint32_t width,
                                       struct random_key key, uint64_t draw)
{
    struct client_view v = {.height = height, .width = width, .scaled_height = f->height, .scaled_width = f->width};
    uint32_t word[4];
    bool fits = false;

    for (unsigned i = 0; !fits && i < N_WINDOWS; i++) {
        random_quad(word, key, draw, QUAD_WINDOWS + i);
        fits = draw_window(&v, least, height, width, word);
    }
    if (fits)
        return v;
    if (4 * (uint64_t)width < 3 * (uint64_t)height)
        v.height = (uint32_t)(((uint64_t)width * 8 + 3) / 6); /* width / (3/4), rounded */
    else if (3 * (uint64_t)width > 4 * (uint64_t)height)
        v.width = (uint32_t)(((uint64_t)height * 8 + 3) / 6);
    v.y = (height - v.height) / 2, v.x = (width - v.width) / 2;
    return v;
}

struct client_view client_view_draw(const struct client_augment *a, const struct client_frame *frame, uint32_t height,
                                    uint32_t width, struct random_key key, uint64_t draw)
{
    struct client_view v = client_view_centre(frame, height, width);
    uint32_t word[4];

    random_quad(word, key, draw, QUAD_ROW);
    if (a->resized > 0)
        v = resized_crop(a->resized, frame, height, width, key, draw);
    if (a->crops) {
        v.top = (int64_t)view_below(word[0], (uint64_t)v.scaled_height - frame->height + 2 * (uint64_t)a->crop + 1) -
                a->crop;
        v.left =
            (int64_t)view_below(word[1], (uint64_t)v.scaled_width - frame->width + 2 * (uint64_t)a->crop + 1) - a->crop;
    }
    v.reflects = a->reflects;
    v.flips = a->flips && word[2] >> 31;
    return v;
}

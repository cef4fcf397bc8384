/* The pixels of a view: along each axis every place of the row is a weighted sum of pixels of the window. */
#include "client/images/view.h"

#include <stdlib.h>

enum { BITS = 22 }; /* of a weight: a sum of 255 times the weights has 30 */

/* One place of the row: pixels first .. first+n-1 of the window, with n weights from `at` on; n 0: it is border. */
struct client_tap {
    uint32_t first, n;
    size_t at;
};

struct axis {
    uint32_t n, in, out; /* places of the row; pixels of the window, before and after it is scaled */
    int64_t begin;       /* place 0 in what is scaled */
    bool reflects, flips;
    struct client_tap *taps; /* (n) */
};

static int scale_grow(void *block, size_t *cap, size_t n, size_t element_bytes, struct error *err)
{
    void **at = block;

    if (n <= *cap)
        return 0;
    void *larger = realloc(*at, n * element_bytes);
    if (!larger)
        return error_memory(err);
    *at = larger, *cap = n;
    return 0;
}

/* The place i of the row in what is scaled; -1: it is border. A border is narrower than the row, so it is reflected
 * once. */
static int64_t scale_place_of(const struct axis *a, uint32_t i)
{
    int64_t place = a->begin + (a->flips ? a->n - 1 - i : i);

    if (place >= 0 && place < a->out)
        return place;
    place = place < 0 ? -place : 2 * ((int64_t)a->out - 1) - place;
    return a->reflects ? place : -1;
}

/* Pixels of the window within reach of a place, and their weights w_i. Everything is in units of 1 / (2 out) pixel:
 * pixel i is at (2 i + 1) out, the place at (2 x + 1) in, the reach is 2 max(in, out). */
static int add_tap(struct client_tap *tap, const struct axis *a, int64_t place, struct client_view_room *room,
                   size_t *n_weights, struct error *err)
{
    const int64_t reach = 2 * (int64_t)(a->in > a->out ? a->in : a->out), centre = (2 * place + 1) * a->in;
    int64_t first = (centre - reach) / (2 * (int64_t)a->out) - 1, sum = 0;

    first = first < 0 ? 0 : first;
    while ((2 * first + 1) * a->out <= centre - reach)
        first++;
    *tap = (struct client_tap){.first = (uint32_t)first, .at = *n_weights};
    for (int64_t i = first; i < a->in && (2 * i + 1) * a->out < centre + reach; i++) {
        const int64_t weight = reach - llabs((2 * i + 1) * a->out - centre);
        const size_t cap = *n_weights + 1 > room->cap_weights ? 2 * *n_weights + 64 : room->cap_weights;
        const int rc = scale_grow(&room->weights, &room->cap_weights, cap, sizeof *room->weights, err);
        if (rc)
            return rc;
        room->weights[(*n_weights)++] = (uint32_t)weight;
        sum += weight;
        tap->n++;
    }
    for (size_t i = tap->at; i < *n_weights; i++)
        room->weights[i] =
            (uint32_t)((((uint64_t)room->weights[i] << (BITS + 1)) + (uint64_t)sum) / (2 * (uint64_t)sum));
    return 0;
}

static int find_taps(struct axis *a, struct client_view_room *room, size_t *n_weights, struct error *err)
{
    int rc = 0;

    for (uint32_t i = 0; !rc && i < a->n; i++) {
        const int64_t place = scale_place_of(a, i);
        a->taps[i] = (struct client_tap){.n = 0};
        if (place >= 0)
            rc = add_tap(&a->taps[i], a, place, room, n_weights, err);
    }
    return rc;
}

/* One byte: pixels are `apart` bytes from each other. */
static inline uint8_t scale_weigh(const struct client_tap *tap, const uint32_t *weights, const uint8_t *pixels,
                                  size_t apart)
{
    const uint32_t *weight = weights + tap->at;
    uint32_t sum = 1u << (BITS - 1);

    for (uint32_t i = 0; i < tap->n; i++)
        sum += weight[i] * pixels[i * apart];
    sum >>= BITS;
    return (uint8_t)(sum < 255 ? sum : 255);
}

/* Rows first .. end-1 of the window along their width: bytes (end - first, n, channels). */
static void scale_rows(uint8_t *bytes, const struct axis *a, const struct client_view *view,
                       const struct client_image *image, const uint32_t *weights, uint32_t first, uint32_t end)
{
    const uint32_t c = image->channels;

    for (uint32_t y = first; y < end; y++) {
        const uint8_t *row = image->pixels + ((size_t)(view->y + y) * image->width + view->x) * c;
        for (uint32_t x = 0; x < a->n; x++)
            for (uint32_t k = 0; k < c; k++)
                *bytes++ = scale_weigh(&a->taps[x], weights, row + (size_t)a->taps[x].first * c + k, c);
    }
}

static void scale_write_row(uint32_t *row, const struct axis *down, uint32_t width, uint32_t channels, bool in_colour,
                            const struct client_view_room *room, uint32_t first)
{
    const size_t line = (size_t)width * channels;

    for (uint32_t y = 0; y < down->n; y++) {
        const struct client_tap *tap = &down->taps[y];
        const uint8_t *above = room->bytes + (tap->n > 0 ? tap->first - first : 0) * line;
        for (uint32_t x = 0; x < width; x++) {
            uint32_t value = scale_weigh(tap, room->weights, above + (size_t)x * channels, line);
            if (channels == 3)
                value |= (uint32_t)scale_weigh(tap, room->weights, above + (size_t)x * 3 + 1, line) << 8 |
                         (uint32_t)scale_weigh(tap, room->weights, above + (size_t)x * 3 + 2, line) << 16;
            else if (in_colour)
                value |= value << 8 | value << 16;
            *row++ = value;
        }
    }
}

int client_view_write(uint32_t *row, const struct client_view *view, const struct client_frame *frame,
                      const struct client_image *image, uint32_t channels, struct client_view_room *room,
                      struct error *err)
{
    size_t n_weights = 0;
    uint32_t first = UINT32_MAX, end = 0;
    int rc = scale_grow(&room->taps, &room->cap_taps, (size_t)frame->height + frame->width, sizeof *room->taps, err);

    if (rc)
        return rc;
    struct axis down = {frame->height, view->height, view->scaled_height, view->top, view->reflects, false, room->taps};
    struct axis along = {frame->width,   view->width, view->scaled_width,        view->left,
                         view->reflects, view->flips, room->taps + frame->height};
    rc = find_taps(&down, room, &n_weights, err);
    if (!rc)
        rc = find_taps(&along, room, &n_weights, err);
    for (uint32_t y = 0; !rc && y < down.n; y++) {
        const struct client_tap *tap = &down.taps[y];
        first = tap->n > 0 && tap->first < first ? tap->first : first;
        end = tap->n > 0 && tap->first + tap->n > end ? tap->first + tap->n : end;
    }
    first = first < end ? first : end;
    if (!rc)
        rc = scale_grow(&room->bytes, &room->cap_bytes, (size_t)(end - first) * frame->width * image->channels + 1, 1,
                        err);
    if (rc)
        return rc;
    scale_rows(room->bytes, &along, view, image, room->weights, first, end);
    scale_write_row(row, &down, frame->width, image->channels, channels == 3, room, first);
    return 0;
}

void client_view_free_room(struct client_view_room *room)
{
    free(room->taps);
    free(room->weights);
    free(room->bytes);
    *room = (struct client_view_room){0};
}

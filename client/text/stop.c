#include "client/text/stop.h"

#include "client/text/utf8.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int client_stop_init(struct client_stop *stop, const char *const *texts, size_t n_texts, struct error *err)
{
    *stop = (struct client_stop){.texts = texts, .n_texts = n_texts};
    for (size_t i = 0; i < n_texts; i++) {
        const size_t n = strlen(texts[i]);
        if (n == 0)
            return error_set(err, -EDOM, "--stop is empty: give a text");
        if (client_utf8_whole((const uint8_t *)texts[i], n) < n)
            return error_set(err, -EDOM, "--stop: text %zu is not UTF-8, so no text would ever hold it", i + 1);
    }
    return 0;
}

void client_stop_free(struct client_stop *stop)
{
    free(stop->held);
    free(stop->passed);
    *stop = (struct client_stop){0};
}

void client_stop_begin(struct client_stop *stop)
{
    stop->n_held = 0;
    stop->met = false;
}

/* Where the stop string begins that is complete first; n: there is none. */
static size_t find(const struct client_stop *stop, const char *text, size_t n)
{
    size_t first = n, first_end = n + 1;

    for (size_t i = 0; i < stop->n_texts; i++) {
        const size_t length = strlen(stop->texts[i]);
        const char *found = memmem(text, n, stop->texts[i], length);
        const size_t begin = found ? (size_t)(found - text) : n, end = begin + length;
        if (found && (end < first_end || (end == first_end && begin < first)))
            first = begin, first_end = end;
    }
    return first;
}

/* Length of the longest end of the text that begins a stop string. */
static size_t count_open(const struct client_stop *stop, const char *text, size_t n)
{
    size_t longest = 0;

    for (size_t i = 0; i < stop->n_texts; i++) {
        const size_t length = strlen(stop->texts[i]);
        for (size_t k = length - 1 < n ? length - 1 : n; k > longest; k--) {
            if (memcmp(text + n - k, stop->texts[i], k) == 0)
                longest = k;
        }
    }
    return longest;
}

static int reserve(char **buffer, size_t *cap, size_t n, struct error *err)
{
    char *larger = n > *cap ? realloc(*buffer, 2 * n) : *buffer;

    if (n > *cap && !larger)
        return error_set(err, -ENOMEM, "out of memory");
    *cap = n > *cap ? 2 * n : *cap;
    *buffer = larger;
    return 0;
}

int client_stop_push(struct client_stop *stop, const char **text, size_t *n, const char *bytes, size_t n_bytes,
                     bool last, struct error *err)
{
    *text = "", *n = 0;
    if (stop->met)
        return 0;
    int rc = reserve(&stop->held, &stop->cap, stop->n_held + n_bytes + 1, err);
    if (!rc)
        rc = reserve(&stop->passed, &stop->cap_passed, stop->n_held + n_bytes + 1, err);
    if (rc)
        return rc;
    if (n_bytes > 0)
        memcpy(stop->held + stop->n_held, bytes, n_bytes);
    stop->n_held += n_bytes;
    const size_t at = find(stop, stop->held, stop->n_held);
    stop->met = at < stop->n_held;
    *n = stop->met || last ? at : stop->n_held - count_open(stop, stop->held, stop->n_held);
    memcpy(stop->passed, stop->held, *n);
    memmove(stop->held, stop->held + *n, stop->n_held - *n);
    stop->n_held -= *n;
    *text = stop->passed;
    return 0;
}

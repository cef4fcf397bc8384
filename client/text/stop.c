/* What may still become a stop string is held back, however long: text that was passed on cannot be taken back. Only
 * the longest end that begins a stop string is held, which has all shorter ones in it. A stop string is searched for in
 * what is held and the new bytes, so it is found wherever tokens cut it. */
#include "client/text/stop.h"

#include <errno.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

int client_stop_check(const char *const *texts, size_t n_texts, struct error *err)
{
    for (size_t i = 0; i < n_texts; i++) {
        const size_t n = strlen(texts[i]);
        if (n == 0)
            return error_set(err, -EDOM, "--stop is empty: give a text");
        if (client_utf8_whole((const uint8_t *)texts[i], n) < n)
            return error_set(err, -EDOM, "--stop: text %zu is not UTF-8, so no text would ever hold it", i + 1);
    }
    return 0;
}

void client_stop_init(struct client_stop *stop, const char *const *texts, size_t n_texts)
{
    *stop = (struct client_stop){.texts = texts, .n_texts = n_texts};
}

void client_stop_free(struct client_stop *stop)
{
    free(stop->held.bytes);
    free(stop->passed.bytes);
    *stop = (struct client_stop){0};
}

void client_stop_begin(struct client_stop *stop)
{
    stop->held.n = 0;
    stop->met = false;
}

/* Where the stop string begins that is complete first; n: there is none. */
static size_t stop_find(const struct client_stop *stop, const char *text, size_t n)
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

int client_stop_push(struct client_stop *stop, const char **text, size_t *n, const char *bytes, size_t n_bytes,
                     bool last, struct error *err)
{
    struct client_text *held = &stop->held, *passed = &stop->passed;
    int rc = stop->met ? 0 : client_text_add(held, bytes, n_bytes, err);

    *text = "", *n = 0;
    if (rc || stop->met || held->n == 0)
        return rc;
    const size_t at = stop_find(stop, held->bytes, held->n);
    const bool met = at < held->n;
    const size_t n_passed = met || last ? at : held->n - count_open(stop, held->bytes, held->n);
    passed->n = 0;
    rc = client_text_add(passed, held->bytes, n_passed, err);
    if (rc)
        return rc;
    stop->met = met;
    held->n -= n_passed;
    memmove(held->bytes, held->bytes + n_passed, held->n);
    if (n_passed > 0)
        *text = passed->bytes, *n = n_passed;
    return 0;
}

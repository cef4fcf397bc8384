/* client/text/stream.h - assembles characters from the bytes of tokens.
 *
 * A token may end inside a character. Complete characters are returned; a partial one is held until its other bytes
 * arrive. Invalid bytes become U+FFFD: one for each maximal run that could have begun a character, as in most decoders
 * (Unicode 15, section 3.9, "U+FFFD substitution of maximal subparts"). */
#ifndef CLIENT_TEXT_STREAM_H
#define CLIENT_TEXT_STREAM_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client_stream {
    uint8_t held[4]; /* (n_held) beginning of a character */
    unsigned n_held;
    char *text; /* (cap), owned: text returned by the last call */
    size_t n, cap;
};

/* Adds n_bytes bytes. Sets *text (*n bytes of valid UTF-8, maybe none) to the characters that they complete, borrowed
 * until the next call. last: no more bytes will come, so a partial character becomes U+FFFD. -ENOMEM. Begin with a
 * zeroed struct. */
int client_stream_push(struct client_stream *stream, const char **text, size_t *n, const void *bytes, size_t n_bytes,
                       bool last, struct error *err);
void client_stream_free(struct client_stream *stream);

#endif

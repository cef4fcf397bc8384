/* client/text/stream.h - characters from the bytes of tokens, as they come.
 *
 * A token may end inside a character. What is complete is given out; the rest is held back until its other bytes come.
 * Bytes that can be part of no character become U+FFFD, one for each run that could have begun one, as most decoders
 * do (Unicode 15, section 3.9, "U+FFFD substitution of maximal subparts"). */
#ifndef CLIENT_TEXT_STREAM_H
#define CLIENT_TEXT_STREAM_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client_stream {
    uint8_t held[4]; /* (n_held) the beginning of a character */
    unsigned n_held;
    char *text; /* (cap), owned: what the last call gave out */
    size_t n, cap;
};

/* *text (*n) is what these bytes complete, valid UTF-8, maybe nothing; borrowed until the next call. last: no more will
 * come, so what would be held back becomes U+FFFD. -ENOMEM. Begin with a zeroed struct. */
int client_stream_push(struct client_stream *stream, const char **text, size_t *n, const void *bytes, size_t n_bytes,
                       bool last, struct error *err);
void client_stream_free(struct client_stream *stream);

#endif

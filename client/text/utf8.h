/* client/text/utf8.h - UTF-8 boundaries and validity, growing texts, and the characters of a stream of tokens.
 *
 * UTF-8 according to RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef CLIENT_TEXT_UTF8_H
#define CLIENT_TEXT_UTF8_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Length of the character at the start of text (n >= 1): 1..4; 0 if it is cut off by n, -1 if it is invalid. */
int client_utf8_character(const uint8_t *text, size_t n);

/* Length of the longest prefix of text (n) that is whole, valid characters. What follows is cut off or invalid:
 * client_utf8_character tells which. */
size_t client_utf8_whole(const uint8_t *text, size_t n);

/* Start of the character that ends at `at` of a valid text; at > from, which is never passed. */
size_t client_utf8_before(const char *text, size_t from, size_t at);

/* Number of characters that begin in text (n). */
size_t client_utf8_count(const char *text, size_t n);

/* ---- A growing text ---- */

struct client_text {
    char *bytes; /* (n of cap), owned: free */
    size_t n, cap;
};

/* Makes room for n more bytes. -ENOMEM. */
int client_text_reserve(struct client_text *text, size_t n, struct error *err);

/* Appends n bytes. -ENOMEM. */
int client_text_add(struct client_text *text, const char *bytes, size_t n, struct error *err);

/* ---- A stream: assembles characters from the bytes of tokens ----
 *
 * A token may end inside a character. Complete characters are returned; a partial one is held until its other bytes
 * arrive. Invalid bytes become U+FFFD: one for each maximal run that could have begun a character, as in most decoders
 * (Unicode 15, section 3.9, "U+FFFD substitution of maximal subparts"). */

struct client_stream {
    uint8_t held[4]; /* (n_held) beginning of a character */
    unsigned n_held;
    struct client_text text; /* returned by the last call */
};

/* Adds n_bytes bytes. Sets *text (*n bytes of valid UTF-8, maybe none) to the characters that they complete, borrowed
 * until the next call. last: no more bytes will come, so a partial character becomes U+FFFD. -ENOMEM. Begin with a
 * zeroed struct. */
int client_stream_push(struct client_stream *stream, const char **text, size_t *n, const void *bytes, size_t n_bytes,
                       bool last, struct error *err);
void client_stream_free(struct client_stream *stream);

#endif

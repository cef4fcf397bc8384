/* client/text/utf8.h - where characters of a text end, and whether they are any.
 *
 * UTF-8 as of RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef CLIENT_TEXT_UTF8_H
#define CLIENT_TEXT_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Bytes of the character that text (n >= 1) begins with: 1..4; 0 if n cuts it off, -1 if there is none. */
int client_utf8_character(const uint8_t *text, size_t n);

/* Bytes at the beginning of text (n) that are whole characters. Fewer than 4 less than n if only the end cuts one off,
 * which client_utf8_character then says there. */
size_t client_utf8_whole(const uint8_t *text, size_t n);

#endif

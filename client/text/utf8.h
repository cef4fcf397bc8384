/* client/text/utf8.h - UTF-8 boundaries and validity.
 *
 * UTF-8 according to RFC 3629: no overlong forms, no surrogates, nothing above U+10FFFF. */
#ifndef CLIENT_TEXT_UTF8_H
#define CLIENT_TEXT_UTF8_H

#include <stddef.h>
#include <stdint.h>

/* Length of the character at the start of text (n >= 1): 1..4; 0 if it is cut off by n, -1 if it is invalid. */
int client_utf8_character(const uint8_t *text, size_t n);

/* Length of the longest prefix of text (n) that is whole, valid characters. What follows is cut off or invalid:
 * client_utf8_character tells which. */
size_t client_utf8_whole(const uint8_t *text, size_t n);

#endif

/* proto/base/wide.h - JSON as Python reads it: with integers of any size, NaN and infinities.
 *
 * jansson refuses a text for one such number, even where nobody reads it. Here the number becomes an object with one
 * key that no JSON text can hold, as it is not UTF-8. So whoever expects a text or a number refuses it as it refuses
 * an object, and jansson itself does not print it: print it by dump_json (proto/base/dump.h). */
#ifndef PROTO_BASE_WIDE_H
#define PROTO_BASE_WIDE_H

#include <jansson.h>
#include <stddef.h>

/* Digits of an integer, as many as Python reads. */
enum { WIDE_MAX_DIGITS = 4300 };

/* As json_loadb, with wide numbers: integers beyond 64 bits keep their digits; a real beyond double's range is an
 * infinity. flags: JSON_ALLOW_NUL, JSON_REJECT_DUPLICATES and JSON_DISABLE_EOF_CHECK count. why may be NULL. */
json_t *wide_read(const char *text, size_t n, size_t flags, json_error_t *why);

/* A wide number of this spelling: digits, "NaN", "Infinity" or "-Infinity". Owned; NULL: no memory. */
json_t *wide_new(const char *spelling, size_t n);

/* Its spelling, borrowed; NULL for every other value, and for NULL. */
const char *wide_spelling(const json_t *value);

#endif

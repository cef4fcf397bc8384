/* client/data/jsonl.h - a line of JSON, as Python's json writes it.
 *
 * Python writes NaN, Infinity and whole numbers of any size, and a reader of C has no place for them. Such a number, and one
 * that is too large for a double, becomes an object that holds its spelling. So a line is refused only by whoever reads the
 * number. */
#ifndef CLIENT_DATA_JSONL_H
#define CLIENT_DATA_JSONL_H

#include <jansson.h>
#include <stddef.h>

/* The value of a line: a new reference. NULL with *why: it is not JSON. */
json_t *client_jsonl_load(const char *line, size_t n, json_error_t *why);

/* How a number that has no place is spelled, "NaN", the first one within the value; NULL: there is none. */
const char *client_jsonl_spelling(const json_t *value);

#endif

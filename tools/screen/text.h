/* tools/screen/text.h - names of files in JSON, and figures for people. */
#ifndef TOOLS_SCREEN_TEXT_H
#define TOOLS_SCREEN_TEXT_H

#include <jansson.h>
#include <stdint.h>

/* A string of these bytes, which are a file's name as often as not and so need not be UTF-8: each byte that is not part
 * of a character is U+FFFD. Owned by the caller; NULL: no memory. */
json_t *text_json(const char *text);

/* "842.5 k", "124.4 M", "50.4 B"; below 10,000 as it is. Returns out. */
const char *text_count(char out[24], uint64_t n);

/* Of two sizes in one line, which one's unit both are written in: the larger one's, where the other is at least a
 * hundredth of it. Of no larger one (0) the other's. */
uint64_t text_unit(uint64_t bytes, uint64_t larger);

/* "45 s", "1 min 20 s", "1 h 48 min", "3 d 4 h". Returns out. */
const char *text_duration(char out[32], double ms);

#endif

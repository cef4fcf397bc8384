/* tools/screen/text.h - file names for JSON, and numbers for people. */
#ifndef TOOLS_SCREEN_TEXT_H
#define TOOLS_SCREEN_TEXT_H

#include "client/eps.h"

#include <jansson.h>
#include <stdint.h>

/* A JSON string of a file name, which need not be UTF-8: each byte outside a valid character becomes U+FFFD. Owned by
 * the caller; NULL: no memory. */
json_t *text_json(const char *text);

/* Formats "842.5 k", "124.4 M", "50.4 B"; numbers below 10,000 in full. Returns out. */
const char *text_count(char out[24], uint64_t n);

/* " in nf4", of frozen weights; "" if they have the run's own type. */
const char *text_base(enum eps_base base);

/* What the plan's batch consists of: "image", "row", "sequence". */
const char *text_row(const struct eps_plan *plan);

/* "fp32", "bf16", "fp16", of resolved options. */
const char *text_number(enum eps_number number);
const char *text_moments(enum eps_moments moments);
/* " without a master"; "" with one. */
const char *text_master(enum eps_master master);

/* "812 ms", "12.3 s", "1 h 48 min" */
const char *text_ms(char out[32], double ms);

/* Formats "45 s", "1 min 20 s", "1 h 48 min", "3 d 4 h". Returns out. */
const char *text_duration(char out[32], double ms);

#endif

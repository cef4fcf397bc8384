/* proto/base/dump.h - JSON as text, with numbers as Python spells them.
 *
 * jansson writes a real number in 17 digits: 19.99 becomes 19.989999999999998, which is another text, though the same
 * number. Here a real has the fewest digits that read back, and of those the nearest, in the form of Python's repr. */
#ifndef PROTO_BASE_DUMP_H
#define PROTO_BASE_DUMP_H

#include <jansson.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

enum { DUMP_REAL_BYTES = 32 };

/* Writes Python's repr of a finite real, such as 19.99, 5.0, 1e-07, 1e+16, and a zero byte; returns its length. */
size_t dump_real(char out[DUMP_REAL_BYTES], double x);

/* As json.dumps has them. */
struct dump_form {
    const char *indent;            /* of one level; NULL: all on one line */
    const char *separator, *colon; /* between items; after a key. NULL: ", " (with an indent ",") and ": " */
    bool ascii;                    /* every character beyond ASCII is an escape */
    bool sorted;                   /* by key, byte by byte: as Python sorts characters */
};

/* Any value, also a wide number (proto/base/wide.h). *n is the text's length without its zero byte; may be NULL. Owned:
 * free. NULL: no memory. A value must not hold itself. */
char *dump_json(size_t *n, const json_t *value, const struct dump_form *form);

extern const struct dump_form dump_compact, dump_line, dump_indented; /* {"a":1}; {"a": 1}; by two blanks */

/* Writes it to a file. 0, -ENOMEM or -EIO; what the file itself says is errno. */
int dump_json_file(FILE *out, const json_t *value, const struct dump_form *form);

#endif

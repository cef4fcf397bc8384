/* client/corpus/columns.h - which fields of a line are its texts and its label. */
#ifndef CLIENT_CORPUS_COLUMNS_H
#define CLIENT_CORPUS_COLUMNS_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>

enum { CLIENT_COLUMN_FIRST, CLIENT_COLUMN_SECOND, CLIENT_COLUMN_LABEL, CLIENT_COLUMNS };
enum { CLIENT_COLUMN_NAME_BYTES = 80 };
#define CLIENT_NO_COLUMN SIZE_MAX

/* Names of columns, or numbers. */
struct client_columns {
    char names[CLIENT_COLUMNS][CLIENT_COLUMN_NAME_BYTES]; /* empty: there is none */
    size_t numbers[CLIENT_COLUMNS];                       /* from 0; CLIENT_NO_COLUMN: there is none */
    bool numbered;                                        /* by numbers: a file has no header */
    bool known;                                           /* the known names, whichever the file has */
    bool unlabelled;                                      /* with known names, there need be no label */
};

/* Parses --columns: "text,label", "first,second,label", or numbers from 1; NULL: known names. If `unlabelled`, the label
 * may be missing: "text", "first,second," or a known pair of names without that comma. -EDOM with a sentence. */
int client_columns_parse(struct client_columns *out, const char *text, bool unlabelled, struct error *err);

/* Finds the columns among the n names of a header, or keys of an object: at[i] is one's place, or CLIENT_NO_COLUMN.
 * -EINVAL with a sentence that says what is missing, and what is there. */
int client_columns_find(size_t at[CLIENT_COLUMNS], const struct client_columns *columns, const char *const *names,
                        size_t n, struct error *err);

/* Appends how --columns names the texts alone, to a sentence about a label that is missing where rows need none. */
void client_columns_say_unlabelled(struct error *err, const struct client_columns *columns);

/* True if a field of this column (n bytes) is a known name for it, so that its line is one of names. */
bool client_columns_is_name(size_t column, const char *field, size_t n);

#endif

/* A name that is wrong must be refused here, where a line of names can be told from a row: later it would be read as
 * data. So numbers count as such only if all columns are numbers ("1" may be a column's name beside others), and known
 * names are a list in order, of which the first that is there decides. A question alone is no text: only with its pair
 * does it say what is to be classified.
 *
 * Of rows that need no label, two names may be a text and its label or two texts: they are two texts if they are a known
 * pair, or if an empty label follows them. */
#include "client/corpus/columns.h"

#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Of GLUE's files, and of the JSON lines that are made of them. An earlier one is taken first: QNLI has a question and
 * a sentence, SST-2 a sentence alone. */
static const char *const texts[][2] = {{"text", "text_pair"},      {"sentence1", "sentence2"},
                                       {"question1", "question2"}, {"premise", "hypothesis"},
                                       {"question", "sentence"},   {"sentence", NULL}};
static const char *const labels[] = {"label", "gold_label", "is_duplicate", "score"};

enum { MOST_NUMBER = 10000, MOST_LISTED = 40 };

static int columns_refuse(const char *text, bool unlabelled, struct error *err)
{
    return error_set(
        err, -EDOM,
        "--columns '%.80s': give TEXT,LABEL or TEXT,TEXT,LABEL%s, as names in the file's first line, or as "
        "numbers from 1 for a file without such a line",
        text, unlabelled ? " (without labels TEXT or TEXT,TEXT,)" : "");
}

static bool columns_read_number(size_t *out, const char *name)
{
    char *end;
    const unsigned long number = strtoul(name, &end, 10);

    *out = number - 1;
    return name[strspn(name, "0123456789")] == 0 && number >= 1 && number <= MOST_NUMBER;
}

static bool columns_are_pair(const char *first, const char *second)
{
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++)
        if (texts[i][1] && strcmp(texts[i][0], first) == 0 && strcmp(texts[i][1], second) == 0)
            return true;
    return false;
}

int client_columns_parse(struct client_columns *out, const char *text, bool unlabelled, struct error *err)
{
    char parts[CLIENT_COLUMNS][CLIENT_COLUMN_NAME_BYTES];
    size_t n = 0, n_numbers = 0, number[CLIENT_COLUMNS];
    bool texts_alone = false; /* the last name is no label's */

    *out = (struct client_columns){.numbers = {CLIENT_NO_COLUMN, CLIENT_NO_COLUMN, CLIENT_NO_COLUMN},
                                   .known = !text,
                                   .unlabelled = unlabelled};
    for (const char *at = text; at; n++) {
        const size_t length = strcspn(at, ",");
        texts_alone = unlabelled && n == CLIENT_COLUMN_LABEL && !*at;
        if (texts_alone)
            break;
        if (n == CLIENT_COLUMNS || length == 0 || length >= CLIENT_COLUMN_NAME_BYTES)
            return columns_refuse(text, unlabelled, err);
        snprintf(parts[n], sizeof parts[n], "%.*s", (int)length, at);
        n_numbers += columns_read_number(&number[n], parts[n]);
        at = at[length] ? at + length + 1 : NULL;
    }
    if (text && n < (unlabelled ? 1 : 2))
        return columns_refuse(text, unlabelled, err);
    for (size_t i = 0; i < n; i++)
        for (size_t k = i + 1; k < n; k++)
            if (strcmp(parts[i], parts[k]) == 0)
                return error_set(err, -EDOM, "--columns '%.80s' has '%s' twice", text, parts[i]);
    out->numbered = n > 0 && n_numbers == n;
    texts_alone = texts_alone || (unlabelled && n == 2 && columns_are_pair(parts[0], parts[1]));
    for (size_t i = 0; i < n; i++) {
        const bool is_label = i > 0 && i + 1 == n && !texts_alone;
        const size_t what = is_label ? CLIENT_COLUMN_LABEL : i;
        memcpy(out->names[what], parts[i], sizeof parts[i]);
        if (out->numbered)
            out->numbers[what] = number[i];
    }
    return 0;
}

static size_t columns_find(const char *name, const char *const *names, size_t n)
{
    for (size_t i = 0; name && *name && i < n; i++)
        if (strcmp(names[i], name) == 0)
            return i;
    return CLIENT_NO_COLUMN;
}

/* "'sentence', 'label'" */
static void columns_list(char *out, size_t cap, const char *const *names, size_t n)
{
    size_t used = 0;

    *out = 0;
    for (size_t i = 0; i < n && used + MOST_LISTED + 12 < cap; i++)
        used += (size_t)snprintf(out + used, cap - used, "%s'%.*s'", i ? ", " : "", MOST_LISTED, names[i]);
}

bool client_columns_is_name(size_t column, const char *field, size_t n)
{
    const size_t n_names =
        column == CLIENT_COLUMN_LABEL ? sizeof labels / sizeof *labels : sizeof texts / sizeof *texts;

    for (size_t i = 0; i < n_names; i++) {
        const char *name = column == CLIENT_COLUMN_LABEL ? labels[i] : texts[i][column == CLIENT_COLUMN_SECOND];
        if (name && strlen(name) == n && memcmp(name, field, n) == 0)
            return true;
    }
    return false;
}

static void find_known(size_t at[CLIENT_COLUMNS], const char *const *names, size_t n)
{
    for (size_t i = 0; at[CLIENT_COLUMN_FIRST] == CLIENT_NO_COLUMN && i < sizeof texts / sizeof *texts; i++) {
        const size_t first = columns_find(texts[i][0], names, n), second = columns_find(texts[i][1], names, n);
        if (first == CLIENT_NO_COLUMN || (strcmp(texts[i][0], "question") == 0 && second == CLIENT_NO_COLUMN))
            continue;
        at[CLIENT_COLUMN_FIRST] = first, at[CLIENT_COLUMN_SECOND] = second;
    }
    for (size_t i = 0; at[CLIENT_COLUMN_LABEL] == CLIENT_NO_COLUMN && i < sizeof labels / sizeof *labels; i++)
        at[CLIENT_COLUMN_LABEL] = columns_find(labels[i], names, n);
}

void client_columns_say_unlabelled(struct error *err, const struct client_columns *columns)
{
    const char *second = columns->names[CLIENT_COLUMN_SECOND];

    if (*second)
        error_append(err, ": if the data has no labels, give --columns %s,%s,", columns->names[CLIENT_COLUMN_FIRST],
                     second);
    else
        error_append(err, ": leave it out of --columns if the data has no labels");
}

static int refuse_missing(const struct client_columns *columns, size_t column, const char *there, struct error *err)
{
    const char *name = columns->names[column];

    error_set(err, -EINVAL, "no column '%s', only %s", name, there);
    if (name[strspn(name, "0123456789")] == 0)
        error_append(err, ": columns are all names, or all numbers from 1 to %d", MOST_NUMBER);
    else if (column == CLIENT_COLUMN_LABEL && columns->unlabelled)
        client_columns_say_unlabelled(err, columns);
    return -EINVAL;
}

int client_columns_find(size_t at[CLIENT_COLUMNS], const struct client_columns *columns, const char *const *names,
                        size_t n, struct error *err)
{
    static const char *const what[CLIENT_COLUMNS] = {"a text", "a second text", "a label"};
    char there[260];

    columns_list(there, sizeof there, names, n);
    for (size_t i = 0; i < CLIENT_COLUMNS; i++)
        at[i] = columns_find(columns->names[i], names, n);
    if (columns->known)
        find_known(at, names, n);
    for (size_t i = 0; i < CLIENT_COLUMNS; i++) {
        const bool wanted = columns->known ? i != CLIENT_COLUMN_SECOND : *columns->names[i] != 0;
        if (!wanted || at[i] != CLIENT_NO_COLUMN || (i == CLIENT_COLUMN_LABEL && columns->known && columns->unlabelled))
            continue;
        if (columns->known)
            return error_set(err, -EINVAL,
                             "no column with a known name for %s, only %s: name the columns with --columns TEXT,LABEL "
                             "or TEXT,TEXT,LABEL, or by numbers if the file has no line of names",
                             what[i], there);
        return refuse_missing(columns, i, there, err);
    }
    return 0;
}

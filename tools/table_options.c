/* Options live in one table (client/eps_options.h), from which libeps, this program and the Python package take names,
 * kinds and help. Here a row becomes an argument that writes straight into the options' struct, at the row's offset.
 * Several words cannot be stored so: they are collected first, and stored when the whole line is parsed. */
#include "tools/table_options.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* EPS_OPTION_TEXTS and EPS_OPTION_PATTERNS are ARGUMENT_TEXTS: their words are collected, and stored after parsing. */
static const enum argument_kind kinds[] = {
    [EPS_OPTION_HEADING] = ARGUMENT_HEADING,     [EPS_OPTION_FLAG] = ARGUMENT_FLAG,
    [EPS_OPTION_TEXT] = ARGUMENT_TEXT,           [EPS_OPTION_OPTIONAL_TEXT] = ARGUMENT_MAYBE,
    [EPS_OPTION_PATTERNS] = ARGUMENT_TEXTS,      [EPS_OPTION_TEXTS] = ARGUMENT_TEXTS,
    [EPS_OPTION_COUNT] = ARGUMENT_COUNT,         [EPS_OPTION_AUTO] = ARGUMENT_AUTO,
    [EPS_OPTION_NUMBER_32] = ARGUMENT_NUMBER_32, [EPS_OPTION_LONG] = ARGUMENT_LONG,
    [EPS_OPTION_NUMBER] = ARGUMENT_NUMBER,       [EPS_OPTION_BYTES] = ARGUMENT_BYTES,
    [EPS_OPTION_REAL] = ARGUMENT_REAL,           [EPS_OPTION_PAIR] = ARGUMENT_PAIR,
    [EPS_OPTION_CHOICE] = ARGUMENT_CHOICE,
};

void table_options_take(struct table_options *out, enum eps_command command)
{
    size_t n;
    const struct eps_option *rows = eps_options(&n);

    for (size_t i = 0; i < n; i++) {
        struct eps_option *row = &out->rows[out->n];
        assert(out->n < TABLE_OPTIONS);
        if (!eps_option_of(row, &rows[i], command) || !row->train) {
            *row = (struct eps_option){.name = NULL};
            continue;
        }
        struct argument *argument = &out->arguments[out->n];
        *argument = (struct argument){.name = row->kind == EPS_OPTION_HEADING ? row->train : row->name,
                                      .value = row->value,
                                      .kind = kinds[row->kind],
                                      .target = (char *)out->options + row->offset,
                                      .help = row->train};
        if (argument->kind == ARGUMENT_TEXTS)
            argument->target = &out->words[out->n];
        out->n++;
    }
}

void table_options_add(struct table_options *options, const struct argument *arguments, size_t n)
{
    assert(options->n + n <= TABLE_OPTIONS);
    memcpy(options->arguments + options->n, arguments, n * sizeof *arguments);
    options->n += n;
}

/* Stores the words of an argument in its option. -ENOMEM. */
static int store_words(struct table_options *options, size_t argument)
{
    const struct eps_option *row = &options->rows[argument];
    const struct argument_texts *words = &options->words[argument];
    char *const at = (char *)options->options + row->offset;
    const void *text = words->items;
    int rc = 0;

    if (row->kind == EPS_OPTION_PATTERNS)
        text = options->joined[argument] = arguments_join(words, &rc);
    else
        memcpy(at + sizeof text, &words->n, sizeof words->n);
    memcpy(at, &text, sizeof text);
    return rc;
}

int table_options_parse(struct table_options *options, const struct command *command, int argc, char **argv)
{
    int rc = 0, status = arguments_parse(command, argc, argv);

    for (size_t i = 0; status < 0 && !rc && i < options->n; i++) {
        if (options->rows[i].name && options->arguments[i].kind == ARGUMENT_TEXTS)
            rc = store_words(options, i);
    }
    return rc ? arguments_fail(command, rc, "out of memory") : status;
}

void table_options_free(struct table_options *options)
{
    for (size_t i = 0; i < options->n; i++) {
        free(options->joined[i]);
        free(options->words[i].items);
    }
}

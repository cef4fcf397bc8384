/* tools/table_options.h - the arguments of a command, made from the table of options (client/eps_options.h). */
#ifndef TOOLS_TABLE_OPTIONS_H
#define TOOLS_TABLE_OPTIONS_H

#include "client/eps.h"
#include "tools/arguments.h"

#include <stddef.h>

enum { TABLE_OPTIONS = 128 }; /* most rows, and arguments that a command adds */

/* Do not move it: arguments point into it. Zeroed, but for options. Undo: table_options_free. */
struct table_options {
    void *options;                            /* the command's struct, all unset; borrowed */
    struct argument arguments[TABLE_OPTIONS]; /* (n) */
    size_t n;
    struct eps_option rows[TABLE_OPTIONS];      /* of the argument with the same index; zeroed: a command's own */
    struct argument_texts words[TABLE_OPTIONS]; /* the argument's, if it takes several */
    char *joined[TABLE_OPTIONS];                /* these, joined by commas, if the option is one text */
};

/* Adds a command's arguments that are in the table, in its order. */
void table_options_take(struct table_options *options, enum eps_command command);

/* Adds n arguments that are not in the table. */
void table_options_add(struct table_options *options, const struct argument *arguments, size_t n);

/* Parses the command line into options->options; command has options' arguments. Returns as arguments_parse. */
int table_options_parse(struct table_options *options, const struct command *command, int argc, char **argv);

void table_options_free(struct table_options *options);

#endif

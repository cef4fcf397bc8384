/* tools/train_options.h - the arguments of eps train and eps plan, made from the table of options
 * (client/eps_options.h). */
#ifndef TOOLS_TRAIN_OPTIONS_H
#define TOOLS_TRAIN_OPTIONS_H

#include "client/eps.h"
#include "tools/arguments.h"

#include <stddef.h>

enum { TRAIN_OPTIONS = 128 }; /* most rows, and arguments that a command adds */

/* Do not move it: arguments point into it. */
struct train_options {
    struct eps_train_options options;
    struct argument arguments[TRAIN_OPTIONS]; /* (n), in the order of the table */
    size_t n;
    const struct eps_option *rows[TRAIN_OPTIONS]; /* of the argument with the same index; NULL: a command's own */
    struct argument_texts words[TRAIN_OPTIONS];   /* the argument's, if it takes several */
    char *joined[TRAIN_OPTIONS];                  /* these, joined by commas, if the option is one text */
};

enum train_command { TRAIN_OPTIONS_OF_TRAIN, TRAIN_OPTIONS_OF_PLAN };

/* All options unset. Undo: train_options_free. */
void train_options_init(struct train_options *out, enum train_command command);

/* Adds n arguments that are not in the table, after those that are. */
void train_options_add(struct train_options *options, const struct argument *arguments, size_t n);

/* Parses the command line into options->options; command has options' arguments. Returns as arguments_parse. */
int train_options_parse(struct train_options *options, const struct command *command, int argc, char **argv);

void train_options_free(struct train_options *options);

#endif

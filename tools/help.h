/* tools/help.h - what --help prints, made from a command's arguments.
 *
 * --help is short where a command has arguments of ARGUMENT_USUAL: examples, and the options that most runs need. Then
 * `--help all` prints all options; of other commands both print the same. `--help mdoc` prints all options as the list
 * of a manual page (mdoc(7)), of which tools/man/page.sh makes eps-COMMAND.1. */
#ifndef TOOLS_HELP_H
#define TOOLS_HELP_H

#include "tools/arguments.h"

/* word: what follows --help on the command line; NULL: nothing. Other words than those above count as nothing. */
void help_print(const struct command *command, const char *word);

#endif

/* tools/hint.h - what was meant by a word that a command does not know. */
#ifndef TOOLS_HINT_H
#define TOOLS_HINT_H

#include "tools/arguments.h"

#include <stddef.h>

/* The sentence for an option that `command` does not have, up to '=' if there is one: what other programs call so is
 * named as it is called here, and a misspelt one is corrected. */
void hint_option(char *out, size_t cap, const struct command *command, const char *option);

#endif

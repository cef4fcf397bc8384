/* tools/hint.h - suggests the option that an unknown one meant. */
#ifndef TOOLS_HINT_H
#define TOOLS_HINT_H

#include "tools/arguments.h"

#include <stddef.h>

/* The sentence for an option that `command` does not have; the option ends at '=' if there is one. Suggests our name
 * for an option of other programs, or the correct spelling. */
void hint_option(char *out, size_t cap, const struct command *command, const char *option);

#endif

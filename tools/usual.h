/* tools/usual.h - options of the process itself, which several commands have: --threads, --quiet. */
#ifndef TOOLS_USUAL_H
#define TOOLS_USUAL_H

#include "tools/arguments.h"
#include "tools/table_options.h"

#include <stdbool.h>
#include <stdint.h>

struct usual {
    uint32_t threads; /* 0: unset */
    bool quiet;
};

/* Adds --threads, and --quiet with this help (NULL: the command does not have it). */
void usual_add(struct table_options *options, struct usual *usual, const char *quiet);

/* After parsing, before any thread is started. remote: a daemon's address, whose processes compute; NULL: this command
 * starts its own. Returns -1 to continue, as arguments_parse. */
int usual_apply(const struct usual *usual, const struct command *command, const char *remote);

#endif

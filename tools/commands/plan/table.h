/* tools/commands/plan/table.h - eps plan without --model: this machine, and which published models fit. */
#ifndef TOOLS_COMMANDS_PLAN_TABLE_H
#define TOOLS_COMMANDS_PLAN_TABLE_H

#include "client/eps.h"
#include "tools/arguments.h"

#include <stdbool.h>

/* Prints the table, each row as soon as it is known, or with json one object. argv (argc, the command's name first):
 * options in it are those of each row's command. Returns the exit status. */
int plan_table(const struct command *command, const struct eps_train_options *options, bool json, int argc,
               char **argv);

#endif

/* tools/commands/plan/frontier.h - eps plan --approximate any: what each way of being inexact takes and gives. */
#ifndef TOOLS_COMMANDS_PLAN_FRONTIER_H
#define TOOLS_COMMANDS_PLAN_FRONTIER_H

#include "client/eps.h"
#include "tools/arguments.h"

/* Prints a line, or with json an object, for each form of eps_plan_forms that fits, and which one eps train takes.
 * Returns the exit status. */
int plan_frontier(const struct command *command, const struct eps_train_options *options, bool json);

#endif

/* tools/commands/plan/timeline.h - eps plan --timeline: what binds a step. */
#ifndef TOOLS_COMMANDS_PLAN_TIMELINE_H
#define TOOLS_COMMANDS_PLAN_TIMELINE_H

#include "client/eps.h"
#include "tools/arguments.h"

#include <stdbool.h>

/* Prints it. Returns the exit status. */
int plan_timeline(const struct command *command, const struct eps_train_options *options, bool json);

#endif

/* tools/plan_frontier.h - eps plan --approximate any: what each way of being inexact takes and gives. */
#ifndef TOOLS_PLAN_FRONTIER_H
#define TOOLS_PLAN_FRONTIER_H

#include "client/eps.h"
#include "tools/arguments.h"

/* Prints a line, or with json an object, for the exact gradient and for each form of --approximate: the memory that the
 * planner takes, a step's time, and the time of an exact step within that memory. Returns the exit status. */
int plan_frontier(const struct command *command, const struct eps_train_options *options, bool json);

#endif

/* tools/commands/report_bias.h - eps report --bias: a run's approximate gradients beside the exact ones, at its checkpoints. */
#ifndef TOOLS_COMMANDS_REPORT_BIAS_H
#define TOOLS_COMMANDS_REPORT_BIAS_H

#include "client/eps.h"
#include "tools/arguments.h"

/* Prints a table, or with json a line with an object, for each checkpoint as it is measured. Returns the exit
 * status. */
int report_bias(const struct command *command, const struct eps_bias_options *options, bool json);

#endif

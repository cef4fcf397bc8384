/* tools/commands/plan/plan.h - what the answers of eps plan have in common. */
#ifndef TOOLS_COMMANDS_PLAN_PLAN_H
#define TOOLS_COMMANDS_PLAN_PLAN_H

#include "client/eps.h"

#include <jansson.h>
#include <stdbool.h>

/* What stands behind a time that is not of measured rates: " (assumed)"; and the line below all of them. */
const char *plan_assumed(bool measured);
extern const char plan_not_measured[];

/* What --json prints of one plan; owned. */
json_t *plan_to_json(const struct eps_plan *plan);

#endif

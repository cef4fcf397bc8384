/* client/ask/plan/timeline.h - a simulated step (proto/step/timeline.h) in the words of client/eps_plan.h. */
#ifndef CLIENT_ASK_PLAN_TIMELINE_H
#define CLIENT_ASK_PLAN_TIMELINE_H

#include "client/eps.h"
#include "proto/plan/fit.h"

/* Simulates a step of the plan of the first worker, and fills in all members that tell of it. options: resolved. 0 or
 * -ENOMEM. */
int client_fill_timeline(struct eps_timeline *out, const struct eps_train_options *options, const struct model *model,
                         const struct profile *profile, const struct plan_fit *fit);

#endif

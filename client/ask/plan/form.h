/* client/ask/plan/form.h - the plan of one form of a model: what --freeze names is frozen, or nothing is. */
#ifndef CLIENT_ASK_PLAN_FORM_H
#define CLIENT_ASK_PLAN_FORM_H

#include "client/eps.h"

#include <stdbool.h>

/* As eps_plan, eps_plan_minimum and eps_plan_batch; freeze_until is not read. thawed: of the job that reads the
 * checkpoint of a thaw. */
int client_plan_form(struct eps_plan *out, const struct eps_train_options *options, bool thawed,
                     struct eps_error *error);
/* As client_plan_form, but `why` names no remedy: the search for one takes most of the time where nothing fits. */
int client_plan_form_brief(struct eps_plan *out, const struct eps_train_options *options, struct eps_error *error);
int client_plan_form_minimum(uint64_t *bytes, const struct eps_train_options *options, struct eps_error *error);
int client_plan_form_batch(uint32_t *n_rows, const struct eps_train_options *options, bool thawed,
                           struct eps_error *error);

#endif

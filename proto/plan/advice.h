/* proto/plan/advice.h - suggestions that follow the refusal of a job that does not fit. */
#ifndef PROTO_PLAN_ADVICE_H
#define PROTO_PLAN_ADVICE_H

#include "proto/plan/fit.h"

/* What may be changed. */
struct plan_advice_scope {
    bool can_drop_workers; /* the workers are private to the client */
    bool resumed;          /* a resumed run keeps its parts and number formats */
};

/* For a training job that does not fit: appends to err the cheapest options that would. Fewer workers keep the result,
 * and so does a folded commit; fewer parts round differently, narrower numbers lose digits. Less device memory is never
 * suggested: the planner tries that itself. False, with err unchanged, if nothing suffices. */
bool plan_advise(struct error *err, const struct plan_fit_asked *asked, const struct plan_advice_scope *scope);

/* For a job too large for the host, when no option helps; fit is plan_fit's result, -ENOMEM. Appends to err what would
 * let the host hold the same plans, or how much smaller the model must be. */
void plan_remedy(struct error *err, const struct plan_fit_asked *asked, const struct plan_fit *fit);

#endif

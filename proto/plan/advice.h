/* proto/plan/advice.h - what to ask for instead where a job does not fit: the words that follow the refusal. */
#ifndef PROTO_PLAN_ADVICE_H
#define PROTO_PLAN_ADVICE_H

#include "proto/plan/fit.h"

/* What may be changed. */
struct plan_advice_scope {
    bool can_drop_workers; /* they are the client's own */
    bool resumed;          /* a run keeps its parts and its numbers */
};

/* Of a training job that does not fit. The cheapest other options that do are appended to err: fewer workers leave the
 * result what it is, fewer parts round differently, narrower numbers lose digits. Less device memory is not among them:
 * plans take less by themselves. False, and err as it was: none of these suffices. */
bool plan_advise(struct error *err, const struct plan_fit_asked *asked, const struct plan_advice_scope *scope);

/* Of a job for which the host is too small, where nothing else helps: fit is plan_fit's answer, -ENOMEM. Appended to err:
 * what lets the host hold the same plans, or how much smaller a model would have to be. */
void plan_remedy(struct error *err, const struct plan_fit_asked *asked, const struct plan_fit *fit);

#endif

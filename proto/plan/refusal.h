/* proto/plan/refusal.h - the sentence about a budget that is too small. */
#ifndef PROTO_PLAN_REFUSAL_H
#define PROTO_PLAN_REFUSAL_H

#include "proto/plan/search.h"

/* -ENOSPC: what the smallest plan of this wish takes, its largest terms, and what is less. */
int plan_refuse(const struct plan *plan, const struct model *model, const struct plan_setting *setting,
                const struct plan_wish *wish, uint64_t budget, struct error *err);

#endif

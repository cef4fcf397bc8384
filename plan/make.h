/* plan/make.h - the most that a budget holds: rows at a time, or units that stay on the device. */
#ifndef PLAN_MAKE_H
#define PLAN_MAKE_H

#include "plan/plan.h"

/* The largest microbatch that fits (or the wish's, if it has one), with the wish's weight buffers; to generate, as many
 * units as fit. 0 and *out. -ENOSPC if it does not fit, with a sentence that names the smallest sufficient budget in
 * bytes (for the given microbatch, and for 1 row) and the terms that take most; *out is then the plan for 1 row, or to
 * generate the smallest one. -EINVAL with a sentence, and *out untouched, as plan_check and plan_check_choice. */
int plan_make(struct plan *out, const struct model *model, const struct plan_setting *setting,
              const struct plan_choice *wish, uint64_t budget, struct error *err);

#endif

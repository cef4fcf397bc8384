/* proto/plan/cuts.h - where to cut a model's layers into segments (proto/plan/memory/segments.h).
 *
 * Dynamic programming over the places where a segment may begin, by bytes, as layers' inputs may have several sizes:
 * for each place the least bytes that are stored of what is below, if no segment takes more than a limit at a time,
 *
 *     least(j) = min over i < j of least(i) + crossing(i, j),   where least(i) + written(i, j) + gradients(i, j) <=
 *                                                               limit
 *
 * and of the places where the topmost segment, which is not computed again, may begin within the limit, the one with
 * the fewest operations that are. What is stored below leaves less for that segment, so the least serves both. Of more
 * than PLAN_MAX_CUTS places, as many are considered, evenly spaced. */
#ifndef PROTO_PLAN_CUTS_H
#define PROTO_PLAN_CUTS_H

#include "proto/plan/memory/plan.h"

enum { PLAN_CUT_PLACES = PLAN_MAX_CUTS + 1 };

struct plan_cuts {
    uint32_t n;                   /* places */
    uint32_t at[PLAN_CUT_PLACES]; /* (n + 1) layers, ascending; last, the end */
    uint64_t least,
        most;        /* limits for plan_cut, if there are places: the least; and one within which nothing comes again */
    uint64_t lowest; /* bytes that layers below at[0] write */
    uint64_t written[PLAN_CUT_PLACES];                    /* (n + 1) bytes that layers between at[0] and at[i] write */
    uint64_t crossing[PLAN_CUT_PLACES][PLAN_CUT_PLACES];  /* [i][j]: of those between i and j, read above j */
    uint64_t gradients[PLAN_CUT_PLACES][PLAN_CUT_PLACES]; /* bytes of gradients while i to j are in backward */
    double operations[PLAN_CUT_PLACES][PLAN_CUT_PLACES];  /* computed again, if i to j are a segment */
};

/* Of a plan without cuts, which is for training with the stash on the device. */
void plan_cuts_init(struct plan_cuts *out, const struct plan *plan, const struct model *model);

/* Sets the choice's cuts to the fewest operations within `limit` bytes of values and gradients at a time. False:
 * that is less than the least. */
bool plan_cut(struct plan_choice *choice, const struct plan_cuts *cuts, uint64_t limit);

#endif

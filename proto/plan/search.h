/* proto/plan/search.h - the choice: of all plans that fit, the one with the least predicted time.
 *
 * Candidates: microbatches (a part in 1 to 16 pieces, then doubled, then single rows), the stash on device or host, one
 * or two passes over the head, and 1 to 3 weight buffers (from two on with two sums and two sets of tiles, where that
 * helps). Where the inputs of all layers do not fit, those of some: 32 steps from the fewest bytes on
 * (proto/plan/cuts.h). Memory that the best plan leaves goes to more sums. For each of these, bytes grow and time falls
 * along chains (kept values, then resident units, or the reverse), so bisection finds the last plan that fits. Blocks
 * keep more and more values, the topmost of a class first: in the class and of the values that save most time per byte,
 * then the next ones, and so on; or each block keeps all or nothing, class after class. Candidates are independent of
 * the budget, so more of it never makes the best plan slower.
 *
 * In generation the microbatch is what passes through the layers together: of so many texts as fit, unless fewer leave
 * room for more resident units and each text is then faster. */
#ifndef PROTO_PLAN_SEARCH_H
#define PROTO_PLAN_SEARCH_H

#include "proto/plan/memory/host.h"
#include "proto/plan/memory/plan.h"
#include "proto/plan/ties.h"
#include "proto/plan/time/profile.h"

/* Constraints on the choice. */
struct plan_wish {
    uint32_t microbatch;                  /* rows, at most part_rows; 0: free */
    bool no_host_stash;                   /* the host has no room for one */
    bool least_host_stash;                /* it has room for one with the fewest bytes of layers' inputs alone */
    const struct plan_host_setting *host; /* affects the predicted time; NULL: one worker, all in fp32 */
    plan_player *play; /* in training on one host: decides where plans tie because the host binds; NULL: bytes do */
    uint32_t n_slots;  /* for it, of the worker's inbox, at least 1 */
};

/* 0 and *out; ties, within a thousandth, go to less memory, unless they are played. -ENOSPC if nothing fits, with a sentence that names the
 * smallest sufficient budget in bytes (and that of single rows, if the microbatch is fixed to more) and the largest
 * terms; *out is then the smallest plan. -EINVAL with a sentence, and *out untouched: as plan_check, or a microbatch
 * beyond the part's rows. The profile is checked. Pure arithmetic, some milliseconds for hundreds of layers, and those that playing takes. */
int plan_search(struct plan *out, const struct model *model, const struct plan_setting *setting,
                const struct plan_wish *wish, const struct profile *profile, uint64_t budget, struct error *err);

/* The candidate with the fewest bytes: its plan_total is the smallest sufficient budget. Setting and wish were
 * checked. */
void plan_smallest(struct plan *out, const struct model *model, const struct plan_setting *setting,
                   const struct plan_wish *wish);

#endif

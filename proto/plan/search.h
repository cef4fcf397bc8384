/* proto/plan/search.h - the choice: of all plans that fit, the one with the least predicted time.
 *
 * Looked through: microbatches that cut a part into so many pieces (1 to 16, then doubled, then single rows), the stash
 * on device or host, one or two passes over the head, 1 to 3 weight buffers (from two on with two sums and two sets of
 * tiles, where these are worth something). What the best of them leaves is for more sums.
 * For each of these, bytes grow and time falls along chains (what blocks keep and then units that stay, or the other way
 * round), so the end of what fits is found by halving. Blocks keep more and more of their values: all blocks first those
 * that save most time for each byte, then the topmost blocks the next ones, and so on; or each block all or nothing. What
 * is looked through does not depend on the budget: the more of it fits, the less the best one takes. */
#ifndef PROTO_PLAN_SEARCH_H
#define PROTO_PLAN_SEARCH_H

#include "proto/plan/host.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

/* What is asked for and not to be chosen. */
struct plan_wish {
    uint32_t microbatch;                  /* rows, at most part_rows; 0: free */
    bool no_host_stash;                   /* the host has no room for one */
    const struct plan_host_setting *host; /* which the predicted time depends on; NULL: one worker, all in fp32 */
};

/* 0 and *out; ties, within a thousandth, go to less memory. -ENOSPC if nothing fits, with a sentence that names the
 * smallest sufficient budget in bytes (and that of single rows, if the microbatch is fixed to more) and the terms that
 * take most; *out is then the smallest plan. -EINVAL with a sentence, and *out untouched: as plan_check, or a microbatch
 * beyond the part's rows. The profile is checked. Pure arithmetic, some milliseconds for hundreds of layers. */
int plan_search(struct plan *out, const struct model *model, const struct plan_setting *setting,
                const struct plan_wish *wish, const struct profile *profile, uint64_t budget, struct error *err);

/* Of the same plans the one with the fewest bytes: its plan_total is the smallest budget that can work. Setting and wish
 * have been checked. */
void plan_smallest(struct plan *out, const struct model *model, const struct plan_setting *setting,
                   const struct plan_wish *wish);

#endif

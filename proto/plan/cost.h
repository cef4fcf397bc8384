/* proto/plan/cost.h - how long a step will take and what it moves, from a plan and a device's profile.
 *
 * A worker's side of a step as a row of visits (up, and to train down again), each with its pull, its products and, on
 * the way down, its contributions:
 *
 *   computing   operation by operation, of proto/plan/work.h: backward with what forward kept, or forward again
 *   pulls       units that are neither in a buffer nor resident, at the link's rate; so contributions, and the stash
 *   optimizer   bytes that a parameter's folds and update touch (proto/plan/work.h), against those that were measured
 *
 * A device that takes turns with the host (the CPU) does all this one after the other, and its workers share the cores.
 * Another pulls into one buffer while it works on the next, pushes one sum while it makes the next where it has two, and
 * the host updates beside it all, also while the next step begins: of many steps each takes what the longer of the two takes.
 * Where the profile says what the host's memory moves, it moves the link's bytes and the optimizer's. proto/plan/timeline.h plays
 * the same, queue by queue.
 *
 * Kept internals, resident units, more buffers and one pass over the head never make a prediction longer; so the best of
 * what fits never gets slower as the budget grows. */
#ifndef PROTO_PLAN_COST_H
#define PROTO_PLAN_COST_H

#include "proto/plan/host.h"
#include "proto/plan/plan.h"
#include "proto/plan/profile.h"

struct plan_cost {
    /* Of a step; of an evaluation, a pass over the share; of generating, a token at the end of the row. Each term is for
     * itself; step_ms is their sum where nothing overlaps, else less. */
    double step_ms, compute_ms, pull_ms, push_ms, stash_ms, optimizer_ms;
    uint64_t down_bytes, up_bytes; /* of one worker: weights, contributions */
    uint64_t stash_bytes;          /* of one worker, both ways: tiles of a stash on the host */
    double hiding_tokens; /* of a share, from which on computing a unit takes as long as pulling it: w F / 2 H, for w
                             bytes of a weight, F operations and H bytes of the link a second (L2L, arXiv:2002.05645) */
};

/* host.n_workers workers with shares like this one. The profile is checked. */
void plan_cost(struct plan_cost *out, const struct plan *plan, const struct model *model,
               const struct plan_host_setting *host, const struct profile *profile);

#endif

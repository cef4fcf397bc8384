/* proto/plan/time/cost.h - predicts the time and traffic of a step from a plan and a device's profile.
 *
 * A worker's step is a sequence of visits (up and, in training, down again). Each has its pull, its products and, on
 * the way down, its contributions:
 *
 *   computing   operation by operation (proto/plan/time/work.h); backward uses kept values, and recomputes the rest
 *   pulls       units that are neither in a buffer nor resident, at the link's rate; likewise contributions and stash
 *   optimizer   bytes per parameter of folds and update (proto/plan/time/work.h), relative to the measured ones
 *   messages    on a device that takes turns, two for each contribution, which waits until it is folded. A pull's are
 *               left out, as all are on other devices: they mostly overlap
 *
 * On a device that takes turns with the host (the CPU) these times add up, and its workers share the cores. Any other
 * device pulls into one buffer while it computes with another and, with two sums, pushes one while it computes the
 * other. The host updates in parallel, also while the next step begins, so in a long run a step takes as long as the
 * slower of the two. If the profile has the host memory's rate, link and optimizer share it. proto/step/timeline.h
 * simulates the same, queue by queue.
 *
 * Kept activations, resident units, more buffers and a head in one pass never make a prediction longer, so the best
 * plan never gets slower as the budget grows. */
#ifndef PROTO_PLAN_TIME_COST_H
#define PROTO_PLAN_TIME_COST_H

#include "proto/plan/memory/host.h"
#include "proto/plan/memory/plan.h"
#include "proto/plan/time/profile.h"

struct plan_cost {
    /* Milliseconds of a step; of an evaluation's pass over the share; in generation, of one token at the end of each
     * row of a microbatch. step_ms is the sum of the other terms if nothing overlaps, else less. */
    double step_ms, compute_ms, pull_ms, push_ms, stash_ms, optimizer_ms, message_ms;
    double device_ms;              /* of step_ms, what devices and links take; less than that where the host binds */
    uint64_t down_bytes, up_bytes; /* one worker's weights, and contributions */
    uint64_t stash_bytes;          /* one worker's tiles of a stash on the host, both ways */
    double hiding_tokens; /* tokens of a share from which on computing a unit hides its pull: w F / 2 H, for w bytes per
                             weight, F operations and H link bytes per second (L2L, arXiv:2002.05645) */
};

struct plan_prices;

/* Predicts for host.n_workers workers with equal shares. The profile must have been checked. prices: remembered from
 * earlier predictions with this model, setting and profile (proto/plan/time/work.h), or NULL. */
void plan_cost(struct plan_cost *out, const struct plan *plan, const struct model *model,
               const struct plan_host_setting *host, const struct profile *profile, struct plan_prices *prices);

#endif

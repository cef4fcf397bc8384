/* proto/plan/ties.h - plans that tie because the host binds, and which of them is the fastest, played in time.
 *
 * A step takes no less than the host needs for updates and copies. Where that binds, the formula of
 * proto/plan/time/cost.h has the same time for all plans whose device needs less, and by bytes alone one row at a time
 * would be computed, and everything twice. But the longer the device takes, the later contributions come, and the host
 * waits for them: played in time, such plans take up to some percent longer. A search compares hundreds of plans, too
 * many to be played. So eight are: the one with the fewest bytes; those with the fewest bytes whose device needs at most
 * 2/8 .. 7/8 of the step; and the one whose device needs the least. */
#ifndef PROTO_PLAN_TIES_H
#define PROTO_PLAN_TIES_H

#include "proto/plan/memory/host.h"
#include "proto/plan/memory/plan.h"
#include "proto/plan/time/profile.h"

enum { PLAN_TIES = 7, PLAN_EIGHTHS = 8 };

/* Seconds of a step in a long run, with so many slots in the worker's inbox: step_timeline_play
 * (proto/step/timeline.h), which is above the plan. INFINITY: no memory to play it. */
typedef double plan_player(const struct plan *plan, const struct model *model, const struct plan_host_setting *host,
                           const struct profile *profile, uint32_t n_slots);

struct plan_ties {
    int64_t time; /* of each plan: as the search compares it; INT64_MAX: none yet */
    struct plan_tie {
        struct plan_choice choice;
        uint64_t bytes;
        double busy;
        bool found;
    } of[PLAN_TIES]; /* of[0]: the least busy; of[i]: the fewest bytes of those within plan_ties_busy(i) */
};

/* The device's part of the step that of[i] has at most, i > 0. */
static inline double plan_ties_busy(uint32_t i)
{
    return (i + 1.0) / PLAN_EIGHTHS;
}

/* Takes a plan in: unless it takes longer than those before, which it replaces if it takes less. busy: the device's
 * part of the step, 0 .. 1. Plans that compute layers' inputs again, or have them on the host, are no alternatives to
 * any that is found: they are left out. */
void plan_ties_offer(struct plan_ties *ties, const struct plan *plan, int64_t time, double busy);

/* True if a plan of so many bytes could be taken in as of[i], i > 0. */
bool plan_ties_want(const struct plan_ties *ties, uint32_t i, uint64_t bytes);

/* Replaces *best, a plan of the same time, by the tie with the least played time; of those within a thousandth of that,
 * the one with the fewest bytes. Plays none if there are no ties. */
void plan_ties_play(struct plan *best, const struct plan_ties *ties, const struct model *model,
                    const struct plan_host_setting *host, const struct profile *profile, plan_player *play,
                    uint32_t n_slots);

#endif

/* Which plans are kept depends on nothing but the plans that are offered, so a search that offers the same ones plays
 * the same ones. Choices are kept, and laid out again to be played: a plan has 8 KB. */
#include "proto/plan/ties.h"

#include <math.h>

#define THOUSANDTH 1.001

bool plan_ties_want(const struct plan_ties *ties, uint32_t i, uint64_t bytes)
{
    return !ties->of[i].found || bytes < ties->of[i].bytes;
}

void plan_ties_offer(struct plan_ties *ties, const struct plan *plan, int64_t time, double busy)
{
    const uint64_t bytes = plan_total(plan);

    if (time > ties->time || plan->choice.host_stash || plan->choice.n_cuts > 0 || plan->choice.derives)
        return;
    if (time < ties->time)
        *ties = (struct plan_ties){.time = time};
    if (busy <= plan_ties_busy(PLAN_TIES - 1) &&
        (!ties->of[0].found || busy < ties->of[0].busy || (busy == ties->of[0].busy && bytes < ties->of[0].bytes)))
        ties->of[0] = (struct plan_tie){plan->choice, bytes, busy, true};
    for (uint32_t i = 1; i < PLAN_TIES; i++)
        if (busy <= plan_ties_busy(i) && plan_ties_want(ties, i, bytes))
            ties->of[i] = (struct plan_tie){plan->choice, bytes, busy, true};
}

void plan_ties_play(struct plan *best, const struct plan_ties *ties, const struct model *model,
                    const struct plan_host_setting *host, const struct profile *profile, plan_player *play,
                    uint32_t n_slots)
{
    struct plan plans[PLAN_TIES + 1] = {*best};
    double seconds[PLAN_TIES + 1], least = INFINITY;
    uint32_t n = 1;

    for (uint32_t i = PLAN_TIES; i-- > 0;)
        if (ties->of[i].found && ties->of[i].bytes != plan_total(&plans[n - 1]))
            plan_lay_out(&plans[n++], model, &best->setting, &ties->of[i].choice);
    for (uint32_t i = 0; n > 1 && i < n; i++) {
        seconds[i] = play(&plans[i], model, host, profile, n_slots);
        least = fmin(least, seconds[i]);
    }
    for (uint32_t i = n; n > 1 && i-- > 0;) /* by falling bytes */
        if (seconds[i] <= THOUSANDTH * least)
            *best = plans[i];
}

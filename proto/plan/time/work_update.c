/* What an update moves by a parameter: a contribution is folded and applied in one pass where one is all that comes, else
 * each is folded, into moments or a sum, before a pass of its own. */
#include "proto/plan/memory/coded.h"
#include "proto/plan/time/work.h"

struct plan_work_update plan_work_update(const struct plan_host_setting *h, const struct model *model,
                                         const struct model_unit *unit)
{
    const double grad = (double)number_bytes(h->goal.grad);
    const double of_unit = (double)plan_unit_moment_bytes(model, unit, h->goal.moments);
    const double moments = unit->n_trained > 0 ? plan_moments(&h->goal) * of_unit / (double)unit->n_trained : 0;
    const double weights = h->goal.no_master ? 4 : 8, sums = h->goal.fenced ? (double)number_bytes(h->goal.sums) : 4;
    const double whole = weights + 2 * moments; /* weights and moments, read and written */
    const bool tied = unit->n_visits > 1;

    const double joined = tied && plan_sums_visits(&h->goal) ? 3 * sums : 0; /* two sums are read, and one is written */

    if ((tied && plan_sums_tied(&h->goal)) || h->goal.fenced || (plan_sums_parts(&h->goal) && h->goal.n_parts > 1))
        return (struct plan_work_update){grad + 2 * sums, whole + sums + joined};
    if (h->goal.n_parts == 1 && !tied && !h->goal.folded)
        return (struct plan_work_update){grad + whole, 0};
    return (struct plan_work_update){grad + 2 * moments, weights + moments};
}

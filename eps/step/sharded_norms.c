/* What a step finds of other hosts' units: the norms of gradients that their owners remember of its tokens.
 *
 * An owner copies them into its own minibatch, once the step is open here and the unit's version stands, and tells all.
 * Each host then fetches those of its rows to the same place, where its workers look for them. So they take no memory
 * and no credit; a part that is redone finds the same, whatever the unit's update has changed since. They change with
 * the unit, at its owner: eps/store/norms.h. */
#include "eps/step/commit.h"
#include "eps/step/sharded_state.h"

#include "proto/model/norms.h"
#include "proto/plan/memory/data.h"

#include <errno.h>

static bool remembers(const struct sharded *s, uint32_t unit)
{
    return s->job->model.units[unit].n_norm_maps > 0;
}

/* ---- other hosts' units ----------------------------------------------------------------------------------------- */

/* Fetches the norms of this host's rows from the unit's owner: in each map they lie one behind the other. */
static void sharded_norms_fetch(struct sharded *s, uint32_t unit)
{
    const struct job *job = s->job;
    const struct plan_goal *goal = job_goal(job);
    const uint64_t step = s->n_opened - 1, part_rows = goal->batch / goal->n_parts;
    const struct message *open = steps_opened(s->steps, step);
    uint32_t n = 0;

    for (uint32_t i = 0; i < job->model.units[unit].n_norm_maps; i++) {
        const struct model_norm_map map = model_norm_map(&job->model, unit, i, open->open_step.n_tokens);
        const uint64_t row = map.n * sizeof(uint16_t),
                       at = plan_data_norms_at(goal, &job->model, open->open_step.buffer,
                                               job->model.units[unit].first_norm_map + i) +
                            job->first_part * part_rows * row;
        n += sharded_fetch(s, &(struct sharded_fetch){.from = s->owner[unit],
                                                      .region = REGION_DATA,
                                                      .offset = at,
                                                      .into = (char *)job->data.base + at,
                                                      .bytes = job->n_parts * part_rows * row,
                                                      .token = unit});
    }
    s->n_left[unit] = n;
    s->n_left_norms += n;
    if (n == 0) /* its maps have no tokens in this step */
        s->norms_here[unit] = s->n_opened;
}

/* A step that is covered here may be over elsewhere: then their place is the next one's. */
static bool may_fetch(const struct sharded *s, uint32_t unit)
{
    return s->owner[unit] != s->host && s->norms_told[unit] == s->n_opened && !s->announced_covered;
}

/* They may come before this host has opened the step; or late, for one that was skipped. */
void sharded_on_norms(struct sharded *s, uint32_t from, const struct host_message *message)
{
    const uint32_t unit = message->unit;

    if (unit >= s->job->model.n_units || s->owner[unit] != from || !remembers(s, unit) || message->step > s->n_opened ||
        s->norms_told[unit] > message->step) {
        job_end(s->job, -EPROTO, "host %u tells of norms that cannot be", from);
        return;
    }
    s->norms_told[unit] = message->step + 1;
    if (may_fetch(s, unit))
        sharded_norms_fetch(s, unit);
}

void sharded_on_norms_fetched(struct sharded *s, uint32_t unit, bool is_last)
{
    s->n_left_norms--;
    if (is_last)
        s->norms_here[unit] = s->n_opened;
}

/* An evaluation finds none. */
bool sharded_has_norms(const struct sharded *s, uint32_t unit, uint64_t version)
{
    return !remembers(s, unit) || version == MESSAGE_NO_STEP || s->norms_here[unit] == version + 1;
}

/* ---- own units -------------------------------------------------------------------------------------------------- */

void sharded_open_norms(struct sharded *s)
{
    s->n_untold = 0;
    for (uint32_t u = 0; u < s->job->model.n_units && job_is_open(s->job); u++) {
        s->n_untold += s->owner[u] == s->host && remembers(s, u);
        if (remembers(s, u) && may_fetch(s, u))
            sharded_norms_fetch(s, u);
    }
}

static bool sharded_norms_has_room(const struct sharded *s)
{
    for (uint32_t h = 0; h < s->n; h++)
        if (s->others[h].n_messages > 0)
            return false;
    return true;
}

/* Copies the norms of one unit to the minibatch and tells the others: of the lowest, which workers pull first. */
bool sharded_norms_go_on(struct sharded *s)
{
    if (s->n_untold == 0 || s->announced_covered || !sharded_norms_has_room(s))
        return false;
    const uint64_t step = s->n_opened - 1;
    for (uint32_t u = s->job->store.own.first; u < s->job->store.own.end; u++) {
        if (!remembers(s, u) || s->norms_told[u] == s->n_opened || relay_version(s->job->own, u) != step)
            continue;
        commit_give_norms(s->steps, step, u);
        s->norms_told[u] = s->n_opened;
        s->n_untold--;
        sharded_say_all(s, &(struct host_message){.kind = HOST_NORMS, .step = step, .unit = u});
        return true;
    }
    return false;
}

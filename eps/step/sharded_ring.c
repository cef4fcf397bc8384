/* Other hosts' units: the ring (eps/step/ring.h) between this host's relay, its workers and the transport. */
#include "eps/job/evaluate.h"
#include "eps/step/sharded_state.h"

#include <assert.h>

static_assert((int)RING_WAITING == (int)STEPS_MAX_PULLS && (int)PEERS_MAX_WORKERS <= (int)MESSAGE_MAX_PARTS,
              "the ring has room for every pull of every worker");

/* ---- what the ring asks ----------------------------------------------------------------------------------------- */

/* What is frozen is never overwritten. */
static uint64_t sharded_ring_version_of(const void *context, uint32_t unit, uint64_t turn)
{
    const struct sharded *s = context;
    const struct job *job = s->job;

    if (job->model.units[unit].n_trained == 0)
        return UINT64_MAX;
    if (s->n_opened == job->request.job.step) /* no step was opened yet */
        return s->n_opened;
    return relay_version(job->relay, unit) - (s->turns[unit] - turn);
}

/* Not if its step is over, or covered on this host, or none of its parts are the worker's. */
static bool counts(const void *context, uint32_t worker, uint64_t version)
{
    const struct sharded *s = context;

    if (version == MESSAGE_NO_STEP)
        return evaluate_has(s->job, peer_find_worker(s->peers->first, worker));
    return s->job->state == JOB_STEPPING && version + 1 == s->n_opened && !s->local_covered &&
           relay_has_part(s->job->relay, worker);
}

static bool sharded_ring_find(const void *context, uint32_t unit, uint64_t *turn)
{
    const struct sharded *s = context;

    if (unit >= s->job->model.n_units || store_keeps(&s->job->store, unit))
        return false;
    *turn = s->turns[unit];
    return true;
}

static bool sharded_ring_is_whole(const void *context, uint32_t unit, uint64_t version)
{
    return sharded_has_norms(context, unit, version);
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

void sharded_on_answer(struct sharded *s, const struct peer *worker, uint64_t version, uint32_t unit, bool before)
{
    ring_answer(&s->ring, worker->id, version, unit, s->turns[unit] - before);
}

/* One piece of what the slot fetches has come. */
void sharded_on_ring_fetched(struct sharded *s, uint32_t slot)
{
    if (--s->n_left_ring[slot] == 0)
        ring_fetched(&s->ring, slot);
}

/* ---- actions ---------------------------------------------------------------------------------------------------- */

/* Fetches bytes first .. end-1 of a unit from its owner's buffer. Returns the number of pieces. */
static uint32_t fetch_some(struct sharded *s, const struct ring_act *act, uint32_t buffer, uint64_t first, uint64_t end)
{
    const struct store *store = &s->job->store;
    const uint32_t from = s->owner[act->unit];

    return sharded_fetch(
        s, &(struct sharded_fetch){.from = from,
                                   .region = REGION_WEIGHTS,
                                   .offset = store_weights_at(store, &s->owns[from], act->unit, buffer) + first,
                                   .into = (char *)store->weights.base + store_ring_at(store, act->slot) + first,
                                   .bytes = end - first,
                                   .token = SHARDED_TOKEN_RING + act->slot});
}

/* The owner's frozen weights are in its first buffer. */
static void sharded_ring_fetch(struct sharded *s, const struct ring_act *act)
{
    const struct job *job = s->job;
    const struct model_unit *unit = &job->model.units[act->unit];
    const uint64_t trained = unit->n_trained * number_bytes(job_goal(job)->precision),
                   bytes = model_unit_bytes(unit, job_goal(job)->precision);
    const uint32_t buffer = job_replays(job) ? (uint32_t)(act->turn & 1) : 0;

    s->n_left_ring[act->slot] = buffer == 0
                                    ? fetch_some(s, act, 0, 0, bytes)
                                    : fetch_some(s, act, buffer, 0, trained) + fetch_some(s, act, 0, trained, bytes);
    if (s->n_left_ring[act->slot] == 0) /* a unit without parameters is in no piece */
        ring_fetched(&s->ring, act->slot);
}

static void sharded_ring_answer(struct sharded *s, const struct ring_act *act)
{
    struct peer *worker = peer_find_worker(s->peers->first, act->worker);
    const uint64_t at = store_ring_at(&s->job->store, act->slot);

    if (act->kind == RING_VOID)
        job_send_void(worker, act->version, act->unit);
    else
        job_send_weights(s->job, worker, act->version, act->unit,
                         (struct job_weights){.at = at, .frozen_at = at, .lent = true});
}

/* Who waits for another host owes nothing meanwhile (eps/job/watch.c). */
static void note_waiting(struct sharded *s)
{
    for (struct peer *p = s->peers->first; p; p = p->next)
        p->awaits = ring_awaits(&s->ring, p->id);
}

bool sharded_ring_go_on(struct sharded *s)
{
    const struct ring_step step = {.lowest = s->announced_covered || s->n_opened == 0 ? s->n_opened : s->n_opened - 1,
                                   .context = s,
                                   .version = sharded_ring_version_of,
                                   .counts = counts,
                                   .find = sharded_ring_find,
                                   .is_whole = sharded_ring_is_whole};
    struct ring_act act;

    if (!ring_next(&s->ring, &step, &act)) {
        note_waiting(s);
        return false;
    }
    if (act.kind == RING_FETCH)
        sharded_ring_fetch(s, &act);
    else
        sharded_ring_answer(s, &act);
    return true;
}

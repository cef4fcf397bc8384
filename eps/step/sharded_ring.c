/* The ring: a few slots through which other hosts' units pass on their way to this host's workers.
 *
 * Once local answers a pull, the version stands at the unit's owner. It is fetched into a slot, unless it is in one, and
 * lent to all workers that want it until they say READ. A worker has SHARDED_LENT units lent at most, in the order of its
 * pulls, and the ring has as many slots for each part, and one more (plan_ring_slots). So whoever has fewer lent finds a
 * slot that nobody reads, and no worker waits for what another one reads. A pull whose result nobody takes is answered at
 * once, with any numbers: else a worker without a part could fill the ring.
 *
 * An owner may overwrite version t once every host has said that step t is covered. So a host says so when no fetch of
 * that version is under way, and begins none afterwards. */
#include "eps/job/evaluate.h"
#include "eps/step/sharded_state.h"

#include <assert.h>
#include <string.h>

static uint32_t count_lent(const struct sharded *s, uint32_t worker)
{
    uint32_t n = 0;

    for (size_t i = 0; i < s->n_pulls; i++)
        n += s->pulls[i].worker == worker && s->pulls[i].slot;
    return n;
}

static void remove_pull(struct sharded *s, struct sharded_pull *p)
{
    if (p->slot)
        p->slot->n_readers--;
    memmove(p, p + 1, (size_t)(s->pulls + s->n_pulls - (p + 1)) * sizeof *p);
    s->n_pulls--;
}

static struct sharded_ring_slot *find_slot(struct sharded *s, uint32_t unit, uint64_t turn)
{
    for (uint32_t k = 0; k < s->job->host.n_ring; k++)
        if (s->ring[k].taken && s->ring[k].unit == unit && s->ring[k].turn == turn)
            return &s->ring[k];
    return NULL;
}

/* For its weights, which stand at their owner. */
static bool waits(const struct sharded_pull *p)
{
    return p->answered && !p->slot;
}

/* Of the weights with this turn. What is frozen is never overwritten. */
static uint64_t version_of(const struct sharded *s, uint32_t unit, uint64_t turn)
{
    const struct job *job = s->job;

    if (job->model.units[unit].n_trained == 0)
        return INT64_MAX;
    if (s->n_opened == job->request.job.step) /* no step was opened yet */
        return s->n_opened;
    return relay_version(job->relay, unit) - (s->turns[unit] - turn);
}

/* Its owner may overwrite it. */
static bool is_gone(const struct sharded *s, uint64_t version)
{
    return version + !s->announced_covered < s->n_opened;
}

/* ---- lending ---------------------------------------------------------------------------------------------------- */

void sharded_on_pull(struct sharded *s, const struct peer *worker, uint64_t version, uint32_t unit)
{
    assert(s->n_pulls < sizeof s->pulls / sizeof *s->pulls);
    for (size_t i = 0; i < s->n_pulls; i++)
        if (s->pulls[i].worker == worker->id && s->pulls[i].unit != unit)
            s->ahead = unit > s->pulls[i].unit ? unit + 1 : unit - 1; /* in the direction of its pulls */
    s->pulls[s->n_pulls++] = (struct sharded_pull){.worker = worker->id, .version = version, .unit = unit};
}

/* Local answers a unit's pulls in the order of the updates that they wait for. */
void sharded_on_answer(struct sharded *s, const struct peer *worker, uint64_t version, uint32_t unit, bool before)
{
    struct sharded_pull *p = s->pulls;

    for (; p->answered || p->worker != worker->id || p->version != version || p->unit != unit; p++)
        assert(p < s->pulls + s->n_pulls - 1);
    p->answered = true;
    p->turn = s->turns[unit] - before;
}

void sharded_on_read(struct sharded *s, const struct peer *worker, uint64_t version, uint32_t unit)
{
    for (size_t i = 0; i < s->n_pulls; i++) {
        struct sharded_pull *p = &s->pulls[i];
        if (p->worker == worker->id && p->slot && p->version == version && p->unit == unit) {
            remove_pull(s, p);
            return;
        }
    }
}

void sharded_forget(struct sharded *s, const struct peer *worker)
{
    for (size_t i = s->n_pulls; i-- > 0;)
        if (s->pulls[i].worker == worker->id)
            remove_pull(s, &s->pulls[i]);
}

/* Nobody whose share counts reads an earlier version any more. */
void sharded_ring_open(struct sharded *s, uint64_t step)
{
    for (size_t i = s->n_pulls; i-- > 0;)
        if (s->pulls[i].version < step && s->pulls[i].slot)
            remove_pull(s, &s->pulls[i]);
}

/* Nothing that the worker makes of it is taken: its step is over, or covered on this host, or none of its parts are the
 * worker's. */
static bool is_void(const struct sharded *s, const struct sharded_pull *pull)
{
    if (is_gone(s, version_of(s, pull->unit, pull->turn)))
        return true;
    if (s->job->state != JOB_STEPPING)
        return !evaluate_has(s->job, peer_find(s->peers->first, pull->worker));
    return pull->version + 1 != s->n_opened || s->local_covered || !relay_has_part(s->job->relay, pull->worker);
}

/* It is the worker's oldest one that has to be lent. */
static bool is_due(const struct sharded *s, const struct sharded_pull *pull)
{
    for (const struct sharded_pull *p = s->pulls; p < pull; p++)
        if (p->worker == pull->worker && !p->slot)
            return false;
    return count_lent(s, pull->worker) < SHARDED_LENT;
}

static void answer(struct sharded *s, const struct sharded_pull *p, uint32_t k, bool lent)
{
    job_send_weights(s->job, peer_find(s->peers->first, p->worker), p->version, p->unit,
                     store_ring_at(&s->job->store, k), lent);
}

/* What is void is answered with whatever is in the first slot, so that it takes none. */
static bool lend_one(struct sharded *s)
{
    for (struct sharded_pull *p = s->pulls; p < s->pulls + s->n_pulls; p++) {
        if (!waits(p))
            continue;
        if (is_void(s, p)) {
            answer(s, p, 0, false);
            remove_pull(s, p);
            return true;
        }
        struct sharded_ring_slot *slot = find_slot(s, p->unit, p->turn);
        if (!slot || slot->n_left > 0 || !is_due(s, p))
            continue;
        p->slot = slot;
        slot->n_readers++;
        slot->used = ++s->n_used;
        answer(s, p, (uint32_t)(slot - s->ring), true);
        return true;
    }
    return false;
}

/* ---- fetching --------------------------------------------------------------------------------------------------- */

static bool is_wanted(const struct sharded *s, const struct sharded_ring_slot *slot)
{
    for (const struct sharded_pull *p = s->pulls; p < s->pulls + s->n_pulls; p++)
        if (waits(p) && p->unit == slot->unit && p->turn == slot->turn)
            return true;
    return false;
}

/* An empty one; else the one that was lent or fetched longest ago, that nobody reads, or waits for unless `due`. */
static struct sharded_ring_slot *find_free(struct sharded *s, bool due)
{
    struct sharded_ring_slot *best = NULL;

    for (struct sharded_ring_slot *slot = s->ring; slot < s->ring + s->job->host.n_ring; slot++) {
        if (!slot->taken)
            return slot;
        if (slot->n_readers == 0 && slot->n_left == 0 && (due || !is_wanted(s, slot)) &&
            (!best || slot->used < best->used))
            best = slot;
    }
    return best;
}

bool sharded_ring_is_fetching(const struct sharded *s, uint64_t step)
{
    for (uint32_t k = 0; k < s->job->host.n_ring; k++)
        if (s->ring[k].n_left > 0 && s->ring[k].version <= step)
            return true;
    return false;
}

static bool fetch(struct sharded *s, uint32_t unit, uint64_t turn, bool due)
{
    const struct job *job = s->job;
    const uint64_t version = version_of(s, unit, turn);
    struct sharded_ring_slot *slot = find_free(s, due);

    if (!slot || is_gone(s, version))
        return false;
    const uint32_t k = (uint32_t)(slot - s->ring), buffer = job_replays(job) ? (uint32_t)(turn & 1) : 0;
    *slot =
        (struct sharded_ring_slot){.taken = true, .unit = unit, .turn = turn, .version = version, .used = ++s->n_used};
    slot->n_left = sharded_fetch(
        s, &(struct sharded_fetch){.from = s->owner[unit],
                                   .region = REGION_WEIGHTS,
                                   .offset = store_weights_at(&job->store, &s->owns[s->owner[unit]], unit, buffer),
                                   .into = (char *)job->store.weights.base + store_ring_at(&job->store, k),
                                   .bytes = job->model.units[unit].n * number_bytes(job_goal(job)->precision),
                                   .token = SHARDED_TOKEN_RING + k});
    return true;
}

static bool fetch_one(struct sharded *s)
{
    for (struct sharded_pull *p = s->pulls; p < s->pulls + s->n_pulls; p++)
        if (waits(p) && !find_slot(s, p->unit, p->turn) && fetch(s, p->unit, p->turn, is_due(s, p)))
            return true;
    return false;
}

static bool fetch_ahead(struct sharded *s)
{
    const uint32_t unit = s->ahead;

    s->ahead = UINT32_MAX;
    return unit < s->job->model.n_units && !store_keeps(&s->job->store, unit) && !find_slot(s, unit, s->turns[unit]) &&
           fetch(s, unit, s->turns[unit], false);
}

void sharded_on_ring_fetched(struct sharded *s, uint32_t k)
{
    s->ring[k].n_left--;
}

/* Who waits for another host owes nothing meanwhile (eps/job/watch.c). */
static void note_waiting(struct sharded *s)
{
    for (struct peer *p = s->peers->first; p; p = p->next)
        p->awaits = false;
    for (const struct sharded_pull *p = s->pulls; p < s->pulls + s->n_pulls; p++)
        if (waits(p) && is_due(s, p))
            peer_find(s->peers->first, p->worker)->awaits = true;
}

bool sharded_ring_go_on(struct sharded *s)
{
    if (lend_one(s) || fetch_one(s) || fetch_ahead(s))
        return true;
    note_waiting(s);
    return false;
}

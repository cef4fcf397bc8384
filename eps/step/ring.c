/* Only a pull that is due, its worker's oldest that is not lent, may take a slot whose weights others wait for. So it
 * always finds a slot, and whoever is not due fetches those weights again. If any pull might, workers could fill the
 * ring with weights that none of them may have yet. A fetch ahead takes only a slot that nobody wants, and is
 * forgotten if there is none. */
#include "eps/step/ring.h"

#include <assert.h>
#include <string.h>

void ring_init(struct ring *ring, uint32_t n_slots)
{
    assert(n_slots <= RING_SLOTS);
    *ring = (struct ring){.n_slots = n_slots, .ahead = UINT32_MAX};
}

static void remove_pull(struct ring *ring, struct ring_pull *p)
{
    if (p->slot)
        p->slot->n_readers--;
    memmove(p, p + 1, (size_t)(ring->pulls + ring->n_pulls - (p + 1)) * sizeof *p);
    ring->n_pulls--;
}

static struct ring_slot *ring_find_slot(struct ring *ring, uint32_t unit, uint64_t turn)
{
    for (uint32_t k = 0; k < ring->n_slots; k++)
        if (ring->slots[k].taken && ring->slots[k].unit == unit && ring->slots[k].turn == turn)
            return &ring->slots[k];
    return NULL;
}

/* For its weights, which stand at their owner. */
static bool ring_waits(const struct ring_pull *p)
{
    return p->answered && !p->slot;
}

/* ---- pulls ------------------------------------------------------------------------------------------------------ */

void ring_pull(struct ring *ring, uint32_t worker, uint64_t version, uint32_t unit)
{
    assert(ring->n_pulls < RING_PULLS);
    for (size_t i = 0; i < ring->n_pulls; i++)
        if (ring->pulls[i].worker == worker && ring->pulls[i].unit != unit)
            ring->ahead = unit > ring->pulls[i].unit ? unit + 1 : unit - 1; /* in the direction of its pulls */
    ring->pulls[ring->n_pulls++] = (struct ring_pull){.worker = worker, .version = version, .unit = unit};
}

/* There is one: the relay answers only pulls that it was told of. */
static struct ring_pull *find_unanswered(struct ring *ring, uint32_t worker, uint64_t version, uint32_t unit)
{
    struct ring_pull *p = ring->pulls;

    for (; p->answered || p->worker != worker || p->version != version || p->unit != unit; p++)
        assert(p < ring->pulls + ring->n_pulls - 1);
    return p;
}

void ring_answer(struct ring *ring, uint32_t worker, uint64_t version, uint32_t unit, uint64_t turn)
{
    struct ring_pull *p = find_unanswered(ring, worker, version, unit);

    p->answered = true;
    p->turn = turn;
}

void ring_drop(struct ring *ring, uint32_t worker, uint64_t version, uint32_t unit)
{
    remove_pull(ring, find_unanswered(ring, worker, version, unit));
}

void ring_read(struct ring *ring, uint32_t worker, uint64_t version, uint32_t unit)
{
    for (size_t i = 0; i < ring->n_pulls; i++) {
        struct ring_pull *p = &ring->pulls[i];
        if (p->worker == worker && p->slot && p->version == version && p->unit == unit) {
            remove_pull(ring, p);
            return;
        }
    }
}

void ring_forget(struct ring *ring, uint32_t worker)
{
    for (size_t i = ring->n_pulls; i-- > 0;)
        if (ring->pulls[i].worker == worker)
            remove_pull(ring, &ring->pulls[i]);
}

/* Weights of an earlier step that are still lent are read no more: its shares are over. */
void ring_begin(struct ring *ring, uint64_t step)
{
    for (size_t i = ring->n_pulls; i-- > 0;)
        if (ring->pulls[i].version < step && ring->pulls[i].slot)
            remove_pull(ring, &ring->pulls[i]);
}

static uint32_t count_lent(const struct ring *ring, uint32_t worker)
{
    uint32_t n = 0;

    for (const struct ring_pull *p = ring->pulls; p < ring->pulls + ring->n_pulls; p++)
        n += p->worker == worker && p->slot;
    return n;
}

/* It is the worker's oldest one that has to be lent. */
static bool ring_is_due(const struct ring *ring, const struct ring_pull *pull)
{
    for (const struct ring_pull *p = ring->pulls; p < pull; p++)
        if (p->worker == pull->worker && !p->slot)
            return false;
    return count_lent(ring, pull->worker) < RING_LENT;
}

bool ring_awaits(const struct ring *ring, uint32_t worker)
{
    const struct ring_pull *p = ring->pulls, *end = ring->pulls + ring->n_pulls;

    while (p < end && (p->worker != worker || p->slot))
        p++;
    return p < end && p->answered && ring_is_due(ring, p);
}

/* ---- lending ---------------------------------------------------------------------------------------------------- */

/* Nothing that the worker makes of it is taken, or its owner may overwrite it. */
static bool is_void(const struct ring_step *step, const struct ring_pull *p)
{
    return step->version(step->context, p->unit, p->turn) < step->lowest ||
           !step->counts(step->context, p->worker, p->version);
}

static bool lend_one(struct ring *ring, const struct ring_step *step, struct ring_act *out)
{
    for (struct ring_pull *p = ring->pulls; p < ring->pulls + ring->n_pulls; p++) {
        if (!ring_waits(p))
            continue;
        *out = (struct ring_act){.kind = RING_VOID, .worker = p->worker, .unit = p->unit, .version = p->version};
        if (is_void(step, p)) {
            remove_pull(ring, p);
            return true;
        }
        struct ring_slot *slot = ring_find_slot(ring, p->unit, p->turn);
        if (!slot || slot->fetching || !ring_is_due(ring, p) || !step->is_whole(step->context, p->unit, p->version))
            continue;
        p->slot = slot;
        slot->n_readers++;
        slot->used = ++ring->n_used;
        out->kind = RING_LEND;
        out->slot = (uint32_t)(slot - ring->slots);
        return true;
    }
    return false;
}

/* ---- fetching --------------------------------------------------------------------------------------------------- */

static bool ring_is_wanted(const struct ring *ring, const struct ring_slot *slot)
{
    for (const struct ring_pull *p = ring->pulls; p < ring->pulls + ring->n_pulls; p++)
        if (ring_waits(p) && p->unit == slot->unit && p->turn == slot->turn)
            return true;
    return false;
}

/* An empty one; else the one that was lent or fetched longest ago, that nobody reads, or waits for unless `due`. */
static struct ring_slot *ring_find_free(struct ring *ring, bool due)
{
    struct ring_slot *best = NULL;

    for (struct ring_slot *slot = ring->slots; slot < ring->slots + ring->n_slots; slot++) {
        if (!slot->taken)
            return slot;
        if (slot->n_readers == 0 && !slot->fetching && (due || !ring_is_wanted(ring, slot)) &&
            (!best || slot->used < best->used))
            best = slot;
    }
    return best;
}

bool ring_is_fetching(const struct ring *ring, uint64_t version)
{
    for (uint32_t k = 0; k < ring->n_slots; k++)
        if (ring->slots[k].fetching && ring->slots[k].version <= version)
            return true;
    return false;
}

static bool ring_fetch(struct ring *ring, const struct ring_step *step, uint32_t unit, uint64_t turn, bool due,
                       struct ring_act *out)
{
    const uint64_t version = step->version(step->context, unit, turn);
    struct ring_slot *slot = ring_find_free(ring, due);

    if (!slot || version < step->lowest)
        return false;
    *slot = (struct ring_slot){
        .taken = true, .unit = unit, .turn = turn, .version = version, .fetching = true, .used = ++ring->n_used};
    *out = (struct ring_act){.kind = RING_FETCH, .unit = unit, .turn = turn, .slot = (uint32_t)(slot - ring->slots)};
    return true;
}

static bool fetch_one(struct ring *ring, const struct ring_step *step, struct ring_act *out)
{
    for (struct ring_pull *p = ring->pulls; p < ring->pulls + ring->n_pulls; p++)
        if (ring_waits(p) && !ring_find_slot(ring, p->unit, p->turn) &&
            ring_fetch(ring, step, p->unit, p->turn, ring_is_due(ring, p), out))
            return true;
    return false;
}

static bool fetch_ahead(struct ring *ring, const struct ring_step *step, struct ring_act *out)
{
    const uint32_t unit = ring->ahead;
    uint64_t turn;

    ring->ahead = UINT32_MAX;
    return unit != UINT32_MAX && step->find(step->context, unit, &turn) && !ring_find_slot(ring, unit, turn) &&
           ring_fetch(ring, step, unit, turn, false, out);
}

/* Whoever waits for it is lent it by the next lend_one. */
void ring_fetched(struct ring *ring, uint32_t slot)
{
    assert(ring->slots[slot].fetching);
    ring->slots[slot].fetching = false;
}

bool ring_next(struct ring *ring, const struct ring_step *step, struct ring_act *out)
{
    return lend_one(ring, step, out) || fetch_one(ring, step, out) || fetch_ahead(ring, step, out);
}

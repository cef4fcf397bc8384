/* eps/relay/slots.c - the attached workers, the slots of their inboxes, and the next contribution to fold. */
#include "eps/relay/relay_state.h"

#include <assert.h>
#include <string.h>

/* A worker's place in the sorted list; if it is absent, where it belongs. */
static uint32_t worker_index(const struct relay *r, uint32_t id)
{
    uint32_t low = 0, high = r->n_workers;
    while (low < high) {
        uint32_t mid = (low + high) / 2;
        if (r->workers[mid].id < id)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

struct relay_worker *relay_find_worker(const struct relay *r, uint32_t id)
{
    uint32_t i = worker_index(r, id);
    return i < r->n_workers && r->workers[i].id == id ? &r->workers[i] : NULL;
}

/* The cells behind the last worker are unused ones: they move with their place, so nothing is allocated here. */
void relay_add_worker(struct relay *r, uint32_t id, uint32_t room)
{
    uint32_t i = worker_index(r, id);
    struct relay_cell *cells = r->workers[r->n_workers].cells;
    memmove(&r->workers[i + 1], &r->workers[i], (r->n_workers - i) * sizeof *r->workers);
    memset(cells, 0, ((size_t)r->config.n_slots + 1) * sizeof *cells);
    r->workers[i] = (struct relay_worker){.id = id, .n_free = r->config.n_slots, .room = room, .cells = cells};
    r->n_workers++;
}

void relay_drop_standing(struct relay *r, uint32_t worker, uint32_t part)
{
    size_t kept = 0;
    for (size_t i = 0; i < r->n_standing; i++) {
        const struct relay_standing *x = &r->standing[i];
        if (x->worker != worker || (part != RELAY_ALL_PARTS && x->tag.name.part != part))
            r->standing[kept++] = *x;
    }
    r->n_standing = kept;
}

/* The cells go behind the last worker, for the next one that comes. */
void relay_drop_worker(struct relay *r, struct relay_worker *w)
{
    relay_drop_standing(r, w->id, RELAY_ALL_PARTS);
    struct relay_cell *cells = w->cells;
    r->n_workers--;
    memmove(w, w + 1, (size_t)(&r->workers[r->n_workers] - w) * sizeof *w);
    r->workers[r->n_workers] = (struct relay_worker){.cells = cells};
}

static bool holds(const struct relay_cell *cell, const struct relay_tag *tag)
{
    return cell->full && contribution_is(&cell->tag.name, &tag->name);
}

bool relay_has_tag(const struct relay *r, const struct relay_worker *w, const struct relay_tag *tag)
{
    for (uint32_t k = 0; k <= r->config.n_slots; k++) {
        if (holds(&w->cells[k], tag))
            return true;
    }
    return false;
}

/* Place in the standing list: by name, then worker, then slot. */
static size_t standing_index(const struct relay *r, uint32_t name, uint32_t worker, uint32_t slot)
{
    size_t low = 0, high = r->n_standing;
    while (low < high) {
        size_t mid = (low + high) / 2;
        const struct relay_standing *x = &r->standing[mid];
        bool before = x->name != name ? x->name < name : x->worker != worker ? x->worker < worker : x->slot < slot;
        if (before)
            low = mid + 1;
        else
            high = mid;
    }
    return low;
}

/* The reserved slot is not counted among the free ones: it is granted, never taken. */
void relay_put(struct relay *r, struct relay_worker *w, uint32_t slot, const struct relay_tag *tag, uint64_t digest)
{
    uint32_t name = relay_name_of(r, tag);
    size_t i = standing_index(r, name, w->id, slot);
    assert(r->n_standing < r->cap_standing && !w->cells[slot].full);
    memmove(&r->standing[i + 1], &r->standing[i], (r->n_standing - i) * sizeof *r->standing);
    r->standing[i] =
        (struct relay_standing){.name = name, .worker = w->id, .slot = slot, .tag = *tag, .digest = digest};
    r->n_standing++;
    w->cells[slot] = (struct relay_cell){.full = true, .tag = *tag};
    w->n_free -= slot != RELAY_RESERVED;
}

/* A slot of a skipped step has left the list, and its name has no number in a later step. */
static void remove_standing(struct relay *r, uint32_t worker, uint32_t slot, const struct relay_tag *tag)
{
    if (tag->name.step != r->t)
        return;
    uint32_t name = relay_name_of(r, tag);
    size_t i = standing_index(r, name, worker, slot);
    if (i == r->n_standing || r->standing[i].name != name || r->standing[i].worker != worker ||
        r->standing[i].slot != slot)
        return;
    r->n_standing--;
    memmove(&r->standing[i], &r->standing[i + 1], (r->n_standing - i) * sizeof *r->standing);
}

void relay_free_slot(struct relay *r, uint32_t worker, uint32_t slot, const struct relay_tag *tag)
{
    struct relay_action *a = relay_act(r, RELAY_FREE);
    a->worker = worker;
    a->slot = slot;
    a->name = tag->name;
}

void relay_clear(struct relay *r, uint32_t worker, uint32_t slot, const struct relay_tag *tag)
{
    struct relay_worker *w = relay_find_worker(r, worker);
    if (!w || !holds(&w->cells[slot], tag))
        return;
    relay_free_slot(r, worker, slot, tag);
    remove_standing(r, worker, slot, tag);
    w->cells[slot].full = false;
    w->n_free += slot != RELAY_RESERVED;
}

/* relay_clear removes it from the list, so the place has the next one. */
void relay_clear_name(struct relay *r, uint32_t name)
{
    size_t i = standing_index(r, name, 0, 0);
    while (i < r->n_standing && r->standing[i].name == name) {
        struct relay_standing x = r->standing[i];
        relay_clear(r, x.worker, x.slot, &x.tag);
    }
}

/* The optimizer thread reads this very contribution, in any slot. */
static bool is_with_thread(const struct relay *r, const struct relay_tag *tag)
{
    const struct relay_slice *s = &r->units[tag->unit].slices[tag->name.slice];
    return s->flying && contribution_is(&s->tag.name, &tag->name);
}

void relay_clear_worker(struct relay *r, struct relay_worker *w)
{
    for (uint32_t k = 0; k <= r->config.n_slots; k++) {
        struct relay_tag tag = w->cells[k].tag;
        if (w->cells[k].full && !is_with_thread(r, &tag))
            relay_clear(r, w->id, k, &tag);
    }
}

void relay_clear_all(struct relay *r)
{
    for (uint32_t i = 0; i < r->n_workers; i++)
        relay_clear_worker(r, &r->workers[i]);
    r->n_standing = 0;
}

/* ---- folds ------------------------------------------------------------------------------------------------------ */

/* Accumulators go to the first units of the backward order that are not yet updated, not to the first that ask.
 * Otherwise a lower unit could take the last one and wait for workers that wait for a higher unit. */
static void hand_out_accumulators(struct relay *r)
{
    while (r->sums_end < r->n_sums && r->n_summing < r->config.n_accumulators)
        r->n_summing += r->units[r->sums[r->sums_end++]].version == r->t;
}

/* The optimizer thread holds at most one fold of a slice. So a bad fold can be redone in its place in the order, and
 * the first good one is known to be first. The caller has checked the step's losses and the tail once for all. */
static bool is_foldable(const struct relay *r, const struct relay_standing *x)
{
    const struct relay_unit *u = &r->units[x->tag.unit];
    const struct relay_slice *slice = &u->slices[x->tag.name.slice];
    if (slice->flying || u->version != r->t || u->captured || relay_is_folded(r, x->name))
        return false;
    const bool lowest = r->visits[x->tag.name.visit].rank + 1 == u->n_visits;
    if (lowest && u->sum_index != RELAY_NO_SUM && u->sum_index >= r->sums_end)
        return false;
    /* All names of the sum up to here are folded in order, so the count is the place of the next. */
    const uint32_t sum = relay_sum_of(r, &x->tag);
    const uint32_t turn = (r->visits[x->tag.name.visit].rank - sum) * r->config.n_parts + x->tag.name.part;
    return !r->config.deterministic || turn == slice->n_folded[sum];
}

static void slots_fold(struct relay *r, const struct relay_standing *x)
{
    struct relay_slice *slice = &r->units[x->tag.unit].slices[x->tag.name.slice];
    struct relay_action *a = relay_act(r, RELAY_FOLD);
    a->unit = x->tag.unit;
    a->name = x->tag.name;
    a->worker = x->worker;
    a->slot = x->slot;
    a->first = slice->n_folded[relay_sum_of(r, &x->tag)] == 0;
    slice->flying = true;
    slice->worker = x->worker;
    slice->slot = x->slot;
    slice->tag = x->tag;
    r->n_flying++;
    r->parts[x->tag.name.part].n_sure++;
    r->parts[x->tag.name.part].n_flying++;
}

/* Before all losses are known only a step whose updates come last is folded: what it folds changes no weight yet. */
void relay_fold_all(struct relay *r)
{
    if (r->has_tail || (r->n_losses < r->config.n_parts && !relay_updates_last(r)))
        return;
    hand_out_accumulators(r);
    for (size_t i = 0; i < r->n_standing; i++) {
        if (is_foldable(r, &r->standing[i]) && relay_is_agreed(r, &r->standing[i]))
            slots_fold(r, &r->standing[i]);
    }
}

/* The last part that the reserved slot of the mark's worker is for: with row groups, it goes on from the mark's to
 * those of its own that follow. Their contributions are foldable, or will be with the help of the optimizer thread, the
 * readers and this worker alone, so one always leaves the reserved slot. */
static uint32_t last_reserved(const struct relay *r)
{
    uint32_t part = r->mark.name.part;
    while (r->config.groups && part + 1 < r->config.n_parts && r->parts[part + 1].owner == r->parts[part].owner)
        part++;
    return part;
}

bool relay_may_reserve(struct relay *r, const struct relay_tag *tag)
{
    if (!relay_find_mark(r))
        return false;
    const uint32_t name = relay_name_of(r, tag);
    return r->config.groups ? name >= r->mark_name && tag->name.part <= last_reserved(r) : name == r->mark_name;
}

/* Grants the reserved slot to the worker that must compute the mark and has no ordinary slot for it. */
void relay_grant(struct relay *r)
{
    if (r->covered || !relay_find_mark(r))
        return;
    struct relay_tag this = r->mark;
    const struct relay_part_state *part = &r->parts[this.name.part];
    this.name.step = r->t;
    this.name.attempt = part->attempt;
    this.unit = r->visits[this.name.visit].unit;
    if (relay_is_flying(r, &this) || part->owner == RELAY_NOBODY)
        return;
    struct relay_worker *w = relay_find_worker(r, part->owner);
    if (w->cells[RELAY_RESERVED].full || w->n_free || relay_has_tag(r, w, &this))
        return;
    if (r->config.groups) {
        this.name.part = last_reserved(r);
        this.name.attempt = r->parts[this.name.part].attempt;
        this.name.visit = r->bottom;
        this.unit = r->visits[r->bottom].unit;
        this.name.slice = r->visits[r->bottom].n_slices - 1;
    }
    if (w->granted.full && contribution_is(&w->granted.tag.name, &this.name))
        return;
    w->granted = (struct relay_cell){.full = true, .tag = this};
    struct relay_action *a = relay_act(r, RELAY_GRANT);
    a->worker = w->id;
    a->name = this.name;
}

/* eps/relay/relay.c - what each event does, and who has which part.
 *
 * relay_feed makes room for all that may follow (relay_memory.c), hands the event to its on_x here, and pumps
 * (relay_pump.c). The step is in relay_step.c, the slots in relay_inbox.c, the readers in relay_readers.c. */
#include "eps/relay/relay_state.h"

#include <assert.h>

struct relay_action *relay_act(struct relay *r, enum relay_action_kind kind)
{
    assert(r->n_actions < r->cap_actions);
    struct relay_action *a = &r->actions[r->n_actions++];
    *a = (struct relay_action){.kind = kind};
    return a;
}

static void refuse(struct relay *r, uint32_t worker, const char *why)
{
    struct relay_action *a = relay_act(r, RELAY_REFUSE);
    a->worker = worker;
    a->why = why;
}

static void refuse_open(struct relay *r, const char *why)
{
    struct relay_action *a = relay_act(r, RELAY_REFUSE);
    a->to_client = true;
    a->why = why;
}

/* ---- parts and who has them ------------------------------------------------------------------------------------- */

/* Only the worker that a part is with now, in its present attempt, speaks for it. */
static bool is_current(const struct relay *r, uint32_t worker, uint32_t part, uint32_t attempt)
{
    return r->parts[part].owner == worker && r->parts[part].attempt == attempt;
}

/* Some of the part's names are neither folded nor with the thread. */
static bool is_unfinished(const struct relay *r, uint32_t part)
{
    return !r->covered && r->parts[part].n_sure < r->n_names_of_part;
}

/* Version t of every unit stands: from replay, or because no unit can have been updated without the part. */
static bool can_redo(const struct relay *r, uint32_t part)
{
    return r->config.replay || r->config.fenced || !r->parts[part].n_sure;
}

/* The step will not be finished. Eager, with something folded: the model is torn. Else it is skipped: every unit's
 * fence advances, nothing else does. */
static void give_up(struct relay *r)
{
    if (!r->config.fenced && (r->n_folded || r->n_flying)) {
        r->torn = true;
        relay_abandon_readers(r);
        relay_act(r, RELAY_TORN)->step = r->t;
        return;
    }
    relay_clear_all(r);
    relay_act(r, RELAY_SKIPPED)->step = r->t;
    relay_cover(r, true);
}

/* A share for every worker that has parts which the event gave it. */
static void announce(struct relay *r)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < r->n_workers; i++) {
        uint32_t first = n;
        for (uint32_t p = 0; p < r->config.n_parts; p++) {
            if (r->parts[p].moved && r->parts[p].owner == r->workers[i].id)
                r->shared[n++] = (struct relay_part){.part = p, .attempt = r->parts[p].attempt};
        }
        if (n == first)
            continue;
        struct relay_action *a = relay_act(r, RELAY_SHARE);
        a->worker = r->workers[i].id;
        a->step = r->t;
        a->parts = &r->shared[first];
        a->n_parts = n - first;
    }
}

static struct relay_worker *least_loaded(struct relay *r)
{
    struct relay_worker *least = &r->workers[0];
    for (uint32_t i = 1; i < r->n_workers; i++) {
        if (r->workers[i].load < least->load)
            least = &r->workers[i];
    }
    return least;
}

/* Parts that nobody works on go to whoever has least to do, as a new attempt. */
static void place(struct relay *r)
{
    for (uint32_t i = 0; i < r->n_workers; i++)
        r->workers[i].load = 0;
    for (uint32_t p = 0; p < r->config.n_parts; p++) {
        r->parts[p].moved = false;
        if (r->parts[p].owner != RELAY_NOBODY && is_unfinished(r, p))
            relay_find_worker(r, r->parts[p].owner)->load++;
    }
    for (uint32_t p = 0; p < r->config.n_parts; p++) {
        struct relay_part_state *part = &r->parts[p];
        if (part->owner != RELAY_NOBODY || !is_unfinished(r, p))
            continue;
        if (!can_redo(r, p)) {
            give_up(r);
            return;
        }
        if (!r->n_workers)
            continue;
        struct relay_worker *w = least_loaded(r);
        w->load++;
        part->owner = w->id;
        part->attempt++;
        part->moved = true;
    }
    announce(r);
}

/* What it had in its inbox goes, for the attempt will not be current; what the thread has stands, in memory of the
 * daemon's own that outlives the worker. */
static void on_lost(struct relay *r, uint32_t worker)
{
    struct relay_worker *w = relay_find_worker(r, worker);
    if (!w)
        return;
    relay_drop_worker(r, w);
    size_t kept = 0;
    for (size_t i = 0; i < r->n_waiting; i++) {
        if (r->waiting[i].worker != worker)
            r->waiting[kept++] = r->waiting[i];
    }
    r->n_waiting = kept;
    for (uint32_t p = 0; p < r->config.n_parts; p++) {
        if (r->parts[p].owner == worker)
            r->parts[p].owner = RELAY_NOBODY;
    }
    place(r);
}

/* Numbers that are not finite: once, the worker's fault, which is named and lost; twice, the model's. */
static void fault(struct relay *r, uint32_t worker, uint32_t part)
{
    r->parts[part].n_faults++;
    if (worker != RELAY_NOBODY)
        refuse(r, worker, "not finite");
    if (r->parts[part].n_faults > 1)
        give_up(r);
    else if (worker != RELAY_NOBODY)
        on_lost(r, worker);
    else
        place(r);
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

static void on_attached(struct relay *r, uint32_t worker)
{
    assert(worker != RELAY_NOBODY);
    if (relay_find_worker(r, worker)) {
        refuse(r, worker, "attached already");
        return;
    }
    relay_add_worker(r, worker);
    place(r); /* joins at the next step, unless a part has nobody */
}

static void on_open(struct relay *r, const struct relay_event *e)
{
    const char *why = relay_open_refusal(r, e);
    if (why) {
        refuse_open(r, why);
        return;
    }
    relay_begin_step(r, e);
    announce(r);
}

static void on_pull(struct relay *r, const struct relay_event *e)
{
    bool known = e->unit < r->n_units && r->units[e->unit].n_visits && relay_find_worker(r, e->worker);
    if (!known || (e->step != r->t && e->step != r->t + 1)) {
        refuse(r, e->worker, "no such pull");
        return;
    }
    struct relay_pull pull = {.worker = e->worker, .unit = e->unit, .step = e->step};
    enum relay_buffer where = relay_find_buffer(r, &pull);
    if (where == RELAY_WAIT)
        r->waiting[r->n_waiting++] = pull;
    else
        relay_answer(r, &pull, where);
}

/* No slice is folded before every part's loss is known to be finite: so a step that will not end well mostly says so
 * while it can still be skipped. */
static void on_loss(struct relay *r, const struct relay_event *e)
{
    if (e->step != r->t || r->covered || e->part >= r->config.n_parts ||
        !is_current(r, e->worker, e->part, e->attempt)) {
        refuse(r, e->worker, "stale");
    } else if (r->has_tail) {
        refuse(r, e->worker, "loss before all weights");
    } else if (e->ok) {
        r->n_losses += !r->parts[e->part].loss;
        r->parts[e->part].loss = true;
    } else if (r->parts[e->part].loss) { /* finite once: it is the worker that is wrong */
        fault(r, e->worker, e->part);
    } else {
        give_up(r);
    }
}

static bool is_name(const struct relay *r, const struct relay_event *e)
{
    return e->visit < r->n_visits && e->part < r->config.n_parts && e->slice < r->visits[e->visit].n_slices &&
           !r->units[r->visits[e->visit].unit].frozen;
}

/* Judged by its name; a duplicate is dropped. The slot is freed for a name that is folded already, but never when it
 * holds something else: then this is an old message delivered twice. Why it is refused, or NULL. */
static const char *take(struct relay *r, const struct relay_event *e)
{
    struct relay_worker *w = relay_find_worker(r, e->worker);
    if (!w || e->step != r->t || !is_name(r, e) || e->slot > r->config.n_slots)
        return "no such contribution";
    if (!is_current(r, e->worker, e->part, e->attempt))
        return "stale";
    struct relay_tag tag = {.step = r->t,
                            .visit = e->visit,
                            .part = e->part,
                            .slice = e->slice,
                            .attempt = e->attempt,
                            .unit = r->visits[e->visit].unit};
    uint32_t name = relay_name_of(r, &tag);
    const struct relay_cell *cell = &w->cells[e->slot];
    if (cell->full && relay_same_tag(&cell->tag, &tag))
        return NULL;
    if (relay_is_folded(r, name) || relay_has_tag(r, w, &tag)) {
        if (!cell->full)
            relay_free_slot(r, e->worker, e->slot, &tag);
        return NULL;
    }
    if (r->covered)
        return "step is over"; /* it was skipped */
    if (cell->full)
        return "slot in use";
    if (e->slot == RELAY_RESERVED && !(relay_find_mark(r) && name == r->mark_name))
        return "reserved slot";
    if (!r->parts[e->part].loss)
        return "loss first";
    relay_put(r, w, e->slot, &tag);
    return NULL;
}

static void on_contribution(struct relay *r, const struct relay_event *e)
{
    const char *why = take(r, e);
    if (why)
        refuse(r, e->worker, why);
}

static void on_folded(struct relay *r, const struct relay_event *e)
{
    assert(e->unit < r->n_units && e->slice < r->units[e->unit].cap_slices);
    struct relay_unit *u = &r->units[e->unit];
    struct relay_slice *slice = &u->slices[e->slice];
    assert(slice->flying);
    struct relay_tag tag = slice->tag;
    uint32_t worker = slice->worker;
    slice->flying = false;
    if (tag.step == r->t) {
        r->n_flying--;
        r->parts[tag.part].n_sure--;
    }
    relay_clear(r, worker, slice->slot, &tag);
    if (tag.step != r->t || r->covered)
        return; /* of a step that was skipped meanwhile */
    if (e->ok) {
        uint32_t name = relay_name_of(r, &tag);
        r->folded[name / 64] |= 1ull << (name % 64);
        r->n_folded++;
        r->parts[tag.part].n_sure++;
        u->n_folded++;
        slice->n_folded++;
        r->touched = e->unit;
        relay_clear_name(r, name);
    } else if (r->config.fenced) {
        give_up(r);
    } else {
        fault(r, is_current(r, worker, tag.part, tag.attempt) ? worker : RELAY_NOBODY, tag.part);
    }
}

static void on_updated(struct relay *r, uint32_t unit)
{
    assert(unit < r->n_units && r->units[unit].updating);
    r->units[unit].updating = false;
    relay_advance(r, unit);
}

static void on_event(struct relay *r, const struct relay_event *e)
{
    switch (e->kind) {
    case RELAY_ATTACHED:
        on_attached(r, e->worker);
        break;
    case RELAY_LOST:
        on_lost(r, e->worker);
        break;
    case RELAY_OPEN:
        on_open(r, e);
        break;
    case RELAY_PULL:
        on_pull(r, e);
        break;
    case RELAY_LOSS:
        on_loss(r, e);
        break;
    case RELAY_CONTRIBUTION:
        on_contribution(r, e);
        break;
    case RELAY_FOLDED:
        on_folded(r, e);
        break;
    case RELAY_UPDATED:
        on_updated(r, e->unit);
        break;
    case RELAY_SAVE:
        relay_on_save(r, e->reader);
        break;
    case RELAY_RELEASED:
        relay_on_released(r, e->reader, e->unit);
        break;
    }
}

/* Nothing moves any more; whoever asks for something is told. */
static void on_event_torn(struct relay *r, const struct relay_event *e)
{
    if (e->kind == RELAY_OPEN)
        refuse_open(r, "torn");
    else if (e->kind == RELAY_SAVE)
        relay_refuse_reader(r, e->reader, "torn");
    else if (e->kind == RELAY_PULL || e->kind == RELAY_LOSS || e->kind == RELAY_CONTRIBUTION)
        refuse(r, e->worker, "torn");
}

int relay_feed(struct relay *r, const struct relay_event *e, const struct relay_action **actions)
{
    bool opens = e->kind == RELAY_OPEN && !r->torn && !relay_open_refusal(r, e);
    int rc = relay_reserve(r, e, opens);
    if (rc)
        return rc;
    r->n_actions = 0;
    r->touched = r->n_units;
    if (r->torn) {
        on_event_torn(r, e);
    } else {
        on_event(r, e);
        relay_pump(r);
    }
    *actions = r->actions;
    return (int)r->n_actions;
}

uint64_t relay_version(const struct relay *r, uint32_t unit)
{
    assert(unit < r->n_units);
    return r->units[unit].version;
}

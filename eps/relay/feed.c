/* eps/relay/feed.c - an event in, actions out.
 *
 * relay_feed makes room for all that may follow (memory.c), hands the event to its on_x, and runs the pump. The pump
 * does everything that has become possible, in a fixed order. slots.c chooses the next fold and who gets the
 * reserved slot; audit.c compares two results of one part; readers.c hands versions to saves. */
#include "eps/relay/relay_state.h"

#include <assert.h>
#include <string.h>

void relay_refuse(struct relay *r, uint32_t worker, const char *why)
{
    *relay_act(r, RELAY_REFUSE) = (struct relay_action){.kind = RELAY_REFUSE, .worker = worker, .why = why};
}

static void refuse_open(struct relay *r, const char *why)
{
    *relay_act(r, RELAY_REFUSE) = (struct relay_action){.kind = RELAY_REFUSE, .to_client = true, .why = why};
}

/* ---- units and step ---------------------------------------------------------------------------------------------- */

static void feed_finish(struct relay *r)
{
    if (!r->has_tail)
        return;
    while (r->n_past_tail < r->n_visits && r->units[r->visits[r->n_past_tail].unit].version > r->tail)
        r->n_past_tail++;
    if (r->n_past_tail < r->n_visits)
        return;
    relay_act(r, RELAY_DONE)->step = r->tail;
    r->has_tail = false;
}

/* The unit has reached its next version; does what follows from that. */
static void feed_advance(struct relay *r, uint32_t unit)
{
    struct relay_unit *u = &r->units[unit];
    if (u->sum_index < r->sums_end && u->version == r->t)
        r->n_summing--;
    u->version++;
    relay_capture(r, unit); /* before any fold beyond */
    feed_finish(r);
}

/* The open step needs no worker any more. Frozen units, or all units of a skipped step, advance now. */
static void cover(struct relay *r, bool skipped)
{
    r->covered = r->has_tail = true;
    r->tail = r->t;
    r->n_past_tail = 0;
    relay_act(r, RELAY_COVERED)->step = r->t;
    for (uint32_t u = 0; u < r->n_units; u++) {
        if (skipped ? r->units[u].n_visits > 0 : r->units[u].frozen)
            feed_advance(r, u);
    }
    feed_finish(r);
}

/* ---- pulls ------------------------------------------------------------------------------------------------------ */

/* Which buffer has a pulled version. */
enum buffer { NOW, BEFORE, WAIT, VOID };

/* No worker is needed for the step any more. */
static bool feed_is_over(const struct relay *r, uint64_t step)
{
    return r->torn || step < r->t || (step == r->t && r->covered);
}

/* A step that is over gets no weights, though they may still stand: while a worker reads them they may be overwritten,
 * and nothing that it makes of them is taken. */
static enum buffer find_buffer(const struct relay *r, const struct relay_pull *pull)
{
    const struct relay_unit *u = &r->units[pull->unit];
    if (feed_is_over(r, pull->step))
        return VOID;
    if (u->version <= pull->step)
        return u->version == pull->step ? NOW : WAIT;
    return r->config.replay && pull->step == r->t ? BEFORE : VOID;
}

static void feed_answer(struct relay *r, const struct relay_pull *pull, enum buffer where)
{
    struct relay_action *a = relay_act(r, RELAY_ANSWER);
    a->worker = pull->worker;
    a->unit = pull->unit;
    a->step = pull->step;
    a->before = where == BEFORE;
    a->is_void = where == VOID;
}

/* Oldest first. None waits for ever: its version comes, or its step ends. */
static void answer_waiting(struct relay *r)
{
    size_t kept = 0;
    for (size_t i = 0; i < r->n_waiting; i++) {
        struct relay_pull pull = r->waiting[i];
        enum buffer where = find_buffer(r, &pull);
        if (where == WAIT)
            r->waiting[kept++] = pull;
        else
            feed_answer(r, &pull, where);
    }
    r->n_waiting = kept;
}

/* ---- parts and who has them ------------------------------------------------------------------------------------- */

bool relay_has_part(const struct relay *r, uint32_t worker)
{
    for (uint32_t p = 0; p < r->config.n_parts; p++)
        if (r->parts[p].owner == worker)
            return true;
    return false;
}

/* A part belongs to one worker, in one attempt; only in it may that worker send the part's loss and contributions. */
bool relay_is_current(const struct relay *r, uint32_t worker, uint32_t part, uint32_t attempt)
{
    return r->parts[part].owner == worker && r->parts[part].attempt == attempt;
}

bool relay_has_loss(const struct relay *r, uint32_t part)
{
    return r->parts[part].loss;
}

void relay_tear(struct relay *r)
{
    r->torn = true;
    relay_abandon_readers(r);
    answer_waiting(r);
}

/* The step will not be finished. If something is in the moments, or on its way there, the model is torn. Else the step
 * is skipped: every unit's fence advances, and nothing else does. */
static void feed_give_up(struct relay *r)
{
    if (!r->config.fenced && (r->n_folded || r->n_flying)) {
        relay_tear(r);
        relay_act(r, RELAY_TORN)->step = r->t;
        return;
    }
    relay_clear_all(r);
    relay_act(r, RELAY_SKIPPED)->step = r->t;
    cover(r, true);
}

/* A share for every worker that was given parts since the last call. */
static void feed_announce(struct relay *r)
{
    for (uint32_t i = 0; i < r->n_workers; i++) {
        const uint32_t first = r->n_shared;
        for (uint32_t p = 0; p < r->config.n_parts; p++) {
            struct relay_part_state *part = &r->parts[p];
            if (!part->moved || part->owner != r->workers[i].id)
                continue;
            assert(r->n_shared < RELAY_MOST_MOVES * r->config.n_parts);
            r->shared[r->n_shared++] = (struct relay_part){.part = p, .attempt = part->attempt};
            part->moved = false;
        }
        if (r->n_shared == first)
            continue;
        struct relay_action *a = relay_act(r, RELAY_SHARE);
        a->worker = r->workers[i].id;
        a->step = r->t;
        a->parts = &r->shared[first];
        a->n_parts = r->n_shared - first;
    }
}

/* The least loaded worker with room. NULL: there is none. */
static struct relay_worker *least_loaded(struct relay *r)
{
    struct relay_worker *least = NULL;
    for (uint32_t i = 0; i < r->n_workers; i++) {
        const struct relay_worker *w = &r->workers[i];
        if (!w->leaving && w->load < w->room && (!least || w->load < least->load))
            least = &r->workers[i];
    }
    return least;
}

static void count_loads(struct relay *r)
{
    for (uint32_t i = 0; i < r->n_workers; i++)
        r->workers[i].load = 0;
    for (uint32_t p = 0; p < r->config.n_parts; p++)
        if (r->parts[p].owner != RELAY_NOBODY && relay_is_unfinished(r, p))
            relay_find_worker(r, r->parts[p].owner)->load++;
}

/* Parts without a worker go to the worker with the least to do, as a new attempt; or wait until one has room. */
static void assign_parts(struct relay *r)
{
    count_loads(r);
    for (uint32_t p = 0; p < r->config.n_parts; p++) {
        struct relay_part_state *part = &r->parts[p];
        if (part->owner != RELAY_NOBODY || !relay_is_unfinished(r, p))
            continue;
        if (!relay_can_redo(r, p)) {
            feed_give_up(r);
            return;
        }
        struct relay_worker *w = least_loaded(r);
        if (!w)
            continue;
        w->load++;
        part->owner = w->id;
        part->attempt++;
        part->moved = true;
    }
    feed_announce(r);
}

void relay_restart(struct relay *r, struct relay_worker *w)
{
    relay_clear_worker(r, w);
    w->granted.full = false;
    for (uint32_t p = 0; p < r->config.n_parts; p++)
        if (r->parts[p].owner == w->id && relay_is_unfinished(r, p)) {
            r->parts[p].attempt++;
            r->parts[p].moved = true;
        }
    feed_announce(r);
}

/* The worker's inbox is emptied, for its attempt will not be current. What the optimizer thread reads stays, in the
 * daemon's own memory, which outlives the worker. */
void relay_lose(struct relay *r, uint32_t worker)
{
    struct relay_worker *w = relay_find_worker(r, worker);
    if (!w)
        return;
    relay_drop_worker(r, w);
    relay_audit_lost(r, worker);
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
    assign_parts(r);
}

/* A part's numbers are not finite. The first time, the worker is at fault: it is named and lost. The second time, the
 * model is. */
static void feed_fault(struct relay *r, uint32_t worker, uint32_t part)
{
    r->parts[part].n_faults++;
    if (worker != RELAY_NOBODY)
        *relay_act(r, RELAY_REFUSE) =
            (struct relay_action){.kind = RELAY_REFUSE, .worker = worker, .not_finite = true, .why = "not finite"};
    if (r->parts[part].n_faults > 1)
        feed_give_up(r);
    else if (worker != RELAY_NOBODY)
        relay_lose(r, worker);
    else
        assign_parts(r);
}

/* True if others have the place of this part, which the worker had sent whole: it counted as finished until now. */
static bool is_displaced(const struct relay *r, const struct relay_worker *w, uint32_t part)
{
    return r->parts[part].n_sure + 1 == r->n_names_of_part && relay_load(r, w->id) > (w->room > 1 ? w->room : 1);
}

/* What it has sent was damaged. Other attempts, if any, bring it anyway. */
static void redo(struct relay *r, uint32_t worker, const struct contribution_name *name)
{
    struct relay_worker *w = relay_find_worker(r, worker);

    if (!relay_is_current(r, worker, name->part, name->attempt)) {
        assign_parts(r);
    } else if (!relay_can_redo_all(r, worker)) {
        relay_tear(r);
        relay_act(r, RELAY_TORN)->step = r->t;
    } else if (is_displaced(r, w, name->part)) {
        r->parts[name->part].owner = RELAY_NOBODY;
        assign_parts(r);
    } else {
        relay_act(r, RELAY_REDO)->worker = worker;
        relay_restart(r, w);
    }
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

static void feed_on_attached(struct relay *r, uint32_t worker, uint32_t room)
{
    assert(worker != RELAY_NOBODY);
    if (relay_find_worker(r, worker)) {
        relay_refuse(r, worker, "attached already");
        return;
    }
    relay_add_worker(r, worker, room);
    assign_parts(r); /* joins at the next step, unless some part has no worker */
}

static void feed_on_room(struct relay *r, uint32_t worker, uint32_t room)
{
    struct relay_worker *w = relay_find_worker(r, worker);
    if (w)
        w->room = room;
}

static uint32_t count_owned(const struct relay_event *e, uint32_t worker)
{
    uint32_t n = 0;
    for (uint32_t p = 0; p < e->n_owners; p++)
        n += e->owners[p] == worker;
    return n;
}

/* Why an open is refused, or NULL. */
static const char *open_refusal(const struct relay *r, const struct relay_event *e)
{
    if (e->step != r->t + 1 || !r->covered)
        return "not the next step";
    bool all = e->n_owners == r->config.n_parts;
    for (uint32_t p = 0; p < e->n_owners && all; p++)
        all = relay_find_worker(r, e->owners[p]) != NULL;
    if (!all)
        return "a part without a worker";
    for (uint32_t i = 0; i < r->n_workers; i++)
        if (count_owned(e, r->workers[i].id) > r->workers[i].room)
            return "more parts than a worker has room for";
    if (e->audits && (e->audited >= e->n_owners || !relay_find_worker(r, e->worker)))
        return "no such audit";
    return NULL;
}

static void feed_on_open(struct relay *r, const struct relay_event *e)
{
    const char *why = open_refusal(r, e);
    if (why) {
        refuse_open(r, why);
        return;
    }
    relay_begin_step(r, e);
    relay_begin_audit(r, e);
    feed_announce(r);
}

static void feed_on_pull(struct relay *r, const struct relay_event *e)
{
    const struct relay_unit *u = e->unit < r->n_units ? &r->units[e->unit] : NULL;
    if (!u || !u->known || !relay_find_worker(r, e->worker) || e->step > r->t + 1 ||
        (!u->n_visits && !feed_is_over(r, e->step))) {
        relay_refuse(r, e->worker, "no such pull");
        return;
    }
    r->waiting[r->n_waiting++] = (struct relay_pull){.worker = e->worker, .unit = e->unit, .step = e->step};
    answer_waiting(r);
}

/* Parts whose losses are not known yet can be skipped no more. Eager, no loss is missing by then. */
static bool is_begun(const struct relay *r)
{
    return r->config.folded && (r->n_folded || r->n_flying);
}

/* Eager, no slice is folded before every part's loss is known to be finite. So most steps that will not end well are
 * found while they can still be skipped. Fenced, all can be: a part's slices are folded once its own loss is known, so
 * that parts may go forward one after another. So may they folded; there, as nothing can be skipped once something was
 * folded, a loss that is not finite then is a fault, as a slice is. */
static void feed_on_loss(struct relay *r, const struct relay_event *e)
{
    if (e->name.step != r->t || r->covered || e->name.part >= r->config.n_parts ||
        !relay_is_current(r, e->worker, e->name.part, e->name.attempt)) {
        relay_refuse(r, e->worker, "stale");
    } else if (r->has_tail) {
        relay_refuse(r, e->worker, "loss before all weights");
    } else if (e->ok) {
        r->n_losses += !r->parts[e->name.part].loss;
        r->parts[e->name.part].loss = true;
    } else if (r->parts[e->name.part].loss || is_begun(r)) { /* it was finite once: this worker is wrong */
        feed_fault(r, e->worker, e->name.part);
    } else {
        feed_give_up(r);
    }
}

static bool feed_is_name(const struct relay *r, const struct relay_event *e)
{
    return e->name.visit < r->n_visits && e->name.part < r->config.n_parts &&
           e->name.slice < r->visits[e->name.visit].n_slices && !r->units[r->visits[e->name.visit].unit].frozen;
}

/* A contribution is judged by its name, and a duplicate is dropped. If the name is folded already, its slot is
 * freed, unless the slot holds another name: then this is an old message delivered twice. Returns why it is refused,
 * or NULL. */
static const char *feed_take(struct relay *r, const struct relay_event *e)
{
    struct relay_worker *w = relay_find_worker(r, e->worker);
    if (!w || e->name.step != r->t || !feed_is_name(r, e) || e->slot > r->config.n_slots)
        return "no such contribution";
    if (!relay_is_current(r, e->worker, e->name.part, e->name.attempt))
        return "stale";
    struct relay_tag tag = {.name = e->name, .unit = r->visits[e->name.visit].unit};
    uint32_t name = relay_name_of(r, &tag);
    const struct relay_cell *cell = &w->cells[e->slot];
    if (cell->full && contribution_is(&cell->tag.name, &tag.name))
        return NULL;
    if (relay_is_folded(r, name) || relay_has_tag(r, w, &tag)) {
        if (!cell->full)
            relay_free_slot(r, e->worker, e->slot, &tag);
        return NULL;
    }
    if (r->covered)
        return "step is over"; /* its step was skipped */
    if (cell->full)
        return "slot in use";
    if (e->slot == RELAY_RESERVED && !relay_may_reserve(r, &tag))
        return "reserved slot";
    if (!r->parts[e->name.part].loss)
        return "loss first";
    relay_put(r, w, e->slot, &tag, e->digest);
    return NULL;
}

static void on_contribution(struct relay *r, const struct relay_event *e)
{
    const char *why = feed_take(r, e);
    if (why)
        relay_refuse(r, e->worker, why);
}

static void on_folded(struct relay *r, const struct relay_event *e)
{
    assert(e->unit < r->n_units && e->name.slice < r->units[e->unit].cap_slices);
    struct relay_unit *u = &r->units[e->unit];
    struct relay_slice *slice = &u->slices[e->name.slice];
    assert(slice->flying);
    struct relay_tag tag = slice->tag;
    uint32_t worker = slice->worker;
    slice->flying = false;
    if (tag.name.step == r->t) {
        r->n_flying--;
        r->parts[tag.name.part].n_sure--;
        r->parts[tag.name.part].n_flying--;
    }
    relay_clear(r, worker, slice->slot, &tag);
    if (tag.name.step != r->t || r->covered)
        return; /* its step was skipped meanwhile */
    if (e->ok) {
        uint32_t name = relay_name_of(r, &tag);
        r->folded[name / 64] |= 1ull << (name % 64);
        r->n_folded++;
        r->parts[tag.name.part].n_sure++;
        u->n_folded++;
        slice->n_folded[relay_sum_of(r, &tag)]++;
        r->touched = e->unit;
        relay_clear_name(r, name);
    } else if (e->damaged) {
        redo(r, worker, &tag.name);
    } else if (r->config.fenced) {
        feed_give_up(r);
    } else {
        feed_fault(r, relay_is_current(r, worker, tag.name.part, tag.name.attempt) ? worker : RELAY_NOBODY,
                   tag.name.part);
    }
}

static void feed_on_updated(struct relay *r, uint32_t unit)
{
    assert(unit < r->n_units && r->units[unit].updating);
    r->units[unit].updating = false;
    feed_advance(r, unit);
}

/* ---- the pump --------------------------------------------------------------------------------------------------- */

static void feed_update(struct relay *r, uint32_t unit)
{
    struct relay_unit *u = &r->units[unit];
    if (!u->n_visits || u->frozen || u->updating || u->version != r->t)
        return;
    u->updating = true;
    relay_act(r, RELAY_UPDATE)->unit = unit;
}

/* Eager: updates the unit that has all its contributions; only a fold just done can have completed it. Else: updates
 * all units, once the whole step is folded. */
static void update_ready(struct relay *r)
{
    if (r->touched == r->n_units)
        return;
    if (!relay_updates_last(r)) {
        if (r->units[r->touched].n_folded == r->units[r->touched].n_names)
            feed_update(r, r->touched);
    } else if (r->n_folded == r->n_names) {
        for (uint32_t u = 0; u < r->n_units; u++)
            feed_update(r, u);
    }
}

static void feed_pump(struct relay *r)
{
    if (!r->torn)
        relay_judge(r);
    if (r->torn)
        return;
    if (!r->covered) {
        relay_fold_all(r);
        update_ready(r);
        if (r->n_folded == r->n_names)
            cover(r, false);
    }
    answer_waiting(r);
    if (relay_n_waiting(r) > 0) /* a room grew, or folds just given out finish a worker's part */
        assign_parts(r);
    relay_grant(r);
}

static void feed_on_event(struct relay *r, const struct relay_event *e)
{
    switch (e->kind) {
    case RELAY_ATTACHED:
        feed_on_attached(r, e->worker, e->room);
        break;
    case RELAY_ROOM:
        feed_on_room(r, e->worker, e->room);
        break;
    case RELAY_LOST:
        relay_lose(r, e->worker);
        break;
    case RELAY_OPEN:
        feed_on_open(r, e);
        break;
    case RELAY_PULL:
        feed_on_pull(r, e);
        break;
    case RELAY_LOSS:
        feed_on_loss(r, e);
        break;
    case RELAY_CONTRIBUTION:
        on_contribution(r, e);
        break;
    case RELAY_DIGEST:
        relay_on_digest(r, e);
        break;
    case RELAY_UNAUDIT:
        relay_end_audit(r, e->worker);
        break;
    case RELAY_FOLDED:
        on_folded(r, e);
        break;
    case RELAY_UPDATED:
        feed_on_updated(r, e->unit);
        break;
    case RELAY_SAVE:
        relay_on_save(r, e->reader);
        break;
    case RELAY_RELEASED:
        relay_on_released(r, e->reader, e->unit);
        break;
    }
}

/* The model is torn and nothing moves any more. Requests are refused, and pulls void. */
static void on_event_torn(struct relay *r, const struct relay_event *e)
{
    if (e->kind == RELAY_OPEN)
        refuse_open(r, "torn");
    else if (e->kind == RELAY_SAVE)
        relay_refuse_reader(r, e->reader, "torn");
    else if (e->kind == RELAY_PULL)
        feed_on_pull(r, e);
    else if (e->kind == RELAY_LOSS || e->kind == RELAY_CONTRIBUTION || e->kind == RELAY_DIGEST)
        relay_refuse(r, e->worker, "torn");
}

int relay_feed(struct relay *r, const struct relay_event *e, const struct relay_action **actions)
{
    bool opens = e->kind == RELAY_OPEN && !r->torn && !open_refusal(r, e);
    int rc = relay_reserve(r, e, opens);
    if (rc)
        return rc;
    r->n_actions = r->n_shared = 0;
    r->touched = r->n_units;
    if (r->torn) {
        on_event_torn(r, e);
    } else {
        feed_on_event(r, e);
        feed_pump(r);
    }
    *actions = r->actions;
    return (int)r->n_actions;
}

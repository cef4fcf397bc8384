/* eps/relay/relay_pump.c - what has become possible: folds, updates, the end of the step, answers, a grant. */
#include "eps/relay/relay_state.h"

enum relay_buffer relay_find_buffer(const struct relay *r, const struct relay_pull *pull)
{
    const struct relay_unit *u = &r->units[pull->unit];
    if (u->version == pull->step || (u->frozen && u->version == pull->step + 1))
        return RELAY_NOW; /* a frozen unit advances the version, not the buffer, as does a skipped step */
    if (u->version < pull->step)
        return RELAY_WAIT;
    return r->config.replay && pull->step == r->t && !r->covered ? RELAY_BEFORE : RELAY_GONE;
}

void relay_answer(struct relay *r, const struct relay_pull *pull, enum relay_buffer where)
{
    struct relay_action *a = relay_act(r, where == RELAY_GONE ? RELAY_REFUSE : RELAY_ANSWER);
    a->worker = pull->worker;
    if (where == RELAY_GONE) {
        a->why = "version is gone";
        return;
    }
    a->unit = pull->unit;
    a->step = pull->step;
    a->before = where == RELAY_BEFORE;
}

/* Accumulators go to the first units of the backward order that are not yet updated, never first come first served: a
 * lower unit that takes the last one waits for workers that wait for a higher one. */
static void hand_out_accumulators(struct relay *r)
{
    while (r->sums_end < r->n_sums && r->n_summing < r->config.n_accumulators)
        r->n_summing += r->units[r->sums[r->sums_end++]].version == r->t;
}

/* The thread holds at most one fold of a slice: so a bad one can be redone in its place in the order, and the first
 * good one is known to be first. The step's losses and the tail were looked at for all. */
static bool is_foldable(const struct relay *r, const struct relay_standing *x)
{
    const struct relay_unit *u = &r->units[x->tag.unit];
    const struct relay_slice *slice = &u->slices[x->tag.slice];
    if (slice->flying || u->version != r->t || u->captured || relay_is_folded(r, x->name))
        return false;
    if (u->place != RELAY_NO_PLACE && u->place >= r->sums_end)
        return false;
    /* Folded in order up to here, the count is the place of the next. */
    uint32_t place = r->visits[x->tag.visit].rank * r->config.n_parts + x->tag.part;
    return !r->config.deterministic || place == slice->n_folded;
}

static void fold(struct relay *r, const struct relay_standing *x)
{
    struct relay_slice *slice = &r->units[x->tag.unit].slices[x->tag.slice];
    struct relay_action *a = relay_act(r, RELAY_FOLD);
    a->unit = x->tag.unit;
    a->visit = x->tag.visit;
    a->part = x->tag.part;
    a->slice = x->tag.slice;
    a->worker = x->worker;
    a->slot = x->slot;
    a->first = slice->n_folded == 0;
    slice->flying = true;
    slice->worker = x->worker;
    slice->slot = x->slot;
    slice->tag = x->tag;
    r->n_flying++;
    r->parts[x->tag.part].n_sure++;
}

static void fold_all(struct relay *r)
{
    if (r->has_tail || r->n_losses < r->config.n_parts)
        return;
    hand_out_accumulators(r);
    for (size_t i = 0; i < r->n_standing; i++) {
        if (is_foldable(r, &r->standing[i]))
            fold(r, &r->standing[i]);
    }
}

static void update(struct relay *r, uint32_t unit)
{
    struct relay_unit *u = &r->units[unit];
    if (!u->n_visits || u->frozen || u->updating || u->version != r->t)
        return;
    u->updating = true;
    relay_act(r, RELAY_UPDATE)->unit = unit;
}

/* Eager: the unit that has all its contributions, which only a fold just done can have brought about. Fenced: all, once
 * the whole step is known good. */
static void update_ready(struct relay *r)
{
    if (r->touched == r->n_units)
        return;
    if (!r->config.fenced) {
        if (r->units[r->touched].n_folded == r->units[r->touched].n_names)
            update(r, r->touched);
    } else if (r->n_folded == r->n_names) {
        for (uint32_t u = 0; u < r->n_units; u++)
            update(r, u);
    }
}

static void answer_waiting(struct relay *r)
{
    size_t kept = 0;
    for (size_t i = 0; i < r->n_waiting; i++) {
        struct relay_pull pull = r->waiting[i];
        enum relay_buffer where = relay_find_buffer(r, &pull);
        if (where == RELAY_WAIT)
            r->waiting[kept++] = pull;
        else
            relay_answer(r, &pull, where);
    }
    r->n_waiting = kept;
}

/* To the worker that has the mark to do and no ordinary slot to put it in. The mark is foldable, or will be with
 * nobody's help but the thread's and the readers': so what stands in a reserved slot always leaves it. */
static void grant(struct relay *r)
{
    if (r->covered || !relay_find_mark(r))
        return;
    struct relay_tag this = r->mark;
    const struct relay_part_state *part = &r->parts[this.part];
    this.step = r->t;
    this.attempt = part->attempt;
    this.unit = r->visits[this.visit].unit;
    const struct relay_slice *slice = &r->units[this.unit].slices[this.slice];
    bool flying =
        slice->flying && slice->tag.step == r->t && slice->tag.visit == this.visit && slice->tag.part == this.part;
    if (flying || part->owner == RELAY_NOBODY)
        return;
    struct relay_worker *w = relay_find_worker(r, part->owner);
    if (w->cells[RELAY_RESERVED].full || w->n_free || relay_has_tag(r, w, &this))
        return;
    if (w->granted.full && relay_same_tag(&w->granted.tag, &this))
        return;
    w->granted = (struct relay_cell){.full = true, .tag = this};
    struct relay_action *a = relay_act(r, RELAY_GRANT);
    a->worker = w->id;
    a->visit = this.visit;
    a->part = this.part;
    a->slice = this.slice;
}

void relay_pump(struct relay *r)
{
    if (r->torn)
        return;
    if (!r->covered) {
        fold_all(r);
        update_ready(r);
        if (r->n_folded == r->n_names)
            relay_cover(r, false);
    }
    answer_waiting(r);
    grant(r);
}

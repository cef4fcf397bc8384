/* eps/relay/relay_step.c - the life of a step: opened, covered (all folded), done (all units updated). */
#include "eps/relay/relay_state.h"

#include <assert.h>
#include <string.h>

const char *relay_open_refusal(const struct relay *r, const struct relay_event *e)
{
    if (e->step != r->t + 1 || !r->covered)
        return "not the next step";
    bool all = e->n_owners == r->config.n_parts;
    for (uint32_t p = 0; p < e->n_owners && all; p++)
        all = relay_find_worker(r, e->owners[p]) != NULL;
    return all ? NULL : "a part without a worker";
}

/* Which units the step has, and at which version those come that the step before did not have. */
static void begin_units(struct relay *r, const struct relay_event *e)
{
    for (uint32_t v = 0; v < e->n_visits; v++) {
        if (!r->units[e->visits[v]].n_visits)
            r->units[e->visits[v]].version = e->step;
    }
    for (uint32_t i = 0; i < r->n_units; i++) {
        struct relay_unit *u = &r->units[i];
        u->n_visits = u->n_names = u->n_folded = 0;
        u->place = RELAY_NO_PLACE;
        u->frozen = false;
        for (uint32_t s = 0; s < u->cap_slices; s++)
            u->slices[s].n_folded = 0;
    }
    for (uint32_t i = 0; i < e->n_frozen; i++)
        r->units[e->frozen[i]].frozen = true;
}

/* Numbers the names in fold order. */
static void begin_names(struct relay *r, const struct relay_event *e)
{
    r->n_visits = e->n_visits;
    r->n_names = r->n_names_of_part = 0;
    for (uint32_t v = e->n_visits; v-- > 0;) {
        struct relay_unit *u = &r->units[e->visits[v]];
        assert(e->n_slices[v] > 0 && (!u->n_visits || e->n_slices[v] == u->n_slices));
        u->n_slices = e->n_slices[v];
        r->visits[v] = (struct relay_visit){.unit = e->visits[v],
                                            .n_slices = e->n_slices[v],
                                            .first_name = r->n_names,
                                            .rank = u->n_visits++};
        if (u->frozen)
            continue;
        r->n_names += r->config.n_parts * e->n_slices[v];
        r->n_names_of_part += e->n_slices[v];
        u->n_names += r->config.n_parts * e->n_slices[v];
    }
    memset(r->folded, 0, (r->n_names / 64 + 1) * sizeof *r->folded);
    r->n_folded = r->n_flying = r->mark_name = 0;
    r->mark = (struct relay_tag){.visit = e->n_visits - (e->n_visits > 0)};
    while (r->n_names && r->units[r->visits[r->mark.visit].unit].frozen)
        r->mark.visit--;
}

/* Accumulators are for adamw with several parts. Tied and fenced sums have buffers of their own. */
static void begin_sums(struct relay *r)
{
    r->n_sums = r->sums_end = r->n_summing = 0;
    if (r->config.fenced || !r->config.adamw || r->config.n_parts == 1)
        return;
    for (uint32_t v = r->n_visits; v-- > 0;) {
        struct relay_unit *u = &r->units[r->visits[v].unit];
        if (u->frozen || u->n_visits > 1)
            continue;
        u->place = r->n_sums;
        r->sums[r->n_sums++] = r->visits[v].unit;
    }
}

void relay_begin_step(struct relay *r, const struct relay_event *e)
{
    assert(!r->n_standing);
    begin_units(r, e);
    begin_names(r, e);
    begin_sums(r);
    r->t = e->step;
    r->covered = false;
    r->n_past_tail = 0;
    r->n_losses = 0;
    for (uint32_t p = 0; p < r->config.n_parts; p++)
        r->parts[p] = (struct relay_part_state){.owner = e->owners[p], .moved = true};
    for (uint32_t i = 0; i < r->n_workers; i++)
        r->workers[i].granted.full = false;
}

/* Slice upwards, then part, then visit downwards. */
static void next_name(struct relay *r)
{
    struct relay_tag *m = &r->mark;
    if (++r->mark_name == r->n_names || ++m->slice < r->visits[m->visit].n_slices)
        return;
    m->slice = 0;
    if (++m->part < r->config.n_parts)
        return;
    m->part = 0;
    do
        m->visit--;
    while (r->units[r->visits[m->visit].unit].frozen);
}

bool relay_find_mark(struct relay *r)
{
    while (r->mark_name < r->n_names && relay_is_folded(r, r->mark_name))
        next_name(r);
    return r->mark_name < r->n_names;
}

static void finish(struct relay *r)
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

void relay_advance(struct relay *r, uint32_t unit)
{
    struct relay_unit *u = &r->units[unit];
    if (u->place < r->sums_end && u->version == r->t)
        r->n_summing--;
    u->version++;
    relay_capture(r, unit); /* before any fold beyond */
    finish(r);
}

void relay_cover(struct relay *r, bool skipped)
{
    r->covered = r->has_tail = true;
    r->tail = r->t;
    r->n_past_tail = 0;
    relay_act(r, RELAY_COVERED)->step = r->t;
    for (uint32_t u = 0; u < r->n_units; u++) {
        if (skipped ? r->units[u].n_visits > 0 : r->units[u].frozen)
            relay_advance(r, u);
    }
    finish(r);
}

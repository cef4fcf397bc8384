/* eps/relay/memory.c - the relay's arrays, all allocated before an event is handled; a step's tables; observers' views.
 *
 * No array ever shrinks. So a run stops allocating once nothing larger comes: no more workers, no longer step. */
#include "eps/relay/relay_state.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { PULLS_PER_WORKER = 16 }; /* a worker that keeps the rules has one pull for each weight buffer, so far fewer */

/* Room for n elements of `size` bytes in *array; it grows by at least half. */
static int memory_grow(void *array, size_t *cap, size_t n, size_t size)
{
    void *p, *old;
    memcpy(&old, array, sizeof old);
    if (n <= *cap)
        return 0;
    if (n < *cap + *cap / 2)
        n = *cap + *cap / 2;
    p = reallocarray(old, n, size);
    if (!p)
        return -ENOMEM;
    memcpy(array, &p, sizeof p);
    *cap = n;
    return 0;
}

/* The same for counts of 32 bits. Half of them is the limit, so that growing by half cannot overflow. */
static int grow32(void *array, uint32_t *cap, uint64_t n, size_t size)
{
    size_t wide = *cap;
    if (n > UINT32_MAX / 2)
        return -ENOMEM;
    int rc = memory_grow(array, &wide, n, size);
    *cap = (uint32_t)wide;
    return rc;
}

/* Numbers all units up to this one. */
static int reserve_unit(struct relay *r, uint32_t unit)
{
    uint32_t cap = r->n_units;
    int rc = grow32(&r->units, &cap, (uint64_t)unit + 1, sizeof *r->units);
    if (rc)
        return rc;
    for (; r->n_units < cap; r->n_units++)
        r->units[r->n_units] = (struct relay_unit){.sum_index = RELAY_NO_SUM};
    return 0;
}

/* New slices must be zero: a flying fold in one that was never used would be believed. */
static int reserve_slices(struct relay_unit *u, uint32_t n)
{
    uint32_t had = u->cap_slices;
    int rc = grow32(&u->slices, &u->cap_slices, n, sizeof *u->slices);
    if (!rc && u->cap_slices > had)
        memset(u->slices + had, 0, (u->cap_slices - had) * sizeof *u->slices);
    return rc;
}

/* Arrays of a step grow to its size; names are counted in 64 bits before they are numbered in 32. Digests are two rows,
 * the auditor's and the third worker's. */
static int reserve_step(struct relay *r, const struct relay_event *e)
{
    uint64_t n_names = 0;
    int rc = 0;
    for (uint32_t v = 0; v < e->n_visits; v++) {
        n_names += (uint64_t)e->n_slices[v] * r->config.n_parts;
        if (n_names >= UINT32_MAX) /* they are numbered */
            return -ENOMEM;
    }
    for (uint32_t v = 0; v < e->n_visits && !rc; v++) {
        rc = reserve_unit(r, e->visits[v]);
        if (!rc)
            rc = reserve_slices(&r->units[e->visits[v]], e->n_slices[v]);
    }
    if (!rc && e->audits)
        rc = memory_grow(&r->digests, &r->cap_digests, 2 * (size_t)(n_names / r->config.n_parts), sizeof *r->digests);
    for (uint32_t i = 0; i < e->n_frozen && !rc; i++)
        rc = reserve_unit(r, e->frozen[i]);
    if (!rc)
        rc = grow32(&r->visits, &r->cap_visits, e->n_visits, sizeof *r->visits);
    if (!rc)
        rc = grow32(&r->sums, &r->cap_sums, e->n_visits, sizeof *r->sums);
    if (!rc)
        rc = memory_grow(&r->folded, &r->cap_folded, (size_t)(n_names / 64 + 1), sizeof *r->folded);
    return rc;
}

/* A worker that leaves keeps its cells, so workers that come and go take no memory. `standing` has room for every slot
 * of all workers, `waiting` for as many pulls as a worker of good faith has; more of them grow it event by event. */
static int reserve_worker(struct relay *r)
{
    uint32_t had = r->cap_workers;
    int rc = grow32(&r->workers, &r->cap_workers, (uint64_t)r->n_workers + 1, sizeof *r->workers);
    if (rc)
        return rc;
    if (r->cap_workers > had)
        memset(r->workers + had, 0, (r->cap_workers - had) * sizeof *r->workers);
    struct relay_worker *next = &r->workers[r->n_workers];
    if (!next->cells)
        next->cells = calloc((size_t)r->config.n_slots + 1, sizeof *next->cells);
    if (!next->cells)
        return -ENOMEM;
    size_t n = (size_t)r->n_workers + 1;
    rc = memory_grow(&r->standing, &r->cap_standing, n * ((size_t)r->config.n_slots + 1), sizeof *r->standing);
    return rc ? rc : memory_grow(&r->waiting, &r->cap_waiting, n * PULLS_PER_WORKER, sizeof *r->waiting);
}

/* The most actions of one event: every slot freed and folded anew, every unit updated or captured by every reader,
 * every pull answered, shares for every worker whenever parts move, and a few that come once. */
static size_t max_actions(const struct relay *r)
{
    size_t n_workers = (size_t)r->n_workers + 1, n_readers = (size_t)r->n_readers + 1;
    return 2 * n_workers * ((size_t)r->config.n_slots + 1) + ((size_t)r->n_units + 1) * (n_readers + 1) +
           r->cap_waiting + RELAY_MOST_MOVES * n_workers + 24;
}

/* Everything that relay_feed could run out of is taken here, before the event changes anything. So a state machine
 * without error paths follows, and a refusal leaves the relay as it was. */
int relay_reserve(struct relay *r, const struct relay_event *e, bool opens)
{
    int rc = 0;
    if (opens)
        rc = reserve_step(r, e);
    else if (e->kind == RELAY_ATTACHED)
        rc = reserve_worker(r);
    else if (e->kind == RELAY_PULL)
        rc = memory_grow(&r->waiting, &r->cap_waiting, r->n_waiting + 1, sizeof *r->waiting);
    return rc ? rc : memory_grow(&r->actions, &r->cap_actions, max_actions(r), sizeof *r->actions);
}

int relay_open(struct relay **out, const struct relay_config *config)
{
    struct relay *r = calloc(1, sizeof *r);
    if (!r)
        return -ENOMEM;
    r->config = *config;
    r->t = config->first_step - 1; /* RELAY_NO_STEP before 0 */
    r->covered = true;
    r->parts = calloc(config->n_parts, sizeof *r->parts);
    r->shared = calloc((size_t)config->n_parts * RELAY_MOST_MOVES, sizeof *r->shared);
    if (!r->parts || !r->shared) {
        relay_close(r);
        return -ENOMEM;
    }
    for (uint32_t p = 0; p < config->n_parts; p++)
        r->parts[p].owner = RELAY_NOBODY;
    *out = r;
    return 0;
}

void relay_close(struct relay *r)
{
    if (!r)
        return;
    for (uint32_t u = 0; u < r->n_units; u++)
        free(r->units[u].slices);
    for (uint32_t w = 0; w < r->cap_workers; w++)
        free(r->workers[w].cells);
    free(r->units);
    free(r->workers);
    free(r->visits);
    free(r->folded);
    free(r->sums);
    free(r->digests);
    free(r->parts);
    free(r->standing);
    free(r->waiting);
    free(r->actions);
    free(r->shared);
    free(r);
}

struct relay_action *relay_act(struct relay *r, enum relay_action_kind kind)
{
    assert(r->n_actions < r->cap_actions);
    struct relay_action *a = &r->actions[r->n_actions++];
    *a = (struct relay_action){.kind = kind};
    return a;
}

/* ---- the tables of a step --------------------------------------------------------------------------------------- */

/* Lists the step's units. A unit that the step before did not have joins at the step's version. A unit's version is
 * not reset when it misses a step: it is set again when it comes back. */
static void begin_units(struct relay *r, const struct relay_event *e)
{
    for (uint32_t v = 0; v < e->n_visits; v++) {
        struct relay_unit *u = &r->units[e->visits[v]];
        if (!u->n_visits)
            u->version = e->step;
        u->known = true;
    }
    for (uint32_t i = 0; i < r->n_units; i++) {
        struct relay_unit *u = &r->units[i];
        u->n_visits = u->n_names = u->n_folded = 0;
        u->sum_index = RELAY_NO_SUM;
        u->frozen = false;
        for (uint32_t s = 0; s < u->cap_slices; s++)
            memset(u->slices[s].n_folded, 0, sizeof u->slices[s].n_folded);
    }
    for (uint32_t i = 0; i < e->n_frozen; i++)
        r->units[e->frozen[i]].frozen = true;
}

/* Numbers the names in fold order. */
static void begin_names(struct relay *r, const struct relay_event *e)
{
    r->n_visits = e->n_visits;
    r->n_names = r->n_names_of_part = r->top = r->bottom = 0;
    for (uint32_t v = e->n_visits; v-- > 0;) {
        struct relay_unit *u = &r->units[e->visits[v]];
        assert((e->n_slices[v] > 0 || u->frozen) && (!u->n_visits || e->n_slices[v] == u->n_slices));
        assert(u->n_visits < RELAY_MAX_VISITS);
        u->n_slices = e->n_slices[v];
        r->visits[v] = (struct relay_visit){.unit = e->visits[v],
                                            .n_slices = e->n_slices[v],
                                            .first_name = r->config.groups ? r->n_names_of_part : r->n_names,
                                            .rank = u->n_visits++};
        if (u->frozen)
            continue;
        r->top = r->n_names ? r->top : v;
        r->bottom = v;
        r->n_names += r->config.n_parts * e->n_slices[v];
        r->n_names_of_part += e->n_slices[v];
        u->n_names += r->config.n_parts * e->n_slices[v];
    }
    memset(r->folded, 0, (r->n_names / 64 + 1) * sizeof *r->folded);
    r->n_folded = r->n_flying = r->mark_name = 0;
    /* The mark begins at name 0: the topmost visit that is not frozen, part 0, slice 0. */
    r->mark = (struct relay_tag){.name.visit = r->top};
}

/* Accumulators serve adamw with several parts, eager: of a tied unit its lowest visit. Other sums have buffers of their
 * own. */
static void begin_sums(struct relay *r)
{
    r->n_sums = r->sums_end = r->n_summing = 0;
    if (relay_updates_last(r) || !r->config.adamw || r->config.n_parts == 1)
        return;
    for (uint32_t v = r->n_visits; v-- > 0;) {
        struct relay_unit *u = &r->units[r->visits[v].unit];
        if (u->frozen || r->visits[v].rank + 1 < u->n_visits)
            continue;
        u->sum_index = r->n_sums;
        r->sums[r->n_sums++] = r->visits[v].unit;
    }
}

void relay_begin_step(struct relay *r, const struct relay_event *e)
{
    /* A step opens when the one before is covered, and covering empties every slot. */
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
        r->workers[i].granted.full = r->workers[i].recruited = false;
}

/* Ends at the bottom visit at the latest, since the mark is moved only while a name is left. */
static void go_down(const struct relay *r, uint32_t *visit)
{
    do
        --*visit;
    while (r->units[r->visits[*visit].unit].frozen);
}

/* Slice upwards, then part, then visit downwards; with row groups, part last. */
static void next_name(struct relay *r)
{
    struct contribution_name *m = &r->mark.name;
    if (++r->mark_name == r->n_names || ++m->slice < r->visits[m->visit].n_slices)
        return;
    m->slice = 0;
    if (r->config.groups ? m->visit > r->bottom : ++m->part == r->config.n_parts) {
        m->part = r->config.groups ? m->part : 0;
        go_down(r, &m->visit);
    } else if (r->config.groups) {
        m->part++;
        m->visit = r->top;
    }
}

/* Names before the mark stay folded until the next step, so over a step this walks each name once. */
bool relay_find_mark(struct relay *r)
{
    while (r->mark_name < r->n_names && relay_is_folded(r, r->mark_name))
        next_name(r);
    return r->mark_name < r->n_names;
}

/* ---- readers ---------------------------------------------------------------------------------------------------- */

static uint32_t reader_index(const struct relay *r, uint32_t id)
{
    uint32_t i = 0;
    while (i < r->n_readers && r->readers[i].id < id)
        i++;
    return i;
}

struct relay_reader *relay_find_reader(struct relay *r, uint32_t id)
{
    uint32_t i = reader_index(r, id);
    return i < r->n_readers && r->readers[i].id == id ? &r->readers[i] : NULL;
}

/* The lowest bit that no reader has. Readers stay sorted by id, so captures come in the same order whatever the bits
 * are. */
struct relay_reader *relay_add_reader(struct relay *r, uint32_t id)
{
    uint32_t i = reader_index(r, id);
    uint64_t used = 0;
    for (uint32_t j = 0; j < r->n_readers; j++)
        used |= r->readers[j].bit;
    memmove(&r->readers[i + 1], &r->readers[i], (r->n_readers - i) * sizeof *r->readers);
    r->readers[i] = (struct relay_reader){.id = id, .bit = ~used & (used + 1)};
    r->n_readers++;
    return &r->readers[i];
}

/* The version that all units have or will reach together: the present one while no fold of the open step was issued,
 * else the one that the step leads to. */
uint64_t relay_cut(const struct relay *r)
{
    const bool begun = r->t + 1 != r->config.first_step;

    if (r->torn || !begun)
        return RELAY_NO_STEP;
    return r->covered || r->n_folded || r->n_flying ? r->t + 1 : r->t;
}

/* ---- what others are shown -------------------------------------------------------------------------------------- */

uint64_t relay_version(const struct relay *r, uint32_t unit)
{
    assert(unit < r->n_units);
    return r->units[unit].version;
}

/* Losses come first: eager, nothing is folded without all of them. In row groups they come with their group: what is
 * not there first is of the mark's part. A contribution in a slot counts as given. */
static uint32_t find_owing(struct relay *r)
{
    if (r->torn || r->covered)
        return RELAY_NOBODY;
    for (uint32_t p = 0; p < r->config.n_parts && !r->config.groups; p++)
        if (!r->parts[p].loss)
            return r->parts[p].owner;
    if (!relay_find_mark(r))
        return RELAY_NOBODY;
    for (size_t i = 0; i < r->n_standing; i++)
        if (r->standing[i].name == r->mark_name)
            return relay_is_agreed(r, &r->standing[i]) ? RELAY_NOBODY : relay_judge_of(r);
    return r->parts[r->mark.name.part].owner;
}

/* A worker that waits for a pull is not at fault: it is the daemon, or another worker, that owes it the weights. */
uint32_t relay_owes(struct relay *r)
{
    const uint32_t worker = find_owing(r);

    for (size_t i = 0; i < r->n_waiting; i++)
        if (r->waiting[i].worker == worker && r->waiting[i].step == r->t)
            return RELAY_NOBODY;
    return worker;
}

/* The standing list is in the order of names. A name that was redone may be in it twice. */
bool relay_has_all(const struct relay *r)
{
    uint32_t n = r->n_folded;

    if (n + r->n_standing < r->n_names)
        return false;
    for (size_t i = 0; i < r->n_standing; i++)
        n += (i == 0 || r->standing[i].name != r->standing[i - 1].name) && !relay_is_folded(r, r->standing[i].name);
    if (r->audit.on && (r->audit.disputed || (r->audit.waits && r->audit.n_digests < r->n_names_of_part)))
        return false;
    return !r->torn && r->n_losses == r->config.n_parts && n == r->n_names;
}

bool relay_is_covered(const struct relay *r)
{
    return r->covered;
}

/* All slices, also those beyond the step's own: a fold of the step before may still be under way. */
static bool is_folding(const struct relay_unit *unit)
{
    for (uint32_t s = 0; s < unit->cap_slices; s++) {
        if (unit->slices[s].flying)
            return true;
    }
    return false;
}

void relay_observe(const struct relay *r, uint32_t first, uint32_t n, struct relay_view *out)
{
    for (uint32_t i = 0; i < n; i++) {
        const struct relay_unit *unit = first + i < r->n_units ? &r->units[first + i] : NULL;
        out[i] = (struct relay_view){.at = RELAY_AT_REST};
        if (!unit)
            continue;
        out[i].version = unit->version;
        out[i].at = unit->updating ? RELAY_AT_UPDATE : is_folding(unit) ? RELAY_AT_FOLD : RELAY_AT_REST;
    }
    for (size_t i = 0; i < r->n_standing; i++) {
        const uint32_t unit = r->standing[i].tag.unit;
        if (unit >= first && unit - first < n && out[unit - first].at == RELAY_AT_REST)
            out[unit - first].at = RELAY_AT_INBOX;
    }
}

/* ---- a loss that is expected ------------------------------------------------------------------------------------- */

static bool is_unfinished_of(const struct relay *r, uint32_t worker, uint32_t part)
{
    return r->parts[part].owner == worker && relay_is_unfinished(r, part);
}

uint32_t relay_load(const struct relay *r, uint32_t worker)
{
    uint32_t n = 0;

    for (uint32_t p = 0; p < r->config.n_parts; p++)
        n += is_unfinished_of(r, worker, p);
    return n;
}

/* True if some contribution to the part has not come from the worker yet. One that the optimizer thread has from a
 * worker that was lost does not count: it may turn out not finite. */
static bool is_missing(const struct relay *r, uint32_t worker, uint32_t part)
{
    uint32_t n_sent = r->parts[part].n_sure - r->parts[part].n_flying;

    if (r->parts[part].owner != worker || r->covered)
        return false;
    for (size_t i = 0; i < r->n_standing; i++) {
        const struct relay_standing *x = &r->standing[i];
        n_sent += x->tag.name.part == part && x->worker == worker && !relay_is_folded(r, x->name);
    }
    return n_sent < r->n_names_of_part;
}

uint32_t relay_missing(const struct relay *r, uint32_t worker, struct relay_part *parts)
{
    uint32_t n = 0;

    for (uint32_t p = 0; p < r->config.n_parts; p++)
        if (is_missing(r, worker, p))
            parts[n++] = (struct relay_part){.part = p, .attempt = r->parts[p].attempt};
    return n;
}

uint32_t relay_n_waiting(const struct relay *r)
{
    uint32_t n = 0;

    for (uint32_t p = 0; p < r->config.n_parts; p++)
        n += is_unfinished_of(r, RELAY_NOBODY, p);
    return n;
}

bool relay_can_redo_all(const struct relay *r, uint32_t worker)
{
    for (uint32_t p = 0; p < r->config.n_parts; p++)
        if (is_unfinished_of(r, worker, p) && !relay_can_redo(r, p))
            return false;
    return true;
}

bool relay_has_worker(const struct relay *r, uint32_t worker)
{
    return relay_find_worker(r, worker) != NULL;
}

/* A loss is fed once no part is left that was begun and cannot be redone. Until then the worker keeps its other parts,
 * which may hold accumulators: so no begun part may wait for one. */
bool relay_can_lose(const struct relay *r, uint32_t worker)
{
    uint32_t n_missing = 0, n_begun = 0;

    for (uint32_t p = 0; p < r->config.n_parts; p++) {
        const bool missing = is_missing(r, worker, p), redone = relay_can_redo(r, p);
        if (missing && !redone)
            return false;
        n_missing += missing;
        n_begun += !redone && is_unfinished_of(r, worker, p);
    }
    return n_missing == 0 || n_begun == 0 || r->sums_end == r->n_sums;
}

/* Without replay a begun part cannot be redone, but one that nobody has folded into can. If the worker still has
 * something to send, its parts that can be redone are dropped now: their new owner sends them whole. */
void relay_expect_loss(struct relay *r, uint32_t worker)
{
    struct relay_worker *w = relay_find_worker(r, worker);

    if (!w)
        return;
    w->leaving = true;
    if (r->config.replay || relay_updates_last(r))
        return;
    bool missing = false;
    for (uint32_t p = 0; p < r->config.n_parts; p++)
        missing = missing || is_missing(r, worker, p);
    for (uint32_t p = 0; p < r->config.n_parts && missing; p++)
        if (is_unfinished_of(r, worker, p) && relay_can_redo(r, p))
            relay_drop_standing(r, worker, p);
}

#include "tests/kit/relay_world.h"

#include "tests/kit/relay_trace.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

enum { LOG_TAIL = 4000 };

static void must(struct world *w, bool ok, const char *what)
{
    if (ok)
        return;
    fflush(w->log);
    size_t from = w->log_bytes > LOG_TAIL ? w->log_bytes - LOG_TAIL : 0;
    fprintf(stderr, "%s\n", w->log_text + from);
    ck_abort_msg("%s", what);
}

static struct world_name name_of(const struct relay_action *a)
{
    return (struct world_name){.full = true, .visit = a->name.visit, .part = a->name.part, .slice = a->name.slice};
}

static bool same(const struct world_name *a, const struct world_name *b)
{
    return a->full == b->full && a->visit == b->visit && a->part == b->part && a->slice == b->slice;
}

static bool is_name(const struct world *w, const struct world_name *n)
{
    return n->visit < w->n_visits && n->part < w->config.n_parts && n->slice < w->n_slices[n->visit] &&
           !w->frozen[w->visits[n->visit]];
}

static bool is_folded(const struct world *w, const struct world_name *n)
{
    return w->folded[n->visit][n->part][n->slice];
}

/* The first name in fold order, and the one behind a name; false behind the last. */
static bool next_name(const struct world *w, struct world_name *n)
{
    if (!n->full)
        *n = (struct world_name){.full = true, .visit = w->n_visits};
    else if (++n->slice < w->n_slices[n->visit])
        return true;
    n->slice = 0;
    if (n->visit < w->n_visits && ++n->part < w->config.n_parts)
        return true;
    do {
        if (!n->visit--)
            return false;
    } while (w->frozen[w->visits[n->visit]]);
    n->part = n->slice = 0;
    return true;
}

/* All names of a unit (or of all units: WORLD_UNITS) are folded. */
static bool all_folded(const struct world *w, uint32_t unit)
{
    bool all = true;
    for (struct world_name n = {0}; next_name(w, &n);)
        all &= is_folded(w, &n) || (unit != WORLD_UNITS && w->visits[n.visit] != unit);
    return all;
}

static bool is_tied(const struct world *w, uint32_t unit)
{
    uint32_t n = 0;
    for (uint32_t v = 0; v < w->n_visits; v++)
        n += w->visits[v] == unit;
    return n > 1;
}

static bool is_touched(const struct world *w)
{
    bool any = false;
    for (struct world_name n = {0}; next_name(w, &n);)
        any |= is_folded(w, &n);
    for (uint32_t u = 0; u < WORLD_UNITS; u++) {
        for (uint32_t s = 0; s < WORLD_SLICES; s++)
            any |= w->jobs[u][s].flying && w->jobs[u][s].step == w->t;
    }
    return any;
}

/* Units whose parts are being summed in an accumulator: begun and not updated. */
static uint32_t n_accumulators(const struct world *w)
{
    uint32_t n = 0;
    for (uint32_t u = 0; u < WORLD_UNITS; u++) {
        bool begun = false;
        for (struct world_name x = {0}; next_name(w, &x);)
            begun |= w->visits[x.visit] == u && is_folded(w, &x);
        for (uint32_t s = 0; s < WORLD_SLICES; s++)
            begun |= w->jobs[u][s].flying && w->jobs[u][s].step == w->t;
        n += begun && !is_tied(w, u) && w->version[u] == w->t;
    }
    return n;
}

/* ---- what each action must be ----------------------------------------------------------------------------------- */

static void check_fold(struct world *w, const struct relay_action *a)
{
    struct world_name name = name_of(a);
    struct world_job *job = &w->jobs[a->unit][a->name.slice];
    must(w, is_name(w, &name) && w->visits[a->name.visit] == a->unit, "a fold of what is no name of the step");
    must(w, !w->covered && w->n_done == w->t, "a fold before the step before is done");
    must(w, w->version[a->unit] == w->t, "a fold into a unit that is not at the step's version");
    must(w, !is_folded(w, &name), "a name is folded twice");
    must(w, !job->flying, "two folds of a slice are in flight");
    must(w, w->attached[a->worker] && same(&w->slots[a->worker][a->slot], &name),
         "a fold of what the slot does not hold");
    for (uint32_t p = 0; p < w->config.n_parts; p++)
        must(w, w->loss[p], "a fold before every loss is known");
    for (uint32_t r = 0; r < WORLD_READERS; r++)
        must(w, !w->readers[r].here || !w->readers[r].captured[a->unit], "a fold into what a reader reads");
    bool first = true, in_order = true, below = true;
    for (struct world_name n = {0}; next_name(w, &n);) {
        below &= !same(&n, &name);
        if (w->visits[n.visit] != a->unit || n.slice != a->name.slice)
            continue;
        first &= !is_folded(w, &n);
        in_order &= !below || is_folded(w, &n);
    }
    must(w, a->first == first, "first is said of the wrong fold");
    must(w, in_order || !w->config.deterministic, "a fold out of order");
    *job = (struct world_job){.flying = true, .step = w->t, .name = name};
    bool summed = w->config.adamw && w->config.n_parts > 1 && !w->config.fenced;
    must(w, !summed || n_accumulators(w) <= w->config.n_accumulators, "more accumulators than there are");
}

static void check_free(struct world *w, const struct relay_action *a, const struct relay_event *e)
{
    struct world_name name = name_of(a), *held = &w->slots[a->worker][a->slot];
    bool twice = e->kind == RELAY_CONTRIBUTION && e->worker == a->worker && e->slot == a->slot && !held->full;
    must(w, w->attached[a->worker] && (twice || same(held, &name)), "a slot is freed of what it does not hold");
    held->full = false;
}

static void check_grant(struct world *w, const struct relay_action *a)
{
    struct world_name name = name_of(a), mark = {0};
    while (next_name(w, &mark) && is_folded(w, &mark))
        continue;
    must(w, same(&name, &mark) && !w->covered, "the reserved slot is granted to another name than the mark");
    must(w, w->attached[a->worker] && w->owner[a->name.part] == a->worker, "a grant to another than the part's owner");
    for (uint32_t k = 1; k <= w->config.n_slots; k++)
        must(w, w->slots[a->worker][k].full, "a grant while there is an ordinary slot");
    must(w, !w->slots[a->worker][0].full, "a grant of a slot that is in use");
    w->granted[a->worker] = name;
}

static void check_answer(struct world *w, const struct relay_action *a)
{
    uint64_t version = w->version[a->unit];
    bool now = version == a->step || (w->frozen[a->unit] && version == a->step + 1);
    bool before = w->config.replay && version == a->step + 1 && a->step == w->t && !w->covered;
    must(w, a->before ? before && !now : now, "an answer with another version");
    must(w, w->attached[a->worker] && w->n_unanswered[a->worker]-- > 0, "an answer to nobody");
}

static void check_share(struct world *w, const struct relay_action *a, const struct relay_event *e)
{
    must(w, w->attached[a->worker] && !w->leaving[a->worker] && a->step == w->t && a->n_parts, "a share for nobody");
    for (uint32_t i = 0; i < a->n_parts; i++) {
        uint32_t p = a->parts[i].part;
        uint32_t attempt = e->kind == RELAY_OPEN ? 0 : w->attempt[p] + 1;
        bool orphan = e->kind == RELAY_OPEN || w->owner[p] == WORLD_WORKERS;
        must(w, orphan && a->parts[i].attempt == attempt, "a part changes hands as the same attempt, or without need");
        w->owner[p] = a->worker;
        w->attempt[p] = attempt;
    }
}

static void check_capture(struct world *w, const struct relay_action *a)
{
    struct world_reader *r = &w->readers[a->reader];
    must(w, r->here && r->to_come[a->unit] && r->version == a->step && w->version[a->unit] == a->step,
         "a reader is given another version");
    for (uint32_t s = 0; s < WORLD_SLICES; s++)
        must(w, !w->jobs[a->unit][s].flying || w->jobs[a->unit][s].step != a->step, "a reader is given a unit in work");
    r->to_come[a->unit] = false;
    r->captured[a->unit] = true;
}

static void advance(struct world *w, uint32_t unit)
{
    w->version[unit]++;
    must(w, w->version[unit] == w->t || w->version[unit] == w->t + 1, "a unit at neither t nor t+1");
}

static void disown(struct world *w, uint32_t worker)
{
    for (uint32_t p = 0; p < WORLD_PARTS; p++) {
        if (w->owner[p] == worker)
            w->owner[p] = WORLD_WORKERS;
    }
}

static void drop_worker(struct world *w, uint32_t worker)
{
    w->attached[worker] = false;
    memset(w->slots[worker], 0, sizeof w->slots[worker]);
    w->granted[worker].full = false;
    w->n_unanswered[worker] = 0;
    disown(w, worker);
}

static void check_refuse(struct world *w, const struct relay_action *a, const struct relay_event *e)
{
    if (a->to_client || a->to_reader || !w->attached[a->worker])
        return;
    if (a->not_finite) {
        must(w, !e->ok, "a worker is blamed for nothing");
        w->leaving[a->worker] = true;
        disown(w, a->worker);
    } else if (!strcmp(a->why, "version is gone") || !strcmp(a->why, "no such pull")) {
        must(w, w->n_unanswered[a->worker]-- > 0, "a pull is refused that nobody sent");
    }
}

static void check_saved(struct world *w, const struct relay_action *a)
{
    struct world_reader *r = &w->readers[a->reader];
    for (uint32_t u = 0; u < WORLD_UNITS; u++)
        must(w, !r->to_come[u] && !r->captured[u], "saved before all is read");
    must(w, r->here && r->version == a->step, "saved another version");
    r->here = false;
}

static void check_action(struct world *w, const struct relay_action *a, const struct relay_event *e)
{
    w->n_actions[a->kind]++;
    switch (a->kind) {
    case RELAY_SHARE:
        check_share(w, a, e);
        break;
    case RELAY_ANSWER:
        check_answer(w, a);
        break;
    case RELAY_REFUSE:
        check_refuse(w, a, e);
        break;
    case RELAY_FOLD:
        check_fold(w, a);
        break;
    case RELAY_UPDATE:
        must(w, all_folded(w, w->config.fenced ? WORLD_UNITS : a->unit), "an update before all is folded");
        must(w, w->in_step[a->unit] && !w->frozen[a->unit] && !w->updating[a->unit] && w->version[a->unit] == w->t,
             "an update of a unit that is to be left alone");
        w->updating[a->unit] = true;
        break;
    case RELAY_FREE:
        check_free(w, a, e);
        break;
    case RELAY_GRANT:
        check_grant(w, a);
        break;
    case RELAY_SKIPPED:
        must(w, w->config.fenced || !is_touched(w), "a step is skipped that has left traces");
        w->skipped = true;
        break;
    case RELAY_COVERED:
        must(w, a->step == w->t && !w->covered && (w->skipped || all_folded(w, WORLD_UNITS)),
             "covered, but not folded");
        w->covered = true;
        for (uint32_t u = 0; u < WORLD_UNITS; u++) {
            if (w->in_step[u] && (w->skipped || w->frozen[u]))
                advance(w, u);
        }
        break;
    case RELAY_DONE:
        must(w, a->step == w->n_done, "done out of turn");
        w->n_done++;
        for (uint32_t u = 0; u < WORLD_UNITS; u++)
            must(w, !w->in_step[u] || w->version[u] >= w->n_done, "done with a unit left behind");
        break;
    case RELAY_TORN:
        must(w, !w->config.fenced && is_touched(w) && !w->covered, "torn without need");
        w->torn = true;
        break;
    case RELAY_CAPTURE:
        check_capture(w, a);
        break;
    case RELAY_SAVED:
        check_saved(w, a);
        break;
    case RELAY_ABANDON:
        must(w, w->readers[a->reader].here, "a reader is abandoned that is not there");
        break;
    }
}

/* ---- what each event does to the tables, where the relay took it ------------------------------------------------- */

static void open_step(struct world *w, const struct relay_event *e)
{
    for (uint32_t v = 0; v < e->n_visits; v++) {
        if (!w->in_step[e->visits[v]])
            w->version[e->visits[v]] = e->step;
    }
    memset(w->in_step, 0, sizeof w->in_step);
    memset(w->frozen, 0, sizeof w->frozen);
    memset(w->folded, 0, sizeof w->folded);
    memset(w->loss, 0, sizeof w->loss);
    memset(w->granted, 0, sizeof w->granted);
    for (uint32_t v = 0; v < e->n_visits; v++) {
        w->visits[v] = e->visits[v];
        w->n_slices[v] = e->n_slices[v];
        w->in_step[e->visits[v]] = true;
    }
    for (uint32_t i = 0; i < e->n_frozen; i++)
        w->frozen[e->frozen[i]] = true;
    w->n_visits = e->n_visits;
    w->t = e->step;
    w->covered = w->skipped = false;
}

static void begin_save(struct world *w, uint32_t reader)
{
    struct world_reader *r = &w->readers[reader];
    *r = (struct world_reader){.here = true, .version = w->t + (w->covered || is_touched(w))};
    memcpy(r->to_come, w->in_step, sizeof r->to_come);
}

static void take_contribution(struct world *w, const struct relay_event *e)
{
    struct world_name name = {.full = true, .visit = e->name.visit, .part = e->name.part, .slice = e->name.slice};
    struct world_name *slot = &w->slots[e->worker][e->slot];
    must(w, is_name(w, &name) && w->attached[e->worker], "a contribution is taken that has no name");
    must(w, w->owner[e->name.part] == e->worker && w->attempt[e->name.part] == e->name.attempt,
         "a stale contribution is taken");
    if (!slot->full && !is_folded(w, &name))
        *slot = name;
}

static void begin_event(struct world *w, const struct relay_event *e, bool refused)
{
    if (w->torn)
        return;
    switch (e->kind) {
    case RELAY_ATTACHED:
        w->attached[e->worker] = true;
        break;
    case RELAY_LOST:
        drop_worker(w, e->worker);
        break;
    case RELAY_OPEN:
        if (!refused)
            open_step(w, e);
        break;
    case RELAY_PULL:
        w->n_unanswered[e->worker] += w->attached[e->worker];
        break;
    case RELAY_LOSS:
        if (!refused && e->ok)
            w->loss[e->name.part] = true;
        break;
    case RELAY_CONTRIBUTION:
        if (!refused)
            take_contribution(w, e);
        break;
    case RELAY_FOLDED: {
        struct world_job *job = &w->jobs[e->unit][e->name.slice];
        job->flying = false;
        if (e->ok && job->step == w->t && !w->covered)
            w->folded[job->name.visit][job->name.part][job->name.slice] = true;
        break;
    }
    case RELAY_UPDATED:
        w->updating[e->unit] = false;
        advance(w, e->unit);
        break;
    case RELAY_SAVE:
        if (!refused)
            begin_save(w, e->reader);
        break;
    case RELAY_RELEASED:
        if (e->unit < WORLD_UNITS)
            w->readers[e->reader].captured[e->unit] = false;
        break;
    }
}

static bool is_refused(const struct relay_action *a, int n)
{
    return n && a->kind == RELAY_REFUSE && !a->not_finite && strcmp(a->why, "version is gone") != 0;
}

/* A duplicate of what a slot holds elsewhere is answered with a free: then nothing came to stand there. */
static bool is_freed_at_once(const struct relay_event *e, const struct relay_action *a, int n)
{
    return e->kind == RELAY_CONTRIBUTION && n && a->kind == RELAY_FREE && a->worker == e->worker && a->slot == e->slot;
}

void world_feed(struct world *w, const struct relay_event *e)
{
    const struct relay_action *actions = NULL;
    relay_trace_event(w->log, e);
    int n = w->feed(w->relay, e, &actions);
    must(w, n >= 0, "relay_feed fails");
    for (int i = 0; i < n; i++)
        relay_trace_action(w->log, NULL, &actions[i]);
    bool twice = is_freed_at_once(e, actions, n);
    if (!twice)
        begin_event(w, e, is_refused(actions, n));
    for (int i = 0; i < n; i++)
        check_action(w, &actions[i], e);
    for (uint32_t u = 0; u < WORLD_UNITS; u++)
        must(w, !w->in_step[u] || w->torn || relay_version(w->relay, u) == w->version[u],
             "a version that nobody told of");
    for (uint32_t i = 0; i < WORLD_WORKERS; i++) {
        if (w->leaving[i]) { /* its session ends */
            w->leaving[i] = false;
            world_feed(w, &(struct relay_event){.kind = RELAY_LOST, .worker = i});
        }
    }
}

/* ---- decent peers ------------------------------------------------------------------------------------------------ */

void world_open(struct world *w, const struct relay_config *config)
{
    *w = (struct world){.config = *config, .feed = relay_feed, .t = UINT64_MAX, .covered = true};
    for (uint32_t p = 0; p < WORLD_PARTS; p++)
        w->owner[p] = WORLD_WORKERS;
    w->log = open_memstream(&w->log_text, &w->log_bytes);
    ck_assert(w->log && config->n_parts <= WORLD_PARTS && config->n_slots <= WORLD_SLOTS);
    relay_trace_config(w->log, config, 1);
    ck_assert_int_eq(relay_open(&w->relay, config), 0);
}

void world_close(struct world *w)
{
    relay_close(w->relay);
    fclose(w->log);
    free(w->log_text);
}

void world_attach(struct world *w, uint32_t worker)
{
    world_feed(w, &(struct relay_event){.kind = RELAY_ATTACHED, .worker = worker});
}

void world_finish_job(struct world *w, uint32_t unit, uint32_t slice, bool ok)
{
    world_feed(w, &(struct relay_event){.kind = RELAY_FOLDED, .unit = unit, .name.slice = slice, .ok = ok});
}

void world_finish_update(struct world *w, uint32_t unit)
{
    world_feed(w, &(struct relay_event){.kind = RELAY_UPDATED, .unit = unit});
}

static bool stands(const struct world *w, uint32_t worker, const struct world_name *name)
{
    bool any = false;
    for (uint32_t k = 0; k <= w->config.n_slots; k++)
        any |= same(&w->slots[worker][k], name);
    return any;
}

bool world_contribute(struct world *w, uint32_t part)
{
    uint32_t owner = w->owner[part], slot = 1;
    if (w->covered || w->torn || owner == WORLD_WORKERS || !w->attached[owner] || !w->loss[part])
        return false;
    while (slot <= w->config.n_slots && w->slots[owner][slot].full)
        slot++;
    for (struct world_name n = {0}; next_name(w, &n);) {
        if (n.part != part || is_folded(w, &n) || stands(w, owner, &n))
            continue;
        if (slot > w->config.n_slots && !(same(&w->granted[owner], &n) && !w->slots[owner][0].full))
            return false;
        slot = slot > w->config.n_slots ? 0 : slot;
        world_feed(w, &(struct relay_event){.kind = RELAY_CONTRIBUTION,
                                            .worker = owner,
                                            .name = {.step = w->t,
                                                     .visit = n.visit,
                                                     .part = part,
                                                     .slice = n.slice,
                                                     .attempt = w->attempt[part]},
                                            .slot = slot});
        return true;
    }
    return false;
}

/* With nothing under way, the one that the step waits for does what it owes. */
static bool work_parts(struct world *w)
{
    const uint32_t owes = relay_owes(w->relay);

    bool moved = false;
    must(w, w->torn || w->covered ? owes == UINT32_MAX : owes < WORLD_WORKERS && w->attached[owes],
         "the step waits for nobody");
    for (uint32_t p = 0; p < w->config.n_parts && !w->torn; p++) {
        if (w->owner[p] != owes)
            continue;
        if (!w->covered && !w->loss[p] && w->n_done == w->t) {
            world_feed(w, &(struct relay_event){.kind = RELAY_LOSS,
                                                .worker = w->owner[p],
                                                .name = {.step = w->t, .part = p, .attempt = w->attempt[p]},
                                                .ok = true});
            moved = true;
        }
        moved |= world_contribute(w, p);
    }
    return moved;
}

static bool work_thread(struct world *w)
{
    bool moved = false;
    for (uint32_t u = 0; u < WORLD_UNITS && !w->torn; u++) {
        for (uint32_t s = 0; s < WORLD_SLICES; s++) {
            if (w->jobs[u][s].flying) {
                world_finish_job(w, u, s, true);
                moved = true;
            }
        }
        if (w->updating[u]) {
            world_finish_update(w, u);
            moved = true;
        }
    }
    return moved;
}

static bool work_readers(struct world *w)
{
    for (uint32_t r = 0; r < WORLD_READERS && !w->torn; r++) {
        for (uint32_t u = 0; u < WORLD_UNITS; u++) {
            if (w->readers[r].here && w->readers[r].captured[u]) {
                world_feed(w, &(struct relay_event){.kind = RELAY_RELEASED, .reader = r, .unit = u});
                return true;
            }
        }
    }
    return false;
}

void world_settle(struct world *w)
{
    uint32_t n_workers = 0;
    for (uint32_t i = 0; i < WORLD_WORKERS; i++)
        n_workers += w->attached[i];
    if (!n_workers && !w->torn)
        world_attach(w, 0);
    bool moved = true;
    while (moved) {
        moved = work_thread(w);
        moved |= work_readers(w);
        moved = moved || work_parts(w);
    }
    if (w->torn)
        return;
    must(w, w->covered && w->n_done == w->t + 1, "the step is never done");
    for (uint32_t i = 0; i < WORLD_WORKERS; i++) {
        for (uint32_t k = 0; k <= w->config.n_slots; k++)
            must(w, !w->slots[i][k].full, "a slot is never freed");
    }
    for (uint32_t i = 0; i < WORLD_WORKERS; i++)
        must(w, !w->n_unanswered[i], "a pull is never answered");
    for (uint32_t r = 0; r < WORLD_READERS; r++)
        must(w, !w->readers[r].here, "a reader waits for ever");
}

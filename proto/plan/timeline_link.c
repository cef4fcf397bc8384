#include "proto/plan/timeline_internal.h"
#include "proto/plan/units.h"

#include <assert.h>
#include <string.h>

/* Where the visit at a place finds its weights, as in proto/step/weights.c. */
enum where { NOWHERE, BUFFER, RESIDENT, HOST };

/* ---- queues ---- */

static void on_optimized(void *context, const struct plan_task *task);

static void pass(struct timeline_run *r, enum plan_queue waits_for)
{
    const bool someone = plan_queues_pass(&r->q, waits_for, on_optimized, r);

    assert(someone || r->q.no_memory); /* else the step never ends, in the worker either */
}

void timeline_finish(struct timeline_run *r, enum plan_queue queue, uint64_t mark)
{
    while (!plan_queues_is_done(&r->q, queue, mark) && !r->q.no_memory)
        pass(r, queue);
}

uint64_t timeline_give(struct timeline_run *r, enum plan_queue queue, double seconds, double host_bytes)
{
    const struct plan_task task = {.seconds = seconds * r->slow, .host_bytes = host_bytes};
    const uint64_t mark = plan_queues_give(&r->q, queue, &task);

    if (timeline_takes_turns(r))
        timeline_finish(r, queue, mark);
    return mark;
}

void timeline_copy(struct timeline_run *r, enum plan_queue queue, double bytes)
{
    timeline_give(r, queue, bytes / r->s->profile->link_bytes_per_s, bytes);
}

/* ---- the optimizer ---- */

static void optimize(struct timeline_run *r, uint32_t unit, double n, double bytes, bool is_update)
{
    const double touched = n * bytes;
    const struct plan_task task = {
        .unit = unit,
        .is_update = is_update,
        .seconds = touched / (r->s->profile->update_parameters_per_s * PLAN_WORK_UPDATE_BYTES),
        .host_bytes = touched,
    };

    plan_queues_give(&r->q, PLAN_QUEUE_OPTIMIZER, &task);
}

static void update(struct timeline_run *r, uint32_t unit)
{
    const struct model_unit *u = &r->model->units[unit];
    const double bytes = plan_work_update(r->s->host, u).update;

    if (bytes > 0)
        optimize(r, unit, (double)u->n_trained, bytes, true);
    else
        r->units[unit].updates++;
}

uint64_t timeline_slices_of(const struct timeline_run *r, uint32_t unit)
{
    const struct model_unit *u = &r->model->units[unit];

    return (uint64_t)u->n_slices * u->n_visits * r->n_runs;
}

/* A unit is updated when all its slices are folded; with fenced commit, when all of the step's are. The next step
 * contributes nothing before that. */
static void on_optimized(void *context, const struct plan_task *task)
{
    struct timeline_run *r = context;
    struct timeline_unit *unit = &r->units[task->unit];

    if (task->is_update) {
        unit->updates++;
        return;
    }
    r->n_free++;
    if (--r->not_folded == 0) {
        for (uint32_t u = 0; r->s->host->goal.fenced && u < r->model->n_units; u++)
            if (r->model->units[u].n_trained > 0)
                update(r, u);
        r->not_folded = r->n_slices;
    }
    if (--unit->left == 0) {
        if (!r->s->host->goal.fenced)
            update(r, task->unit);
        unit->left = timeline_slices_of(r, task->unit);
    }
}

static uint64_t slice_n(const struct model_unit *unit, uint32_t slice)
{
    const uint64_t left = unit->n_trained - (uint64_t)slice * MODEL_SLICE;

    return left < MODEL_SLICE ? left : MODEL_SLICE;
}

static void contribute(struct timeline_run *r, uint32_t unit, uint32_t slice)
{
    const struct model_unit *u = &r->model->units[unit];

    optimize(r, unit, (double)slice_n(u, slice) * r->contributions, plan_work_update(r->s->host, u).fold, false);
}

/* ---- weights: proto/step/weights.c ---- */

static uint32_t unit_at(const struct timeline_run *r, uint32_t place)
{
    return r->model->visits[timeline_visit_at(r, place)];
}

static enum model_layer_kind kind_at(const struct timeline_run *r, uint32_t place)
{
    return r->model->layers[r->model->visit_layers[timeline_visit_at(r, place)]].kind;
}

static enum where where(const struct timeline_run *r, uint32_t place)
{
    const enum model_layer_kind kind = kind_at(r, place);

    if (place >= r->n && (kind == MODEL_EMBEDDING || (r->plan->one_pass && kind == MODEL_HEAD)))
        return NOWHERE;
    if (kind == MODEL_EMBEDDING)
        return HOST;
    return plan_place_of(r->model, unit_at(r, place)) < r->plan->n_resident ? RESIDENT : BUFFER;
}

static struct timeline_buffer *find(struct timeline_run *r, uint32_t unit)
{
    for (uint32_t i = 0; i < r->plan->n_weight_buffers; i++)
        if (r->weights.buffers[i].taken && r->weights.buffers[i].unit == unit)
            return &r->weights.buffers[i];
    return NULL;
}

static struct timeline_buffer *find_free(struct timeline_run *r, uint32_t place)
{
    struct timeline_buffer *best = NULL;

    for (uint32_t i = 0; i < r->plan->n_weight_buffers; i++) {
        struct timeline_buffer *b = &r->weights.buffers[i];
        if (!b->taken)
            return b;
        if (b->last < place && (!best || b->last < best->last))
            best = b;
    }
    return best;
}

static bool ask(struct timeline_run *r, uint32_t place, uint32_t wanted)
{
    const uint32_t unit = unit_at(r, wanted);
    const enum where from = where(r, wanted);
    struct timeline_buffer *b = from == BUFFER ? find(r, unit) : NULL;

    if (b)
        b->last = wanted;
    if (b || from == NOWHERE || (from != BUFFER && wanted >= r->n))
        return true;
    b = from == BUFFER ? find_free(r, place) : NULL;
    if ((from == BUFFER && !b) || r->weights.n_pending == r->plan->choice.n_weight_buffers)
        return false;
    r->weights.pending[r->weights.n_pending++] = wanted;
    if (b)
        *b = (struct timeline_buffer){.unit = unit, .last = wanted, .taken = true, .used = b->used};
    return true;
}

/* Receives the oldest pending pull. */
static void receive(struct timeline_run *r)
{
    const uint32_t place = r->weights.pending[0], unit = unit_at(r, place);

    while (r->model->units[unit].n_trained > 0 && r->units[unit].updates < r->step && !r->q.no_memory)
        pass(r, PLAN_QUEUE_OPTIMIZER);
    r->weights.n_pending--;
    memmove(r->weights.pending, r->weights.pending + 1, r->weights.n_pending * sizeof *r->weights.pending);
    r->weights.coming = place, r->weights.is_coming = true, r->weights.sent = 0;
}

static void send_weights(struct timeline_run *r, double part)
{
    const uint32_t place = r->weights.coming;
    const double end = (double)r->model->units[unit_at(r, place)].n * timeline_number(r) * part;
    const double bytes = end - r->weights.sent;

    if (where(r, place) == HOST || bytes <= 0)
        return;
    if (where(r, place) == BUFFER)
        plan_queues_follow(&r->q, PLAN_QUEUE_PULL, PLAN_QUEUE_COMPUTE, find(r, unit_at(r, place))->used);
    timeline_copy(r, PLAN_QUEUE_PULL, bytes);
    r->weights.sent = end;
}

void timeline_next_weights(struct timeline_run *r, uint32_t place)
{
    if (place > 0 && where(r, place - 1) == BUFFER)
        find(r, unit_at(r, place - 1))->used = plan_queues_mark(&r->q, PLAN_QUEUE_COMPUTE);
    while (r->weights.arranged < r->end && ask(r, place, r->weights.arranged))
        r->weights.arranged++;
    const bool has_come = r->weights.is_coming && r->weights.coming == place;
    if (!has_come && r->weights.n_pending > 0 && r->weights.pending[0] == place)
        receive(r);
    if (r->weights.is_coming && r->weights.coming == place)
        send_weights(r, 1);
    timeline_follow(r, PLAN_QUEUE_COMPUTE, PLAN_QUEUE_PULL);
}

void timeline_weights_ahead(struct timeline_run *r, uint32_t place, double part)
{
    if (r->weights.n_pending > 0 && r->weights.pending[0] == place)
        receive(r);
    if (r->weights.is_coming && r->weights.coming == place)
        send_weights(r, part);
}

/* ---- contributions: proto/step/offers.c ---- */

uint64_t timeline_count_apart(const struct timeline_run *r)
{
    return (uint64_t)plan_count_apart(r->plan, r->model) * r->n_runs;
}

static uint32_t visit_of(const struct timeline_run *r, uint64_t contribution)
{
    return model_contribution_visit(r->model, contribution, r->n_runs);
}

static uint32_t unit_of(const struct timeline_run *r, uint64_t contribution)
{
    return r->model->visits[visit_of(r, contribution)];
}

static uint32_t sum_of(const struct timeline_run *r, uint64_t contribution)
{
    return (uint32_t)((contribution - timeline_count_apart(r)) % r->plan->n_sums);
}

void timeline_round_sum(struct timeline_run *r, uint64_t contribution)
{
    const double seconds = plan_work_round(&r->work, visit_of(r, contribution));

    if (seconds > 0)
        timeline_give(r, PLAN_QUEUE_COMPUTE, seconds, 0);
}

void timeline_begin_sum(struct timeline_run *r, uint64_t contribution)
{
    if (contribution >= timeline_count_apart(r))
        plan_queues_follow(&r->q, PLAN_QUEUE_COMPUTE, PLAN_QUEUE_PUSH, r->offers.sent[sum_of(r, contribution)]);
}

void timeline_tell_losses(struct timeline_run *r)
{
    const struct plan_setting *s = &r->plan->setting;

    for (uint32_t i = 0; !r->told && i < r->n_runs; i++) {
        plan_queues_follow(&r->q, PLAN_QUEUE_PUSH, PLAN_QUEUE_COMPUTE, r->forward);
        timeline_copy(r, PLAN_QUEUE_PUSH, (double)s->part_rows * s->goal.seq * sizeof(double));
        timeline_finish(r, PLAN_QUEUE_PUSH, plan_queues_mark(&r->q, PLAN_QUEUE_PUSH));
    }
    r->told = true;
}

static void land(struct timeline_run *r)
{
    const struct timeline_offer first = r->offers.flying[0];
    const uint32_t unit = unit_of(r, first.contribution);

    timeline_finish(r, PLAN_QUEUE_PUSH, first.arrived);
    r->offers.n_flying--, r->offers.n_landed++;
    memmove(r->offers.flying, r->offers.flying + 1, r->offers.n_flying * sizeof *r->offers.flying);
    contribute(r, unit, first.slice);
    while (timeline_takes_turns(r) && r->q.queues[PLAN_QUEUE_OPTIMIZER].n > 0)
        pass(r, PLAN_QUEUE_OPTIMIZER);
}

/* False: no slot is free now. */
static bool send_slice(struct timeline_run *r, bool wait)
{
    const uint64_t contribution = r->offers.next;
    const struct model_unit *unit = &r->model->units[unit_of(r, contribution)];
    const bool apart = contribution < timeline_count_apart(r);

    while (wait && r->n_free == 0 && !r->q.no_memory)
        pass(r, PLAN_QUEUE_OPTIMIZER);
    if (r->n_free == 0)
        return false;
    r->n_free--;
    plan_queues_follow(&r->q, PLAN_QUEUE_PUSH, PLAN_QUEUE_COMPUTE,
                       apart ? r->forward : r->offers.ready[sum_of(r, contribution)]);
    timeline_copy(r, PLAN_QUEUE_PUSH,
                  (double)slice_n(unit, r->offers.slice) * (double)number_bytes(r->plan->setting.goal.grad));
    const uint64_t arrived = plan_queues_mark(&r->q, PLAN_QUEUE_PUSH);
    assert(r->offers.n_flying < TIMELINE_MOST_FLYING);
    r->offers.flying[r->offers.n_flying++] = (struct timeline_offer){contribution, arrived, r->offers.slice};
    if (++r->offers.slice < unit->n_slices)
        return true;
    if (!apart)
        r->offers.sent[sum_of(r, contribution)] = arrived;
    r->offers.slice = 0;
    r->offers.next++;
    return true;
}

static uint32_t most_flying(const struct timeline_run *r)
{
    return timeline_takes_turns(r) ? 1 : TIMELINE_MOST_FLYING;
}

static void flush(struct timeline_run *r, uint64_t end)
{
    timeline_tell_losses(r);
    while (r->offers.next < end && !r->q.no_memory)
        if (r->offers.n_flying == most_flying(r) || !send_slice(r, r->offers.n_flying == 0))
            land(r);
}

static uint64_t count_slices(const struct timeline_run *r)
{
    uint64_t n = 0;

    for (uint64_t i = r->offers.next; i < r->offers.made; i++)
        n += r->model->units[unit_of(r, i)].n_slices;
    return n - r->offers.slice;
}

static uint64_t count_in_the_way(const struct timeline_run *r)
{
    const uint64_t needed = r->offers.made + 2, n_sums = r->plan->n_sums;

    return needed > n_sums ? needed - n_sums : 0;
}

void timeline_offers_go_on(struct timeline_run *r, uint32_t left)
{
    const uint64_t before = r->offers.n_landed + r->offers.n_flying;

    if (r->offers.made <= timeline_count_apart(r))
        return;
    timeline_tell_losses(r);
    if (left == 1 && count_in_the_way(r) > timeline_count_apart(r))
        flush(r, count_in_the_way(r));
    for (uint64_t due = (count_slices(r) + left - 1) / left; due > 0; due--) {
        const bool full = r->offers.n_flying == most_flying(r);
        if (full && left > 1)
            break;
        if (full)
            land(r);
        if (!send_slice(r, false))
            break;
    }
    while (r->offers.n_landed < before)
        land(r);
}

void timeline_finish_offers(struct timeline_run *r)
{
    flush(r, r->offers.made);
    while (r->offers.n_flying > 0)
        land(r);
}

void timeline_offers_made(struct timeline_run *r)
{
    const uint64_t contribution = r->offers.made++;

    if (contribution >= timeline_count_apart(r)) {
        timeline_round_sum(r, contribution);
        r->offers.ready[sum_of(r, contribution)] = plan_queues_mark(&r->q, PLAN_QUEUE_COMPUTE);
    }
    if (!timeline_overlaps(r))
        timeline_finish_offers(r);
}

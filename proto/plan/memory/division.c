#include "proto/plan/memory/division.h"

#include <assert.h>
#include <errno.h>

/* Where a unit's trained elements begin among the model's, or where the last ones end. */
static uint64_t trained_before(const struct model *model, uint32_t unit)
{
    return unit < model->n_units ? model->units[unit].trained_offset : model->trained_n;
}

void plan_own(struct plan_own *out, const struct model *model, uint32_t own_first, uint32_t n_own)
{
    const uint32_t first = n_own ? own_first : 0, end = n_own ? own_first + n_own : model->n_units;
    uint64_t n_tied = 0, largest = 0;
    struct plan_own o = {.first = first, .end = end};

    assert(first < end && end <= model->n_units);
    assert(model->visits[model->layers[0].n_visits - 1] == model->layers[0].n_visits - 1); /* plan_keeps */
    for (uint32_t u = first; u < end; u++) {
        const uint64_t n = model_rounded(model->units[u].n_trained);
        n_tied += model->units[u].n_visits > 1 ? n : 0;
        largest = largest < n ? n : largest;
    }
    for (uint32_t u = 0; u < model->n_units; u++) {
        const bool owns = u >= first && u < end, keeps = plan_keeps(&o, model, u);
        const uint64_t n = model_rounded(model->units[u].n), replay_n = model->units[u].n_trained > 0 ? n : 0;
        o.weights_n += owns ? n : 0;
        o.replay_before += u < first ? replay_n : 0;
        o.replay_n += owns ? replay_n : 0;
        o.tables_n += keeps && !owns ? n : 0;
        o.tables_replay_n += keeps && !owns ? replay_n : 0;
        o.n_foreign += !keeps;
        o.slot_n = keeps || o.slot_n > n ? o.slot_n : n;
    }
    o.trained_offset = trained_before(model, first);
    o.trained_n = trained_before(model, end) - o.trained_offset;
    o.tied_bytes = n_tied * sizeof(float);
    o.accumulator_bytes = largest * sizeof(float);
    *out = o;
}

/* The embedding's tables are the first units. */
bool plan_keeps(const struct plan_own *own, const struct model *model, uint32_t unit)
{
    return (unit >= own->first && unit < own->end) || unit < model->layers[0].n_visits;
}

/* A kept unit's place in a range whose own units take own_n elements. Of the model's elements, `before` precede the
 * unit, and `before_own` the first own unit. */
static uint64_t place(const struct plan_own *own, uint32_t unit, uint64_t own_n, uint64_t before, uint64_t before_own)
{
    if (unit < own->first)
        return own_n + before;
    return unit < own->end ? before - before_own : before; /* tables after own units: own_n of these precede them */
}

uint64_t plan_weights_at(const struct plan_own *own, const struct model *model, uint32_t unit, uint32_t buffer)
{
    const struct model_unit *u = &model->units[unit];

    assert(plan_keeps(own, model, unit) && (!buffer || u->n_trained > 0));
    if (!buffer)
        return place(own, unit, own->weights_n, u->offset, model->units[own->first].offset);
    return plan_weights_n(own, 0) +
           place(own, unit, own->replay_n, u->replay_offset - model->segment_n, own->replay_before);
}

uint64_t plan_weights_n(const struct plan_own *own, uint32_t n_ring)
{
    return own->weights_n + own->tables_n + n_ring * own->slot_n;
}

uint64_t plan_replay_n(const struct plan_own *own)
{
    return own->replay_n + own->tables_replay_n;
}

uint32_t plan_ring_slots(const struct plan_own *own, uint32_t n_parts)
{
    return own->n_foreign < 2 * n_parts + 1 ? own->n_foreign : 2 * n_parts + 1;
}

/* The end of a host's units that begin at `first`, of which `n_left` are trained; n_after hosts come after it. */
static uint32_t find_end(const struct model *model, uint32_t first, uint32_t *n_left, uint32_t n_hosts,
                         uint32_t n_after)
{
    const uint64_t share = model->trained_n / n_hosts * (n_hosts - n_after);
    bool any = false;
    uint32_t u = first;

    for (; n_after && u < model->n_units; u++) {
        const struct model_unit *unit = &model->units[u];
        const bool is_full = unit->trained_offset + unit->n_trained / 2 >= share; /* most of the unit is beyond it */
        if (unit->n_trained && any && (is_full || *n_left <= n_after))
            return u;
        any |= unit->n_trained > 0;
        *n_left -= unit->n_trained > 0;
    }
    return model->n_units;
}

int plan_divide(uint32_t *own_first, uint32_t *n_own, const struct model *model, uint32_t n_hosts, uint32_t host,
                struct error *err)
{
    uint32_t n_left = model->n_units - model->n_frozen_units, end = 0;

    assert(host < n_hosts);
    if (n_left < n_hosts)
        return error_set(err, -EINVAL,
                         "a model of %u trained units cannot be divided among %u hosts; start %u or fewer", n_left,
                         n_hosts, n_left);
    for (uint32_t h = 0; h <= host; h++) {
        *own_first = end;
        end = find_end(model, end, &n_left, n_hosts, n_hosts - 1 - h);
    }
    *n_own = end - *own_first;
    return 0;
}

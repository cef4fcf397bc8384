/* Tables are the first units of a model (asserted in plan_own). So those that a host keeps without owning them lie
 * wholly before its own units or wholly behind them, and each place follows from the model's offsets by a subtraction:
 * no table of places exists.
 *
 * Where a host's units begin depends on where those of all hosts below it end. So plan_divide computes these too, and
 * always leaves as many trained units as hosts follow. */
#include "proto/plan/memory/division.h"

#include <assert.h>
#include <errno.h>

/* Where a unit's trained elements begin among the model's, or where the last ones end. */
static uint64_t trained_before(const struct model *model, uint32_t unit)
{
    return unit < model->n_units ? model->units[unit].trained_offset : model->trained_n;
}

/* Bytes of a unit's room. */
static uint64_t division_room_of(const struct model_unit *unit, enum number_type precision)
{
    return model_rounded(unit->n_relayed) * number_bytes(precision) + unit->coded_bytes;
}

void plan_own(struct plan_own *out, const struct model *model, enum number_type precision, uint32_t own_first,
              uint32_t n_own)
{
    const uint32_t first = n_own ? own_first : 0, end = n_own ? own_first + n_own : model->n_units;
    uint64_t n_tied = 0, largest = 0;
    struct plan_own o = {.first = first, .end = end, .precision = precision};

    assert(first < end && end <= model->n_units);
    for (uint32_t visit = 0; visit < model_table_visits(model); visit++)
        assert(model->visits[visit] == visit); /* plan_keeps */
    for (uint32_t u = first; u < end; u++) {
        const uint64_t n = model_rounded(model->units[u].n_trained);
        n_tied += model->units[u].n_visits > 1 ? n : 0;
        largest = largest < n ? n : largest;
        o.first_norm_map = o.n_norm_maps == 0 ? model->units[u].first_norm_map : o.first_norm_map;
        o.n_norm_maps += model->units[u].n_norm_maps;
    }
    for (uint32_t u = 0; u < model->n_units; u++) {
        const bool owns = u >= first && u < end, keeps = plan_keeps(&o, model, u);
        const uint64_t bytes = division_room_of(&model->units[u], precision);
        const uint64_t replay_bytes = model_rounded(model->units[u].n_trained) * number_bytes(precision);
        o.weights_bytes += owns ? bytes : 0;
        o.replay_before += u < first ? replay_bytes : 0;
        o.replay_bytes += owns ? replay_bytes : 0;
        o.tables_bytes += keeps && !owns ? bytes : 0;
        o.tables_replay_bytes += keeps && !owns ? replay_bytes : 0;
        o.n_foreign += !keeps;
        o.slot_bytes = keeps || o.slot_bytes > bytes ? o.slot_bytes : bytes;
    }
    o.trained_offset = trained_before(model, first);
    o.trained_n = trained_before(model, end) - o.trained_offset;
    o.tied_n = n_tied;
    o.accumulator_bytes = largest * sizeof(float);
    *out = o;
}

/* The embedding's tables are the first units. */
bool plan_keeps(const struct plan_own *own, const struct model *model, uint32_t unit)
{
    return (unit >= own->first && unit < own->end) || unit < model_table_visits(model);
}

/* A kept unit's place in a range whose own units take own_bytes. Of the model's bytes, `before` precede the unit, and
 * `before_own` the first own unit. */
static uint64_t division_place(const struct plan_own *own, uint32_t unit, uint64_t own_bytes, uint64_t before,
                               uint64_t before_own)
{
    if (unit < own->first)
        return own_bytes + before;
    return unit < own->end ? before - before_own : before; /* tables after own units: own_bytes of these precede them */
}

/* Bytes from the model's segment's start. */
static uint64_t division_begin(const struct model_unit *unit, enum number_type precision)
{
    return unit->offset * number_bytes(precision) + unit->coded_offset;
}

uint64_t plan_weights_at(const struct plan_own *own, const struct model *model, uint32_t unit, uint32_t buffer)
{
    const struct model_unit *u = &model->units[unit];

    assert(plan_keeps(own, model, unit) && (!buffer || u->n_trained > 0));
    if (!buffer)
        return division_place(own, unit, own->weights_bytes, division_begin(u, own->precision),
                              division_begin(&model->units[own->first], own->precision));
    return plan_weights_bytes(own, 0) + division_place(own, unit, own->replay_bytes,
                                                       u->replay_offset * number_bytes(own->precision),
                                                       own->replay_before);
}

uint64_t plan_weights_bytes(const struct plan_own *own, uint32_t n_ring)
{
    return own->weights_bytes + own->tables_bytes + n_ring * own->slot_bytes;
}

uint64_t plan_replay_bytes(const struct plan_own *own)
{
    return own->replay_bytes + own->tables_replay_bytes;
}

uint32_t plan_ring_slots(const struct plan_own *own, uint32_t n_parts)
{
    return own->n_foreign < 2 * n_parts + 1 ? own->n_foreign : 2 * n_parts + 1;
}

/* The end of a host's units that begin at `first`, of which `n_left` are trained; n_after hosts come after it. */
static uint32_t division_find_end(const struct model *model, uint32_t first, uint32_t *n_left, uint32_t n_hosts,
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
        end = division_find_end(model, end, &n_left, n_hosts, n_hosts - 1 - h);
    }
    *n_own = end - *own_first;
    return 0;
}

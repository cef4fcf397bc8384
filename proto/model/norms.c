/* A slice has elements of the gradient or norms, never both: norms begin a new one, and on the device a new cache line.
 * Slices are counted anew for all units, also those without norms, as a job's part may change its size between calls.
 *
 * A unit that a pass uses more than once has no norms: one entry per token could not say of which use. */
#include "proto/model/norms.h"

#include "proto/operation/operation.h"

#include <assert.h>

static uint32_t norms_slices_of(uint64_t n)
{
    return (uint32_t)((n + MODEL_SLICE - 1) / MODEL_SLICE);
}

uint32_t model_gradient_slices(const struct model_unit *unit)
{
    return norms_slices_of(unit->n_trained);
}

struct model_slice model_slice_of(const struct model_unit *unit, uint32_t slice)
{
    const uint32_t n = model_gradient_slices(unit);
    const bool is_norms = slice >= n;
    const uint64_t first = (uint64_t)(is_norms ? slice - n : slice) * MODEL_SLICE;
    const uint64_t left = (is_norms ? unit->n_norms : unit->n_trained) - first;

    assert(slice < unit->n_slices);
    return (struct model_slice){first, left < MODEL_SLICE ? left : MODEL_SLICE, is_norms};
}

uint64_t model_norms_at(const struct model_unit *unit)
{
    return unit->n_norms > 0 ? model_rounded(unit->n_trained) : unit->n_trained;
}

uint64_t model_contribution_end(const struct model_unit *unit)
{
    return model_norms_at(unit) + unit->n_norms;
}

uint64_t model_slice_at(const struct model_unit *unit, const struct model_slice *slice)
{
    return slice->first + (slice->is_norms ? model_norms_at(unit) : 0);
}

/* The number of a program's sampled maps; 0 if one is of other things than tokens. */
static uint32_t count_maps(const struct program *p)
{
    uint32_t n = 0;

    for (const struct program_operation *op = p->operations; op < p->operations + p->n_operations; op++) {
        const uint32_t domain = program_samples(op) ? p->values[op->inputs[0]].domain : PROGRAM_TOKENS;
        if (domain == PROGRAM_ROW || domain == PROGRAM_PART)
            return 0;
        n += program_samples(op);
    }
    return n;
}

void model_remember_norms(struct model *m, uint64_t part_tokens, uint32_t n_entries)
{
    m->n_slices = m->n_norm_maps = 0;
    m->most_norms = 0;
    m->n_norm_entries = n_entries;
    for (struct model_unit *unit = m->units; unit < m->units + m->n_units; unit++) {
        unit->n_norm_maps = 0;
        unit->n_norms = 0;
    }
    for (uint32_t i = 0; i < m->n_block_layers && part_tokens > 0; i++) {
        const struct model_layer *layer = &m->layers[m->first_block + i];
        struct model_unit *unit = &m->units[m->visits[layer->first_visit]];
        if (unit->n_trained == 0 || unit->n_visits > 1)
            continue;
        unit->first_norm_map = m->n_norm_maps;
        unit->n_norm_maps = count_maps(&layer->program->program);
        unit->n_norms = unit->n_norm_maps * part_tokens;
        m->n_norm_maps += unit->n_norm_maps;
        m->most_norms = m->most_norms < unit->n_norms ? unit->n_norms : m->most_norms;
    }
    for (struct model_unit *unit = m->units; unit < m->units + m->n_units; unit++) {
        unit->n_slices = norms_slices_of(unit->n_trained) + norms_slices_of(unit->n_norms);
        m->n_slices += unit->n_slices;
    }
}

struct model_norm_map model_norm_map(const struct model *m, uint32_t unit, uint32_t i, uint32_t n_tokens)
{
    const struct model_unit *u = &m->units[unit];
    const struct program *p = &m->programs[u->program].program;
    const struct program_operation *op = p->operations;

    assert(i < u->n_norm_maps);
    for (uint32_t left = i; !program_samples(op) || left-- > 0;)
        op++;
    const uint32_t domain = p->values[op->inputs[0]].domain;
    return (struct model_norm_map){
        .tensor = &m->tensors[m->pieces[u->first_piece + program_tensors_before(p, op->tensor)].tensor],
        .first = domain >= PROGRAM_OWN ? program_own_first(&p->own[domain - PROGRAM_OWN], n_tokens) : 0,
        .n = program_domain_elements(p, domain, n_tokens)};
}

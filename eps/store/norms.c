/* The loop and the optimizer thread share all of this without a lock, as versions order them: a unit's cache is
 * written by its update, and read once the loop has heard of that; entries of step t are written, at t modulo 2, when
 * step t-2 is done and before anybody works on t. */
#include "eps/store/norms.h"

#include "proto/base/number.h"
#include "proto/model/file/checkpoint_layout.h"
#include "proto/model/norms.h"
#include "proto/operation/call/sample.h"
#include "proto/plan/memory/data.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <string.h>

/* bf16: the largest finite number, and the least one above 0, which stands for 0, as that is what is not known; all
 * bits but the sign. */
enum { LARGEST = 0x7f7f, SMALLEST = 1, POSITIVE = 0x7fff };

static size_t tokens_of(const struct norms *norms)
{
    return (size_t)norms->batch * norms->seq;
}

void norms_init(struct norms *norms, const struct store_options *options, const struct plan_own *own, void *memory)
{
    *norms = (struct norms){.n_entries = options->n_entries,
                            .batch = options->batch,
                            .seq = options->seq,
                            .first_map = own->first_norm_map,
                            .n_maps = own->n_norm_maps,
                            .part_rows = options->n_parts ? options->batch / options->n_parts : 0};
    if (!memory)
        return;
    norms->gathered = memory;
    norms->steps[0].entries = (uint32_t *)(norms->gathered + norms->n_maps);
    norms->steps[1].entries = norms->steps[0].entries + tokens_of(norms);
    norms->pending = (uint16_t *)(norms->steps[1].entries + tokens_of(norms));
    norms->cache = norms->pending + norms->n_maps * tokens_of(norms);
}

static bool is_own(const struct norms *norms, uint32_t map)
{
    return map >= norms->first_map && map - norms->first_map < norms->n_maps;
}

/* The index of a unit's first map among the own ones. */
static uint32_t norms_first_of(const struct norms *norms, const struct model_unit *unit)
{
    assert(is_own(norms, unit->first_norm_map));
    return unit->first_norm_map - norms->first_map;
}

uint16_t *norms_of(const struct norms *norms, const struct model_unit *unit, uint32_t i)
{
    assert(i < unit->n_norm_maps);
    return norms->cache + (size_t)(norms_first_of(norms, unit) + i) * norms->n_entries;
}

static uint16_t *pending_of(const struct norms *norms, const struct model_unit *unit, uint32_t part)
{
    return norms->pending + norms_first_of(norms, unit) * tokens_of(norms) + part * unit->n_norms;
}

int norms_open_step(struct norms *norms, uint64_t step, const uint32_t *entries, uint32_t n_tokens, struct error *err)
{
    struct norms_step *s = &norms->steps[step % 2];

    if (norms->n_maps == 0)
        return 0;
    assert(n_tokens <= norms->seq);
    s->n_tokens = n_tokens;
    memcpy(s->entries, entries, (size_t)norms->batch * n_tokens * sizeof *entries);
    for (size_t i = 0; i < (size_t)norms->batch * n_tokens; i++)
        if (s->entries[i] < PLAN_NEW_ENTRY && s->entries[i] >= norms->n_entries)
            return error_set(err, -EINVAL,
                             "step %" PRIu64 " has token %" PRIu32 " of the training data, which have %" PRIu32,
                             step + 1, s->entries[i], norms->n_entries);
    return 0;
}

/* The entries of a row's tokens that a map is of. */
static const uint32_t *entries_of(const struct norms_step *s, const struct model_norm_map *map, uint32_t row)
{
    return s->entries + (size_t)row * s->n_tokens + map->first;
}

void norms_gather(struct norms *norms, const struct model *model, uint32_t unit, uint64_t step, uint16_t *out)
{
    const struct model_unit *u = &model->units[unit];
    const struct norms_step *s = &norms->steps[step % 2];

    if (u->n_norm_maps == 0 || norms->gathered[norms_first_of(norms, u)] == step + 1)
        return;
    norms->gathered[norms_first_of(norms, u)] = step + 1;
    for (uint32_t i = 0; i < u->n_norm_maps; i++) {
        const struct model_norm_map map = model_norm_map(model, unit, i, s->n_tokens);
        const uint16_t *const cache = norms_of(norms, u, i);
        uint16_t *to = out + i * tokens_of(norms);
        for (uint32_t row = 0; row < norms->batch; row++) {
            const uint32_t *const entries = entries_of(s, &map, row);
            for (uint32_t t = 0; t < map.n; t++)
                *to++ = entries[t] < PLAN_NEW_ENTRY    ? cache[entries[t]]
                        : entries[t] == PLAN_NEW_ENTRY ? 0
                                                       : SAMPLE_PADDING;
        }
    }
}

/* No more than the largest finite number, also of what a worker has changed since it was found finite. */
static uint16_t bounded(uint16_t norm)
{
    const uint16_t bits = norm & POSITIVE;

    return bits < LARGEST ? bits : LARGEST;
}

void norms_fold(struct norms *norms, const struct model_unit *unit, const struct store_contribution *contribution,
                uint64_t first, uint64_t n)
{
    uint16_t *const to = pending_of(norms, unit, contribution->part) + first;
    const float *const wide = contribution->g;
    const uint16_t *const narrow = contribution->g;

    assert(first + n <= unit->n_norms);
    for (uint64_t i = 0; i < n; i++)
        to[i] = bounded(contribution->type == NUMBER_FP32 ? number_to_bf16(wide[i]) : narrow[i]);
}

void norms_update(struct norms *norms, const struct model *model, uint32_t unit, uint64_t step)
{
    const struct model_unit *u = &model->units[unit];
    const struct norms_step *s = &norms->steps[step % 2];

    for (uint32_t i = 0; i < u->n_norm_maps; i++) {
        const struct model_norm_map map = model_norm_map(model, unit, i, s->n_tokens);
        uint16_t *const cache = norms_of(norms, u, i);
        for (uint32_t row = 0; row < norms->batch; row++) {
            const uint32_t *const entries = entries_of(s, &map, row);
            const uint16_t *const from = pending_of(norms, u, row / norms->part_rows) +
                                         (size_t)i * norms->part_rows * norms->seq +
                                         (size_t)(row % norms->part_rows) * map.n;
            for (uint32_t t = 0; t < map.n; t++)
                if (entries[t] < PLAN_NEW_ENTRY)
                    cache[entries[t]] = from[t] > 0 ? from[t] : SMALLEST;
        }
    }
}

/* Reads what an earlier run wrote: exact, as its numbers are bf16. */
static int read_norms(uint16_t *out, const struct safetensors_entry *entry, struct error *err)
{
    float values[1024];
    int rc = 0;

    for (uint64_t at = 0; rc == 0 && at < entry->n;) {
        const size_t n = entry->n - at < 1024 ? (size_t)(entry->n - at) : 1024;
        rc = safetensors_read(values, entry, at, n, err);
        for (size_t i = 0; rc == 0 && i < n; i++) {
            out[at + i] = number_to_bf16(values[i]);
            if (out[at + i] > LARGEST)
                rc = error_set(err, -EINVAL, "%s has a value that is no norm: the file is damaged", entry->name);
        }
        at += n;
    }
    return rc;
}

int norms_load(struct norms *norms, const struct model *model, const struct safetensors_entry *entry, uint32_t *n_seen,
               struct error *err)
{
    const char *const name = entry->name + strlen(CHECKPOINT_NORMS);

    for (uint32_t u = 0; u < model->n_units; u++)
        for (uint32_t i = 0; i < model->units[u].n_norm_maps; i++) {
            if (strcmp(model_norm_map(model, u, i, 1).tensor->name, name) != 0)
                continue;
            if (entry->type != SAFETENSORS_BF16 || entry->n_dims != 1 || entry->n != norms->n_entries)
                return error_set(err, -EINVAL,
                                 "%s is %s of %" PRIu64 " numbers, not one in BF16 for each of the %" PRIu32
                                 " tokens of the training data: are they other data?",
                                 entry->name, entry->dtype, entry->n, norms->n_entries);
            ++*n_seen;
            return is_own(norms, model->units[u].first_norm_map)
                       ? read_norms(norms_of(norms, &model->units[u], i), entry, err)
                       : 0;
        }
    return model->n_norm_maps == 0
               ? 0
               : error_set(err, -EINVAL, "%s is of no matrix of this model whose gradient is sampled", entry->name);
}

#include "eps/store.h"

#include "eps/memory.h"
#include "eps/team.h"
#include "proto/random.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* A walk over a slice, run by run: a run lies in one piece, so it decays or does not. All passes over a slice go this
 * way, the first touch too, so that the same thread comes to the same pages each time. */
struct walk {
    const struct model *model;
    const struct model_unit *unit;
    uint32_t piece;
    uint64_t next, end; /* elements from the unit's start */
};

struct run {
    uint64_t at; /* elements from the segment's start */
    uint64_t n;
    bool decays;
};

static struct walk walk_slice(const struct model *model, uint32_t unit, uint32_t slice)
{
    const struct model_unit *u = &model->units[unit];
    const uint64_t begin = (uint64_t)slice * MODEL_SLICE, end = begin + MODEL_SLICE;

    assert(slice < u->n_slices);
    return (struct walk){.model = model, .unit = u, .next = begin, .end = end < u->n ? end : u->n};
}

static bool next_run(struct walk *walk, struct run *run)
{
    for (; walk->next < walk->end; walk->piece++) {
        assert(walk->piece < walk->unit->n_pieces);
        const struct model_piece *p = &walk->model->pieces[walk->unit->first_piece + walk->piece];
        const uint64_t piece_end = p->offset + p->n, end = piece_end < walk->end ? piece_end : walk->end;
        if (walk->next >= piece_end)
            continue;
        *run = (struct run){walk->unit->offset + walk->next, end - walk->next, walk->model->tensors[p->tensor].decays};
        walk->next = end;
        return true;
    }
    return false;
}

static uint64_t rounded(uint64_t n)
{
    return (n + 15) / 16 * 16;
}

static bool is_tied(const struct model *model, uint32_t unit)
{
    return model->units[unit].n_visits > 1;
}

uint64_t eps_store_tied_bytes(const struct model *model)
{
    uint64_t n = 0;

    for (uint32_t u = 0; u < model->n_units; u++)
        if (is_tied(model, u))
            n += rounded(model->units[u].n);
    return n * sizeof(float);
}

uint64_t eps_store_accumulator_bytes(const struct model *model)
{
    return rounded(model->largest_unit) * sizeof(float);
}

static float *weights_of(const struct eps_store *store)
{
    return store->weights.base;
}

float *eps_store_weights(const struct eps_store *store, uint32_t unit)
{
    return weights_of(store) + store->model->units[unit].offset;
}

static void note(struct eps_store *store, enum ledger_category category, uint64_t bytes)
{
    ledger_add(store->ledger, category, bytes);
    store->ledgered[category] += bytes;
}

/* A block of large memory, in the ledger; none and 0 if bytes is 0. */
static int take(struct eps_store *store, struct eps_memory *memory, float **out, enum ledger_category category,
                uint64_t bytes)
{
    if (bytes == 0)
        return 0;
    *out = eps_memory_map(memory, bytes);
    if (!*out)
        return -ENOMEM;
    note(store, category, bytes);
    return 0;
}

/* The same for a table of the store's own; the ledger counts from 4 KiB on. */
static void *take_table(struct eps_store *store, size_t n, size_t size)
{
    void *table = calloc(n ? n : 1, size);

    if (table && n * size > 4096)
        note(store, LEDGER_OTHER, n * size);
    return table;
}

static int take_all(struct eps_store *store, struct eps_memory *memory, const struct eps_store_options *options,
                    struct error *err)
{
    const struct model *model = store->model;
    const uint64_t bytes = model->segment_n * sizeof(float);

    int rc = segment_create(&store->weights, "eps-weights", bytes, SEGMENT_READ, err);
    if (rc != 0)
        return rc;
    note(store, LEDGER_WEIGHTS, bytes);
    eps_memory_prepare(memory, store->weights.base, bytes, true);
    if (!options->train)
        return 0;

    const struct {
        float **out;
        enum ledger_category category;
        uint64_t bytes;
        const char *what;
    } blocks[] = {
        {&store->m, LEDGER_FIRST_MOMENT, bytes, "first moments"},
        {&store->v, LEDGER_SECOND_MOMENT, bytes, "second moments"},
        {&store->tied, LEDGER_TIED, eps_store_tied_bytes(model), "sums of tied weights"},
        {&store->accumulators, LEDGER_ACCUMULATORS, options->n_accumulators * eps_store_accumulator_bytes(model),
         "accumulators"},
    };
    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++)
        if (take(store, memory, blocks[i].out, blocks[i].category, blocks[i].bytes) != 0)
            return error_set(err, -ENOMEM, "no memory for the %s, %" PRIu64 " bytes; choose a smaller model",
                             blocks[i].what, blocks[i].bytes);

    store->n_accumulators = options->n_accumulators;
    store->sums = take_table(store, model->n_units, sizeof *store->sums);
    store->updates = take_table(store, model->n_units, sizeof *store->updates);
    store->accumulator_unit = take_table(store, store->n_accumulators, sizeof *store->accumulator_unit);
    if (!store->sums || !store->updates || !store->accumulator_unit)
        return error_set(err, -ENOMEM, "no memory for the tables of %u units", model->n_units);
    return 0;
}

static void zero_range(void *data, size_t begin, size_t n)
{
    memset((float *)data + begin, 0, n * sizeof(float));
}

static void touch(const struct eps_store *store)
{
    const struct model *model = store->model;
    struct run run;

    for (uint32_t u = 0; u < model->n_units; u++)
        for (uint32_t slice = 0; slice < model->units[u].n_slices; slice++)
            for (struct walk walk = walk_slice(model, u, slice); next_run(&walk, &run);) {
                eps_team_run(run.n, zero_range, weights_of(store) + run.at);
                if (!store->m)
                    continue;
                eps_team_run(run.n, zero_range, store->m + run.at);
                eps_team_run(run.n, zero_range, store->v + run.at);
                if (store->sums[u])
                    eps_team_run(run.n, zero_range, store->sums[u] + (run.at - model->units[u].offset));
            }
    for (uint32_t i = 0; i < store->n_accumulators; i++) {
        const uint64_t n = eps_store_accumulator_bytes(model) / sizeof(float);
        eps_team_run(n, zero_range, store->accumulators + i * n);
    }
}

int eps_store_init(struct eps_store *store, const struct model *model, const struct eps_store_options *options,
                   struct ledger *ledger, struct error *err)
{
    struct eps_memory memory;

    *store = (struct eps_store){.model = model, .ledger = ledger};
    int rc = eps_memory_init(&memory);
    if (rc != 0)
        return error_set(err, rc, "no memory for a description of this machine");
    rc = take_all(store, &memory, options, err);
    if (rc == 0)
        eps_memory_report(&memory);
    eps_memory_free(&memory);
    if (rc != 0) {
        eps_store_free(store);
        return rc;
    }

    float *tied = store->tied;
    for (uint32_t u = 0; tied && u < model->n_units; u++)
        if (is_tied(model, u)) {
            store->sums[u] = tied;
            tied += rounded(model->units[u].n);
        }
    for (uint32_t i = 0; i < store->n_accumulators; i++)
        store->accumulator_unit[i] = UINT32_MAX;
    touch(store);
    return 0;
}

void eps_store_free(struct eps_store *store)
{
    segment_close(&store->weights);
    eps_memory_unmap(store->m, store->ledgered[LEDGER_FIRST_MOMENT]);
    eps_memory_unmap(store->v, store->ledgered[LEDGER_SECOND_MOMENT]);
    eps_memory_unmap(store->tied, store->ledgered[LEDGER_TIED]);
    eps_memory_unmap(store->accumulators, store->ledgered[LEDGER_ACCUMULATORS]);
    free(store->sums);
    free(store->updates);
    free(store->accumulator_unit);
    for (int i = 0; i < LEDGER_CATEGORIES; i++)
        if (store->ledgered[i])
            ledger_sub(store->ledger, (enum ledger_category)i, store->ledgered[i]);
    *store = (struct eps_store){0};
}

/* A run of one tensor's elements to be drawn, for the threads. */
struct draw {
    float *out;
    const struct model_tensor *tensor;
    struct random_key key;
    uint64_t row, first;
};

static void draw_range(void *data, size_t begin, size_t n)
{
    const struct draw *d = data;
    float *out = d->out + begin;

    random_normal(out, d->key, d->row, d->first + begin, n);
    for (size_t i = 0; i < n; i++)
        out[i] *= d->tensor->deviation;
}

static void fill_range(void *data, size_t begin, size_t n)
{
    const struct draw *d = data;

    for (size_t i = begin; i < begin + n; i++)
        d->out[i] = d->tensor->init == MODEL_INIT_ONE ? 1 : 0;
}

void eps_store_draw(struct eps_store *store, uint64_t seed)
{
    const struct model *model = store->model;
    const struct random_key key = random_site_key(seed, 0, 0, RANDOM_WEIGHTS);

    for (uint32_t u = 0; u < model->n_units; u++)
        for (uint32_t i = 0; i < model->units[u].n_pieces; i++) {
            const struct model_piece *piece = &model->pieces[model->units[u].first_piece + i];
            const struct model_tensor *tensor = &model->tensors[piece->tensor];
            struct draw draw = {.out = eps_store_weights(store, u) + piece->offset,
                                .tensor = tensor,
                                .key = key,
                                .row = piece->tensor,
                                .first = piece->first_row * tensor->shape[1]};
            eps_team_run(piece->n, tensor->init == MODEL_INIT_NORMAL ? draw_range : fill_range, &draw);
        }
}

static void take_accumulator(struct eps_store *store, uint32_t unit)
{
    const uint64_t n = eps_store_accumulator_bytes(store->model) / sizeof(float);
    uint32_t i = 0;

    while (i < store->n_accumulators && store->accumulator_unit[i] != UINT32_MAX)
        i++;
    assert(i < store->n_accumulators);
    store->accumulator_unit[i] = unit;
    store->sums[unit] = store->accumulators + i * n;
}

static void give_accumulator_back(struct eps_store *store, uint32_t unit)
{
    if (is_tied(store->model, unit))
        return;
    for (uint32_t i = 0; i < store->n_accumulators; i++)
        if (store->accumulator_unit[i] == unit)
            store->accumulator_unit[i] = UINT32_MAX;
    store->sums[unit] = NULL;
}

bool eps_store_fold(struct eps_store *store, uint32_t unit, uint32_t slice, const float *g, bool first,
                    enum eps_store_fold how, const struct eps_hyper *hp)
{
    struct walk walk = walk_slice(store->model, unit, slice);
    const uint64_t unit_at = store->model->units[unit].offset, slice_at = unit_at + walk.next;
    struct run run;

    if (!eps_optimizer_is_finite(g, walk.end - walk.next))
        return false;
    if (how == EPS_FOLD_SUM && !store->sums[unit])
        take_accumulator(store, unit);
    while (next_run(&walk, &run)) {
        const float *part = g + (run.at - slice_at);
        switch (how) {
        case EPS_FOLD_DIRECT:
            assert(first);
            eps_optimizer_step(weights_of(store) + run.at, store->m + run.at, store->v + run.at, part, run.n, hp,
                               store->updates[unit] + 1, run.decays);
            break;
        case EPS_FOLD_MOMENTS:
            eps_optimizer_fold(store->m + run.at, store->v + run.at, part, run.n, hp, first);
            break;
        case EPS_FOLD_SUM:
            eps_optimizer_sum(store->sums[unit] + (run.at - unit_at), part, run.n, first);
            break;
        }
    }
    return true;
}

void eps_store_update(struct eps_store *store, uint32_t unit, enum eps_store_fold how, const struct eps_hyper *hp)
{
    const struct model_unit *u = &store->model->units[unit];
    const uint64_t t = ++store->updates[unit];
    struct run run;

    for (uint32_t slice = 0; how != EPS_FOLD_DIRECT && slice < u->n_slices; slice++)
        for (struct walk walk = walk_slice(store->model, unit, slice); next_run(&walk, &run);) {
            float *w = weights_of(store) + run.at, *m = store->m + run.at, *v = store->v + run.at;
            if (how == EPS_FOLD_SUM)
                eps_optimizer_step(w, m, v, store->sums[unit] + (run.at - u->offset), run.n, hp, t, run.decays);
            else
                eps_optimizer_update(w, m, v, run.n, hp, t, run.decays);
        }
    if (how == EPS_FOLD_SUM)
        give_accumulator_back(store, unit);
}

enum eps_store_fold eps_store_fold_kind(const struct eps_store *store, uint32_t unit, uint32_t n_parts, bool adamw)
{
    if (store->model->units[unit].n_visits > 1 || (n_parts > 1 && adamw))
        return EPS_FOLD_SUM;
    return n_parts > 1 ? EPS_FOLD_MOMENTS : EPS_FOLD_DIRECT;
}

/* All memory is mapped, and its locking judged, before a page is touched: a job that cannot be is refused before it
 * has taken any.
 *
 * Of the categories in take_blocks each has one block, and its size in `ledgered` is what store_free unmaps. It is
 * noted when the block is taken, so store_free copes with a store that is half built. */
#include "eps/store/store.h"

#include "eps/store/checks.h"
#include "eps/store/memory.h"
#include "eps/store/moments.h"
#include "eps/store/norms.h"
#include "eps/store/rewire.h"
#include "eps/store/store_files.h"
#include "eps/store/store_walk.h"
#include "eps/store/team.h"
#include "proto/base/random.h"
#include "proto/model/norms.h"
#include "proto/plan/memory/coded.h"
#include "proto/plan/memory/data.h"
#include "proto/plan/memory/files.h"
#include "proto/plan/memory/host.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* `before`: the other buffer, which has the version that replay keeps. */
uint32_t store_buffer(const struct store *store, uint32_t unit, bool before)
{
    assert(!before || (store->current && store->model->units[unit].n_trained > 0));
    return store->current ? (uint32_t)store->current[unit] ^ before : 0;
}

static char *find_unit(const struct store *store, uint32_t unit, uint32_t buffer)
{
    return (char *)store->weights.base + store_weights_at(store, &store->own, unit, buffer);
}

/* The element `first` of a unit in one of its buffers; it is not coded. */
static char *find_relayed(const struct store *store, uint32_t unit, uint32_t buffer, uint64_t first)
{
    return find_unit(store, unit, buffer) + first * number_bytes(store->options.precision);
}

uint64_t store_weights_at(const struct store *store, const struct plan_own *own, uint32_t unit, uint32_t buffer)
{
    return plan_weights_at(own, store->model, unit, buffer);
}

uint64_t store_ring_at(const struct store *store, uint32_t slot)
{
    const uint64_t replay_bytes = store->options.replay ? plan_replay_bytes(&store->own) : 0;

    assert(slot < store->options.n_ring);
    return plan_weights_bytes(&store->own, slot) + replay_bytes;
}

float *store_weights(const struct store *store, uint32_t unit)
{
    assert(store->options.precision == NUMBER_FP32);
    return (float *)find_relayed(store, unit, store_buffer(store, unit, false), 0);
}

/* Those of a piece in bf16 or fp32. */
static struct parameters coded_parameters(const struct store *store, uint32_t unit, uint64_t first, size_t n,
                                          uint64_t part)
{
    const struct model_piece *piece = store_piece(store, unit, first);
    const struct store_codes coded = store_codes(store, unit, piece);

    struct parameters p = {.kernel = store->kernel, .n = n, .type = NUMBER_BF16, .part = part, .first = first};

    assert(form_is_plain(piece->form) && n <= piece->n - (first - piece->offset));
    if (piece->form == FORM_FP32)
        p.type = NUMBER_FP32, p.w = (float *)coded.codes + (first - piece->offset);
    else
        p.high = (uint16_t *)coded.codes + (first - piece->offset);
    return p;
}

/* Each array's element `first` of the unit, or NULL where the job has no such array. Indices differ: relayed weights
 * lie unit by unit with their frozen pieces, while moments and low halves have the own units' trained elements alone. A
 * unit of another host has weights here, but nothing else. */
struct parameters store_parameters(const struct store *store, uint32_t unit, uint64_t first, size_t n, uint64_t part)
{
    const struct model_unit *u = &store->model->units[unit];
    const bool frozen = first >= u->n_trained;
    const uint64_t end = frozen ? model_unit_values(store->model, u) : u->n_trained;
    if (first >= end && n > 0)
        return coded_parameters(store, unit, first, n, part);
    const uint32_t buffer = frozen ? 0 : store_buffer(store, unit, false);
    char *const w = find_relayed(store, unit, buffer, first);
    char *const new_w = store->current && !frozen ? find_relayed(store, unit, !buffer, first) : NULL;
    struct parameters p = {
        .kernel = store->kernel, .n = n, .type = store->options.precision, .part = part, .first = first};

    assert(first <= end && n <= end - first);
    if (store->options.precision != NUMBER_FP32)
        p.high = (uint16_t *)w, p.new_high = (uint16_t *)new_w;
    else
        p.w = (float *)w, p.new_w = (float *)new_w;
    p.is_upper = p.high && store->options.train && !store->options.no_master && !frozen;
    if (frozen || !store_owns(store, unit))
        return p;
    const uint64_t at = u->trained_offset - store->own.trained_offset + first;
    if (store->low)
        p.low = store->low + at;
    if (store->options.no_master)
        p.update_key = random_site_key(store->options.seed, store->updates[unit] + 1, u->id, RANDOM_UPDATE);
    if (store->coded.m && n > 0)
        moments_find(&p, store, unit, first, n);
    else if (store->m)
        p.m = store->m + at, p.v = store->v ? store->v + at : NULL;
    if (store->m16)
        p.m16 = store->m16 + at, p.v16 = store->v16 ? store->v16 + at : NULL;
    if (p.m16 || p.coded.m)
        p.key = random_site_key(store->options.seed, store->updates[unit] + 1, u->id, RANDOM_MOMENTS);
    return p;
}

/* What was noted is what store_free gives back, to the ledger and to the system. */
static void store_note(struct store *store, enum ledger_category category, uint64_t bytes)
{
    ledger_add(store->ledger, category, bytes);
    store->ledgered[category] += bytes;
}

/* Allocates a large block and enters it in the ledger. If bytes is 0: NULL, and returns 0. */
static int store_take(void **out, struct store *store, struct memory *memory, enum ledger_category category,
                      uint64_t bytes)
{
    *out = NULL;
    if (bytes == 0)
        return 0;
    *out = memory_map(memory, bytes);
    if (!*out)
        return -ENOMEM;
    store_note(store, category, bytes);
    return 0;
}

/* Allocates a small table and enters it in the ledger, which counts tables from 4 KiB on. */
static void *take_table(struct store *store, size_t n, size_t size)
{
    void *table = calloc(n ? n : 1, size);

    if (table)
        store_note(store, LEDGER_OTHER, ledger_table(n * size));
    return table;
}

/* The only memory of the store that other processes see: workers map it, and only read it. */
static int store_take_weights(struct store *store, struct memory *memory, struct error *err)
{
    const uint64_t bytes = plan_weights_bytes(&store->own, store->options.n_ring);
    const uint64_t replay_bytes = store->options.replay ? plan_replay_bytes(&store->own) : 0;
    int rc = segment_create(&store->weights, "eps-weights", bytes + replay_bytes, SEGMENT_READ, err);

    if (rc != 0)
        return rc;
    store_note(store, LEDGER_WEIGHTS, bytes);
    store_note(store, LEDGER_REPLAY, replay_bytes);
    memory_prepare(memory, store->weights.base, bytes + replay_bytes, true);
    return 0;
}

static int take_blocks(struct store *store, struct memory *memory, struct error *err)
{
    const struct store_options *o = &store->options;
    const struct plan_own *own = &store->own;
    const uint64_t n = own->trained_n;
    const struct plan_goal goal = store_goal(o);
    const uint64_t moment = plan_moment_bytes(store->model, own, o->moments);
    void *low, *m, *v, *held, *tied, *accumulators, *norms;
    const struct {
        void **out;
        enum ledger_category category;
        uint64_t bytes;
        const char *what;
    } blocks[] = {
        {&low, LEDGER_MASTER, o->precision != NUMBER_FP32 && !o->no_master ? n * sizeof *store->low : 0,
         "low halves of the weights"},
        {&m, LEDGER_FIRST_MOMENT, plan_moments(&goal) > 0 ? moment : 0, "first moments"},
        {&v, LEDGER_SECOND_MOMENT, plan_moments(&goal) > 1 ? moment : 0, "second moments"},
        {&held, LEDGER_SUM, o->fenced ? n * number_bytes(o->sums) : 0, "gradient's sum (--commit fenced)"},
        {&tied, LEDGER_TIED, plan_tied_bytes(own, &goal), "sums of tied weights"},
        {&accumulators, LEDGER_ACCUMULATORS, o->n_accumulators * own->accumulator_bytes, "accumulators"},
        {&norms, LEDGER_NORMS, plan_norms_bytes(&goal, own->n_norm_maps), "norms of gradients (--approximate wta)"},
    };
    int rc = 0;

    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) /* each *out is set */
        if (store_take(blocks[i].out, store, memory, blocks[i].category, rc ? 0 : blocks[i].bytes) != 0)
            rc = error_set(err, -ENOMEM, "no memory for the %s, %" PRIu64 " bytes; choose a smaller model",
                           blocks[i].what, blocks[i].bytes);
    store->low = low;
    if (o->moments == NUMBER_BF16)
        store->m16 = m, store->v16 = v;
    else
        store->m = m, store->v = v;
    if (o->sums == NUMBER_BF16)
        store->held16 = held, store->tied16 = tied;
    else
        store->held = held, store->tied = tied;
    store->accumulators = accumulators;
    norms_init(&store->norms, o, own, norms);
    return rc;
}

/* All are requested before any is judged, so there is one way out; store_free copes with those that are NULL. */
static int store_take_tables(struct store *store, struct error *err)
{
    const struct model *model = store->model;
    const uint64_t rewire_bytes = plan_rewire(model).bytes;
    struct plan_host_files files;
    const bool has_run =
        plan_has_run(model, store->options.precision != NUMBER_FP32 || store->options.moments != NUMBER_FP32 ||
                                store->options.base != FORM_VALUES);

    store->n_accumulators = store->options.n_accumulators;
    store->sums = take_table(store, model->n_units, sizeof *store->sums);
    store->updates = take_table(store, model->n_units, sizeof *store->updates);
    store->late = take_table(store, model->n_pieces, sizeof *store->late);
    store->accumulator_unit = take_table(store, store->n_accumulators, sizeof *store->accumulator_unit);
    if (store->options.moments == NUMBER_CODED)
        store->moment_places = take_table(store, model->n_pieces, sizeof *store->moment_places);
    if (store->options.replay)
        store->current = take_table(store, model->n_units, sizeof *store->current);
    store->files = calloc(1, sizeof *store->files);
    if (store->files && store_files_init(store->files, store, err) == 0 &&
        store_files_reserve(store->files, err) == 0) {
        plan_host_files(&files, model, store_moments(store), store->options.moments);
        store_note(store, LEDGER_OTHER, ledger_table(files.bytes));
    }
    if (checks_init(store) != 0)
        return error_set(err, -ENOMEM, "no memory for the sums of %u units (--check-memory)", model->n_units);
    store_note(store, LEDGER_CHECKSUMS, checks_bytes(store));
    if (rewire_bytes > 0) {
        store->rewiring.room = take_table(store, 1, rewire_bytes);
        store->rewiring.begin = REWIRE_THRESHOLD;
    }
    if (has_run)
        store->run = take_table(store, 1, PLAN_HOST_RUN_BYTES);
    if (!store->sums || !store->updates || !store->late || !store->accumulator_unit || !store->files ||
        !store->files->moments_runs || (has_run && !store->run) || (rewire_bytes > 0 && !store->rewiring.room) ||
        (store->options.moments == NUMBER_CODED && !store->moment_places) || (store->options.replay && !store->current))
        return error_set(err, -ENOMEM, "no memory for the tables of %u units", model->n_units);
    return 0;
}

static int store_take_all(struct store *store, struct memory *memory, struct error *err)
{
    int rc = store_take_weights(store, memory, err);

    if (rc == 0 && store->options.train)
        rc = take_blocks(store, memory, err);
    if (rc == 0 && store->options.train)
        rc = store_take_tables(store, err);
    if (rc == 0 && store->options.require_pinned)
        rc = memory_check_locked(memory, err);
    return rc;
}

/* Zeroes elements of `size` bytes on the threads that will work on them. */
struct zero {
    struct pieces *pieces;
    char *base;
    size_t size;
};

static void zero_range(void *data, size_t begin, size_t n)
{
    const struct zero *zero = data;

    pieces_zero(zero->pieces, zero->base + begin * zero->size, n * zero->size);
}

static void store_zero(const struct store *store, void *base, size_t size, uint64_t at, uint64_t n)
{
    struct zero zero = {store->options.pieces, (char *)base + at * size, size};

    if (base)
        team_run(n, zero_range, &zero);
}

/* Pages are placed on the node of the thread that first writes them. So this pass goes over the trained elements slice
 * by slice and run by run, exactly as folds and updates will: walk_slice and team_run then give each page to the thread
 * that will work on it. What has no such passes follows, divided evenly. */
static int store_touch(const struct store *store, struct error *err)
{
    const struct model *model = store->model;
    const enum number_type precision = store->options.precision;
    const size_t size = number_bytes(precision);
    const uint64_t lower = store_lower_at(store);
    struct run run;

    for (uint32_t u = 0; u < model->n_units; u++)
        for (uint32_t slice = 0; store_keeps(store, u) && slice < model_gradient_slices(&model->units[u]); slice++)
            for (struct walk walk = walk_slice(model, u, slice); next_run(&walk, &run);) {
                const uint64_t at = model->units[u].trained_offset - store->own.trained_offset + run.at;
                for (uint32_t buffer = 0; buffer < (store->current ? 2 : 1); buffer++)
                    store_zero(store, find_relayed(store, u, buffer, run.at), size, 0, run.n);
                if (!store_owns(store, u))
                    continue;
                store_zero(store, store->low, sizeof *store->low, at, run.n);
                if (store->coded.m) {
                    moments_touch(store, u, &model->pieces[run.piece], run.at, run.n);
                } else {
                    store_zero(store, store->m, sizeof *store->m, at, run.n);
                    store_zero(store, store->v, sizeof *store->v, at, run.n);
                }
                store_zero(store, store->m16, sizeof *store->m16, at, run.n);
                store_zero(store, store->v16, sizeof *store->v16, at, run.n);
                store_zero(store, store->held16, sizeof *store->held16, at, run.n);
                if (store->sums && store->sums[u])
                    store_zero(store, store->sums[u], sizeof **store->sums, run.at, run.n);
                if (lower != UINT64_MAX && store_is_tied(model, u)) {
                    store_zero(store, store->tied, sizeof *store->tied, lower + at, run.n);
                    store_zero(store, store->tied16, sizeof *store->tied16, lower + at, run.n);
                }
            }
    for (uint32_t u = 0; u < model->n_units; u++)
        if (store_keeps(store, u)) {
            const uint64_t at = model->units[u].n_trained * size, end = model_unit_bytes(&model->units[u], precision);
            store_zero(store, find_unit(store, u, 0) + at, 1, 0, end - at);
        }
    for (uint32_t slot = 0; slot < store->options.n_ring; slot++)
        store_zero(store, (char *)store->weights.base + store_ring_at(store, slot), 1, 0, store->own.slot_bytes);
    for (uint32_t i = 0; i < store->n_accumulators; i++) {
        const uint64_t n = store->own.accumulator_bytes / sizeof(float);
        store_zero(store, store->accumulators, sizeof *store->accumulators, i * n, n);
    }
    store_zero(store, store->norms.gathered, 1, 0, store->ledgered[LEDGER_NORMS]);
    return pieces_are_abandoned(store->options.pieces) ? error_set(err, -ECANCELED, "the job has ended") : 0;
}

/* Gives units with a buffer of their own its address: all units if contributions are held in fp32, else tied ones that
 * are summed. */
static void place_sums(struct store *store)
{
    const struct model *model = store->model;
    float *tied = store->tied;

    for (uint32_t u = store->own.first; u < store->own.end; u++)
        if (store->held) {
            store->sums[u] = store->held + model->units[u].trained_offset - store->own.trained_offset;
        } else if (store->tied && store_is_tied(model, u)) {
            store->sums[u] = tied;
            tied += model_rounded(model->units[u].n_trained);
        }
    for (uint32_t i = 0; i < store->n_accumulators; i++)
        store->accumulator_unit[i] = UINT32_MAX;
}

static int prepare_all(struct store *store, struct memory *memory, struct error *err)
{
    const int rc = store_take_all(store, memory, err);

    store->denied = memory->denied;
    if (rc == 0)
        memory_report(memory, store->options.said);
    return rc;
}

int store_init(struct store *store, const struct model *model, const struct store_options *options,
               struct ledger *ledger, struct error *err)
{
    struct memory memory;
    int rc;

    /* Options are checked by assertions, as the plan has refused what a user could have chosen wrongly. */
    assert(options->train || (!options->fenced && !options->folded));
    assert(!options->fenced || !options->folded);
    assert(options->n_accumulators == 0 || (!options->fenced && !options->folded));
    assert(!options->replay || (options->train && !options->fenced && !options->folded));
    assert(options->sums == NUMBER_FP32 || (options->sums == NUMBER_BF16 && options->fenced));
    assert(!options->no_master || (options->precision != NUMBER_FP32 && options->train));
    assert(options->moments != NUMBER_CODED || (!options->sgd && model->sparse.keep == 0));
    assert(!options->sgd || (options->clip_update == 0 && (!options->nesterov || options->momentum > 0)));
    assert(options->n_own == 0 || options->n_own == model->n_units || options->replay || options->fenced);
    *store = (struct store){.model = model,
                            .options = *options,
                            .kernel = optimizer_find(OPTIMIZER_ISA_BEST),
                            .ledger = ledger};
    plan_own(&store->own, model, options->precision, options->own_first, options->n_own);
    if (options->memory) {
        rc = prepare_all(store, options->memory, err);
    } else {
        rc = memory_init(&memory);
        if (rc != 0)
            return error_set(err, rc, "no memory for a description of this machine");
        rc = prepare_all(store, &memory, err);
        memory_free(&memory);
    }
    if (rc != 0) {
        store_free(store);
        return rc;
    }
    if (options->train)
        place_sums(store);
    if (options->train && options->moments == NUMBER_CODED)
        moments_place(store, store->m, store->v);
    rc = store_touch(store, err);
    if (rc != 0)
        store_free(store);
    return rc;
}

/* Moments and sums of 16 and of 32 bits share a category, and so its size: one of the two is NULL. */
void store_free(struct store *store)
{
    segment_close(&store->weights);
    memory_unmap(store->low, store->ledgered[LEDGER_MASTER]);
    memory_unmap(store->m, store->ledgered[LEDGER_FIRST_MOMENT]);
    memory_unmap(store->v, store->ledgered[LEDGER_SECOND_MOMENT]);
    memory_unmap(store->m16, store->ledgered[LEDGER_FIRST_MOMENT]);
    memory_unmap(store->v16, store->ledgered[LEDGER_SECOND_MOMENT]);
    memory_unmap(store->held, store->ledgered[LEDGER_SUM]);
    memory_unmap(store->held16, store->ledgered[LEDGER_SUM]);
    memory_unmap(store->tied, store->ledgered[LEDGER_TIED]);
    memory_unmap(store->tied16, store->ledgered[LEDGER_TIED]);
    memory_unmap(store->accumulators, store->ledgered[LEDGER_ACCUMULATORS]);
    memory_unmap(store->norms.gathered, store->ledgered[LEDGER_NORMS]);
    free(store->current);
    free(store->sums);
    free(store->updates);
    free(store->late);
    free(store->moment_places);
    free(store->rewiring.room);
    free(store->run);
    if (store->files)
        store_files_free(store->files);
    free(store->files);
    free(store->accumulator_unit);
    checks_free(store);
    for (int i = 0; i < LEDGER_CATEGORIES; i++)
        if (store->ledgered[i])
            ledger_sub(store->ledger, (enum ledger_category)i, store->ledgered[i]);
    *store = (struct store){0};
}

void store_swap(struct store *store, uint32_t unit)
{
    if (store->current)
        store->current[unit] = !store->current[unit];
}

#include "eps/store/store.h"

#include "eps/store/memory.h"
#include "eps/store/norms.h"
#include "eps/store/store_files.h"
#include "eps/store/team.h"
#include "proto/base/random.h"
#include "proto/model/norms.h"
#include "proto/plan/memory/data.h"
#include "proto/plan/memory/files.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* A walk over a slice, run by run: a run lies in one trained piece, so it decays or does not, and has one count of
 * updates. All passes over a slice use it, the first touch too, so that the same thread works on the same pages each
 * time. */
struct walk {
    const struct model *model;
    const struct model_unit *unit;
    uint32_t piece;
    uint64_t next, end; /* elements from the unit's start */
};

struct run {
    uint64_t at; /* elements from the unit's start */
    uint64_t n;
    uint32_t piece; /* index in the model */
    bool decays;
};

static struct walk walk_slice(const struct model *model, uint32_t unit, uint32_t slice)
{
    const struct model_unit *u = &model->units[unit];
    const struct model_slice s = model_slice_of(u, slice);

    assert(!s.is_norms);
    return (struct walk){.model = model, .unit = u, .next = s.first, .end = s.first + s.n};
}

static bool next_run(struct walk *walk, struct run *run)
{
    for (; walk->next < walk->end; walk->piece++) {
        assert(walk->piece < walk->unit->n_pieces);
        const uint32_t piece = walk->unit->first_piece + walk->piece;
        const struct model_piece *p = &walk->model->pieces[piece];
        const uint64_t piece_end = p->offset + p->n, end = piece_end < walk->end ? piece_end : walk->end;
        if (walk->model->tensors[p->tensor].frozen || walk->next >= piece_end)
            continue;
        *run = (struct run){walk->next, end - walk->next, piece, walk->model->tensors[p->tensor].decays};
        walk->next = end;
        return true;
    }
    return false;
}

static bool is_tied(const struct model *model, uint32_t unit)
{
    return model->units[unit].n_visits > 1;
}

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

/* Those of a piece in bf16. */
static struct parameters coded_parameters(const struct store *store, uint32_t unit, uint64_t first, size_t n,
                                          uint64_t part)
{
    const struct model_piece *piece = store_piece(store, unit, first);
    const struct store_codes coded = store_codes(store, unit, piece);

    assert(piece->form == FORM_BF16 && n <= piece->n - (first - piece->offset));
    return (struct parameters){.kernel = store->kernel,
                               .n = n,
                               .high = (uint16_t *)coded.codes + (first - piece->offset),
                               .part = part,
                               .first = first};
}

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
    struct parameters p = {.kernel = store->kernel, .n = n, .part = part, .first = first};

    assert(first <= end && n <= end - first);
    if (store->options.precision == NUMBER_BF16)
        p.high = (uint16_t *)w, p.new_high = (uint16_t *)new_w;
    else
        p.w = (float *)w, p.new_w = (float *)new_w;
    p.is_upper = p.high && store->options.train && !frozen;
    if (frozen || !store_owns(store, unit))
        return p;
    const uint64_t at = u->trained_offset - store->own.trained_offset + first;
    if (store->low)
        p.low = store->low + at;
    if (store->m)
        p.m = store->m + at, p.v = store->v ? store->v + at : NULL;
    if (store->m16) {
        p.m16 = store->m16 + at, p.v16 = store->v16 ? store->v16 + at : NULL;
        p.key = random_site_key(store->options.seed, store->updates[unit] + 1, u->id, RANDOM_MOMENTS);
    }
    return p;
}

static void note(struct store *store, enum ledger_category category, uint64_t bytes)
{
    ledger_add(store->ledger, category, bytes);
    store->ledgered[category] += bytes;
}

/* Allocates a large block and enters it in the ledger. If bytes is 0: NULL, and returns 0. */
static int take(void **out, struct store *store, struct memory *memory, enum ledger_category category, uint64_t bytes)
{
    *out = NULL;
    if (bytes == 0)
        return 0;
    *out = memory_map(memory, bytes);
    if (!*out)
        return -ENOMEM;
    note(store, category, bytes);
    return 0;
}

/* Allocates a small table and enters it in the ledger, which counts tables from 4 KiB on. */
static void *take_table(struct store *store, size_t n, size_t size)
{
    void *table = calloc(n ? n : 1, size);

    if (table)
        note(store, LEDGER_OTHER, ledger_table(n * size));
    return table;
}

static int take_weights(struct store *store, struct memory *memory, struct error *err)
{
    const uint64_t bytes = plan_weights_bytes(&store->own, store->options.n_ring);
    const uint64_t replay_bytes = store->options.replay ? plan_replay_bytes(&store->own) : 0;
    int rc = segment_create(&store->weights, "eps-weights", bytes + replay_bytes, SEGMENT_READ, err);

    if (rc != 0)
        return rc;
    note(store, LEDGER_WEIGHTS, bytes);
    note(store, LEDGER_REPLAY, replay_bytes);
    memory_prepare(memory, store->weights.base, bytes + replay_bytes, true);
    return 0;
}

static int take_blocks(struct store *store, struct memory *memory, struct error *err)
{
    const struct store_options *o = &store->options;
    const struct plan_own *own = &store->own;
    const uint64_t n = own->trained_n;
    const struct plan_goal goal = store_goal(o);
    void *low, *m, *v, *held, *tied, *accumulators, *norms;
    const struct {
        void **out;
        enum ledger_category category;
        uint64_t bytes;
        const char *what;
    } blocks[] = {
        {&low, LEDGER_MASTER, o->precision == NUMBER_BF16 ? n * sizeof *store->low : 0, "low halves of the weights"},
        {&m, LEDGER_FIRST_MOMENT, plan_moments(&goal) > 0 ? n * number_bytes(o->moments) : 0, "first moments"},
        {&v, LEDGER_SECOND_MOMENT, plan_moments(&goal) > 1 ? n * number_bytes(o->moments) : 0, "second moments"},
        {&held, LEDGER_SUM, o->fenced ? n * sizeof *store->held : 0, "gradient's sum (--commit fenced)"},
        {&tied, LEDGER_TIED, o->fenced || !plan_sums_tied(&goal) ? 0 : own->tied_bytes, "sums of tied weights"},
        {&accumulators, LEDGER_ACCUMULATORS, o->n_accumulators * own->accumulator_bytes, "accumulators"},
        {&norms, LEDGER_NORMS, plan_norms_bytes(&goal, own->n_norm_maps), "norms of gradients (--approximate wta)"},
    };
    int rc = 0;

    for (size_t i = 0; i < sizeof blocks / sizeof *blocks; i++) /* each *out is set */
        if (take(blocks[i].out, store, memory, blocks[i].category, rc ? 0 : blocks[i].bytes) != 0)
            rc = error_set(err, -ENOMEM, "no memory for the %s, %" PRIu64 " bytes; choose a smaller model",
                           blocks[i].what, blocks[i].bytes);
    store->low = low;
    if (o->moments == NUMBER_BF16)
        store->m16 = m, store->v16 = v;
    else
        store->m = m, store->v = v;
    store->held = held;
    store->tied = tied;
    store->accumulators = accumulators;
    norms_init(&store->norms, o, own, norms);
    return rc;
}

static int take_tables(struct store *store, struct error *err)
{
    const struct model *model = store->model;
    struct plan_host_files files;
    const bool narrow = store->options.precision != NUMBER_FP32 || store->options.moments != NUMBER_FP32 ||
                        store->options.base != FORM_VALUES;

    store->n_accumulators = store->options.n_accumulators;
    store->sums = take_table(store, model->n_units, sizeof *store->sums);
    store->updates = take_table(store, model->n_units, sizeof *store->updates);
    store->late = take_table(store, model->n_pieces, sizeof *store->late);
    store->accumulator_unit = take_table(store, store->n_accumulators, sizeof *store->accumulator_unit);
    if (store->options.replay)
        store->current = take_table(store, model->n_units, sizeof *store->current);
    store->files = calloc(1, sizeof *store->files);
    if (store->files && store_files_init(store->files, store, err) == 0 &&
        store_files_reserve(store->files, err) == 0) {
        plan_host_files(&files, model, store_moments(store));
        note(store, LEDGER_OTHER, ledger_table(files.bytes));
    }
    if (narrow)
        store->run = take_table(store, 1, PLAN_HOST_RUN_BYTES);
    if (!store->sums || !store->updates || !store->late || !store->accumulator_unit || !store->files ||
        !store->files->moments_runs || (narrow && !store->run) || (store->options.replay && !store->current))
        return error_set(err, -ENOMEM, "no memory for the tables of %u units", model->n_units);
    return 0;
}

static int take_all(struct store *store, struct memory *memory, struct error *err)
{
    int rc = take_weights(store, memory, err);

    if (rc == 0 && store->options.train)
        rc = take_blocks(store, memory, err);
    if (rc == 0 && store->options.train)
        rc = take_tables(store, err);
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

static void zero(const struct store *store, void *base, size_t size, uint64_t at, uint64_t n)
{
    struct zero zero = {store->options.pieces, (char *)base + at * size, size};

    if (base)
        team_run(n, zero_range, &zero);
}

static int touch(const struct store *store, struct error *err)
{
    const struct model *model = store->model;
    const enum number_type precision = store->options.precision;
    const size_t size = number_bytes(precision);
    struct run run;

    for (uint32_t u = 0; u < model->n_units; u++)
        for (uint32_t slice = 0; store_keeps(store, u) && slice < model_gradient_slices(&model->units[u]); slice++)
            for (struct walk walk = walk_slice(model, u, slice); next_run(&walk, &run);) {
                const uint64_t at = model->units[u].trained_offset - store->own.trained_offset + run.at;
                for (uint32_t buffer = 0; buffer < (store->current ? 2 : 1); buffer++)
                    zero(store, find_relayed(store, u, buffer, run.at), size, 0, run.n);
                if (!store_owns(store, u))
                    continue;
                zero(store, store->low, sizeof *store->low, at, run.n);
                zero(store, store->m, sizeof *store->m, at, run.n);
                zero(store, store->v, sizeof *store->v, at, run.n);
                zero(store, store->m16, sizeof *store->m16, at, run.n);
                zero(store, store->v16, sizeof *store->v16, at, run.n);
                if (store->sums && store->sums[u])
                    zero(store, store->sums[u], sizeof **store->sums, run.at, run.n);
            }
    for (uint32_t u = 0; u < model->n_units; u++)
        if (store_keeps(store, u) && model->units[u].n_trained < model->units[u].n) {
            const uint64_t at = model->units[u].n_trained * size;
            zero(store, find_unit(store, u, 0) + at, 1, 0, model_unit_bytes(&model->units[u], precision) - at);
        }
    for (uint32_t slot = 0; slot < store->options.n_ring; slot++)
        zero(store, (char *)store->weights.base + store_ring_at(store, slot), 1, 0, store->own.slot_bytes);
    for (uint32_t i = 0; i < store->n_accumulators; i++) {
        const uint64_t n = store->own.accumulator_bytes / sizeof(float);
        zero(store, store->accumulators, sizeof *store->accumulators, i * n, n);
    }
    zero(store, store->norms.gathered, 1, 0, store->ledgered[LEDGER_NORMS]);
    return pieces_are_abandoned(store->options.pieces) ? error_set(err, -ECANCELED, "the job has ended") : 0;
}

/* Gives units with a buffer of their own its address: all units if contributions are held, else tied ones that are summed. */
static void place_sums(struct store *store)
{
    const struct model *model = store->model;
    float *tied = store->tied;

    for (uint32_t u = store->own.first; u < store->own.end; u++)
        if (store->held) {
            store->sums[u] = store->held + model->units[u].trained_offset - store->own.trained_offset;
        } else if (store->tied && is_tied(model, u)) {
            store->sums[u] = tied;
            tied += model_rounded(model->units[u].n_trained);
        }
    for (uint32_t i = 0; i < store->n_accumulators; i++)
        store->accumulator_unit[i] = UINT32_MAX;
}

static int prepare_all(struct store *store, struct memory *memory, struct error *err)
{
    const int rc = take_all(store, memory, err);

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

    assert(options->train ? !options->fenced || options->n_accumulators == 0 : !options->fenced);
    assert(!options->replay || (options->train && !options->fenced));
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
    rc = touch(store, err);
    if (rc != 0)
        store_free(store);
    return rc;
}

void store_free(struct store *store)
{
    segment_close(&store->weights);
    memory_unmap(store->low, store->ledgered[LEDGER_MASTER]);
    memory_unmap(store->m, store->ledgered[LEDGER_FIRST_MOMENT]);
    memory_unmap(store->v, store->ledgered[LEDGER_SECOND_MOMENT]);
    memory_unmap(store->m16, store->ledgered[LEDGER_FIRST_MOMENT]);
    memory_unmap(store->v16, store->ledgered[LEDGER_SECOND_MOMENT]);
    memory_unmap(store->held, store->ledgered[LEDGER_SUM]);
    memory_unmap(store->tied, store->ledgered[LEDGER_TIED]);
    memory_unmap(store->accumulators, store->ledgered[LEDGER_ACCUMULATORS]);
    memory_unmap(store->norms.gathered, store->ledgered[LEDGER_NORMS]);
    free(store->current);
    free(store->sums);
    free(store->updates);
    free(store->late);
    free(store->run);
    if (store->files)
        store_files_free(store->files);
    free(store->files);
    free(store->accumulator_unit);
    for (int i = 0; i < LEDGER_CATEGORIES; i++)
        if (store->ledgered[i])
            ledger_sub(store->ledger, (enum ledger_category)i, store->ledgered[i]);
    *store = (struct store){0};
}

static void take_accumulator(struct store *store, uint32_t unit)
{
    const uint64_t n = store->own.accumulator_bytes / sizeof(float);
    uint32_t i = 0;

    while (i < store->n_accumulators && store->accumulator_unit[i] != UINT32_MAX)
        i++;
    assert(i < store->n_accumulators);
    store->accumulator_unit[i] = unit;
    store->sums[unit] = store->accumulators + i * n;
}

static void give_accumulator_back(struct store *store, uint32_t unit)
{
    if (store->held || is_tied(store->model, unit))
        return;
    for (uint32_t i = 0; i < store->n_accumulators; i++)
        if (store->accumulator_unit[i] == unit)
            store->accumulator_unit[i] = UINT32_MAX;
    store->sums[unit] = NULL;
}

static bool is_summed(enum store_fold how)
{
    return how == STORE_FOLD_SUM || how == STORE_FOLD_HOLD;
}

int store_fold(struct store *store, uint32_t unit, uint32_t slice, const struct store_contribution *contribution,
               enum store_fold how, const struct hyper *hp)
{
    const enum number_type type = contribution->type;
    const struct model_unit *u = &store->model->units[unit];
    const struct model_slice of = model_slice_of(u, slice);
    const uint64_t visit = is_tied(store->model, unit) ? contribution->visit : 0; /* two of them fold one part twice */
    bool finite = true;
    struct run run;

    assert(store->options.train && store->options.fenced == (how == STORE_FOLD_HOLD));
    assert(store_owns(store, unit));
    if (!optimizer_is_finite(store->kernel, contribution->g, type, of.n))
        return -EDOM;
    if (of.is_norms) {
        norms_fold(&store->norms, u, contribution, of.first, of.n);
        return 0;
    }
    if (is_summed(how) && !store->sums[unit])
        take_accumulator(store, unit);
    for (struct walk walk = walk_slice(store->model, unit, slice); next_run(&walk, &run);) {
        const void *at = (const char *)contribution->g + (run.at - of.first) * number_bytes(type);
        const struct gradient g = {at, type, 1};
        const struct parameters p = store_parameters(store, unit, run.at, run.n, visit << 32 | contribution->part);
        if (is_summed(how))
            optimizer_sum(store->kernel, store->sums[unit] + run.at, &g, run.n, contribution->first);
        else if (how == STORE_FOLD_MOMENTS)
            optimizer_fold(&p, &g, hp, contribution->first, run.decays);
        else
            finite &= optimizer_step(&p, &g, hp, store_updates(store, unit, run.piece) + 1, run.decays);
        assert(how != STORE_FOLD_DIRECT || contribution->first);
    }
    return finite ? 0 : -ERANGE;
}

/* The sum of a run's contributions, as its gradient. */
static struct gradient gradient_of(const struct store *store, uint32_t unit, const struct run *run, enum store_fold how,
                                   const struct hyper *hp)
{
    return (struct gradient){store->sums[unit] + run->at, NUMBER_FP32, how == STORE_FOLD_HOLD ? hp->grad_scale : 1};
}

/* Updates a unit run by run, after folding its sum if there is one. False if a weight is not finite afterwards. */
static bool update_runs(struct store *store, uint32_t unit, enum store_fold how, const struct hyper *hp)
{
    bool finite = true;
    struct run run;

    for (uint32_t slice = 0; slice < model_gradient_slices(&store->model->units[unit]); slice++)
        for (struct walk walk = walk_slice(store->model, unit, slice); next_run(&walk, &run);) {
            const struct parameters p = store_parameters(store, unit, run.at, run.n, 0);
            const uint64_t t = store_updates(store, unit, run.piece) + 1;
            if (is_summed(how)) {
                const struct gradient g = gradient_of(store, unit, &run, how, hp);
                finite &= optimizer_step(&p, &g, hp, t, run.decays);
            } else {
                finite &= optimizer_update(&p, hp, t, run.decays, 1);
            }
        }
    return finite;
}

/* The runs of one piece, cut at slices as in a walk. */
static bool next_run_of_piece(const struct model *model, uint32_t index, struct run *run)
{
    const struct model_piece *piece = &model->pieces[index];
    const uint64_t end = piece->offset + piece->n, at = run->n ? run->at + run->n : piece->offset;
    const uint64_t slice_end = (at / MODEL_SLICE + 1) * MODEL_SLICE;

    *run = (struct run){at, (slice_end < end ? slice_end : end) - at, index, model->tensors[piece->tensor].decays};
    return at < end;
}

/* Three passes: moments, RMS of the update, update. An update that is not clipped takes one. */
static bool update_clipped(struct store *store, uint32_t unit, uint32_t piece, enum store_fold how,
                           const struct hyper *hp)
{
    const uint64_t t = store_updates(store, unit, piece) + 1;
    double squares = 0;
    bool finite = true;

    for (struct run run = {0}; next_run_of_piece(store->model, piece, &run);) {
        const struct parameters p = store_parameters(store, unit, run.at, run.n, 0);
        if (is_summed(how)) {
            const struct gradient g = gradient_of(store, unit, &run, how, hp);
            optimizer_fold(&p, &g, hp, true, run.decays);
        }
        squares += optimizer_update_squares(&p, hp, t);
    }
    const double excess = sqrt(squares / (double)store->model->pieces[piece].n) / store->options.clip_update;
    for (struct run run = {0}; next_run_of_piece(store->model, piece, &run);) {
        const struct parameters p = store_parameters(store, unit, run.at, run.n, 0);
        finite &= optimizer_update(&p, hp, t, run.decays, excess > 1 ? excess : 1);
    }
    return finite;
}

int store_update(struct store *store, uint32_t unit, enum store_fold how, const struct hyper *hp)
{
    const struct model_unit *u = &store->model->units[unit];
    bool finite = true;

    assert(store_owns(store, unit));
    if (store->options.clip_update > 0) {
        assert(how != STORE_FOLD_DIRECT);
        for (uint32_t i = 0; i < u->n_pieces; i++) {
            const uint32_t piece = u->first_piece + i;
            if (!store->model->tensors[store->model->pieces[piece].tensor].frozen)
                finite &= update_clipped(store, unit, piece, how, hp);
        }
    } else if (how != STORE_FOLD_DIRECT) {
        finite = update_runs(store, unit, how, hp);
    }
    store->updates[unit]++;
    if (is_summed(how))
        give_accumulator_back(store, unit);
    return finite ? 0 : -ERANGE;
}

void store_swap(struct store *store, uint32_t unit)
{
    if (store->current)
        store->current[unit] = !store->current[unit];
}

double store_sum_squares(const struct store *store, uint32_t unit)
{
    const uint64_t n = store->model->units[unit].n_trained;
    double sum = 0;

    assert(store->held && store_owns(store, unit));
    for (uint64_t at = 0; at < n; at += MODEL_SLICE)
        sum += optimizer_squares(store->kernel, store->sums[unit] + at, n - at < MODEL_SLICE ? n - at : MODEL_SLICE);
    return sum;
}

enum store_fold store_fold_kind(const struct store *store, uint32_t unit, uint32_t n_parts, bool sums_parts)
{
    const bool tied = is_tied(store->model, unit);

    if (store->options.fenced)
        return STORE_FOLD_HOLD;
    if ((tied && store->tied) || (n_parts > 1 && sums_parts))
        return STORE_FOLD_SUM;
    return n_parts > 1 || tied || store->options.clip_update > 0 ? STORE_FOLD_MOMENTS : STORE_FOLD_DIRECT;
}

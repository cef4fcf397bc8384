/* The store's sums: where each is, and whoever makes or checks them outside a pass of the optimizer.
 *
 * Sums of the second buffer of weights are of that buffer, whichever is current: so no thread that checks them asks
 * which one that is. All but checks_verify of a captured unit is the optimizer thread's, as are all changes of what is
 * checked. */
#include "eps/store/checks.h"

#include "eps/store/optimizer_kernel.h"
#include "eps/store/store_walk.h"
#include "eps/store/team.h"
#include "proto/base/size.h"
#include "proto/model/groups.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

_Static_assert((int)PLAN_BLOCK == (int)TEAM_BLOCK, "a block belongs to one thread");
_Static_assert(TEAM_BLOCK * sizeof(float) <= BLOCK_SUM_BYTES, "it has one sum");

/* One allocation: sums of all arrays, then the note of damage, then for each piece the number of its first block. Only
 * own units have sums: another host's are checked where they are owned. */
int checks_init(struct store *store)
{
    struct checks *const c = &store->checks;
    const struct model *const model = store->model;
    const struct store_options *const o = &store->options;
    const struct plan_goal goal = store_goal(o);
    uint64_t n = 0;

    plan_checksums(&c->plan, model, &store->own, &goal, o->replay, o->n_accumulators);
    if (c->plan.bytes == 0)
        return 0;
    c->memory = calloc(1, c->plan.bytes);
    if (!c->memory)
        return -ENOMEM;
    struct block_sum *sums = c->memory;
    for (int i = 0; i < PLAN_CHECKED_ARRAYS; i++) {
        c->sums[i] = c->plan.n[i] > 0 ? sums : NULL;
        sums += c->plan.n[i];
    }
    c->damage = (uint64_t *)(void *)sums;
    c->first = c->damage + 1;
    *c->damage = OPTIMIZER_WHOLE;
    for (uint32_t u = store->own.first; u < store->own.end; u++)
        for (uint32_t i = 0; i < model->units[u].n_pieces; i++) {
            const uint32_t piece = model->units[u].first_piece + i;
            c->first[piece] = n;
            n += plan_piece_blocks(model, &model->pieces[piece]);
        }
    c->scrub.unit = store->own.first;
    return 0;
}

void checks_free(struct store *store)
{
    free(store->checks.memory);
    store->checks = (struct checks){0};
}

uint64_t checks_bytes(const struct store *store)
{
    return store->checks.memory ? store->checks.plan.bytes : 0;
}

/* Read without a lock, from any thread: the first damage is noted once, and nothing but the note is needed to act upon
 * it. */
bool checks_found(const struct store *store)
{
    return store->checks.memory && __atomic_load_n(store->checks.damage, __ATOMIC_RELAXED) != OPTIMIZER_WHOLE;
}

/* ---- where they are --------------------------------------------------------------------------------------------- */

static uint64_t block_at(const struct store *store, uint32_t piece, uint64_t at)
{
    return store->checks.first[piece] + plan_blocks_before(&store->model->pieces[piece], at);
}

static struct block_sum *sums_at(const struct store *store, enum plan_checked array, uint64_t block)
{
    return store->checks.sums[array] ? store->checks.sums[array] + block : NULL;
}

/* The current weights' sums are w, those of the buffer that the update writes new_w; without replay both are one. */
struct optimizer_blocks checks_of(const struct store *store, uint32_t unit, uint32_t piece, uint64_t at)
{
    if (!store->checks.memory)
        return (struct optimizer_blocks){0};
    const uint64_t block = block_at(store, piece, at);
    const bool second = store_buffer(store, unit, false) == 1;
    struct block_sum *const first_buffer = sums_at(store, PLAN_CHECKED_WEIGHTS, block), *const second_buffer =
                                                                                            sums_at(store,
                                                                                                    PLAN_CHECKED_REPLAY,
                                                                                                    block);
    return (struct optimizer_blocks){.w = second ? second_buffer : first_buffer,
                                     .new_w = second || !second_buffer ? first_buffer : second_buffer,
                                     .low = sums_at(store, PLAN_CHECKED_MASTER, block),
                                     .m = sums_at(store, PLAN_CHECKED_FIRST, block),
                                     .v = sums_at(store, PLAN_CHECKED_SECOND, block),
                                     .m_scales = sums_at(store, PLAN_CHECKED_FIRST_SCALES, block),
                                     .v_scales = sums_at(store, PLAN_CHECKED_SECOND_SCALES, block),
                                     .first = block,
                                     .damage = store->checks.damage};
}

/* Of the accumulator that the unit has. */
static struct block_sum *accumulator_sums(const struct store *store, uint32_t unit, uint64_t block)
{
    const uint64_t before = store->checks.first[store->model->units[unit].first_piece];
    uint32_t i = 0;

    while (i < store->n_accumulators && store->accumulator_unit[i] != unit)
        i++;
    assert(i < store->n_accumulators);
    return store->checks.sums[PLAN_CHECKED_ACCUMULATORS] + i * store->checks.plan.n_most + (block - before);
}

struct block_sum *checks_of_sum(const struct store *store, uint32_t unit, uint32_t piece, uint64_t at, bool lower)
{
    if (!store->checks.memory)
        return NULL;
    const uint64_t block = block_at(store, piece, at);
    if (store->options.fenced)
        return sums_at(store, lower ? PLAN_CHECKED_TIED : PLAN_CHECKED_HELD, block);
    if (!store_is_tied(store->model, unit) || (lower && store->n_accumulators > 0))
        return accumulator_sums(store, unit, block);
    return sums_at(store, PLAN_CHECKED_TIED, block + (lower ? store->checks.plan.n_tied : 0));
}

/* The same of a coded moment, or of one that stays in fp32 beside those. *each is 0 for scales of groups. */
static const char *moment_at(const struct store *store, enum plan_checked array, uint32_t unit, uint64_t at,
                             size_t *each)
{
    const struct parameters p = store_parameters(store, unit, at, 1, 0);
    const bool first = array == PLAN_CHECKED_FIRST || array == PLAN_CHECKED_FIRST_SCALES;

    *each = 0;
    if (array >= PLAN_CHECKED_FIRST_SCALES)
        return (const char *)(first ? p.coded.m_scales : p.coded.v_scales);
    *each = p.coded.m ? 1 : sizeof(float);
    if (p.coded.m)
        return first ? (const char *)p.coded.m : (const char *)p.coded.v;
    return (const char *)(first ? p.m : p.v);
}

/* Bytes of n elements; `each` as data_at's. */
static size_t bytes_of(size_t n, size_t each)
{
    return each > 0 ? n * each : (n + MODEL_GROUP - 1) / MODEL_GROUP * sizeof(float);
}

/* Element `at` of an own unit, the first of a block, in one of the arrays that passes keep from step to step. NULL: the
 * piece has no such array. */
static const char *data_at(const struct store *store, enum plan_checked array, uint32_t unit, uint64_t at, size_t *each)
{
    const uint64_t own_at = store->model->units[unit].trained_offset - store->own.trained_offset + at;
    const char *const weights = store->weights.base;

    if (store->coded.m && array >= PLAN_CHECKED_FIRST)
        return moment_at(store, array, unit, at, each);
    const size_t moment = number_bytes(store->options.moments);
    *each = array == PLAN_CHECKED_WEIGHTS || array == PLAN_CHECKED_REPLAY ? number_bytes(store->options.precision)
            : array == PLAN_CHECKED_MASTER                                ? sizeof *store->low
                                                                          : moment;
    if (array == PLAN_CHECKED_WEIGHTS || array == PLAN_CHECKED_REPLAY)
        return weights + store_weights_at(store, &store->own, unit, array == PLAN_CHECKED_REPLAY) + at * *each;
    if (array == PLAN_CHECKED_MASTER)
        return (const char *)(store->low + own_at);
    if (array == PLAN_CHECKED_FIRST)
        return store->m ? (const char *)(store->m + own_at) : (const char *)(store->m16 + own_at);
    return store->v ? (const char *)(store->v + own_at) : (const char *)(store->v16 + own_at);
}

/* Frozen pieces and places of sparse ones: all of the unit's bytes behind its trained elements. They are in the first
 * buffer alone. */
static uint64_t fixed_bytes(const struct store *store, uint32_t unit)
{
    const struct model_unit *const u = &store->model->units[unit];

    return model_unit_bytes(u, store->options.precision) - u->n_trained * number_bytes(store->options.precision);
}

static const char *fixed_at(const struct store *store, uint32_t unit, uint64_t at)
{
    const struct model_unit *const u = &store->model->units[unit];

    return (const char *)store->weights.base + store_weights_at(store, &store->own, unit, 0) +
           u->n_trained * number_bytes(store->options.precision) + at;
}

static uint64_t fixed_before(const struct store *store, uint32_t unit)
{
    uint64_t n = 0;

    for (uint32_t u = store->own.first; u < unit; u++)
        n += plan_fixed_blocks(&store->model->units[u], store->options.precision);
    return n;
}

/* ---- renewing --------------------------------------------------------------------------------------------------- */

/* A range of blocks in one array, for the threads. */
struct renewal {
    const struct store *store;
    const char *data;
    size_t each;
    struct block_sum *sums;
    uint64_t n;
};

static void renew_range(void *data, size_t begin, size_t n)
{
    const struct renewal *const r = data;

    for (size_t at = begin; at < begin + n; at += TEAM_BLOCK)
        r->sums[at / TEAM_BLOCK] = block_sum(r->store->kernel->blocks, r->data + bytes_of(at, r->each),
                                             bytes_of(size_smaller(TEAM_BLOCK, begin + n - at), r->each));
}

static void renew_fixed(struct store *store, uint32_t unit, uint64_t before)
{
    const uint64_t bytes = fixed_bytes(store, unit);
    struct block_sum *const sums = store->checks.sums[PLAN_CHECKED_FIXED] + before;

    for (uint64_t at = 0; at < bytes; at += BLOCK_SUM_BYTES)
        sums[at / BLOCK_SUM_BYTES] = block_sum(store->kernel->blocks, fixed_at(store, unit, at),
                                               size_smaller(BLOCK_SUM_BYTES, (size_t)(bytes - at)));
}

static void renew_unit(struct store *store, uint32_t unit, uint64_t before)
{
    struct run run;

    for (uint32_t slice = 0; slice < model_gradient_slices(&store->model->units[unit]); slice++)
        for (struct walk walk = walk_slice(store->model, unit, slice); next_run(&walk, &run);)
            for (enum plan_checked a = 0; a <= PLAN_CHECKED_SECOND_SCALES; a++) {
                struct renewal r = {.store = store, .n = run.n};
                r.sums = sums_at(store, a, block_at(store, run.piece, run.at));
                if (!r.sums)
                    continue;
                r.data = data_at(store, a, unit, run.at, &r.each);
                if (!r.data)
                    continue;
                team_run(run.n, renew_range, &r);
            }
    renew_fixed(store, unit, before);
}

void checks_renew_unit(struct store *store, uint32_t unit)
{
    if (store->checks.memory)
        renew_unit(store, unit, fixed_before(store, unit));
}

/* For memory that was filled by something other than a pass: files, fresh weights, moved places. A job that has ended
 * meanwhile leaves sums undone, as nobody will read them. */
void checks_renew(struct store *store)
{
    uint64_t before = 0;

    for (uint32_t u = store->own.first; store->checks.memory && u < store->own.end; u++) {
        if (pieces_note(store->options.pieces) == 0)
            renew_unit(store, u, before);
        before += plan_fixed_blocks(&store->model->units[u], store->options.precision);
    }
}

/* ---- checking --------------------------------------------------------------------------------------------------- */

/* Arrays that passes keep from step to step. */
struct extent {
    enum plan_checked first, last;
};

static const struct extent everything = {PLAN_CHECKED_WEIGHTS, PLAN_CHECKED_SECOND_SCALES};

/* Checks a block in these arrays. Returns the bytes that it read. */
static size_t arrays_check(const struct store *store, uint32_t unit, uint32_t piece, uint64_t at, size_t n,
                           struct extent of)
{
    static const enum optimizer_array arrays[] = {
        [PLAN_CHECKED_WEIGHTS] = OPTIMIZER_W,      [PLAN_CHECKED_REPLAY] = OPTIMIZER_W,
        [PLAN_CHECKED_MASTER] = OPTIMIZER_LOW,     [PLAN_CHECKED_FIRST] = OPTIMIZER_M,
        [PLAN_CHECKED_SECOND] = OPTIMIZER_V,       [PLAN_CHECKED_FIRST_SCALES] = OPTIMIZER_M,
        [PLAN_CHECKED_SECOND_SCALES] = OPTIMIZER_V};
    const uint64_t block = block_at(store, piece, at);
    size_t bytes = 0;

    for (enum plan_checked a = of.first; a <= of.last; a++) {
        const struct block_sum *const sum = sums_at(store, a, block);
        size_t each;
        if (!sum)
            continue;
        const char *const data = data_at(store, a, unit, at, &each);
        if (!data)
            continue;
        if (!block_sum_equal(*sum, block_sum(store->kernel->blocks, data, bytes_of(n, each))))
            optimizer_note_damage(store->checks.damage, block, arrays[a]);
        bytes += bytes_of(n, each);
    }
    return bytes;
}

/* Of what steps leave alone; `before`: fixed blocks of the units before. */
static size_t fixed_check(const struct store *store, uint32_t unit, uint64_t before, uint64_t at)
{
    const size_t n = size_smaller(BLOCK_SUM_BYTES, (size_t)(fixed_bytes(store, unit) - at));
    const uint64_t block = before + at / BLOCK_SUM_BYTES;

    if (!block_sum_equal(store->checks.sums[PLAN_CHECKED_FIXED][block],
                         block_sum(store->kernel->blocks, fixed_at(store, unit, at), n)))
        optimizer_note_damage(store->checks.damage, store->checks.plan.n_blocks + block, OPTIMIZER_W);
    return n;
}

static int checks_verdict(const struct store *store)
{
    return checks_found(store) ? -EIO : 0;
}

/* A run of a unit, for the threads or for one. */
struct inspection {
    const struct store *store;
    uint32_t unit;
    struct extent of;
    struct run run;
};

static void inspect_range(void *data, size_t begin, size_t n)
{
    const struct inspection *const i = data;

    for (size_t at = begin; at < begin + n; at += TEAM_BLOCK)
        arrays_check(i->store, i->unit, i->run.piece, i->run.at + at, size_smaller(TEAM_BLOCK, begin + n - at), i->of);
}

static void inspect_unit(const struct store *store, uint32_t unit, uint64_t before, bool team, struct extent of)
{
    const uint64_t bytes = fixed_bytes(store, unit);
    struct inspection i = {.store = store, .unit = unit, .of = of};

    for (uint32_t slice = 0; slice < model_gradient_slices(&store->model->units[unit]); slice++)
        for (struct walk walk = walk_slice(store->model, unit, slice); next_run(&walk, &i.run);)
            if (team)
                team_run(i.run.n, inspect_range, &i);
            else
                inspect_range(&i, 0, i.run.n);
    for (uint64_t at = 0; at < bytes; at += BLOCK_SUM_BYTES)
        fixed_check(store, unit, before, at);
}

/* May run on the writer's thread: the unit is captured, so no pass changes it or its sums meanwhile. */
int checks_verify(const struct store *store, uint32_t unit)
{
    if (store->checks.memory)
        inspect_unit(store, unit, fixed_before(store, unit), false, everything);
    return checks_verdict(store);
}

int checks_verify_all(const struct store *store)
{
    uint64_t before = 0;

    for (uint32_t u = store->own.first; store->checks.memory && u < store->own.end; u++) {
        inspect_unit(store, u, before, true, everything);
        before += plan_fixed_blocks(&store->model->units[u], store->options.precision);
    }
    return checks_verdict(store);
}

/* The current buffers alone: what somebody is about to read. */
int checks_verify_weights(const struct store *store)
{
    uint64_t before = 0;

    for (uint32_t u = store->own.first; store->checks.memory && u < store->own.end; u++) {
        const enum plan_checked a = store_buffer(store, u, false) == 1 ? PLAN_CHECKED_REPLAY : PLAN_CHECKED_WEIGHTS;
        inspect_unit(store, u, before, true, (struct extent){a, a});
        before += plan_fixed_blocks(&store->model->units[u], store->options.precision);
    }
    return checks_verdict(store);
}

/* The sum of a fenced step, before it is squared or applied. Runs on the calling thread: a unit at a time, between
 * folds. */
int checks_verify_held(const struct store *store, uint32_t unit)
{
    struct run run;

    if (!store->checks.memory)
        return 0;
    for (uint32_t slice = 0; slice < model_gradient_slices(&store->model->units[unit]); slice++)
        for (struct walk walk = walk_slice(store->model, unit, slice); next_run(&walk, &run);) {
            const struct block_sum *const sums = checks_of_sum(store, unit, run.piece, run.at, false);
            const uint64_t own_at = store->model->units[unit].trained_offset - store->own.trained_offset + run.at;
            const size_t each = store->held16 ? sizeof *store->held16 : sizeof *store->held;
            const char *const data =
                store->held16 ? (const char *)(store->held16 + own_at) : (const char *)(store->held + own_at);
            for (uint64_t at = 0; at < run.n; at += TEAM_BLOCK)
                if (!block_sum_equal(sums[at / TEAM_BLOCK],
                                     block_sum(store->kernel->blocks, data + at * each,
                                               size_smaller(TEAM_BLOCK, (size_t)(run.n - at)) * each)))
                    optimizer_note_damage(store->checks.damage, block_at(store, run.piece, run.at + at),
                                          OPTIMIZER_GRADIENT);
        }
    return checks_verdict(store);
}

/* ---- the scrub -------------------------------------------------------------------------------------------------- */

/* The next block of the unit's trained elements. False: there is none after `scrub`, which then stands at what steps
 * leave alone. */
static bool scrub_trained(struct store *store, size_t *bytes)
{
    struct checks_scrub *const s = &store->checks.scrub;
    const struct model_unit *const u = &store->model->units[s->unit];

    for (; s->piece < u->n_pieces; s->piece++, s->at = 0) {
        const uint32_t index = u->first_piece + s->piece;
        const struct model_piece *const piece = &store->model->pieces[index];
        if (store->model->tensors[piece->tensor].frozen || s->at >= piece->n)
            continue;
        const uint64_t at = piece->offset + s->at, slice_end = (at / MODEL_SLICE + 1) * MODEL_SLICE;
        const uint64_t end = slice_end < piece->offset + piece->n ? slice_end : piece->offset + piece->n;
        const size_t n = size_smaller(TEAM_BLOCK, (size_t)(end - at));
        *bytes += arrays_check(store, s->unit, index, at, n, everything);
        s->at += n;
        return true;
    }
    return false;
}

/* Looks through memory that no pass touches for long, CHECKS_SCRUB_BYTES a call, and goes on where it left off. n_units
 * bounds the walk where there is less than that in all. */
bool checks_scrub(struct store *store)
{
    struct checks_scrub *const s = &store->checks.scrub;
    size_t bytes = 0;

    if (!store->checks.memory || checks_found(store))
        return false;
    for (uint32_t n_units = 0; bytes < CHECKS_SCRUB_BYTES && n_units <= store->own.end - store->own.first;) {
        if (scrub_trained(store, &bytes))
            continue;
        if (s->at < fixed_bytes(store, s->unit)) {
            bytes += fixed_check(store, s->unit, s->fixed, s->at);
            s->at += BLOCK_SUM_BYTES;
            continue;
        }
        const bool last = s->unit + 1 == store->own.end;
        const uint64_t fixed = s->fixed + plan_fixed_blocks(&store->model->units[s->unit], store->options.precision);
        *s = (struct checks_scrub){.unit = last ? store->own.first : s->unit + 1, .fixed = last ? 0 : fixed};
        n_units++;
    }
    return checks_found(store);
}

/* ---- what people read ------------------------------------------------------------------------------------------- */

/* The tensor that has this block of trained elements. */
static const struct model_tensor *trained_tensor(const struct store *store, uint64_t block, uint32_t *unit)
{
    const struct model *const model = store->model;

    for (uint32_t u = store->own.first; u < store->own.end; u++)
        for (uint32_t i = 0; i < model->units[u].n_pieces; i++) {
            const uint32_t index = model->units[u].first_piece + i;
            const uint64_t first = store->checks.first[index];
            *unit = u;
            if (block >= first && block - first < plan_piece_blocks(model, &model->pieces[index]))
                return &model->tensors[model->pieces[index].tensor];
        }
    return NULL;
}

/* The tensor in which this fixed block begins. */
static const struct model_tensor *fixed_tensor(const struct store *store, uint64_t block, uint32_t *unit)
{
    const struct model *const model = store->model;
    const enum number_type precision = store->options.precision;
    const struct model_piece *found = NULL;

    *unit = store->own.first;
    for (uint64_t n; (n = plan_fixed_blocks(&model->units[*unit], precision)) <= block; block -= n)
        ++*unit;
    const struct model_unit *const u = &model->units[*unit];
    const uint64_t at = u->n_trained * number_bytes(precision) + block * BLOCK_SUM_BYTES;
    for (const struct model_piece *p = &model->pieces[u->first_piece], *end = p + u->n_pieces; p < end; p++)
        if (model_piece_at(u, p, precision) <= at &&
            (!found || model_piece_at(u, p, precision) >= model_piece_at(u, found, precision)))
            found = p;
    return found ? &model->tensors[found->tensor] : NULL;
}

/* A note of damage is one number: block times arrays, plus the array. Blocks of what steps leave alone are numbered
 * behind all others. */
void checks_text(char *out, size_t cap, const struct store *store)
{
    static const char *const names[] = {[OPTIMIZER_W] = "weights",          [OPTIMIZER_LOW] = "lower halves of weights",
                                        [OPTIMIZER_M] = "first moments",    [OPTIMIZER_V] = "second moments",
                                        [OPTIMIZER_SUM] = "gradient's sum", [OPTIMIZER_GRADIENT] = "gradient's sum"};
    const uint64_t damage = __atomic_load_n(store->checks.damage, __ATOMIC_RELAXED);
    const uint64_t block = damage / OPTIMIZER_ARRAYS;
    const bool fixed = block >= store->checks.plan.n_blocks;
    char name[MODEL_NAME_BYTES];
    uint32_t unit = store->own.first;
    const struct model_tensor *const tensor =
        fixed ? fixed_tensor(store, block - store->checks.plan.n_blocks, &unit) : trained_tensor(store, block, &unit);

    snprintf(out, cap, "the %s of %s (unit %s)", fixed ? "frozen weights" : names[damage % OPTIMIZER_ARRAYS],
             tensor ? tensor->name : "a unit", model_unit_name(name, store->model, unit));
}

/* A step's tasks for one unit: contributions are folded, the unit is updated (eps/store/store.h). */
#include "eps/store/checks.h"
#include "eps/store/norms.h"
#include "eps/store/sparse.h"
#include "eps/store/store.h"
#include "eps/store/store_walk.h"

#include <errno.h>
#include <math.h>

/* The accumulator that a unit has, or of UINT32_MAX one that is free; NULL: there is none. */
static float *find_accumulator(const struct store *store, uint32_t unit)
{
    uint32_t i = 0;

    while (i < store->n_accumulators && store->accumulator_unit[i] != unit)
        i++;
    return i < store->n_accumulators ? store->accumulators + i * (store->own.accumulator_bytes / sizeof(float)) : NULL;
}

/* There is one: the relay holds contributions back while all are taken. */
static void take_accumulator(struct store *store, uint32_t unit)
{
    float *const sum = find_accumulator(store, UINT32_MAX);

    assert(sum);
    store->accumulator_unit[(uint64_t)(sum - store->accumulators) / (store->own.accumulator_bytes / sizeof(float))] =
        unit;
    if (!store_is_tied(store->model, unit))
        store->sums[unit] = sum;
}

static void give_accumulator_back(struct store *store, uint32_t unit)
{
    for (uint32_t i = 0; i < store->n_accumulators; i++)
        if (store->accumulator_unit[i] == unit)
            store->accumulator_unit[i] = UINT32_MAX;
    if (!store->options.fenced && !store_is_tied(store->model, unit))
        store->sums[unit] = NULL;
}

/* Running statistics move by a constant rate towards what a step observes: w - rate * (w + g), where g is minus
 * that. */
static const struct hyper *hyper_of(const struct run *run, const struct hyper *hp)
{
    static const struct hyper averaging = {.lr = PROGRAM_RUNNING_RATE, .weight_decay = 1, .grad_scale = 1, .sgd = true};

    return run->averages ? &averaging : hp;
}

static bool is_summed(enum store_fold how)
{
    return how == STORE_FOLD_SUM || how == STORE_FOLD_HOLD;
}

/* Element `at` of a unit among the own units' trained ones; tied units are the first of all. */
static uint64_t own_at(const struct store *store, uint32_t unit, uint64_t at)
{
    return store->model->units[unit].trained_offset - store->own.trained_offset + at;
}

/* True if the visit has the lower of a tied unit's two sums (plan_sums_visits). */
static bool is_lower(const struct store *store, uint32_t unit, uint32_t visit)
{
    return store->options.n_parts > 1 && store_is_tied(store->model, unit) && visit < model_table_visits(store->model);
}

/* Element `at` of a unit's lower sum, in fp32: in its accumulator, or in the last of the tied sums. */
static float *lower_at(const struct store *store, uint32_t unit, uint64_t at)
{
    if (store->n_accumulators > 0)
        return find_accumulator(store, unit) + at;
    return store->tied + store_lower_at(store) + own_at(store, unit, at);
}

/* Where a run's contributions are summed. */
static struct sums sums_of(const struct store *store, uint32_t unit, const struct run *run, bool lower, uint64_t part)
{
    const uint64_t at = own_at(store, unit, run->at);

    struct optimizer_blocks blocks = checks_of(store, unit, run->piece, run->at);

    blocks.sum = checks_of_sum(store, unit, run->piece, run->at, lower);
    if (!store->held16)
        return (struct sums){.wide = lower ? lower_at(store, unit, run->at) : store->sums[unit] + run->at,
                             .blocks = blocks};
    return (struct sums){.half = (lower ? store->tied16 : store->held16) + at,
                         .key = random_site_key(store->options.seed, store->updates[unit] + 1,
                                                store->model->units[unit].id, RANDOM_SUM),
                         .part = part,
                         .first = run->at,
                         .blocks = blocks};
}

/* The sum from element `at` of a unit, as a gradient. */
static struct gradient sum_at(const struct store *store, uint32_t unit, uint64_t at, float scale)
{
    if (store->held16)
        return (struct gradient){store->held16 + own_at(store, unit, at), NUMBER_BF16, scale};
    return (struct gradient){store->sums[unit] + at, NUMBER_FP32, scale};
}

/* A run's parameters, for a pass. summed: their gradient is the sum of their contributions. */
static struct parameters store_step_parameters_of(const struct store *store, uint32_t unit, const struct run *run,
                                                  uint64_t part, bool summed)
{
    struct parameters p = store_parameters(store, unit, run->at, run->n, part);

    p.blocks = checks_of(store, unit, run->piece, run->at);
    if (summed)
        p.blocks.gradient = checks_of_sum(store, unit, run->piece, run->at, false);
    return p;
}

/* A gradient in the inbox is checked once more after it was folded: it might have changed under way. */
static bool has_its_sum(const struct store *store, const struct store_contribution *contribution, uint64_t n)
{
    struct block_sum sum;

    if (!contribution->has_sum)
        return true;
    optimizer_is_finite(store->kernel, contribution->g, contribution->type, n, &sum);
    return block_sum_equal(sum, contribution->sum);
}

int store_check(const struct store *store, const struct store_contribution *contribution, uint64_t n)
{
    struct block_sum sum;
    const bool finite =
        optimizer_is_finite(store->kernel, contribution->g, contribution->type, n, contribution->has_sum ? &sum : NULL);

    if (contribution->has_sum && !block_sum_equal(sum, contribution->sum))
        return -EBADMSG;
    return finite ? 0 : -EDOM;
}

/* Checked whole before any of it is folded: a refused contribution leaves the unit as it was. */
int store_fold(struct store *store, uint32_t unit, uint32_t slice, const struct store_contribution *contribution,
               enum store_fold how, const struct hyper *hp)
{
    const enum number_type type = contribution->type;
    const struct model_unit *u = &store->model->units[unit];
    const struct model_slice of = model_slice_of(u, slice);
    const uint64_t visit =
        store_is_tied(store->model, unit) ? contribution->visit : 0; /* two of them fold one part twice */
    const bool lower = is_lower(store, unit, contribution->visit);
    bool finite = true;
    struct run run;

    assert(store->options.train && store->options.fenced == (how == STORE_FOLD_HOLD));
    assert(store_owns(store, unit));
    const int refused = store_check(store, contribution, of.n);
    if (refused)
        return refused;
    if (of.is_norms) {
        norms_fold(&store->norms, u, contribution, of.first, of.n);
        return has_its_sum(store, contribution, of.n) ? 0 : -EIO;
    }
    if (how == STORE_FOLD_SUM && store->n_accumulators > 0 && (lower || !store->sums[unit]) &&
        !find_accumulator(store, unit))
        take_accumulator(store, unit);
    for (struct walk walk = walk_slice(store->model, unit, slice); next_run(&walk, &run);) {
        const void *at = (const char *)contribution->g + (run.at - of.first) * number_bytes(type);
        const struct gradient g = {at, type, 1};
        const uint64_t part = visit << 32 | contribution->part;
        const struct parameters p = store_step_parameters_of(store, unit, &run, part, false);
        const struct sums sums = is_summed(how) ? sums_of(store, unit, &run, lower, part) : (struct sums){0};
        if (is_summed(how))
            optimizer_sum(store->kernel, &sums, &g, run.n, contribution->first);
        else if (how == STORE_FOLD_MOMENTS)
            optimizer_fold(&p, &g, hyper_of(&run, hp), contribution->first, run.decays);
        else
            finite &= optimizer_step(&p, &g, hyper_of(&run, hp), store_updates(store, unit, run.piece) + 1, run.decays);
        assert(how != STORE_FOLD_DIRECT || contribution->first);
    }
    if (!has_its_sum(store, contribution, of.n)) /* it changed meanwhile: what was folded, nobody knows */
        return -EIO;
    return checks_found(store) ? -EIO : finite ? 0 : -ERANGE;
}

void store_join(struct store *store, uint32_t unit)
{
    const uint32_t n_slices = model_gradient_slices(&store->model->units[unit]);
    struct run run;

    assert(store_owns(store, unit));
    for (uint32_t slice = 0; is_lower(store, unit, 0) && slice < n_slices; slice++)
        for (struct walk walk = walk_slice(store->model, unit, slice); next_run(&walk, &run);) {
            const struct gradient lower =
                store->tied16 ? (struct gradient){store->tied16 + own_at(store, unit, run.at), NUMBER_BF16, 1}
                              : (struct gradient){lower_at(store, unit, run.at), NUMBER_FP32, 1};
            struct sums sums = sums_of(store, unit, &run, false, UINT64_MAX); /* a part beyond all */
            sums.blocks.gradient = checks_of_sum(store, unit, run.piece, run.at, true);
            optimizer_sum(store->kernel, &sums, &lower, run.n, false);
        }
}

/* The sum of a run's contributions, as its gradient. hp: the run's. */
static struct gradient store_step_gradient_of(const struct store *store, uint32_t unit, const struct run *run,
                                              enum store_fold how, const struct hyper *hp)
{
    return sum_at(store, unit, run->at, how == STORE_FOLD_HOLD ? hp->grad_scale : 1);
}

/* Updates a run, after folding its sum if there is one. False if a weight is not finite afterwards. */
static bool update_run(struct store *store, uint32_t unit, const struct run *run, enum store_fold how,
                       const struct hyper *step)
{
    const struct hyper *const hp = hyper_of(run, step);
    const struct parameters p = store_step_parameters_of(store, unit, run, 0, is_summed(how));
    const uint64_t t = store_updates(store, unit, run->piece) + 1;

    if (!is_summed(how))
        return optimizer_update(&p, hp, t, run->decays, 1);
    const struct gradient g = store_step_gradient_of(store, unit, run, how, hp);
    return optimizer_step(&p, &g, hp, t, run->decays);
}

/* Updates a unit run by run. */
static bool update_runs(struct store *store, uint32_t unit, enum store_fold how, const struct hyper *hp)
{
    bool finite = true;
    struct run run;

    for (uint32_t slice = 0; slice < model_gradient_slices(&store->model->units[unit]); slice++)
        for (struct walk walk = walk_slice(store->model, unit, slice); next_run(&walk, &run);)
            finite &= update_run(store, unit, &run, how, hp);
    return finite;
}

/* The runs of one piece, cut at slices as in a walk. */
static bool next_run_of_piece(const struct model *model, uint32_t index, struct run *run)
{
    const struct model_piece *piece = &model->pieces[index];
    const uint64_t end = piece->offset + piece->n, at = run->n ? run->at + run->n : piece->offset;
    const uint64_t slice_end = (at / MODEL_SLICE + 1) * MODEL_SLICE;

    *run = run_of(model, index, at, (slice_end < end ? slice_end : end) - at);
    return at < end;
}

/* Elements of a piece; of a sparse one, those that are there. */
static uint64_t store_step_count_elements(const struct store *store, uint32_t unit, uint32_t index)
{
    const struct model_piece *piece = &store->model->pieces[index];

    if (piece->dense == 0)
        return piece->n;
    const struct sparse_places places = store_places(store, unit, piece);
    return sparse_places_used(&places);
}

/* Three passes: moments, RMS of the update, update. An update that is not clipped takes one. */
static bool update_clipped(struct store *store, uint32_t unit, uint32_t piece, enum store_fold how,
                           const struct hyper *hp)
{
    const uint64_t t = store_updates(store, unit, piece) + 1;
    double squares = 0;
    bool finite = true;

    for (struct run run = {0}; next_run_of_piece(store->model, piece, &run);) {
        if (run.averages) { /* no update: it is not clipped */
            finite &= update_run(store, unit, &run, how, hp);
            continue;
        }
        const struct parameters p = store_step_parameters_of(store, unit, &run, 0, is_summed(how));
        if (is_summed(how)) {
            const struct gradient g = store_step_gradient_of(store, unit, &run, how, hp);
            optimizer_fold(&p, &g, hp, true, run.decays);
        }
        squares += optimizer_update_squares(&p, hp, t);
    }
    const double excess =
        sqrt(squares / (double)store_step_count_elements(store, unit, piece)) / store->options.clip_update;
    for (struct run run = {0}; next_run_of_piece(store->model, piece, &run) && !run.averages;) {
        const struct parameters p = store_step_parameters_of(store, unit, &run, 0, false);
        finite &= optimizer_update(&p, hp, t, run.decays, excess > 1 ? excess : 1);
    }
    return finite;
}

int store_update(struct store *store, uint32_t unit, enum store_fold how, const struct hyper *hp)
{
    const struct model_unit *u = &store->model->units[unit];
    bool finite = true;

    assert(store_owns(store, unit));
    if (how == STORE_FOLD_SUM)
        store_join(store, unit);
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
    return checks_found(store) ? -EIO : finite ? 0 : -ERANGE;
}

/* Moves *end, behind `at`, to where running statistics begin; or, if `at` is in such a tensor, to its end: false. They
 * are no gradients. */
static bool cut_at_averages(const struct model *model, uint32_t unit, uint64_t at, uint64_t *end)
{
    const struct model_piece *const first = &model->pieces[model->units[unit].first_piece];

    for (const struct model_piece *p = first; p < first + model->units[unit].n_pieces; p++) {
        if (!model->tensors[p->tensor].averages || model->tensors[p->tensor].frozen || p->offset + p->n <= at)
            continue;
        if (p->offset <= at) {
            *end = p->offset + p->n;
            return false;
        }
        *end = p->offset < *end ? p->offset : *end;
    }
    return true;
}

double store_sum_squares(const struct store *store, uint32_t unit)
{
    const uint64_t n_trained = store->model->units[unit].n_trained;
    double sum = 0;

    assert(store->options.fenced && store_owns(store, unit));
    for (uint64_t at = 0, end; at < n_trained; at = end) {
        const uint64_t slice_end = (at / MODEL_SLICE + 1) * MODEL_SLICE;
        end = slice_end < n_trained ? slice_end : n_trained;
        const struct gradient g = sum_at(store, unit, at, 1);
        if (cut_at_averages(store->model, unit, at, &end))
            sum += optimizer_squares(store->kernel, g.g, g.type, end - at);
    }
    return sum;
}

enum store_fold store_fold_kind(const struct store *store, uint32_t unit, uint32_t n_parts, bool sums_parts)
{
    const bool tied = store_is_tied(store->model, unit);

    if (store->options.fenced)
        return STORE_FOLD_HOLD;
    if ((tied && store->tied) || (n_parts > 1 && sums_parts))
        return STORE_FOLD_SUM;
    return n_parts > 1 || tied || store->options.folded || store->options.clip_update > 0 ? STORE_FOLD_MOMENTS
                                                                                          : STORE_FOLD_DIRECT;
}

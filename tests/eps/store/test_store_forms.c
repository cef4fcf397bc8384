/* The store in its narrower forms: a split master, 16-bit moments, contributions in bf16, held sums, clipped
 * updates. */
#include "tests/kit/inprocess/plain.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

#include "eps/store/memory.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

SUITE_LABELS(single)

static const struct hyper hyper = {
    .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.5, .grad_scale = 1};

/* Exact in bf16 where that is wanted. */
static float gradient_at(uint64_t i, uint64_t seed, enum number_type type)
{
    const float g = plain_number(i, seed);

    return type == NUMBER_BF16 ? number_from_bf16(number_to_bf16(g)) : g;
}

/* One visit or part of a unit's gradient, exact in `exact`, travelling as `type`. */
struct given {
    enum number_type exact, type;
    uint64_t seed;
    uint32_t part;
    bool first;
    uint32_t visit;
};

static void fold(struct store_fixture *f, uint32_t unit, const struct given *given, enum store_fold how)
{
    const uint64_t n = f->model.units[unit].n;
    float *g = plain_zeros(n, sizeof *g);

    for (uint64_t i = 0; i < n; i++)
        g[i] = gradient_at(i, given->seed, given->exact);
    store_fixture_fold(f, unit, &(struct store_given){g, given->type, given->first, given->part, given->visit}, how,
                       &hyper);
    free(g);
}

/* Steps of all units, with so many parts; a tied unit has two visits of each. */
static void train(struct store_fixture *f, uint64_t n_steps, uint32_t n_parts, bool adamw, enum number_type exact,
                  enum number_type type)
{
    for (uint64_t t = 1; t <= n_steps; t++)
        for (uint32_t unit = 0; unit < f->model.n_units; unit++) {
            const enum store_fold how = store_fold_kind(&f->store, unit, n_parts, adamw);
            const uint32_t n_visits = f->model.units[unit].n_visits;
            for (uint32_t i = 0; i < n_visits * n_parts; i++) {
                const struct store_given next = store_fixture_given(f, unit, i, n_parts);
                fold(f, unit, &(struct given){exact, type, t * 100 + unit * 10 + i, next.part, next.first, next.visit},
                     how);
            }
            if (how == STORE_FOLD_HOLD)
                store_join(&f->store, unit);
            store_update(&f->store, unit, how, &hyper);
        }
}

/* The modes of a commit, with what they are called with. */
static const struct mode {
    bool fenced, adamw;
    uint32_t n_parts;
} modes[] = {{false, false, 1}, {false, false, 3}, {false, true, 3}, {true, true, 3}, {true, true, 1}};
enum { MODES = COUNT(modes) };

static struct store_options options_of(const struct mode *mode, enum number_type precision, enum number_type moments)
{
    return (struct store_options){.train = true,
                                  .precision = precision,
                                  .moments = moments,
                                  .fenced = mode->fenced,
                                  .n_parts = mode->n_parts,
                                  .n_accumulators = !mode->fenced && mode->adamw && mode->n_parts > 1,
                                  .seed = 7};
}

SUITE_TIMEOUT(120)

/* A split master, joined, is the fp32 master's bits; a contribution in bf16 is folded as the fp32 that it stands for; a
 * bound that no update reaches clips none; a fenced commit of 16-bit moments is an eager one (fp32: test_store). */
enum change { SPLIT_MASTER, BF16_CONTRIBUTION, LOOSE_BOUND, FENCED, CHANGES };

TEST_EACH(what_must_not_change_a_bit_changes_none, CHANGES *MODES)
{
    const enum change change = (enum change)(_i / MODES);
    const enum number_type exact = change == BF16_CONTRIBUTION, form = change == FENCED;
    const struct mode *mode = &modes[_i % MODES];
    struct store_options options = options_of(mode, form, form);
    struct store_fixture a, b;

    if (change == FENCED && (mode->fenced || (!mode->adamw && mode->n_parts > 1)))
        TEST_SKIP("AdamA of several parts cannot be fenced");
    store_fixture_open_as(&a, store_fixture_small, true, &options);
    if (change == SPLIT_MASTER)
        options.precision = NUMBER_BF16;
    if (change == LOOSE_BOUND)
        options.clip_update = 1e6;
    if (change == FENCED)
        options.fenced = true, options.n_accumulators = 0;
    store_fixture_open_as(&b, store_fixture_small, true, &options);
    store_draw(&a.store, 3), store_draw(&b.store, 3);
    store_fixture_same_stores(&a, &b);
    train(&a, 4, mode->n_parts, mode->adamw, exact, NUMBER_FP32);
    train(&b, 4, mode->n_parts, mode->adamw, exact, exact);
    store_fixture_same_stores(&a, &b);
    const float *w = a.store.weights.base;
    const uint16_t *high = b.store.weights.base; /* what is relayed is as near to the master as any bf16 */
    for (uint64_t i = 0; change == SPLIT_MASTER && i < a.model.segment_n; i++)
        if (fabsf(number_from_bf16(high[i]) - w[i]) != fabsf(number_from_bf16(number_to_bf16(w[i])) - w[i]))
            ck_abort_msg("element %ju", (uintmax_t)i);
    store_fixture_close(&a), store_fixture_close(&b);
}

/* Each term is a positive number rounded once and then at most 1024 / 16 + 4 + (blocks) + (slices) times: 4e-13 of the
 * sum for a unit of two slices. */
TEST(a_sum_of_squares_is_that_of_long_double_for_all_threads_and_paths)
{
    const struct store_options options = options_of(&modes[4], NUMBER_FP32, NUMBER_FP32);
    struct store_fixture f;
    long double want = 0;

    store_fixture_open_as(&f, store_fixture_big, false, &options);
    const uint32_t unit = 2;
    fold(&f, unit, &(struct given){.seed = 5, .first = true}, STORE_FOLD_HOLD);
    ck_assert_uint_eq(f.model.units[unit].n_slices, 2);
    for (uint64_t i = 0; i < f.model.units[unit].n; i++)
        want += (long double)gradient_at(i, 5, NUMBER_FP32) * gradient_at(i, 5, NUMBER_FP32);
    const double got = store_sum_squares(&f.store, unit);
    ck_assert_double_eq_tol(got, (double)want, 1e-12 * (double)want);
    for (int threads = 1; threads <= 5; threads++)
        for (int isa = OPTIMIZER_ISA_V2; isa <= OPTIMIZER_ISA_V4; isa++) {
            plain_set_threads(threads);
            f.store.kernel = optimizer_find((enum optimizer_isa)isa);
            if (f.store.kernel)
                ck_assert_double_eq(store_sum_squares(&f.store, unit), got);
        }
    f.store.kernel = optimizer_find(OPTIMIZER_ISA_BEST);
    f.store.held[f.model.units[unit].offset] = INFINITY; /* as a sum that has overflowed */
    ck_assert(isinf(store_sum_squares(&f.store, unit)));
    store_fixture_close(&f);
}

/* ---- 16-bit moments ---------------------------------------------------------------------------------------------- */

/* One element from zero moments, AdamA with two parts, or AdamW: fp32 arithmetic, rounded by hand where it is kept. */
static void expect_two_parts(float *m, float *v, struct random_key key, uint64_t i, const uint64_t seeds[2])
{
    for (uint32_t part = 0; part < 2; part++) {
        const float g = gradient_at(i, seeds[part], NUMBER_FP32);
        const uint16_t bits = plain_bits(key, part, i);
        plain_fold(m, v, &g, 1, &hyper, part == 0);
        *m = number_from_bf16(number_to_bf16_stochastic(*m, bits));
        *v = number_from_v16(number_to_v16_stochastic(*v, (bits & 0xffu) << 8 | bits >> 8));
    }
}

TEST_EACH(sixteen_bit_moments_are_rounded_by_the_bits_of_their_name, 12)
{
    const struct store_options options = {.train = true, .moments = NUMBER_BF16, .seed = 99};
    const uint32_t unit = 2;
    struct store_fixture f;

    if (!plain_use((enum optimizer_isa)(OPTIMIZER_ISA_V2 + _i % 3)))
        TEST_SKIP("this processor lacks the instructions");
    plain_set_threads(1 + _i / 3);
    store_fixture_open_as(&f, _i < 9 ? store_fixture_cut : store_fixture_small, false, &options);
    f.store.kernel = plain_kernel;
    const struct model_unit *u = &f.model.units[unit];
    for (uint64_t t = 1; t <= 2; t++) {
        struct store_values before = store_fixture_values(&f, unit);
        const uint64_t seeds[2] = {t * 2, t * 2 + 1};
        for (uint32_t part = 0; part < 2; part++)
            fold(&f, unit, &(struct given){.seed = seeds[part], .part = part, .first = part == 0}, STORE_FOLD_MOMENTS);
        store_update(&f.store, unit, STORE_FOLD_MOMENTS, &hyper);
        struct store_values after = store_fixture_values(&f, unit);
        const struct random_key key = random_site_key(99, t, u->id, RANDOM_MOMENTS);
        for (uint64_t i = 0; i<u->n; i += i> 2000 ? 7 : 1) {
            float m = before.m[i], v = before.v[i];
            expect_two_parts(&m, &v, key, i, seeds);
            if (after.m[i] != m || after.v[i] != v)
                ck_abort_msg("element %ju: m %a, not %a; v %a, not %a", (uintmax_t)i, after.m[i], m, after.v[i], v);
        }
        store_values_free(&before), store_values_free(&after);
    }
    store_fixture_close(&f);
}

/* ---- clipped updates --------------------------------------------------------------------------------------------- */

/* A step of one piece in double, from zero moments of t - 1 updates before: (1804.04235, section 6). */
static void expect_clipped(double *w, double *m, double *v, const double *g, uint64_t n, uint64_t t, double d,
                           bool decays)
{
    double squares = 0, *u = plain_zeros(n, sizeof *u);

    for (uint64_t i = 0; i < n; i++) {
        m[i] = hyper.beta1 * m[i] + (1 - hyper.beta1) * g[i];
        v[i] = hyper.beta2 * v[i] + (1 - hyper.beta2) * g[i] * g[i];
        const double mhat = m[i] / (1 - pow(hyper.beta1, (double)t)), vhat = v[i] / (1 - pow(hyper.beta2, (double)t));
        u[i] = mhat / (sqrt(vhat) + hyper.epsilon);
        squares += u[i] * u[i];
    }
    const double clip = fmax(1, sqrt(squares / (double)n) / d);
    for (uint64_t i = 0; i < n; i++)
        w[i] = w[i] * (decays ? 1 - hyper.lr * hyper.weight_decay : 1) - hyper.lr * u[i] / clip;
    free(u);
}

/* At d = 0.5 the first update, of RMS 1 everywhere, is clipped in every tensor; later ones as they come. Each step
 * rounds w once, and the update's m and v by some 2^-24 of themselves. */
TEST_EACH(an_update_is_clipped_tensor_by_tensor, 4)
{
    const bool fenced = _i & 1, tied = _i >> 1 & 1;
    const struct store_options options = {.train = true, .fenced = fenced, .clip_update = 0.5};
    const uint32_t unit = tied ? 0 : 2, n_visits = tied ? 2 : 1;
    struct store_fixture f;

    store_fixture_open_as(&f, store_fixture_small, tied, &options);
    store_draw(&f.store, 3);
    const struct model_unit *u = &f.model.units[unit];
    const enum store_fold how = store_fold_kind(&f.store, unit, 1, true);
    ck_assert_int_eq(how, fenced ? STORE_FOLD_HOLD : tied ? STORE_FOLD_SUM : STORE_FOLD_MOMENTS);
    struct store_values x = store_fixture_values(&f, unit);
    double *w = plain_zeros(u->n, sizeof(double)), *m = plain_zeros(u->n, sizeof(double)),
           *v = plain_zeros(u->n, sizeof(double)), *g = plain_zeros(u->n, sizeof(double));
    for (uint64_t i = 0; i < u->n; i++)
        w[i] = x.w[i];
    store_values_free(&x);
    for (uint64_t t = 1; t <= 3; t++) {
        for (uint64_t i = 0; i < u->n; i++)
            g[i] = (double)gradient_at(i, t * 2, NUMBER_FP32) + (tied ? gradient_at(i, t * 2 + 1, NUMBER_FP32) : 0);
        for (uint32_t visit = 0; visit < n_visits; visit++)
            fold(&f, unit, &(struct given){.seed = t * 2 + visit, .first = visit == 0}, how);
        store_update(&f.store, unit, how, &hyper);
        for (const struct model_piece *p = &f.model.pieces[u->first_piece], *end = p + u->n_pieces; p < end; p++)
            expect_clipped(w + p->offset, m + p->offset, v + p->offset, g + p->offset, p->n, t, 0.5,
                           f.model.tensors[p->tensor].n_dims == 2);
        x = store_fixture_values(&f, unit);
        for (uint64_t i = 0; i < u->n; i++)
            if (!(fabs(x.w[i] - w[i]) <= 1e-6 * hyper.lr + (double)t * 0x1p-24 * fabs(w[i])))
                ck_abort_msg("step %ju, element %ju: %.9g, not %.9g", (uintmax_t)t, (uintmax_t)i, x.w[i], w[i]);
        store_values_free(&x);
    }
    free(w), free(m), free(v), free(g);
    store_fixture_close(&f);
}

/* Between units, where no parameter is. */
TEST_EACH(nothing_is_touched_outside_units, 2 * MODES)
{
    struct store_options options = options_of(&modes[_i % MODES], NUMBER_BF16, NUMBER_BF16);
    struct store_fixture f;

    options.clip_update = _i < MODES ? 0 : 0.5;
    store_fixture_open_as(&f, store_fixture_small, true, &options);
    uint16_t *const halves[] = {f.store.weights.base, (uint16_t *)f.store.low, f.store.m16, f.store.v16};
    for (int round = 0; round < 2; round++) {
        uint64_t n_outside = 0;
        for (uint32_t u = 0; u < f.model.n_units; u++) {
            const uint64_t begin = f.model.units[u].offset + f.model.units[u].n;
            const uint64_t end = u + 1 < f.model.n_units ? f.model.units[u + 1].offset : f.model.segment_n;
            for (uint64_t i = begin; i < end; i++, n_outside++)
                for (int k = 0; k < 4; k++) {
                    if (round == 1 && halves[k][i] != 0x1234)
                        ck_abort_msg("array %d, behind unit %u", k, u);
                    halves[k][i] = 0x1234;
                }
        }
        ck_assert_uint_gt(n_outside, 0);
        store_draw(&f.store, 1);
        train(&f, 2, modes[_i % MODES].n_parts, modes[_i % MODES].adamw, NUMBER_FP32, NUMBER_FP32);
    }
    store_fixture_close(&f);
}

/* Root may lock whatever it likes: somebody else tries, with rights given up for good. */
TEST_IF(memory_that_must_be_locked_and_may_not_be_is_refused, test_forks())
{
    struct rlimit limit;
    struct store_options options = {.train = true};
    struct store_fixture f;
    struct error err = {""};

    ck_assert_int_eq(getrlimit(RLIMIT_MEMLOCK, &limit), 0);
    limit.rlim_cur = 8192;
    ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    ck_assert(geteuid() != 0 || setuid(65534) == 0);
    store_fixture_open_as(&f, store_fixture_small, true, &options); /* not required: it works without */
    ck_assert_uint_ne(f.store.denied & MEMORY_LOCK, 0);
    store_free(&f.store);
    options.require_pinned = true;
    ck_assert_int_eq(store_init(&f.store, &f.model, &options, &f.ledger, &err), -EPERM);
    ck_assert_holds(err.text, "`ulimit -l` is 8 KiB", "--require-pinned");
    limit.rlim_cur = strtoull(err.text, NULL, 10) * 1024 - 1; /* the figure that it names is the one */
    ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    ck_assert_int_eq(store_init(&f.store, &f.model, &options, &f.ledger, &err), -EPERM);
    limit.rlim_cur++;
    ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    ck_assert_int_eq(store_init(&f.store, &f.model, &options, &f.ledger, &err), 0);
    ck_assert_uint_eq(f.store.denied & MEMORY_LOCK, 0);
    store_fixture_close(&f);
}

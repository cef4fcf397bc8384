/* The store in its narrower forms: a split master, 16-bit moments, contributions in bf16, held sums, clipped updates. */
#include "tests/kit/plain.h"
#include "tests/kit/store_fixture.h"
#include "tests/kit/test.h"

#include "proto/plan/host.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#ifdef _OPENMP
#include <omp.h>
#endif

SUITE_LABELS(single)

static const struct hyper hyper = {
    .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.5, .grad_scale = 1};

static void *zeros(size_t n, size_t size)
{
    void *x = calloc(n, size);

    ck_assert_ptr_nonnull(x);
    return x;
}

static void set_threads(int n)
{
#ifdef _OPENMP
    omp_set_num_threads(n);
#else
    (void)n;
#endif
}

/* Within -1 and 1, and exact in bf16 where that is wanted. */
static float gradient_at(uint64_t i, uint64_t seed, enum number_type type)
{
    const float g = (float)(int32_t)((uint32_t)(i + seed * 1000003) * 2654435761u) * 0x1p-31f;

    return type == NUMBER_BF16 ? number_from_bf16(number_to_bf16(g)) : g;
}

/* One visit or part of a unit's gradient, exact in `exact`, travelling as `type`. */
struct given {
    enum number_type exact, type;
    uint64_t seed;
    uint32_t part;
    bool first;
};

static void fold(struct store_fixture *f, uint32_t unit, const struct given *given, enum store_fold how,
                 const struct hyper *hp)
{
    const struct model_unit *u = &f->model.units[unit];

    for (uint32_t slice = u->n_slices; slice-- > 0;) {
        const uint64_t first = (uint64_t)slice * MODEL_SLICE,
                       n = u->n - first < MODEL_SLICE ? u->n - first : MODEL_SLICE;
        float *g = zeros(n, sizeof *g);
        uint16_t *narrow = zeros(n, sizeof *narrow);
        for (uint64_t i = 0; i < n; i++) {
            g[i] = gradient_at(first + i, given->seed, given->exact);
            narrow[i] = number_to_bf16(g[i]);
        }
        const struct store_contribution contribution = {given->type == NUMBER_BF16 ? (void *)narrow : g, given->type,
                                                        given->first, given->part};
        ck_assert_int_eq(store_fold(&f->store, unit, slice, &contribution, how, hp), 0);
        free(g), free(narrow);
    }
}

/* Steps of all units, with so many parts; a tied unit has two visits of each. */
static void train(struct store_fixture *f, uint64_t n_steps, uint32_t n_parts, bool adamw, enum number_type exact,
                  enum number_type type)
{
    for (uint64_t t = 1; t <= n_steps; t++)
        for (uint32_t unit = 0; unit < f->model.n_units; unit++) {
            const enum store_fold how = store_fold_kind(&f->store, unit, n_parts, adamw);
            const uint32_t n_visits = f->model.units[unit].n_visits;
            for (uint32_t i = 0; i < n_visits * n_parts; i++)
                fold(f, unit, &(struct given){exact, type, t * 100 + unit * 10 + i, i % n_parts, i == 0}, how, &hyper);
            store_update(&f->store, unit, how, &hyper);
        }
}

/* The modes of a commit, with what they are called with. */
static const struct mode {
    bool fenced, adamw;
    uint32_t n_parts;
} modes[] = {{false, true, 1}, {false, false, 3}, {false, true, 3}, {true, true, 3}, {true, true, 1}};
enum { MODES = sizeof modes / sizeof *modes };

static struct store_options options_of(const struct mode *mode, enum number_type precision, enum number_type moments)
{
    return (struct store_options){.train = true,
                                  .precision = precision,
                                  .moments = moments,
                                  .fenced = mode->fenced,
                                  .n_accumulators = !mode->fenced && mode->adamw && mode->n_parts > 1,
                                  .seed = 7};
}

SUITE_TIMEOUT(120)

/* What is relayed is a bf16 as near to the master as any, and joined it is the fp32 master's bits. */
TEST_EACH(a_split_master_trains_as_an_fp32_master_does, MODES)
{
    const struct mode *mode = &modes[_i];
    const struct store_options wide = options_of(mode, NUMBER_FP32, NUMBER_FP32);
    const struct store_options split = options_of(mode, NUMBER_BF16, NUMBER_FP32);
    struct store_fixture a, b;

    store_fixture_open_as(&a, store_fixture_small, true, &wide);
    store_fixture_open_as(&b, store_fixture_small, true, &split);
    store_draw(&a.store, 3), store_draw(&b.store, 3);
    store_fixture_same_stores(&a, &b);
    train(&a, 4, mode->n_parts, mode->adamw, NUMBER_FP32, NUMBER_FP32);
    train(&b, 4, mode->n_parts, mode->adamw, NUMBER_FP32, NUMBER_FP32);
    store_fixture_same_stores(&a, &b);
    const uint16_t *high = b.store.weights.base;
    const float *w = a.store.weights.base;
    for (uint64_t i = 0; i < a.model.segment_n; i++)
        ck_assert_float_eq(fabsf(number_from_bf16(high[i]) - w[i]),
                           fabsf(number_from_bf16(number_to_bf16(w[i])) - w[i]));
    store_fixture_close(&a), store_fixture_close(&b);
}

TEST_EACH(a_contribution_in_bf16_is_folded_as_the_fp32_it_stands_for, MODES)
{
    const struct mode *mode = &modes[_i];
    const struct store_options options = options_of(mode, NUMBER_FP32, NUMBER_FP32);
    struct store_fixture a, b;

    store_fixture_open_as(&a, store_fixture_small, true, &options);
    store_fixture_open_as(&b, store_fixture_small, true, &options);
    train(&a, 2, mode->n_parts, mode->adamw, NUMBER_BF16, NUMBER_FP32);
    train(&b, 2, mode->n_parts, mode->adamw, NUMBER_BF16, NUMBER_BF16);
    store_fixture_same_stores(&a, &b);
    store_fixture_close(&a), store_fixture_close(&b);
}

/* AdamW; AdamA with one part, which is AdamW: held until the end or not, in every form. */
TEST_EACH(a_fenced_commit_gives_the_bits_of_an_eager_one, 8)
{
    const enum number_type precision = _i & 1, moments = _i >> 1 & 1;
    const uint32_t n_parts = _i >> 2 & 1 ? 3 : 1;
    const struct mode eager = {false, true, n_parts}, fenced = {true, true, n_parts};
    const struct store_options one = options_of(&eager, precision, moments);
    const struct store_options two = options_of(&fenced, precision, moments);
    struct store_fixture a, b;

    store_fixture_open_as(&a, store_fixture_small, true, &one);
    store_fixture_open_as(&b, store_fixture_small, true, &two);
    store_draw(&a.store, 3), store_draw(&b.store, 3);
    train(&a, 3, n_parts, n_parts > 1, NUMBER_FP32, NUMBER_FP32);
    train(&b, 3, n_parts, n_parts > 1, NUMBER_FP32, NUMBER_FP32);
    store_fixture_same_stores(&a, &b);
    store_fixture_close(&a), store_fixture_close(&b);
}

TEST(what_is_held_and_not_updated_leaves_no_trace)
{
    const struct store_options options = options_of(&modes[4], NUMBER_BF16, NUMBER_BF16);
    struct store_fixture a, b;

    store_fixture_open_as(&a, store_fixture_small, true, &options);
    store_fixture_open_as(&b, store_fixture_small, true, &options);
    fold(&a, 2, &(struct given){.seed = 5, .first = true}, STORE_FOLD_HOLD, &hyper);
    store_fixture_same_stores(&a, &b);
    train(&a, 2, 1, true, NUMBER_FP32, NUMBER_FP32); /* the next step overwrites it */
    train(&b, 2, 1, true, NUMBER_FP32, NUMBER_FP32);
    store_fixture_same_stores(&a, &b);
    store_fixture_close(&a), store_fixture_close(&b);
}

/* By a power of two, which is exact: as if the gradient had been half as large. */
TEST(a_held_sum_is_scaled_before_it_is_folded)
{
    const struct store_options options = options_of(&modes[4], NUMBER_FP32, NUMBER_FP32);
    struct hyper half = hyper;
    struct store_fixture f;

    half.grad_scale = 0.5f;
    store_fixture_open_as(&f, store_fixture_small, false, &options);
    fold(&f, 2, &(struct given){.seed = 5, .first = true}, STORE_FOLD_HOLD, &half);
    store_update(&f.store, 2, STORE_FOLD_HOLD, &half);
    struct store_values x = store_fixture_values(&f, 2);
    for (uint64_t i = 0; i < f.model.units[2].n; i++) {
        const float g = 0.5f * gradient_at(i, 5, NUMBER_FP32);
        float w = 0, m = 0, v = 0;
        plain_step(&w, &m, &v, &g, 1, &hyper, 1, true); /* weights of 0 do not decay either way */
        ck_assert(x.w[i] == w && x.m[i] == m && x.v[i] == v);
    }
    store_values_free(&x);
    store_fixture_close(&f);
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
    fold(&f, unit, &(struct given){.seed = 5, .first = true}, STORE_FOLD_HOLD, &hyper);
    ck_assert_uint_eq(f.model.units[unit].n_slices, 2);
    for (uint64_t i = 0; i < f.model.units[unit].n; i++)
        want += (long double)gradient_at(i, 5, NUMBER_FP32) * gradient_at(i, 5, NUMBER_FP32);
    const double got = store_sum_squares(&f.store, unit);
    ck_assert_double_eq_tol(got, (double)want, 1e-12 * (double)want);
    for (int threads = 1; threads <= 5; threads++)
        for (int isa = OPTIMIZER_ISA_V2; isa <= OPTIMIZER_ISA_V4; isa++) {
            set_threads(threads);
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

/* The random word of an element, as eps/store/optimizer_kernel.h has it, from the published generator. */
static uint32_t word_of(struct random_key key, uint32_t part, uint64_t i)
{
    const uint64_t group = i / 64, lane = i % 64;
    uint32_t quad[4];

    random_quad(quad, key, part, group * 16 + lane % 32 / 2);
    return quad[lane / 32 * 2 + lane % 2];
}

/* One element from zero moments, AdamA with two parts, or AdamW: fp32 arithmetic, rounded by hand where it is kept. */
static void expect_two_parts(float *m, float *v, struct random_key key, uint64_t i, const uint64_t seeds[2])
{
    for (uint32_t part = 0; part < 2; part++) {
        const float g = gradient_at(i, seeds[part], NUMBER_FP32);
        const uint32_t word = word_of(key, part, i);
        plain_fold(m, v, &g, 1, &hyper, part == 0);
        *m = number_from_bf16(number_to_bf16_stochastic(*m, word & 0xffff));
        *v = number_from_v16(number_to_v16_stochastic(*v, word >> 16));
    }
}

TEST_EACH(sixteen_bit_moments_are_rounded_by_the_word_of_their_name, 12)
{
    const struct store_options options = {.train = true, .moments = NUMBER_BF16, .seed = 99};
    const uint32_t unit = 2;
    struct store_fixture f;

    if (!plain_use((enum optimizer_isa)(OPTIMIZER_ISA_V2 + _i % 3)))
        return;
    set_threads(1 + _i / 3);
    store_fixture_open_as(&f, _i < 9 ? store_fixture_cut : store_fixture_small, false, &options);
    f.store.kernel = plain_kernel;
    const struct model_unit *u = &f.model.units[unit];
    for (uint64_t t = 1; t <= 2; t++) {
        struct store_values before = store_fixture_values(&f, unit);
        const uint64_t seeds[2] = {t * 2, t * 2 + 1};
        for (uint32_t part = 0; part < 2; part++)
            fold(&f, unit, &(struct given){.seed = seeds[part], .part = part, .first = part == 0}, STORE_FOLD_MOMENTS,
                 &hyper);
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
    double squares = 0, *u = zeros(n, sizeof *u);

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
    double *w = zeros(u->n, 8), *m = zeros(u->n, 8), *v = zeros(u->n, 8), *g = zeros(u->n, 8);
    for (uint64_t i = 0; i < u->n; i++)
        w[i] = x.w[i];
    store_values_free(&x);
    for (uint64_t t = 1; t <= 3; t++) {
        for (uint64_t i = 0; i < u->n; i++)
            g[i] = (double)gradient_at(i, t * 2, NUMBER_FP32) + (tied ? gradient_at(i, t * 2 + 1, NUMBER_FP32) : 0);
        for (uint32_t visit = 0; visit < n_visits; visit++)
            fold(&f, unit, &(struct given){.seed = t * 2 + visit, .first = visit == 0}, how, &hyper);
        store_update(&f.store, unit, how, &hyper);
        for (uint32_t i = 0; i < u->n_pieces; i++) {
            const struct model_piece *p = &f.model.pieces[u->first_piece + i];
            expect_clipped(w + p->offset, m + p->offset, v + p->offset, g + p->offset, p->n, t, 0.5,
                           f.model.tensors[p->tensor].n_dims == 2);
        }
        x = store_fixture_values(&f, unit);
        for (uint64_t i = 0; i < u->n; i++)
            if (!(fabs(x.w[i] - w[i]) <= 1e-6 * hyper.lr + (double)t * 0x1p-24 * fabs(w[i])))
                ck_abort_msg("step %ju, element %ju: %.9g, not %.9g", (uintmax_t)t, (uintmax_t)i, x.w[i], w[i]);
        store_values_free(&x);
    }
    free(w), free(m), free(v), free(g);
    store_fixture_close(&f);
}

/* A bound that nothing reaches changes no bit, with fp32 moments. */
TEST_EACH(a_bound_that_is_not_reached_changes_nothing, MODES)
{
    struct store_options options = options_of(&modes[_i], NUMBER_FP32, NUMBER_FP32);
    struct store_fixture a, b;

    store_fixture_open_as(&a, store_fixture_small, true, &options);
    options.clip_update = 1e6;
    store_fixture_open_as(&b, store_fixture_small, true, &options);
    train(&a, 3, modes[_i].n_parts, modes[_i].adamw, NUMBER_FP32, NUMBER_FP32);
    train(&b, 3, modes[_i].n_parts, modes[_i].adamw, NUMBER_FP32, NUMBER_FP32);
    store_fixture_same_stores(&a, &b);
    store_fixture_close(&a), store_fixture_close(&b);
}

/* ---- memory ------------------------------------------------------------------------------------------------------ */

/* The plan knows nothing of the store, nor the store of the plan. */
TEST_EACH(the_ledger_is_what_the_plan_says, 32)
{
    const bool trains = _i & 1, fenced = _i >> 1 & 1 && trains, several = _i >> 4 & 1;
    const enum number_type precision = _i >> 2 & 1, moments = _i >> 3 & 1;
    struct store_options options = {.train = trains, .precision = precision, .moments = moments, .fenced = fenced};
    const struct plan_host_setting setting = {.goal = {.purpose = trains ? PLAN_TRAIN : PLAN_EVALUATE,
                                                       .precision = precision,
                                                       .moments = moments,
                                                       .fenced = fenced,
                                                       .adamw = true,
                                                       .n_parts = several ? 2 : 1,
                                                       .batch = 2,
                                                       .seq = 2},
                                              .n_workers = 1};
    const enum ledger_category own[] = {LEDGER_WEIGHTS, LEDGER_MASTER, LEDGER_FIRST_MOMENT, LEDGER_SECOND_MOMENT,
                                        LEDGER_SUM,     LEDGER_TIED,   LEDGER_ACCUMULATORS, LEDGER_OTHER};
    const double bytes =
        !trains ? (precision == NUMBER_BF16 ? 2 : 4) : (moments == NUMBER_BF16 ? 8 : 12) + (fenced ? 4 : 0);
    struct model_config config = store_fixture_small;
    struct store_fixture f;
    struct plan_host plan;
    uint64_t total = 0;

    config.n_layers = 600; /* whose tables are counted */
    options.n_accumulators = trains && several && !fenced ? 2 : 0;
    store_fixture_open_as(&f, config, true, &options);
    plan_host(&plan, &f.model, &setting);
    /* Tables of the job: squares, and where each save is; others are small. */
    plan.bytes[LEDGER_OTHER] -= f.model.n_units * (sizeof(double) + (trains ? PLAN_HOST_SAVES : 0));
    ck_assert_uint_eq(plan.n_accumulators, options.n_accumulators);
    for (size_t i = 0; i < sizeof own / sizeof *own; i++) {
        ck_assert_uint_eq(f.ledger.rows[own[i]].current, plan.bytes[own[i]]);
        total += plan.bytes[own[i]];
    }
    ck_assert_uint_eq(f.ledger.total.current, total);
    total -= plan.bytes[LEDGER_TIED] + plan.bytes[LEDGER_ACCUMULATORS] + plan.bytes[LEDGER_OTHER];
    ck_assert_double_eq((double)total / (double)f.model.segment_n, bytes);
    train(&f, trains ? 1 : 0, several ? 2 : 1, true, NUMBER_FP32, NUMBER_FP32);
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
                    ck_assert(round == 0 || halves[k][i] == 0x1234);
                    halves[k][i] = 0x1234;
                }
        }
        ck_assert_uint_gt(n_outside, 0);
        store_draw(&f.store, 1);
        train(&f, 2, modes[_i % MODES].n_parts, modes[_i % MODES].adamw, NUMBER_FP32, NUMBER_FP32);
    }
    store_fixture_close(&f);
}

/* Root may lock whatever it likes: somebody else tries. */
/* It gives up rights for good. */
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
    ck_assert_uint_ne(f.store.denied & 4, 0);                       /* MEMORY_LOCK */
    store_free(&f.store);
    options.require_pinned = true;
    ck_assert_int_eq(store_init(&f.store, &f.model, &options, &f.ledger, &err), -EPERM);
    ck_assert_ptr_nonnull(strstr(err.text, "`ulimit -l` is 8 KiB"));
    ck_assert_ptr_nonnull(strstr(err.text, "--require-pinned"));
    limit.rlim_cur = strtoull(err.text, NULL, 10) * 1024 - 1; /* the figure that it names is the one */
    ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    ck_assert_int_eq(store_init(&f.store, &f.model, &options, &f.ledger, &err), -EPERM);
    limit.rlim_cur++;
    ck_assert_int_eq(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
    ck_assert_int_eq(store_init(&f.store, &f.model, &options, &f.ledger, &err), 0);
    ck_assert_uint_eq(f.store.denied & 4, 0);
    store_fixture_close(&f);
}

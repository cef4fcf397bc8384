/* SGD in the store: how contributions come to an update in each mode, against float64; its bytes; its checkpoints. */
#include "tests/kit/inprocess/plain.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

#include "proto/plan/memory/host.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SUITE_LABELS(single)
SUITE_TIMEOUT(120)

enum { STEPS = 5 };

/* Every mode; what becomes of an untied unit's contributions, and of a tied one's. */
static const struct mode {
    double momentum;
    bool nesterov, fenced;
    uint32_t n_parts;
    enum store_fold how, tied;
    bool folded;
} modes[] = {
    {0.9, false, false, 1, STORE_FOLD_DIRECT, STORE_FOLD_MOMENTS, false},
    {0.9, false, false, 4, STORE_FOLD_MOMENTS, STORE_FOLD_SUM, false},
    {0.9, true, false, 1, STORE_FOLD_DIRECT, STORE_FOLD_SUM, false},
    {0.9, true, false, 4, STORE_FOLD_SUM, STORE_FOLD_SUM, false},
    {0, false, false, 1, STORE_FOLD_DIRECT, STORE_FOLD_SUM, false},
    {0, false, false, 4, STORE_FOLD_SUM, STORE_FOLD_SUM, false},
    {0.9, false, true, 4, STORE_FOLD_HOLD, STORE_FOLD_HOLD, false},
    {0.9, true, true, 1, STORE_FOLD_HOLD, STORE_FOLD_HOLD, false},
    {0, false, true, 4, STORE_FOLD_HOLD, STORE_FOLD_HOLD, false},
    {0.9, false, false, 1, STORE_FOLD_MOMENTS, STORE_FOLD_MOMENTS, true},
    {0.9, false, false, 4, STORE_FOLD_MOMENTS, STORE_FOLD_SUM, true},
};

static struct plan_goal goal_of(const struct mode *mode, enum number_type precision, enum number_type moments)
{
    return (struct plan_goal){.purpose = PLAN_TRAIN,
                              .precision = precision,
                              .moments = moments,
                              .fenced = mode->fenced,
                              .folded = mode->folded,
                              .sgd = true,
                              .nesterov = mode->nesterov,
                              .momentum = mode->momentum,
                              .batch = 4,
                              .seq = 4,
                              .n_parts = mode->n_parts};
}

static struct plan_host plan_of(const struct store_fixture *f, const struct plan_goal *goal, bool replay)
{
    const struct plan_host_setting setting = {.goal = *goal, .n_workers = 1, .replay = replay};
    struct plan_host host;

    plan_host(&host, &f->model, &setting);
    return host;
}

static void open_mode(struct store_fixture *f, const struct mode *mode, enum number_type precision,
                      enum number_type moments, bool replay)
{
    const struct plan_goal goal = goal_of(mode, precision, moments);
    struct store_options options = {.train = true,
                                    .precision = precision,
                                    .moments = moments,
                                    .fenced = mode->fenced,
                                    .folded = mode->folded,
                                    .replay = replay,
                                    .sgd = true,
                                    .nesterov = mode->nesterov,
                                    .momentum = mode->momentum,
                                    .n_parts = mode->n_parts,
                                    .seed = 7};

    store_fixture_open_as(f, store_fixture_small, true, &options);
    options.n_accumulators = plan_of(f, &goal, replay).n_accumulators;
    store_fixture_close(f);
    store_fixture_open_as(f, store_fixture_small, true, &options);
    store_draw(&f->store, 3);
}

static struct hyper hyper_of(const struct mode *mode)
{
    return (struct hyper){.lr = 0.05,
                          .weight_decay = 0.1,
                          .grad_scale = mode->fenced ? 0.75f : 1,
                          .sgd = true,
                          .nesterov = mode->nesterov,
                          .momentum = mode->momentum};
}

/* What a visit and a part of a step give to an element of a unit. */
static float given_at(uint64_t element, uint64_t t, uint32_t unit, uint32_t i)
{
    return plain_number(element, t * 100 + unit * 10 + i);
}

static void step(struct store_fixture *f, const struct mode *mode, uint32_t unit, uint64_t t)
{
    const struct model_unit *u = &f->model.units[unit];
    const struct hyper hp = hyper_of(mode);
    const struct plan_goal goal = goal_of(mode, NUMBER_FP32, NUMBER_FP32);
    const enum store_fold how = store_fold_kind(&f->store, unit, mode->n_parts, plan_sums_parts(&goal));
    float *g = plain_zeros(u->n, sizeof *g);

    ck_assert_int_eq(how, u->n_visits > 1 ? mode->tied : mode->how);
    for (uint32_t i = 0; i < u->n_visits * mode->n_parts; i++) {
        for (uint64_t k = 0; k < u->n_trained; k++)
            g[k] = given_at(k, t, unit, i);
        struct store_given given = store_fixture_given(f, unit, i, mode->n_parts);
        given.g = g;
        store_fixture_fold(f, unit, &given, how, &hp);
    }
    if (how == STORE_FOLD_HOLD)
        store_join(&f->store, unit);
    ck_assert_int_eq(store_update(&f->store, unit, how, &hp), 0);
    store_swap(&f->store, unit);
    free(g);
}

static void train(struct store_fixture *f, const struct mode *mode, uint64_t first, uint64_t n)
{
    for (uint64_t t = first; t < first + n; t++)
        for (uint32_t unit = 0; unit < f->model.n_units; unit++)
            step(f, mode, unit, t);
}

/* One piece, element by element: all steps of torch.optim.SGD in float64. The master is rounded once a step, and
 * momentum once a fold: (at most) 2^-24 of the largest partial result, which is below 2 visits * 4 parts / (1 -
 * 0.9). */
static void check_piece(const struct store_fixture *f, const struct mode *mode, const struct store_piece *at,
                        const float *w0, const struct store_values *x)
{
    const struct model_unit *u = &f->model.units[at->unit];
    const struct hyper hp = hyper_of(mode);
    const uint32_t n = u->n_visits * mode->n_parts;
    const double rounding = 0x1p-24 * (n + 1) * n / (1 - mode->momentum);

    for (uint64_t k = at->piece->offset; k < at->piece->offset + at->piece->n; k++) {
        double w = w0[k], m = 0;
        for (uint64_t t = 1; t <= STEPS; t++) {
            double grad = 0;
            for (uint32_t i = 0; i < n; i++)
                grad += given_at(k, t, at->unit, i);
            grad = grad * hp.grad_scale + (at->tensor->decays ? hp.weight_decay * w : 0);
            m = hp.momentum * m + grad;
            w -= hp.lr * (hp.nesterov ? grad + hp.momentum * m : m);
        }
        if (hp.momentum > 0 && !(fabs(x->m[k] - m) <= STEPS * rounding))
            ck_abort_msg("%s, element %ju: m %.9g, not %.9g", at->tensor->name, (uintmax_t)k, (double)x->m[k], m);
        if (!(fabs(x->w[k] - w) <= STEPS * (0x1p-24 * fmax(1, fabs(w)) + 2 * STEPS * hp.lr * rounding)))
            ck_abort_msg("%s, element %ju: w %.9g, not %.9g", at->tensor->name, (uintmax_t)k, (double)x->w[k], w);
    }
}

TEST_EACH(steps_are_those_of_float64, COUNT(modes) * NUMBER_TYPES)
{
    const struct mode *mode = &modes[_i / NUMBER_TYPES];
    struct store_fixture f;

    open_mode(&f, mode, (enum number_type)(_i % NUMBER_TYPES), NUMBER_FP32, false);
    struct store_values *start = plain_zeros(f.model.n_units, sizeof *start);
    for (uint32_t u = 0; u < f.model.n_units; u++)
        start[u] = store_fixture_values(&f, u);
    train(&f, mode, 1, STEPS);
    for (struct store_piece at = {0}; store_fixture_next(&f, &at);) {
        struct store_values x = store_fixture_values(&f, at.unit);
        check_piece(&f, mode, &at, start[at.unit].w, &x);
        store_values_free(&x);
    }
    for (uint32_t u = 0; u < f.model.n_units; u++)
        store_values_free(&start[u]);
    free(start);
    store_fixture_close(&f);
}

static struct mode fenced(const struct mode *mode)
{
    struct mode other = *mode;

    other.fenced = true, other.how = other.tied = STORE_FOLD_HOLD;
    return other;
}

/* A split master, replay, and a fenced commit of what is summed anyway, or comes alone. */
TEST_EACH(form_replay_and_commit_change_no_bit, COUNT(modes) * 3)
{
    const struct mode *mode = &modes[_i / 3];
    const struct mode other = _i % 3 == 2 ? fenced(mode) : *mode;
    const struct hyper hp = hyper_of(mode);
    struct store_fixture a, b;

    if (_i % 3 > 0 && (mode->fenced || mode->folded))
        TEST_SKIP("not eager");
    open_mode(&a, mode, NUMBER_FP32, NUMBER_FP32, false);
    open_mode(&b, &other, _i % 3 == 0 ? NUMBER_BF16 : NUMBER_FP32, NUMBER_FP32, _i % 3 == 1);
    for (uint64_t t = 1; t <= 4; t++)
        for (uint32_t unit = 0; unit < a.model.n_units; unit++) {
            step(&a, mode, unit, t);
            if (_i % 3 < 2) {
                step(&b, &other, unit, t);
                continue;
            }
            float *g = plain_zeros(a.model.units[unit].n, sizeof *g); /* unscaled */
            for (uint32_t i = 0; i < a.model.units[unit].n_visits * mode->n_parts; i++) {
                for (uint64_t k = 0; k < a.model.units[unit].n; k++)
                    g[k] = given_at(k, t, unit, i);
                struct store_given given = store_fixture_given(&b, unit, i, mode->n_parts);
                given.g = g;
                store_fixture_fold(&b, unit, &given, STORE_FOLD_HOLD, &hp);
            }
            store_join(&b.store, unit);
            ck_assert_int_eq(store_update(&b.store, unit, STORE_FOLD_HOLD, &hp), 0);
            free(g);
        }
    for (uint32_t unit = 0; unit < a.model.n_units; unit++) {
        const bool tied = a.model.units[unit].n_visits > 1;
        struct store_values x = store_fixture_values(&a, unit), y = store_fixture_values(&b, unit);
        if (_i % 3 < 2 || (tied ? mode->tied : mode->how) != STORE_FOLD_MOMENTS) {
            store_fixture_same(x.w, y.w, a.model.units[unit].n, "weights");
            store_fixture_same(x.m, y.m, a.model.units[unit].n, "momentum");
        }
        store_values_free(&x), store_values_free(&y);
    }
    store_fixture_close(&a), store_fixture_close(&b);
}

/* Bytes of the ledger: by hand what a parameter takes, and to the byte what the plan says. */
TEST_EACH(the_ledger_has_what_the_plan_says, COUNT(modes) * NUMBER_TYPES * 2)
{
    const struct mode *mode = &modes[_i / (NUMBER_TYPES * 2)];
    const enum number_type precision = (enum number_type)(_i % NUMBER_TYPES),
                           moments = (enum number_type)(_i / NUMBER_TYPES % 2);
    static const enum ledger_category categories[] = {LEDGER_WEIGHTS,       LEDGER_REPLAY,
                                                      LEDGER_MASTER,        LEDGER_FIRST_MOMENT,
                                                      LEDGER_SECOND_MOMENT, LEDGER_TIED,
                                                      LEDGER_ACCUMULATORS,  LEDGER_SUM};
    const struct plan_goal goal = goal_of(mode, precision, moments);
    struct store_fixture f;

    open_mode(&f, mode, precision, moments, false);
    const struct plan_host host = plan_of(&f, &goal, false);
    for (int i = 0; i < COUNT(categories); i++)
        ck_assert_uint_eq(f.ledger.rows[categories[i]].current, host.bytes[categories[i]]);
    const uint64_t n = f.model.trained_n, folds = mode->momentum > 0 && !mode->nesterov;
    ck_assert_uint_eq(host.bytes[LEDGER_WEIGHTS] + host.bytes[LEDGER_MASTER], 4 * n);
    ck_assert_uint_eq(host.bytes[LEDGER_FIRST_MOMENT], mode->momentum > 0 ? number_bytes(moments) * n : 0);
    ck_assert_uint_eq(host.bytes[LEDGER_SECOND_MOMENT], 0);
    ck_assert_uint_eq(host.bytes[LEDGER_SUM], mode->fenced ? 4 * n : 0);
    ck_assert_int_eq(host.bytes[LEDGER_TIED] > 0, mode->n_parts > 1 || (!mode->fenced && !folds));
    ck_assert_uint_eq(host.n_accumulators, !folds && !mode->fenced && mode->n_parts > 1 ? 2 : 0);
    store_fixture_close(&f);
}

/* Both visits of a tied unit fold the same part: their roundings are drawn apart, as those of neighbours are. The
 * gradient is a quarter of bf16's spacing above 1: m is rounded up a quarter of the times, and at the second fold
 * again. */
TEST(two_visits_of_one_part_are_rounded_apart)
{
    const struct mode *mode = &modes[0];
    const struct hyper hp = {.lr = 1e-3, .grad_scale = 1, .sgd = true, .momentum = 0.9};
    struct store_fixture f;
    uint64_t n = 0;
    double first_up = 0, second_up = 0, both = 0;

    open_mode(&f, mode, NUMBER_FP32, NUMBER_BF16, false);
    for (uint64_t t = 0; t < 200; t++)
        for (uint32_t unit = 0; unit < f.model.n_units; unit++) {
            const struct model_unit *u = &f.model.units[unit];
            if (u->n_visits < 2)
                continue;
            float *g = plain_zeros(u->n, sizeof *g), *small = plain_zeros(u->n, sizeof *g);
            struct parameters p = store_parameters(&f.store, unit, 0, u->n, 0);
            memset(p.m16, 0, u->n * sizeof *p.m16);
            for (uint64_t k = 0; k < u->n; k++)
                g[k] = 1 + 0x1p-9f, small[k] = 0x1p-9f;
            store_fixture_fold(&f, unit, &(struct store_given){.g = g, .first = true}, STORE_FOLD_MOMENTS, &hp);
            for (uint64_t k = 0; k < u->n; k++)
                g[k] = number_from_bf16(p.m16[k]);
            store_fixture_fold(&f, unit, &(struct store_given){.g = small, .visit = 3}, STORE_FOLD_MOMENTS, &hp);
            for (uint64_t k = 0; k < u->n; k++, n++) {
                const double up = (g[k] - 1) * 0x1p7f, again = (number_from_bf16(p.m16[k]) - g[k]) * 0x1p7f;
                first_up += up, second_up += again;
                both += (up - 0.25) * (again - 0.25);
            }
            ck_assert_int_eq(store_update(&f.store, unit, STORE_FOLD_MOMENTS, &hp), 0);
            free(g), free(small);
        }
    const double sigma = sqrt(0.1875 / (double)n); /* of a quarter; of a product of two, 0.1875 / sqrt(n) */
    ck_assert_double_eq_tol(first_up / (double)n, 0.25, 5 * sigma);
    ck_assert_double_eq_tol(second_up / (double)n, 0.25, 5 * sigma);
    ck_assert_double_le(fabs(both / (double)n), 5 * 0.1875 / sqrt((double)n));
    store_fixture_close(&f);
}

/* ---- checkpoints ------------------------------------------------------------------------------------------------- */

/* A file with the store's momentum, and which moments it has. */
static int save_moments(const struct store_fixture *f, unsigned *n_first, unsigned *n_second)
{
    const int weights = store_fixture_file(), moments = store_fixture_file();
    struct safetensors file;
    struct error err = {""};

    store_fixture_write(&f->store, weights, moments, NULL);
    ck_assert_msg(safetensors_open(&file, moments, &err) == 0, "%s", err.text);
    *n_first = *n_second = 0;
    for (size_t i = 0; i < file.n_entries; i++) {
        *n_first += strncmp(file.entries[i].name, "m.", 2) == 0;
        *n_second += strncmp(file.entries[i].name, "v.", 2) == 0;
    }
    ck_assert_uint_eq(file.n_entries, 1 + *n_first + *n_second);
    ck_assert_ptr_nonnull(safetensors_find(&file, "updates"));
    safetensors_close(&file);
    close(weights);
    return moments;
}

TEST_EACH(saved_and_loaded_it_goes_on_bit_for_bit, COUNT(modes) * 2)
{
    const struct mode *mode = &modes[_i / 2];
    const enum number_type moments = (enum number_type)(_i % 2);
    struct store_fixture on, again;
    unsigned n_first, n_second;

    open_mode(&on, mode, NUMBER_BF16, moments, false);
    open_mode(&again, mode, NUMBER_BF16, moments, !mode->fenced && !mode->folded);
    train(&on, mode, 1, 2);
    close(save_moments(&on, &n_first, &n_second));
    ck_assert_uint_eq(n_first, mode->momentum > 0 ? on.model.n_trained_tensors : 0);
    ck_assert_uint_eq(n_second, 0);
    store_fixture_reload(&again, &on);
    train(&on, mode, 3, 2);
    train(&again, mode, 3, 2);
    store_fixture_same_stores(&on, &again);
    store_fixture_close(&on), store_fixture_close(&again);
}

/* Adam's moments are no SGD's, and the other way round; nor is a run without momentum one with it. */
TEST(moments_of_another_optimizer_are_refused_by_name)
{
    static const struct {
        int of, to; /* modes; -1: Adam */
        const char *why;
    } cases[] = {
        {-1, 0, "is none of this optimizer's moments; was the run trained by another one?"},
        {-1, 4, "is none of this optimizer's moments; was the run trained by another one?"},
        {0, -1, "v.transformer.wte.weight is missing"},
        {0, 4, "is none of this optimizer's moments; was the run trained by another one?"},
        {4, 0, "m.transformer.wte.weight is missing"},
    };

    for (int i = 0; i < COUNT(cases); i++) {
        struct store_fixture from, to;
        struct error err = {""};
        unsigned n_first, n_second;

        for (int k = 0; k < 2; k++) {
            const int mode = k ? cases[i].to : cases[i].of;
            if (mode < 0)
                store_fixture_open(k ? &to : &from, store_fixture_small, true, 0);
            else
                open_mode(k ? &to : &from, &modes[mode], NUMBER_FP32, NUMBER_FP32, false);
        }
        const struct file file = file_own(save_moments(&from, &n_first, &n_second));
        ck_assert_int_eq(store_fixture_load_moments(&to.store, &file, &err), -EINVAL);
        ck_assert_msg(strstr(err.text, cases[i].why) != NULL, "%d: %s", i, err.text);
        close(file.fd);
        store_fixture_close(&from), store_fixture_close(&to);
    }
}

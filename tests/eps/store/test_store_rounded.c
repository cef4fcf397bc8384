/* What the store keeps in 16 bits alone and rounds stochastically: weights without a master, sums of a fenced
 * commit. */
#include "tests/kit/inprocess/plain.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

#include "proto/plan/memory/host.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SEED = 99, UNIT = 2 };

/* The ways of an update: at once; folded first; from sums; SGD, whose decay is a part of the gradient. */
static const struct way {
    struct hyper hyper;
    uint32_t n_parts;
    enum store_fold how;
} ways[] = {
    {{.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.5, .grad_scale = 1},
     1,
     STORE_FOLD_DIRECT},
    {{.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.5, .grad_scale = 1},
     3,
     STORE_FOLD_MOMENTS},
    {{.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.5, .grad_scale = 0.75f},
     3,
     STORE_FOLD_HOLD},
    {{.lr = 0.05, .weight_decay = 0.1, .grad_scale = 1, .sgd = true, .momentum = 0.9}, 3, STORE_FOLD_MOMENTS},
};

static struct store_options options_of(const struct way *way, enum number_type precision)
{
    return (struct store_options){.train = true,
                                  .precision = precision,
                                  .no_master = precision != NUMBER_FP32,
                                  .fenced = way->how == STORE_FOLD_HOLD,
                                  .sgd = way->hyper.sgd,
                                  .momentum = way->hyper.momentum,
                                  .seed = SEED};
}

/* Part `part` of a step's gradient. */
static float *gradient_of(uint64_t n, uint64_t t, uint32_t part)
{
    float *g = plain_zeros(n, sizeof *g);

    for (uint64_t i = 0; i < n; i++)
        g[i] = plain_number(i, t * 10 + part);
    return g;
}

static void step(struct store_fixture *f, uint32_t unit, const struct way *way, uint64_t t)
{
    for (uint32_t part = 0; part < way->n_parts; part++) {
        float *g = gradient_of(f->model.units[unit].n, t, part);
        store_fixture_fold(f, unit, &(struct store_given){.g = g, .first = part == 0, .part = part}, way->how,
                           &way->hyper);
        free(g);
    }
    ck_assert_int_eq(store_update(&f->store, unit, way->how, &way->hyper), 0);
    store_swap(&f->store, unit);
}

/* The step in fp32: no rounding of weights but fp32's. */
static void step_plain(struct store_values *x, const struct store_fixture *f, const struct way *way, uint64_t t)
{
    const struct model_unit *u = &f->model.units[UNIT];
    float *sum = plain_zeros(u->n, sizeof *sum);

    for (const struct model_piece *p = &f->model.pieces[u->first_piece], *end = p + u->n_pieces; p < end; p++) {
        const bool decays = f->model.tensors[p->tensor].n_dims == 2;
        float *const w = x->w + p->offset, *const m = x->m + p->offset,
                     *const v = way->hyper.sgd ? NULL : x->v + p->offset;
        const struct parameters all = plain_parameters(w, m, v, p->n);
        for (uint32_t part = 0; part < way->n_parts; part++) {
            float *g = gradient_of(u->n, t, part);
            const struct gradient of = {g + p->offset, NUMBER_FP32, 1};
            if (way->how == STORE_FOLD_DIRECT)
                optimizer_step(&all, &of, &way->hyper, t, decays);
            else if (way->how == STORE_FOLD_MOMENTS)
                optimizer_fold(&all, &of, &way->hyper, part == 0, decays);
            else
                plain_sum(sum + p->offset, g + p->offset, p->n, part == 0);
            free(g);
        }
        if (way->how == STORE_FOLD_MOMENTS)
            optimizer_update(&all, &way->hyper, t, decays, 1);
        else if (way->how == STORE_FOLD_HOLD)
            optimizer_step(&all, &(struct gradient){sum + p->offset, NUMBER_FP32, way->hyper.grad_scale}, &way->hyper,
                           t, decays);
    }
    free(sum);
}

static float rounded(enum number_type type, float x, uint16_t bits)
{
    return type == NUMBER_FP16 ? number_from_fp16(number_to_fp16_stochastic(x, bits))
                               : number_from_bf16(number_to_bf16_stochastic(x, bits));
}

/* As an update in fp32 from the weights that workers had, then rounded by the element's own bits; by each instruction
 * set, some threads, and with replay, which writes elsewhere. */
TEST_EACH(a_new_weight_is_rounded_by_the_bits_of_its_name, 2 * COUNT(ways) * 3)
{
    const enum number_type precision = _i % 2 ? NUMBER_FP16 : NUMBER_BF16;
    const struct way *way = &ways[_i / 2 % COUNT(ways)];
    struct store_options options = options_of(way, precision);
    const int isa = _i / 2 / COUNT(ways);
    struct store_fixture f;

    if (!plain_use((enum optimizer_isa)(OPTIMIZER_ISA_V2 + isa)))
        TEST_SKIP("this processor lacks the instructions");
    plain_set_threads(1 + isa);
    options.replay = isa == 1 && !options.fenced;
    store_fixture_open_as(&f, isa < 2 ? store_fixture_cut : store_fixture_small, false, &options);
    f.store.kernel = plain_kernel;
    store_draw(&f.store, 3);
    ck_assert_ptr_null(f.store.low);
    for (uint64_t t = 1; t <= 3; t++) {
        struct store_values want = store_fixture_values(&f, UNIT);
        step(&f, UNIT, way, t);
        step_plain(&want, &f, way, t);
        struct store_values got = store_fixture_values(&f, UNIT);
        const struct model_unit *u = &f.model.units[UNIT];
        const struct random_key key = random_site_key(SEED, t, u->id, RANDOM_UPDATE);
        for (uint64_t i = 0; i < u->n; i++) {
            const float w = rounded(precision, want.w[i], plain_bits(key, 0, i));
            if (got.w[i] != w || got.m[i] != want.m[i] || got.v[i] != want.v[i])
                ck_abort_msg("step %ju, element %ju: w %a, not %a; m %a, not %a", (uintmax_t)t, (uintmax_t)i, got.w[i],
                             w, got.m[i], want.m[i]);
        }
        store_values_free(&want), store_values_free(&got);
    }
    store_fixture_close(&f);
}

/* Of a thirty-second of bf16's spacing at 1.5, where rounding to nearest would leave all weights as they are: each of n
 * steps goes down by a whole space in one case of 32, so their number is binomial. */
TEST(steps_below_the_spacing_count_on_average)
{
    enum { STEPS = 16, REPEATS = 30 };
    const double spacing = 0x1p-7, share = 1.0 / 32;
    const struct hyper hp = {.lr = spacing * share, .grad_scale = 1, .sgd = true};
    const struct store_options options = {
        .train = true, .precision = NUMBER_BF16, .no_master = true, .sgd = true, .seed = SEED};
    double down = 0, n = 0;
    struct store_fixture f;

    store_fixture_open_as(&f, store_fixture_small, false, &options);
    const uint64_t n_unit = f.model.units[UNIT].n;
    float *g = plain_zeros(n_unit, sizeof *g), *w = plain_zeros(n_unit, sizeof *w);
    for (int repeat = 0; repeat < REPEATS; repeat++) {
        struct parameters p = store_parameters(&f.store, UNIT, 0, n_unit, 0);
        for (uint64_t i = 0; i < n_unit; i++)
            g[i] = 1, w[i] = 1.5f;
        optimizer_write(&p, w, NULL, NULL);
        for (int t = 0; t < STEPS; t++) {
            store_fixture_fold(&f, UNIT, &(struct store_given){.g = g, .first = true}, STORE_FOLD_DIRECT, &hp);
            ck_assert_int_eq(store_update(&f.store, UNIT, STORE_FOLD_DIRECT, &hp), 0);
        }
        optimizer_read(&p, w, NULL, NULL);
        for (uint64_t i = 0; i < n_unit; i++, n += STEPS)
            down += (1.5 - (double)w[i]) / spacing;
    }
    ck_assert_double_ge(n, 1e5);
    ck_assert_double_eq_tol(down / n, share, 5 * sqrt(share * (1 - share) / n));
    free(g), free(w);
    store_fixture_close(&f);
}

TEST_EACH(saved_and_loaded_it_goes_on_bit_for_bit, 2 * COUNT(ways))
{
    const struct way *way = &ways[_i / 2];
    const struct store_options options = options_of(way, _i % 2 ? NUMBER_FP16 : NUMBER_BF16);
    struct store_fixture on, again;

    store_fixture_open_as(&on, store_fixture_small, false, &options);
    store_fixture_open_as(&again, store_fixture_small, false, &options);
    store_draw(&on.store, 3);
    for (uint32_t unit = 0; unit < on.model.n_units; unit++)
        step(&on, unit, way, 1);
    store_fixture_reload(&again, &on);
    for (uint32_t unit = 0; unit < on.model.n_units; unit++)
        step(&on, unit, way, 2), step(&again, unit, way, 2);
    store_fixture_same_stores(&on, &again);
    store_fixture_close(&on), store_fixture_close(&again);
}

/* ---- sums -------------------------------------------------------------------------------------------------------- */

static const struct store_options summing = {.train = true, .fenced = true, .sums = NUMBER_BF16, .seed = SEED};

/* Each addition, of parts and of a tied unit's visits, is rounded by bits of its own. The update has the sum times the
 * step's scale, and the sum of squares is that of the sums as they are held. */
TEST_EACH(a_sum_in_bf16_is_rounded_at_each_addition, 6)
{
    const struct hyper *const hp = &ways[2].hyper;
    const uint32_t unit = _i % 2 ? UNIT : 0;
    struct store_fixture f;
    long double squares = 0;

    if (!plain_use((enum optimizer_isa)(OPTIMIZER_ISA_V2 + _i / 2)))
        TEST_SKIP("this processor lacks the instructions");
    plain_set_threads(1 + _i / 2);
    store_fixture_open_as(&f, store_fixture_small, true, &summing);
    f.store.kernel = plain_kernel;
    const struct model_unit *u = &f.model.units[unit];
    const struct random_key key = random_site_key(SEED, 1, u->id, RANDOM_SUM);
    float *sum = plain_zeros(u->n, sizeof *sum);
    for (uint32_t i = 0; i < 3 * u->n_visits; i++) {
        const uint32_t part = i % 3, visit = i / 3;
        float *g = gradient_of(u->n, 1, i);
        const struct store_given given = {.g = g, .first = i == 0, .part = part, .visit = visit};
        store_fixture_fold(&f, unit, &given, STORE_FOLD_HOLD, hp);
        for (uint64_t k = 0; k < u->n; k++)
            sum[k] = rounded(NUMBER_BF16, sum[k] + g[k], plain_bits(key, (uint64_t)visit << 32 | part, k));
        free(g);
    }
    ck_assert_ptr_null(f.store.held);
    for (uint64_t k = 0; k < u->n; k++) {
        if (number_from_bf16(f.store.held16[u->trained_offset + k]) != sum[k])
            ck_abort_msg("element %ju: %a, not %a", (uintmax_t)k,
                         number_from_bf16(f.store.held16[u->trained_offset + k]), sum[k]);
        squares += (long double)sum[k] * sum[k];
    }
    ck_assert_double_eq_tol(store_sum_squares(&f.store, unit), (double)squares, 1e-12 * (double)squares);
    struct store_values want = store_fixture_values(&f, unit);
    ck_assert_int_eq(store_update(&f.store, unit, STORE_FOLD_HOLD, hp), 0);
    for (const struct model_piece *p = &f.model.pieces[u->first_piece], *end = p + u->n_pieces; p < end; p++) {
        const struct parameters all =
            plain_parameters(want.w + p->offset, want.m + p->offset, want.v + p->offset, p->n);
        optimizer_step(&all, &(struct gradient){sum + p->offset, NUMBER_FP32, hp->grad_scale}, hp, 1,
                       f.model.tensors[p->tensor].n_dims == 2);
    }
    struct store_values got = store_fixture_values(&f, unit);
    store_fixture_same(got.w, want.w, u->n, "w");
    store_fixture_same(got.m, want.m, u->n, "m");
    store_fixture_same(got.v, want.v, u->n, "v");
    store_values_free(&want), store_values_free(&got);
    free(sum);
    store_fixture_close(&f);
}

/* One part in bf16 is held as it came. Two of the largest numbers have no sum, and stay without one. */
TEST(a_sum_of_one_is_exact_and_one_that_overflows_is_infinite)
{
    struct store_fixture f;

    store_fixture_open_as(&f, store_fixture_small, false, &summing);
    const struct model_unit *u = &f.model.units[UNIT];
    uint16_t *g = plain_zeros(u->n, sizeof *g);
    for (uint64_t i = 0; i < u->n; i++)
        g[i] = i % 5 ? number_to_bf16(plain_number(i, 4)) : 0x7f7f;
    const struct store_contribution first = {.g = g, .type = NUMBER_BF16, .first = true};
    const struct store_contribution more[] = {{.g = g, .type = NUMBER_BF16, .part = 1},
                                              {.g = g, .type = NUMBER_BF16, .part = 2}};
    ck_assert_uint_eq(u->n_slices, 1);
    ck_assert_int_eq(store_fold(&f.store, UNIT, 0, &first, STORE_FOLD_HOLD, &ways[2].hyper), 0);
    ck_assert_mem_eq(f.store.held16 + u->trained_offset, g, u->n * sizeof *g);
    for (int i = 0; i < COUNT(more); i++) {
        ck_assert_int_eq(store_fold(&f.store, UNIT, 0, &more[i], STORE_FOLD_HOLD, &ways[2].hyper), 0);
        ck_assert_uint_eq(f.store.held16[u->trained_offset], 0x7f80);
        ck_assert(isinf(store_sum_squares(&f.store, UNIT)));
    }
    free(g);
    store_fixture_close(&f);
}

/* 2 bytes of the low halves less, and 2 of the sums; in several parts, another sum of the tied table. */
TEST_EACH(the_ledger_has_what_was_planned, 8)
{
    static const enum ledger_category categories[] = {LEDGER_WEIGHTS,       LEDGER_MASTER, LEDGER_FIRST_MOMENT,
                                                      LEDGER_SECOND_MOMENT, LEDGER_SUM,    LEDGER_TIED};
    const bool no_master = _i % 2, narrow = _i / 2 % 2, tied = _i / 4;
    const uint32_t n_parts = tied ? 3 : 1;
    const struct store_options options = {.train = true,
                                          .fenced = true,
                                          .precision = NUMBER_FP16,
                                          .no_master = no_master,
                                          .sums = narrow ? NUMBER_BF16 : NUMBER_FP32,
                                          .n_parts = n_parts};
    const struct plan_host_setting setting = {.goal = {.purpose = PLAN_TRAIN,
                                                       .precision = NUMBER_FP16,
                                                       .no_master = no_master,
                                                       .fenced = true,
                                                       .sums = options.sums,
                                                       .n_parts = n_parts},
                                              .n_workers = 1};
    struct store_fixture f;
    struct plan_host host;

    store_fixture_open_as(&f, store_fixture_cut, tied, &options);
    plan_host(&host, &f.model, &setting);
    for (size_t i = 0; i < COUNT(categories); i++)
        ck_assert_uint_eq(f.ledger.rows[categories[i]].current, host.bytes[categories[i]]);
    ck_assert_uint_eq(host.bytes[LEDGER_MASTER], no_master ? 0 : 2 * f.model.trained_n);
    ck_assert_uint_eq(host.bytes[LEDGER_SUM], (narrow ? 2 : 4) * f.model.trained_n);
    ck_assert_int_eq(host.bytes[LEDGER_TIED] > 0, tied);
    store_fixture_close(&f);
}

/* What a tied unit's visit has been given, as it is held. */
static float held(const struct store_fixture *f, const struct model_unit *u, bool lower, uint64_t k)
{
    const uint64_t at = u->trained_offset + k;

    if (f->store.held16)
        return number_from_bf16((lower ? f->store.tied16 : f->store.held16)[at]);
    return (lower ? f->store.tied : f->store.held)[at];
}

/* Four parts of two visits: in one group, in two, one by one; and the lower visit first. Each is numbered in fold
 * order. */
static const uint8_t orders[][8] = {{0, 1, 2, 3, 4, 5, 6, 7},
                                    {0, 1, 4, 5, 2, 3, 6, 7},
                                    {0, 4, 1, 5, 2, 6, 3, 7},
                                    {4, 5, 6, 7, 0, 1, 2, 3}};

static void fold_in_order(struct store_fixture *f, uint32_t unit, const uint8_t order[8])
{
    for (int i = 0; i < 8; i++) {
        float *g = gradient_of(f->model.units[unit].n, 1, order[i]);
        struct store_given given = store_fixture_given(f, unit, order[i], 4);
        given.g = g;
        store_fixture_fold(f, unit, &given, STORE_FOLD_HOLD, &ways[2].hyper);
        free(g);
    }
}

/* The gradient of a tied table is the sum over the head's parts and that over the embedding's, added once: by hand in
 * fp32, in either type the same whichever of them comes first. Two units of a table; an earlier step has left its
 * sums. */
TEST_EACH(a_tied_table_s_visits_are_summed_apart_and_joined_once, 2)
{
    struct store_options options = summing;
    struct store_fixture f, other;

    options.sums = _i ? NUMBER_BF16 : NUMBER_FP32, options.n_parts = 4;
    store_fixture_open_as(&f, store_fixture_cut, true, &options);
    ck_assert(f.model.units[0].n_visits == 2 && f.model.units[1].n_visits == 2);
    for (int i = 0; i < COUNT(orders); i++) {
        store_fixture_open_as(&other, store_fixture_cut, true, &options);
        for (uint32_t unit = 0; unit < 2; unit++) {
            const struct model_unit *u = &f.model.units[unit];
            fold_in_order(&other, unit, orders[i]);
            if (i == 0)
                fold_in_order(&f, unit, orders[2]), fold_in_order(&f, unit, orders[0]);
            float *sums[2] = {plain_zeros(u->n, sizeof(float)), plain_zeros(u->n, sizeof(float))};
            for (int k = 0; k < 8; k++) {
                float *g = gradient_of(u->n, 1, (uint32_t)k);
                plain_sum(sums[k / 4], g, u->n, k % 4 == 0);
                free(g);
            }
            for (uint64_t k = 0; _i == 0 && k < u->n; k++)
                ck_assert(held(&other, u, false, k) == sums[0][k] && held(&other, u, true, k) == sums[1][k]);
            store_join(&other.store, unit);
            if (i == 0)
                store_join(&f.store, unit);
            for (uint64_t k = 0; k < u->n; k++) {
                ck_assert(held(&other, u, false, k) == held(&f, u, false, k));
                ck_assert(_i || held(&other, u, false, k) == sums[0][k] + sums[1][k]);
            }
            ck_assert_double_eq(store_sum_squares(&other.store, unit), store_sum_squares(&f.store, unit));
            free(sums[0]), free(sums[1]);
        }
        store_fixture_close(&other);
    }
    store_fixture_close(&f);
}

/* One sum, in the order in which its visits come. */
TEST(a_tied_table_of_one_part_has_one_sum)
{
    struct store_options options = summing;
    struct store_fixture f;

    options.sums = NUMBER_FP32, options.n_parts = 1;
    store_fixture_open_as(&f, store_fixture_cut, true, &options);
    ck_assert_ptr_null(f.store.tied);
    store_join(&f.store, 0); /* there is nothing to add */
    store_fixture_close(&f);
}

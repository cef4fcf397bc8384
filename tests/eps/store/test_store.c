#include "tests/kit/plain.h"
#include "tests/kit/store_fixture.h"
#include "tests/kit/test.h"

#include "proto/base/random.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#ifdef _OPENMP
#include <omp.h>
#endif

SUITE_LABELS(long)

static const struct hyper hyper = {.lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.5};

static float *floats(uint64_t n)
{
    float *x = calloc(n, sizeof *x);

    ck_assert_ptr_nonnull(x);
    return x;
}

static float *gradient(uint64_t n, uint64_t seed)
{
    float *g = floats(n);

    for (uint64_t i = 0; i < n; i++) /* a cheap mix, within -1 and 1 */
        g[i] = (float)(int32_t)((uint32_t)(i + seed * 1000003) * 2654435761u) * 0x1p-31f;
    return g;
}

/* Folds a whole unit's contribution, slice by slice, the top one first: their order does not matter. */
static void fold_unit(struct store *store, uint32_t unit, const float *g, bool first, enum store_fold how)
{
    for (uint32_t slice = store->model->units[unit].n_slices; slice-- > 0;)
        ck_assert(plain_store_fold(store, unit, slice, g + (uint64_t)slice * MODEL_SLICE, first, how, &hyper));
}

/* The unit's weights and moments after steps as the optimizer makes them, piece by piece. */
struct expected {
    float *w, *m, *v;
};

static struct expected expect(const struct store_fixture *f, uint32_t unit)
{
    const uint64_t n = f->model.units[unit].n;
    struct expected e = {floats(n), floats(n), floats(n)};

    memcpy(e.w, store_weights(&f->store, unit), n * sizeof *e.w);
    return e;
}

static void expect_step(struct expected *e, const struct store_fixture *f, uint32_t unit, const float *g, uint64_t t)
{
    const struct model_unit *u = &f->model.units[unit];

    for (uint32_t i = 0; i < u->n_pieces; i++) {
        const struct model_piece *p = &f->model.pieces[u->first_piece + i];
        const bool is_matrix = f->model.tensors[p->tensor].n_dims == 2; /* those decay */
        plain_step(e->w + p->offset, e->m + p->offset, e->v + p->offset, g + p->offset, p->n, &hyper, t, is_matrix);
    }
}

static void check_and_free(struct expected *e, const struct store_fixture *f, uint32_t unit)
{
    const struct model_unit *u = &f->model.units[unit];

    store_fixture_same(store_weights(&f->store, unit), e->w, u->n, "w");
    store_fixture_same(f->store.m + u->offset, e->m, u->n, "m");
    store_fixture_same(f->store.v + u->offset, e->v, u->n, "v");
    free(e->w), free(e->m), free(e->v);
}

SUITE_TIMEOUT(60)

TEST(a_drawn_weight_depends_on_seed_tensor_and_index_alone)
{
    const struct random_key key = random_site_key(42, 0, 0, RANDOM_WEIGHTS);
    struct store_fixture f;

    store_fixture_open(&f, store_fixture_cut, false, 0);
#ifdef _OPENMP
    omp_set_num_threads(3);
#endif
    store_draw(&f.store, 42);
    for (uint32_t u = 0; u < f.model.n_units; u++)
        for (uint32_t i = 0; i < f.model.units[u].n_pieces; i++) {
            const struct model_piece *p = &f.model.pieces[f.model.units[u].first_piece + i];
            const struct model_tensor *tensor = &f.model.tensors[p->tensor];
            const float *w = store_weights(&f.store, u) + p->offset;
            for (uint64_t k = 0; k<p->n; k += p->n> 2000 ? 997 : 1) {
                float want = tensor->init == MODEL_INIT_ONE;
                if (tensor->init == MODEL_INIT_NORMAL) {
                    random_normal(&want, key, p->tensor, p->first_row * tensor->shape[1] + k, 1);
                    want *= tensor->deviation;
                }
                if (w[k] != want)
                    ck_abort_msg("%s, unit %u, element %ju: %a, not %a", tensor->name, u, (uintmax_t)k, w[k], want);
            }
        }
    store_fixture_close(&f);
}

/* The block of `store_fixture_big` is two slices, the cut between them inside a tensor. */
TEST(a_direct_fold_is_adamw_tensor_by_tensor)
{
    struct store_fixture f;

    store_fixture_open(&f, store_fixture_big, false, 0);
    store_draw(&f.store, 1);
    for (uint32_t unit = 0; unit < f.model.n_units; unit++) {
        struct expected e = expect(&f, unit);
        for (uint64_t t = 1; t <= 2; t++) {
            float *g = gradient(f.model.units[unit].n, t);
            fold_unit(&f.store, unit, g, true, STORE_FOLD_DIRECT);
            store_update(&f.store, unit, STORE_FOLD_DIRECT, &hyper);
            expect_step(&e, &f, unit, g, t);
            ck_assert_uint_eq(f.store.updates[unit], t);
            free(g);
        }
        check_and_free(&e, &f, unit);
    }
    ck_assert_uint_eq(f.model.largest_unit > MODEL_SLICE, 1);
    store_fixture_close(&f);
}

/* One part: all three ways are AdamW, bit for bit. */
TEST_RANGE(with_one_part_every_way_gives_the_same_bits, STORE_FOLD_DIRECT, STORE_FOLD_SUM + 1)
{
    const enum store_fold how = (enum store_fold)_i;
    const uint32_t unit = 2; /* a block */
    struct store_fixture f;

    store_fixture_open(&f, store_fixture_small, true, 1);
    store_draw(&f.store, 1);
    struct expected e = expect(&f, unit);
    for (uint64_t t = 1; t <= 3; t++) {
        float *g = gradient(f.model.units[unit].n, t);
        fold_unit(&f.store, unit, g, true, how);
        store_update(&f.store, unit, how, &hyper);
        expect_step(&e, &f, unit, g, t);
        free(g);
    }
    check_and_free(&e, &f, unit);
    store_fixture_close(&f);
}

TEST(adama_folds_each_part_into_the_moments)
{
    const uint32_t unit = 2;
    struct store_fixture f;

    store_fixture_open(&f, store_fixture_small, true, 0);
    store_draw(&f.store, 1);
    const struct model_unit *u = &f.model.units[unit];
    struct expected e = expect(&f, unit);
    for (uint64_t part = 0; part < 3; part++) {
        float *g = gradient(u->n, part);
        fold_unit(&f.store, unit, g, part == 0, STORE_FOLD_MOMENTS);
        plain_fold(e.m, e.v, g, u->n, &hyper, part == 0);
        free(g);
    }
    store_fixture_same(store_weights(&f.store, unit), e.w, u->n, "w before the update");
    store_update(&f.store, unit, STORE_FOLD_MOMENTS, &hyper);
    for (uint32_t i = 0; i < u->n_pieces; i++) {
        const struct model_piece *p = &f.model.pieces[u->first_piece + i];
        plain_update(e.w + p->offset, e.m + p->offset, e.v + p->offset, p->n, &hyper, 1,
                     f.model.tensors[p->tensor].n_dims == 2);
    }
    check_and_free(&e, &f, unit);
    store_fixture_close(&f);
}

/* Two visits of wte, cut into units: each unit's sum is its own. */
TEST(tied_units_are_summed_over_their_visits)
{
    struct store_fixture f;

    store_fixture_open(&f, store_fixture_cut, true, 0);
    store_draw(&f.store, 1);
    ck_assert_uint_gt(f.model.units[1].n_visits, 1); /* more than one tied unit */
    for (uint64_t t = 1; t <= 2; t++) {
        struct expected e[2];
        float *g[2][2], *sum[2];
        for (uint32_t unit = 0; unit < 2; unit++) {
            const uint64_t n = f.model.units[unit].n;
            e[unit] = expect(&f, unit);
            memcpy(e[unit].m, f.store.m + f.model.units[unit].offset, n * sizeof(float));
            memcpy(e[unit].v, f.store.v + f.model.units[unit].offset, n * sizeof(float));
            sum[unit] = floats(n);
            for (uint64_t visit = 0; visit < 2; visit++)
                g[unit][visit] = gradient(n, t * 10 + unit * 2 + visit);
            for (uint64_t i = 0; i < n; i++)
                sum[unit][i] = g[unit][0][i] + g[unit][1][i];
        }
        for (int visit = 0; visit < 2; visit++)
            for (uint32_t unit = 0; unit < 2; unit++)
                fold_unit(&f.store, unit, g[unit][visit], visit == 0, STORE_FOLD_SUM);
        for (uint32_t unit = 0; unit < 2; unit++) {
            store_update(&f.store, unit, STORE_FOLD_SUM, &hyper);
            expect_step(&e[unit], &f, unit, sum[unit], t);
            check_and_free(&e[unit], &f, unit);
            free(g[unit][0]), free(g[unit][1]), free(sum[unit]);
        }
    }
    store_fixture_close(&f);
}

TEST(accumulators_go_round)
{
    struct store_fixture f;

    store_fixture_open(&f, store_fixture_small, false, 2);
    for (uint32_t unit = 0; unit < f.model.n_units; unit++) {
        float *g = gradient(f.model.units[unit].n, unit);
        fold_unit(&f.store, unit, g, true, STORE_FOLD_SUM);
        ck_assert_ptr_nonnull(f.store.sums[unit]);
        if (unit > 0) { /* two at a time; the one before is done */
            ck_assert_ptr_ne(f.store.sums[unit], f.store.sums[unit - 1]);
            store_update(&f.store, unit - 1, STORE_FOLD_SUM, &hyper);
            ck_assert_ptr_null(f.store.sums[unit - 1]);
        }
        free(g);
    }
    store_fixture_close(&f);
}

/* In the second of two slices, in every way to fold and both types: at its first element, the last but one, the last. */
TEST_EACH(a_slice_that_is_not_finite_changes_nothing, 8)
{
    const enum store_fold how = (enum store_fold)(_i / 2);
    const enum number_type type = (enum number_type)(_i % 2);
    const struct store_options options = {.train = true,
                                          .fenced = how == STORE_FOLD_HOLD,
                                          .n_accumulators = how != STORE_FOLD_HOLD};
    const uint32_t unit = 2;
    struct store_fixture f;

    store_fixture_open_as(&f, store_fixture_big, false, &options);
    store_draw(&f.store, 1);
    const struct model_unit *u = &f.model.units[unit];
    const uint64_t n = u->n - MODEL_SLICE, places[] = {0, n - 2, n - 1};
    void *g = calloc(n, sizeof(float)); /* zeros in either type */
    const struct store_contribution contribution = {g, type, true, 0};
    struct expected e = expect(&f, unit);
    for (int i = 0; i < COUNT(places); i++) {
        char *at = (char *)g + places[i] * number_bytes(type);
        memcpy(at, type == NUMBER_BF16 ? (const void *)&(uint16_t){i ? 0x7f80 : 0xffc0} : &(float){i ? INFINITY : NAN},
               number_bytes(type));
        ck_assert_int_eq(store_fold(&f.store, unit, 1, &contribution, how, &hyper), -EDOM);
        memset(at, 0, number_bytes(type));
    }
    ck_assert(how == STORE_FOLD_HOLD || !f.store.sums[unit]);
    for (uint64_t i = 0; how == STORE_FOLD_HOLD && i < u->n; i++)
        if (f.store.held[u->offset + i] != 0) /* an assertion is slow */
            ck_abort_msg("element %ju", (uintmax_t)i);
    check_and_free(&e, &f, unit);
    ck_assert_int_eq(store_fold(&f.store, unit, 1, &contribution, how, &hyper), 0); /* mended, it counts */
    free(g);
    store_fixture_close(&f);
}

/* Each slice is finite; by hand: 3e38 twice is more than FLT_MAX as a sum, and so are two first moments of a beta of 0.
 * With one part the weights do it: their largest value, decayed by a factor of 99 in size. */
TEST_EACH(finite_slices_that_make_a_weight_that_is_not_are_told, 6)
{
    static const struct {
        enum store_fold how;
        double clip_update;
    } cases[] = {{STORE_FOLD_DIRECT, 0}, {STORE_FOLD_MOMENTS, 0}, {STORE_FOLD_SUM, 0},
                 {STORE_FOLD_HOLD, 0},   {STORE_FOLD_MOMENTS, 1}, {STORE_FOLD_SUM, 1}};
    const enum store_fold how = cases[_i].how;
    const bool fenced = how == STORE_FOLD_HOLD, direct = how == STORE_FOLD_DIRECT;
    const struct store_options options = {.train = true,
                                          .fenced = fenced,
                                          .n_accumulators = !fenced,
                                          .clip_update = cases[_i].clip_update};
    struct hyper hp = {.lr = 1, .beta1 = 0, .beta2 = 0.9, .epsilon = 1e-8, .grad_scale = 1};
    struct store_fixture f;

    store_fixture_open_as(&f, store_fixture_big, false, &options);
    const uint32_t unit = 2;
    const struct model_unit *u = &f.model.units[unit];
    float *g = floats(u->n);
    const struct store_contribution first = {g, NUMBER_FP32, true, 0}, second = {g, NUMBER_FP32, false, 1};
    ck_assert_int_eq(store_fold(&f.store, unit, 0, &first, how, &hp), 0);
    ck_assert_int_eq(store_update(&f.store, unit, how, &hp), 0); /* as it should be */
    g[MODEL_SLICE - 1] = 3e38f;
    if (direct)
        hp.weight_decay = 100, store_weights(&f.store, unit)[MODEL_SLICE - 1] = 3e38f;
    ck_assert_int_eq(store_fold(&f.store, unit, 0, &first, how, &hp), direct ? -ERANGE : 0);
    if (!direct) {
        ck_assert_int_eq(store_fold(&f.store, unit, 0, &second, how, &hp), 0);
        ck_assert_int_eq(store_update(&f.store, unit, how, &hp), -ERANGE);
    }
    free(g);
    store_fixture_close(&f);
}

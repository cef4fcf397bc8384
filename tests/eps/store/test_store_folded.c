/* A folded commit: parts that pass the whole model one after another, and units that are updated in the end. */
#include "tests/kit/inprocess/plain.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

SUITE_TIMEOUT(60)

enum { PARTS = 3 };

/* AdamA, with clipped updates, and SGD with plain momentum; of a tied table in several units, and of a block of two
 * slices. */
static const struct way {
    const struct model_config *config;
    bool tied, sgd;
    double clip_update;
} ways[] = {
    {.config = &store_fixture_cut, .tied = true},
    {.config = &store_fixture_big},
    {.config = &store_fixture_small, .tied = true, .clip_update = 0.5},
    {.config = &store_fixture_cut, .tied = true, .sgd = true},
};

/* Types of the relayed weights and of the moments. */
static const enum number_type forms[][2] = {{NUMBER_FP32, NUMBER_FP32}, {NUMBER_BF16, NUMBER_BF16}};

static const struct way *way_of(int i)
{
    return &ways[i / COUNT(forms)];
}

static struct hyper hyper_of(const struct way *way)
{
    return (struct hyper){.lr = 1e-2,
                          .beta1 = 0.9,
                          .beta2 = 0.99,
                          .epsilon = 1e-8,
                          .weight_decay = 0.5,
                          .grad_scale = 1,
                          .sgd = way->sgd,
                          .momentum = way->sgd ? 0.9 : 0};
}

static void open_way(struct store_fixture *f, int i, bool folded)
{
    const struct way *way = way_of(i);
    const struct store_options options = {.train = true,
                                          .precision = forms[i % COUNT(forms)][0],
                                          .moments = forms[i % COUNT(forms)][1],
                                          .sgd = way->sgd,
                                          .momentum = way->sgd ? 0.9 : 0,
                                          .folded = folded,
                                          .n_parts = PARTS,
                                          .clip_update = way->clip_update,
                                          .seed = 7};

    store_fixture_open_as(f, *way->config, way->tied, &options);
    store_draw(&f->store, 3);
}

/* Folds the i-th contribution of a unit, visit by visit. */
static void fold(struct store_fixture *f, uint32_t unit, const struct way *way, uint32_t i, uint64_t t)
{
    const enum store_fold how = store_fold_kind(&f->store, unit, PARTS, false);
    const struct hyper hp = hyper_of(way);
    const uint64_t n = f->model.units[unit].n_trained;
    struct store_given given = store_fixture_given(f, unit, i, PARTS);
    float *g = plain_zeros(n, sizeof *g);

    for (uint64_t k = 0; k < n; k++)
        g[k] = plain_number(k, t * 100 + unit * 10 + i);
    given.g = g;
    store_fixture_fold(f, unit, &given, how, &hp);
    free(g);
}

static void update(struct store_fixture *f, uint32_t unit, const struct way *way)
{
    const struct hyper hp = hyper_of(way);

    ck_assert_int_eq(store_update(&f->store, unit, store_fold_kind(&f->store, unit, PARTS, false), &hp), 0);
}

/* A unit's contributions all at once, and its update. */
static void step_by_unit(struct store_fixture *f, const struct way *way, uint64_t t)
{
    for (uint32_t u = f->model.n_units; u-- > 0;) {
        for (uint32_t i = 0; i < f->model.units[u].n_visits * PARTS; i++)
            fold(f, u, way, i, t);
        update(f, u, way);
    }
}

/* Part by part, and in each from the topmost visits down. */
static void step_by_part(struct store_fixture *f, const struct way *way, uint64_t t)
{
    for (uint32_t part = 0; part < PARTS; part++)
        for (uint32_t above = 0; above < 2; above++)
            for (uint32_t u = f->model.n_units; u-- > 0;)
                if (above < f->model.units[u].n_visits)
                    fold(f, u, way, above * PARTS + part, t);
    for (uint32_t u = 0; u < f->model.n_units; u++)
        update(f, u, way);
}

TEST_EACH(part_by_part_the_bits_are_those_of_unit_by_unit, COUNT(ways) * COUNT(forms))
{
    struct store_fixture eager, folded;

    open_way(&eager, _i, false), open_way(&folded, _i, true);
    for (uint64_t t = 1; t <= 3; t++)
        step_by_unit(&eager, way_of(_i), t), step_by_part(&folded, way_of(_i), t);
    store_fixture_same_stores(&eager, &folded);
    store_fixture_close(&eager), store_fixture_close(&folded);
}

/* One part: the update has to wait for the step's end, too. */
TEST(no_weight_moves_before_the_update)
{
    const struct store_options options = {.train = true, .folded = true, .n_parts = 1, .seed = 7};
    struct store_fixture f;

    store_fixture_open_as(&f, store_fixture_small, false, &options);
    store_draw(&f.store, 3);
    const uint64_t n = f.model.units[0].n_trained;
    float *const g = plain_zeros(n, sizeof *g), *const was = plain_zeros(n, sizeof *was);
    memcpy(was, store_weights(&f.store, 0), n * sizeof *was);
    for (uint64_t k = 0; k < n; k++)
        g[k] = plain_number(k, 1);
    const enum store_fold how = store_fold_kind(&f.store, 0, 1, false);
    const struct hyper hp = hyper_of(&ways[0]);
    store_fixture_fold(&f, 0, &(struct store_given){.g = g, .first = true}, how, &hp);
    store_fixture_same(store_weights(&f.store, 0), was, n, "weights before the update");
    ck_assert_int_eq(store_update(&f.store, 0, how, &hp), 0);
    ck_assert_int_ne(memcmp(store_weights(&f.store, 0), was, n * sizeof *was), 0);
    free(g), free(was);
    store_fixture_close(&f);
}

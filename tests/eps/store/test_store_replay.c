/* With replay, an update leaves the relayed weights before it whole, and no bit is another one than without. */
#include "tests/kit/inprocess/plain.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

#include <stdlib.h>
#include <string.h>

SUITE_LABELS(long)
SUITE_TIMEOUT(60)

static const struct hyper hyper = {
    .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.5, .grad_scale = 1};

/* Every way to fold that an eager commit has: of a block of two slices, cut inside a tensor; of tied and frozen
 * units. */
static const struct way {
    const struct model_config *config;
    uint32_t n_parts;
    bool tied, adamw;
    double clip_update;
    const char *freeze;
} ways[] = {
    {.config = &store_fixture_big, .n_parts = 1},
    {.config = &store_fixture_cut, .n_parts = 1, .tied = true},
    {.config = &store_fixture_small, .n_parts = 3},
    {.config = &store_fixture_small, .n_parts = 3, .tied = true, .adamw = true},
    {.config = &store_fixture_cut, .n_parts = 3, .tied = true},
    {.config = &store_fixture_small, .n_parts = 1, .clip_update = 0.5},
    {.config = &store_fixture_small, .n_parts = 1, .freeze = "h.*.attn.*,ln_f.weight"},
    {.config = &store_fixture_small, .n_parts = 2, .clip_update = 0.5, .freeze = "h.0.*,h.1.mlp.*,wpe.weight"},
};

/* Types of the relayed weights and of the moments. */
static const enum number_type forms[][2] = {{NUMBER_FP32, NUMBER_FP32},
                                            {NUMBER_BF16, NUMBER_FP32},
                                            {NUMBER_BF16, NUMBER_BF16},
                                            {NUMBER_FP16, NUMBER_FP32},
                                            {NUMBER_BF16, NUMBER_CODED}};

static void open_way(struct store_fixture *f, int i, bool replay)
{
    const struct way *way = &ways[i / COUNT(forms)];
    const struct store_options options = {.train = true,
                                          .precision = forms[i % COUNT(forms)][0],
                                          .moments = forms[i % COUNT(forms)][1],
                                          .n_accumulators = way->adamw,
                                          .n_parts = way->n_parts,
                                          .clip_update = way->clip_update,
                                          .replay = replay,
                                          .seed = 7};

    store_fixture_open_frozen(f, *way->config, way->tied, way->freeze ? way->freeze : "", &options);
}

/* Where a worker reads a unit's trained weights; those behind them are in the first buffer alone. */
static const void *relayed(const struct store_fixture *f, uint32_t unit, bool before)
{
    return (const char *)f->store.weights.base +
           store_weights_at(&f->store, &f->store.own, unit, store_buffer(&f->store, unit, before));
}

static void check_relayed(const struct store_fixture *f, uint32_t unit, bool before, const void *want, const char *what)
{
    const size_t size = number_bytes(f->store.options.precision), trained = f->model.units[unit].n_trained * size,
                 bytes = f->model.units[unit].n * size;
    const char *const first = (const char *)f->store.weights.base + store_weights_at(&f->store, &f->store.own, unit, 0);

    ck_assert_msg(trained == 0 || memcmp(relayed(f, unit, before), want, trained) == 0, "unit %u, %s", unit, what);
    ck_assert_msg(memcmp(first + trained, (const char *)want + trained, bytes - trained) == 0, "unit %u, %s: frozen",
                  unit, what);
}

/* The same step of a unit in both stores; b has replay. */
static void step(struct store_fixture *a, struct store_fixture *b, uint32_t unit, const struct way *way, uint64_t t)
{
    const struct model_unit *u = &a->model.units[unit];
    const enum store_fold how = store_fold_kind(&a->store, unit, way->n_parts, way->adamw);
    const size_t bytes = u->n * number_bytes(a->store.options.precision);
    float *g = plain_zeros(u->n, sizeof *g);
    void *was = plain_zeros(bytes, 1);

    memcpy(was, relayed(a, unit, false), bytes);
    for (uint32_t i = 0; i < u->n_visits * way->n_parts; i++) {
        struct store_given given = store_fixture_given(a, unit, i, way->n_parts);
        given.g = g;
        for (uint64_t k = 0; k < u->n_trained; k++)
            g[k] = plain_number(k, t * 100 + unit * 10 + i);
        store_fixture_fold(a, unit, &given, how, &hyper);
        store_fixture_fold(b, unit, &given, how, &hyper);
        check_relayed(b, unit, false, was, "after a fold");
    }
    ck_assert_int_eq(store_update(&a->store, unit, how, &hyper), 0);
    ck_assert_int_eq(store_update(&b->store, unit, how, &hyper), 0);
    check_relayed(b, unit, false, was, "updated and not current");
    store_swap(&b->store, unit);
    check_relayed(b, unit, true, was, "the version before");
    check_relayed(b, unit, false, relayed(a, unit, false), "the new version");
    ck_assert_int_ne(memcmp(was, relayed(a, unit, false), bytes), 0);
    free(g), free(was);
}

static void train(struct store_fixture *a, struct store_fixture *b, const struct way *way)
{
    for (uint64_t t = 1; t <= 3; t++)
        for (uint32_t unit = 0; unit < a->model.n_units; unit++)
            if (a->model.units[unit].n_trained > 0)
                step(a, b, unit, way, t);
    for (uint32_t unit = 0; unit < a->model.n_units; unit++)
        check_relayed(b, unit, false, relayed(a, unit, false), "in the end");
    store_fixture_same_stores(a, b);
}

TEST_EACH(the_version_before_stands_and_no_bit_changes, COUNT(ways) * COUNT(forms))
{
    struct store_fixture a, b;

    open_way(&a, _i, false), open_way(&b, _i, true);
    store_draw(&a.store, 3), store_draw(&b.store, 3);
    train(&a, &b, &ways[_i / COUNT(forms)]);
    store_fixture_close(&a), store_fixture_close(&b);
}

/* What is written after an odd number of updates is the current buffer; what is loaded is in the first, and what is
 * frozen in both. */
TEST_EACH(files_hold_the_current_weights_and_a_store_goes_on_from_them, COUNT(forms))
{
    const int i = (COUNT(ways) - 2) * COUNT(forms) + _i;
    struct store_fixture a, b, c;

    open_way(&a, i, false), open_way(&b, i, true), open_way(&c, i, true);
    store_draw(&a.store, 3), store_draw(&b.store, 3);
    train(&a, &b, &ways[i / COUNT(forms)]);
    store_fixture_reload(&c, &b);
    store_fixture_same_stores(&a, &c);
    train(&a, &c, &ways[i / COUNT(forms)]);
    store_fixture_close(&a), store_fixture_close(&b), store_fixture_close(&c);
}

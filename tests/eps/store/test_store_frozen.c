/* A store with frozen tensors: what they cost, that no update touches them, and what of them is in a checkpoint. */
#include "proto/plan/host.h"
#include "tests/kit/store_fixture.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

/* Frozen tensors in the middle of a unit, at its end, all of it, a tied one; and all but biases. */
static const char *const sets[] = {"h.*.attn.*,ln_f.weight", "h.*.mlp.*", "h.0.*,wpe.weight", "wte.weight", "*.weight"};

static void open_frozen(struct store_fixture *f, const char *freeze, const struct store_options *options)
{
    struct model_config config = store_fixture_small;

    *f = (struct store_fixture){0};
    config.tied = true, config.gpt2.scale_attention = true;
    config.norm_epsilon = 1e-5f, config.initializer_range = 0.02f;
    ck_assert_int_eq(model_init(&f->model, &config, NULL), 0);
    ck_assert_int_eq(model_freeze(&f->model, freeze, NULL), 0);
    ck_assert_int_eq(store_init(&f->store, &f->model, options, &f->ledger, NULL), 0);
    store_draw(&f->store, 3);
}

static const struct store_options forms[] = {
    {.train = true},
    {.train = true, .precision = NUMBER_BF16},
    {.train = true, .precision = NUMBER_BF16, .moments = NUMBER_BF16},
    {.train = true, .fenced = true},
    {.train = true, .n_accumulators = 2},
};

/* To the byte: nothing but their weights, but for the cache lines that each unit's arrays are rounded up to. */
TEST_EACH(a_frozen_parameter_costs_its_wire_form_and_nothing_else, COUNT(sets) * COUNT(forms))
{
    const struct store_options *o = &forms[_i / COUNT(sets)];
    const bool is_bf16 = o->precision == NUMBER_BF16;
    struct store_fixture f;
    uint64_t n = 0, tied = 0, largest = 0;

    open_frozen(&f, sets[_i % COUNT(sets)], o);
    for (const struct model_unit *u = f.model.units; u < f.model.units + f.model.n_units; u++) {
        const uint64_t room = (u->n_trained + 31) / 32 * 32;
        n += room, tied += u->n_visits > 1 ? room : 0, largest = largest < room ? room : largest;
    }
    ck_assert_uint_lt(n, f.model.segment_n);
    const uint64_t moment = o->moments == NUMBER_BF16 ? 2 : 4;
    const struct ledger_row *rows = f.ledger.rows;
    ck_assert_uint_eq(rows[LEDGER_WEIGHTS].current, f.model.segment_n * (is_bf16 ? 2 : 4));
    ck_assert_uint_eq(rows[LEDGER_MASTER].current, is_bf16 ? 2 * n : 0);
    ck_assert_uint_eq(rows[LEDGER_FIRST_MOMENT].current, moment * n);
    ck_assert_uint_eq(rows[LEDGER_SECOND_MOMENT].current, moment * n);
    ck_assert_uint_eq(rows[LEDGER_SUM].current, o->fenced ? 4 * n : 0);
    ck_assert_uint_eq(rows[LEDGER_TIED].current, o->fenced ? 0 : 4 * tied);
    ck_assert_uint_eq(rows[LEDGER_ACCUMULATORS].current, 4 * o->n_accumulators * largest);

    const struct plan_host_setting setting = {.goal = {.purpose = PLAN_TRAIN,
                                                       .precision = o->precision,
                                                       .moments = o->moments,
                                                       .fenced = o->fenced,
                                                       .adamw = o->n_accumulators > 0,
                                                       .n_parts = o->n_accumulators ? 2 : 1,
                                                       .batch = 2,
                                                       .seq = 4},
                                              .n_workers = 1};
    struct plan_host host;
    plan_host(&host, &f.model, &setting);
    for (int c = 0; c < LEDGER_CATEGORIES; c++)
        if (c != LEDGER_INBOX && c != LEDGER_DATA) /* the job's, not the store's */
            ck_assert_msg(rows[c].current == host.bytes[c], "%s", ledger_name((enum ledger_category)c));
    store_fixture_close(&f);
}

/* All weights as fp32, unit after unit. */
static float *read_weights(const struct store_fixture *f)
{
    float *all = calloc(f->model.segment_n, sizeof *all);

    ck_assert_ptr_nonnull(all);
    for (uint32_t u = 0; u < f->model.n_units; u++)
        for (uint32_t i = 0; i < f->model.units[u].n_pieces; i++) {
            const struct model_piece *piece = &f->model.pieces[f->model.units[u].first_piece + i];
            const struct parameters p = store_parameters(&f->store, u, piece->offset, piece->n, 0);
            optimizer_read(&p, all + f->model.units[u].offset + piece->offset, NULL, NULL);
        }
    return all;
}

static void step(struct store_fixture *f, enum store_fold how)
{
    const struct hyper hyper = {
        .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.5, .grad_scale = 1};

    for (uint32_t u = 0; u < f->model.n_units; u++) {
        const uint64_t n = f->model.units[u].n_trained;
        float *g = calloc(n + 1, sizeof *g);
        for (uint64_t i = 0; i < n; i++)
            g[i] = (float)(i % 7) - 3.5f;
        if (n > 0) {
            const struct store_contribution contribution = {g, NUMBER_FP32, true, 0};
            ck_assert_int_eq(store_fold(&f->store, u, 0, &contribution, how, &hyper), 0);
            ck_assert_int_eq(store_update(&f->store, u, how, &hyper), 0);
        }
        free(g);
    }
}

/* A gradient of 3.5 at most and 0.5 at least moves every weight by about lr, and weight decay would move the rest. */
TEST_EACH(an_update_moves_every_trained_weight_and_no_frozen_one, COUNT(sets) * 3)
{
    const enum store_fold kinds[] = {STORE_FOLD_SUM, STORE_FOLD_HOLD, STORE_FOLD_MOMENTS};
    const enum store_fold how = kinds[_i % 3];
    const struct store_options options = {.train = true,
                                          .fenced = how == STORE_FOLD_HOLD,
                                          .n_accumulators = how == STORE_FOLD_SUM ? 2 : 0,
                                          .clip_update = how == STORE_FOLD_MOMENTS ? 0.5 : 0};
    struct store_fixture f;

    open_frozen(&f, sets[_i / 3], &options);
    float *before = read_weights(&f);
    step(&f, how);
    float *after = read_weights(&f);
    for (uint32_t u = 0; u < f.model.n_units; u++) {
        const struct model_unit *unit = &f.model.units[u];
        for (uint64_t i = 0; i < unit->n; i++) {
            const bool same = memcmp(&before[unit->offset + i], &after[unit->offset + i], sizeof *before) == 0;
            ck_assert_msg(same == (i >= unit->n_trained), "unit %u, element %ju", u, (uintmax_t)i);
        }
        ck_assert_uint_eq(f.store.updates[u], unit->n_trained > 0);
    }
    free(before), free(after);
    store_fixture_close(&f);
}

TEST(the_norm_is_that_of_the_trained_elements)
{
    const struct store_options options = {.train = true, .fenced = true};
    struct store_fixture f;

    open_frozen(&f, sets[0], &options);
    for (uint64_t i = 0; i < f.model.trained_n; i++)
        f.store.held[i] = 2;
    for (uint32_t u = 0; u < f.model.n_units; u++)
        ck_assert_double_eq(store_sum_squares(&f.store, u), 4 * (double)f.model.units[u].n_trained);
    store_fixture_close(&f);
}

static int make_file(const char *name)
{
    int fd = memfd_create(name, MFD_CLOEXEC);

    ck_assert_int_ge(fd, 0);
    return fd;
}

/* In bf16 the frozen weights are the file's rounded to nearest, and stay so in the next file. */
TEST_EACH(what_was_written_is_loaded_bit_for_bit, COUNT(sets) * 3)
{
    const struct store_options *options = &forms[_i % 3];
    const char *freeze = sets[_i / 3];
    const int weights = make_file("weights"), moments = make_file("moments");
    struct store_fixture a, b;
    struct error err = {""};

    open_frozen(&a, freeze, options);
    open_frozen(&b, freeze, options);
    step(&a, STORE_FOLD_MOMENTS);
    store_fixture_write(&a.store, weights, moments, NULL);
    ck_assert_msg(store_load(&b.store, &weights, 1, &err) == 0, "%s", err.text);
    ck_assert_msg(store_load_moments(&b.store, moments, &err) == 0, "%s", err.text);
    float *x = read_weights(&a), *y = read_weights(&b);
    store_fixture_same(x, y, a.model.segment_n, "w");
    free(x), free(y);
    const size_t bytes = a.model.trained_n * number_bytes(options->moments);
    ck_assert_mem_eq(a.store.m ? (void *)a.store.m : a.store.m16, b.store.m ? (void *)b.store.m : b.store.m16, bytes);
    ck_assert_mem_eq(a.store.v ? (void *)a.store.v : a.store.v16, b.store.v ? (void *)b.store.v : b.store.v16, bytes);
    for (uint32_t u = 0; u < a.model.n_units; u++)
        ck_assert_uint_eq(b.store.updates[u], a.store.updates[u]);
    close(weights), close(moments);
    store_fixture_close(&a), store_fixture_close(&b);
}

static const struct {
    const char *written, *loaded, *sentence;
} others[] = {
    {"wte.weight", "wpe.weight", "m.transformer.wpe.weight is the moment of a frozen tensor"},
    {"wte.weight", "", "m.transformer.wte.weight is missing"},
    {"", "wte.weight", "m.transformer.wte.weight is the moment of a frozen tensor"},
};

TEST_EACH(moments_of_another_frozen_set_are_refused_by_name, COUNT(others))
{
    const int weights = make_file("weights"), moments = make_file("moments");
    struct store_fixture a, b;
    struct error err = {""};

    open_frozen(&a, others[_i].written, &forms[0]);
    open_frozen(&b, others[_i].loaded, &forms[0]);
    store_fixture_write(&a.store, weights, moments, NULL);
    ck_assert_int_eq(store_load_moments(&b.store, moments, &err), -EINVAL);
    ck_assert_msg(strstr(err.text, others[_i].sentence) != NULL, "%s", err.text);
    close(weights), close(moments);
    store_fixture_close(&a), store_fixture_close(&b);
}

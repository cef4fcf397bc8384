/* A store with frozen tensors: what they cost, that no update touches them, and what of them is in a checkpoint. */
#include "proto/plan/memory/host.h"
#include "tests/kit/inprocess/plain.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Frozen tensors in the middle of a unit, at its end, all of it, a tied one; and all but biases. */
static const char *const sets[] = {"h.*.attn.*,ln_f.weight", "h.*.mlp.*", "h.0.*,wpe.weight", "wte.weight", "*.weight"};

static void open_frozen(struct store_fixture *f, const char *freeze, const struct store_options *options)
{
    store_fixture_open_frozen(f, store_fixture_small, true, freeze, options);
    store_draw(&f->store, 3);
}

static const struct store_options forms[] = {
    {.train = true},
    {.train = true, .precision = NUMBER_BF16},
    {.train = true, .precision = NUMBER_BF16, .moments = NUMBER_BF16},
    {.train = true, .fenced = true},
    {.train = true, .fenced = true, .precision = NUMBER_BF16, .moments = NUMBER_BF16},
    {.train = true, .moments = NUMBER_BF16},
    {.train = true, .n_accumulators = 2},
    {.train = true, .replay = true},
    {.train = true, .replay = true, .precision = NUMBER_BF16, .moments = NUMBER_BF16},
    {.train = true, .precision = NUMBER_BF16, .moments = NUMBER_CODED},
    {.train = true, .replay = true, .precision = NUMBER_BF16, .moments = NUMBER_CODED},
    {.train = false},
    {.train = false, .precision = NUMBER_BF16},
};

/* To the byte: what is trained takes what its form says, what is frozen its wire form, and nothing else but the cache
 * lines that each unit's arrays are rounded up to; with tables of 600 layers, with
 * replay of 4,096. The plan knows nothing of the store, nor the
 * store of the plan. */
TEST_EACH(the_ledger_is_what_the_form_says_and_the_plan, (1 + COUNT(sets)) * COUNT(forms))
{
    const struct store_options *o = &forms[_i % COUNT(forms)];
    const bool is_bf16 = o->precision == NUMBER_BF16;
    const int set = _i / COUNT(forms) - 1;
    struct model_config config = store_fixture_small;
    struct store_fixture f;
    uint64_t n = 0, tied = 0, largest = 0;

    config.n_layers = set < 0 ? o->replay ? 4096 : 600 : config.n_layers;
    store_fixture_open_frozen(&f, config, true, set < 0 ? "" : sets[set], o);
    for (const struct model_unit *u = f.model.units; u < f.model.units + f.model.n_units; u++) {
        const uint64_t room = (u->n_trained + 31) / 32 * 32;
        n += room, tied += u->n_visits > 1 ? room : 0, largest = largest < room ? room : largest;
    }
    ck_assert_int_eq(n < f.model.segment_n, set >= 0);
    const struct ledger_row *rows = f.ledger.rows;
    ck_assert_uint_eq(rows[LEDGER_WEIGHTS].current, f.model.segment_n * (is_bf16 ? 2 : 4));
    ck_assert_uint_eq(rows[LEDGER_REPLAY].current, o->replay ? n * (is_bf16 ? 2 : 4) : 0);
    ck_assert_uint_eq(rows[LEDGER_MASTER].current, is_bf16 && o->train ? 2 * n : 0);
    const uint64_t moment = o->train ? store_fixture_moment_bytes(&f.model, 0, f.model.n_units, o->moments) : 0;
    ck_assert_uint_eq(rows[LEDGER_FIRST_MOMENT].current, moment);
    ck_assert_uint_eq(rows[LEDGER_SECOND_MOMENT].current, moment);
    ck_assert_uint_eq(rows[LEDGER_SUM].current, o->fenced ? 4 * n : 0);
    ck_assert_uint_eq(rows[LEDGER_TIED].current, o->fenced || !o->train ? 0 : 4 * tied);
    ck_assert_uint_eq(rows[LEDGER_ACCUMULATORS].current, 4 * o->n_accumulators * largest);

    const struct plan_host_setting setting = {.goal = {.purpose = o->train ? PLAN_TRAIN : PLAN_EVALUATE,
                                                       .precision = o->precision,
                                                       .moments = o->moments,
                                                       .fenced = o->fenced,
                                                       .adamw = true,
                                                       .n_parts = o->n_accumulators ? 2 : 1,
                                                       .batch = 2,
                                                       .seq = 4},
                                              .n_workers = 1,
                                              .replay = o->replay};
    struct plan_host host;
    uint64_t total = 0;
    plan_host(&host, &f.model, &setting);
    ck_assert_uint_eq(host.n_accumulators, o->n_accumulators);
    /* Tables of the job: slices of visits, squares, numbers of folds, where each save is. Those of few layers are not
     * counted. */
    host.bytes[LEDGER_OTHER] -= ledger_table(f.model.n_visits * sizeof(uint32_t)) +
                                ledger_table(f.model.n_units * sizeof(double)) +
                                ledger_table(f.model.n_units * sizeof(uint32_t)) +
                                (o->train ? ledger_table(f.model.n_units * (uint64_t)PLAN_HOST_SAVES) : 0);
    for (int c = 0; c < LEDGER_CATEGORIES; c++)
        if (c != LEDGER_INBOX && c != LEDGER_DATA) { /* the job's, not the store's */
            ck_assert_msg(rows[c].current == host.bytes[c], "%s", ledger_name((enum ledger_category)c));
            total += rows[c].current;
        }
    ck_assert_uint_eq(f.ledger.total.current, total);
    store_fixture_close(&f);
}

static void step(struct store_fixture *f, enum store_fold how)
{
    const struct hyper hyper = {
        .lr = 0.1, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.5, .grad_scale = 1};

    float *g = plain_zeros(f->model.largest_unit, sizeof *g);

    for (uint64_t i = 0; i < f->model.largest_unit; i++)
        g[i] = (float)(i % 7) - 3.5f;
    for (uint32_t u = 0; u < f->model.n_units; u++)
        if (f->model.units[u].n_trained > 0) {
            store_fixture_fold(f, u, &(struct store_given){.g = g, .first = true}, how, &hyper);
            ck_assert_int_eq(store_update(&f->store, u, how, &hyper), 0);
        }
    free(g);
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
    struct store_fixture still, moved;

    open_frozen(&still, sets[_i / 3], &options), open_frozen(&moved, sets[_i / 3], &options);
    step(&moved, how);
    for (uint32_t u = 0; u < moved.model.n_units; u++) {
        const struct model_unit *unit = &moved.model.units[u];
        struct store_values x = store_fixture_values(&still, u), y = store_fixture_values(&moved, u);
        for (uint64_t i = 0; i < unit->n; i++)
            if ((memcmp(&x.w[i], &y.w[i], sizeof *x.w) == 0) != (i >= unit->n_trained))
                ck_abort_msg("unit %u, element %ju", u, (uintmax_t)i);
        ck_assert_uint_eq(moved.store.updates[u], unit->n_trained > 0);
        store_values_free(&x), store_values_free(&y);
    }
    store_fixture_close(&still), store_fixture_close(&moved);
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

/* In bf16 the frozen weights are the file's rounded to nearest, and stay so in the next file. */
TEST_EACH(what_was_written_is_loaded_bit_for_bit, COUNT(sets) * 3)
{
    struct store_fixture a, b;

    open_frozen(&a, sets[_i / 3], &forms[_i % 3]), open_frozen(&b, sets[_i / 3], &forms[_i % 3]);
    step(&a, STORE_FOLD_MOMENTS);
    store_fixture_reload(&b, &a);
    store_fixture_same_stores(&a, &b);
    store_fixture_close(&a), store_fixture_close(&b);
}

/* Of each form: what is drawn is coded as it is written into the other buffer too, and decoded when it is saved. What
 * is saved is coded to the same decoded weights again. By a plain loop over the matrices of layers. */
static const struct {
    enum form base;
    enum number_type precision;
    bool replay;
} coded[] = {
    {FORM_BF16, NUMBER_FP32, true}, {FORM_INT8, NUMBER_FP32, false}, {FORM_INT8, NUMBER_BF16, true},
    {FORM_NF4, NUMBER_FP32, true},  {FORM_NF4, NUMBER_BF16, false},
};

static void check_codes(const struct store_fixture *f, const struct store_fixture *full)
{
    for (uint32_t u = 0; u < f->model.n_units; u++) {
        struct store_values want = store_fixture_values(full, u), got = store_fixture_values(f, u);
        for (uint32_t i = 0; i < f->model.units[u].n_pieces; i++) {
            const struct model_piece *piece = &f->model.pieces[f->model.units[u].first_piece + i];
            const struct model_piece *was = &full->model.pieces[full->model.units[u].first_piece + i];
            const uint64_t columns = piece->n / piece->n_rows, group = piece->form == FORM_INT8 ? columns : 64;
            const float step = piece->form == FORM_INT8 ? 0.5f / 127 : 0.16f; /* half of the widest gap between codes */
            for (uint64_t k = 0; k < piece->n; k++) {
                const float w = want.w[was->offset + k], g = got.w[piece->offset + k];
                float largest = 0;
                for (uint64_t j = k / group * group; j < piece->n && j < (k / group + 1) * group; j++)
                    largest = fmaxf(largest, fabsf(want.w[was->offset + j]));
                const bool narrow = piece->form == FORM_BF16 || (f->store.options.precision == NUMBER_BF16 &&
                                                                 piece->offset >= f->model.units[u].n_trained);
                if (piece->form == FORM_VALUES && !narrow)
                    ck_assert(g == w);
                else if (piece->form == FORM_VALUES || piece->form == FORM_BF16)
                    ck_assert(g == number_from_bf16(number_to_bf16(w)));
                else
                    ck_assert(fabsf(g - w) <= 1.0001f * step * largest);
            }
        }
        store_values_free(&want), store_values_free(&got);
    }
}

TEST_EACH(frozen_weights_are_coded_when_they_are_drawn_and_decoded_when_they_are_saved, COUNT(sets) * COUNT(coded))
{
    const struct store_options options = {.train = true,
                                          .precision = coded[_i % COUNT(coded)].precision,
                                          .base = coded[_i % COUNT(coded)].base,
                                          .replay = coded[_i % COUNT(coded)].replay},
                               plain = {.train = true, .replay = options.replay};
    struct store_fixture a, b, full;

    open_frozen(&a, sets[_i / COUNT(coded)], &options), open_frozen(&b, sets[_i / COUNT(coded)], &options);
    open_frozen(&full, sets[_i / COUNT(coded)], &plain);
    check_codes(&a, &full);
    step(&a, STORE_FOLD_MOMENTS);
    for (uint32_t u = 0; u < a.model.n_units; u++)
        if (a.model.units[u].n_trained > 0)
            store_swap(&a.store, u); /* frozen pieces are in both buffers */
    store_fixture_reload(&b, &a);
    store_fixture_same_stores(&a, &b);
    store_fixture_close(&a), store_fixture_close(&b), store_fixture_close(&full);
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
    const int weights = store_fixture_file(), moments = store_fixture_file();
    struct store_fixture a, b;
    struct error err = {""};

    open_frozen(&a, others[_i].written, &forms[0]);
    open_frozen(&b, others[_i].loaded, &forms[0]);
    store_fixture_write(&a.store, weights, moments, NULL);
    ck_assert_int_eq(store_fixture_load_moments(&b.store, (struct file[]){file_own(moments)}, &err), -EINVAL);
    ck_assert_msg(strstr(err.text, others[_i].sentence) != NULL, "%s", err.text);
    close(weights), close(moments);
    store_fixture_close(&a), store_fixture_close(&b);
}

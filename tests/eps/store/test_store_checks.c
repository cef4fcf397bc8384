/* Memory that changes by itself is found and named; and checking it changes no bit. */
#include "tests/kit/inprocess/plain.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

#include "eps/store/checks.h"
#include "proto/model/contribution.h"
#include "proto/model/groups.h"
#include "proto/plan/memory/host.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SUITE_LABELS(long)
SUITE_TIMEOUT(120)

enum { SEED = 7 };

/* Every way to fold and update: at once; into the moments; from sums, of tied units too; clipped; held; SGD. */
static const struct way {
    const struct model_config *config;
    struct hyper hyper;
    uint32_t n_parts;
    bool tied, adamw, fenced, replay;
    double clip_update;
    const char *freeze;
} ways[] = {
    {.config = &store_fixture_big, .n_parts = 1},
    {.config = &store_fixture_big, .n_parts = 1, .replay = true, .freeze = "h.*.mlp.c_fc.*"},
    {.config = &store_fixture_cut, .n_parts = 1, .tied = true},
    {.config = &store_fixture_small, .n_parts = 3},
    {.config = &store_fixture_cut, .n_parts = 3, .replay = true},
    {.config = &store_fixture_small, .n_parts = 3, .tied = true, .adamw = true, .replay = true},
    {.config = &store_fixture_cut, .n_parts = 3, .tied = true},
    {.config = &store_fixture_small, .n_parts = 1, .clip_update = 0.5, .freeze = "h.0.*,wpe.weight"},
    {.config = &store_fixture_small, .n_parts = 2, .tied = true, .adamw = true, .fenced = true},
    {.config = &store_fixture_cut, .n_parts = 1, .fenced = true, .clip_update = 0.5},
    {.config = &store_fixture_small, .n_parts = 3, .hyper = {.sgd = true, .momentum = 0.9}},
    {.config = &store_fixture_cut,
     .n_parts = 1,
     .hyper = {.sgd = true, .momentum = 0.9, .nesterov = true},
     .replay = true},
    {.config = &store_fixture_small, .n_parts = 2, .adamw = true, .hyper = {.sgd = true}},
};

/* Types of the relayed weights, of the moments and of held sums, and whether weights have a master. */
static const struct types {
    enum number_type precision, moments, sums;
    bool no_master;
} forms[] = {{NUMBER_FP32, NUMBER_FP32, NUMBER_FP32, false},
             {NUMBER_BF16, NUMBER_FP32, NUMBER_BF16, false},
             {NUMBER_BF16, NUMBER_BF16, NUMBER_FP32, true},
             {NUMBER_FP16, NUMBER_FP32, NUMBER_BF16, false},
             {NUMBER_BF16, NUMBER_CODED, NUMBER_FP32, false}};

static const struct way *way_of(int i)
{
    return &ways[i / COUNT(forms)];
}

static bool sums_parts(const struct way *way)
{
    return way->hyper.sgd ? way->hyper.nesterov || way->hyper.momentum == 0 : way->adamw;
}

static struct hyper hyper_of(const struct way *way)
{
    struct hyper hp = way->hyper;

    hp.lr = 1e-2, hp.beta1 = 0.9, hp.beta2 = 0.99, hp.epsilon = 1e-8, hp.weight_decay = 0.5, hp.grad_scale = 1;
    return hp;
}

static struct store_options options_of(int i, bool checks)
{
    const struct way *way = way_of(i);
    const struct types *form = &forms[i % COUNT(forms)];

    return (struct store_options){.train = true,
                                  .precision = form->precision,
                                  .moments = form->moments,
                                  .sums = way->fenced ? form->sums : NUMBER_FP32,
                                  .no_master = form->no_master,
                                  .sgd = way->hyper.sgd,
                                  .momentum = way->hyper.momentum,
                                  .nesterov = way->hyper.nesterov,
                                  .fenced = way->fenced,
                                  .n_parts = way->n_parts,
                                  .n_accumulators = !way->fenced && way->n_parts > 1 && sums_parts(way) ? 2 : 0,
                                  .clip_update = way->clip_update,
                                  .replay = way->replay,
                                  .checks_memory = checks,
                                  .seed = SEED};
}

/* Coded moments are Adam's. */
static bool exists(int i)
{
    return forms[i % COUNT(forms)].moments != NUMBER_CODED || !way_of(i)->hyper.sgd;
}

static void open_way(struct store_fixture *f, int i, bool checks)
{
    const struct store_options options = options_of(i, checks);
    const struct way *way = way_of(i);

    store_fixture_open_frozen(f, *way->config, way->tied, way->freeze ? way->freeze : "", &options);
    store_draw(&f->store, 3);
}

/* What happens to memory after so many of a unit's contributions. */
struct flip {
    uint32_t after;
    char *base; /* NULL: nothing happens */
    uint64_t bytes, bit;
};

static void flip_bit(const struct flip *flip)
{
    if (flip->base)
        flip->base[flip->bit / 8 % flip->bytes] ^= (char)(1 << flip->bit % 8);
}

static enum store_fold how_of(const struct store_fixture *f, uint32_t unit, const struct way *way)
{
    return store_fold_kind(&f->store, unit, way->n_parts, sums_parts(way));
}

/* Folds one contribution. */
static int fold(struct store_fixture *f, uint32_t unit, const struct way *way, uint32_t i, uint64_t t)
{
    const struct hyper hp = hyper_of(way);
    const uint64_t n = f->model.units[unit].n_trained;
    const struct store_given given = store_fixture_given(f, unit, i, way->n_parts);
    float *g = plain_zeros(n, sizeof *g);
    int rc = 0;

    for (uint64_t k = 0; k < n; k++)
        g[k] = plain_number(k, t * 100 + unit * 10 + i);
    for (uint32_t slice = 0; rc == 0 && slice < f->model.units[unit].n_slices; slice++) {
        const struct store_contribution contribution = {.g = g + (uint64_t)slice * MODEL_SLICE,
                                                        .type = NUMBER_FP32,
                                                        .first = given.first,
                                                        .part = given.part,
                                                        .visit = given.visit};
        rc = store_fold(&f->store, unit, slice, &contribution, how_of(f, unit, way), &hp);
    }
    free(g);
    return rc;
}

/* A step of a unit, to its end or the first error. */
static int step(struct store_fixture *f, uint32_t unit, const struct way *way, uint64_t t, const struct flip *flip)
{
    const struct hyper hp = hyper_of(way);
    const enum store_fold how = how_of(f, unit, way);
    const uint32_t n = f->model.units[unit].n_visits * way->n_parts;
    int rc = 0, other;

    for (uint32_t i = 0; i <= n; i++) {
        if (flip && flip->after == i)
            flip_bit(flip);
        other = i < n ? fold(f, unit, way, i, t) : 0;
        rc = rc ? rc : other;
    }
    if (how == STORE_FOLD_HOLD)
        store_join(&f->store, unit);
    other = store_update(&f->store, unit, how, &hp);
    rc = rc ? rc : other;
    store_swap(&f->store, unit);
    return rc;
}

TEST_EACH_IF(nothing_is_found_where_nothing_happened_and_no_bit_changes, COUNT(ways) * COUNT(forms), exists(_i))
{
    struct store_fixture with, without;
    const struct way *way = way_of(_i);

    open_way(&with, _i, true);
    open_way(&without, _i, false);
    for (uint64_t t = 1; t <= 3; t++)
        for (uint32_t u = 0; u < with.model.n_units; u++) {
            if (with.model.units[u].n_trained == 0)
                continue;
            ck_assert_int_eq(step(&with, u, way, t, NULL), 0);
            ck_assert_int_eq(step(&without, u, way, t, NULL), 0);
            ck_assert_int_eq(checks_verify(&with.store, u), 0);
        }
    ck_assert_int_eq(checks_verify_all(&with.store), 0);
    for (int k = 0; k < 64; k++)
        ck_assert(!checks_scrub(&with.store));
    store_fixture_same_stores(&with, &without);
    store_fixture_close(&with);
    store_fixture_close(&without);
}

/* The arrays that a step of a unit reads. `after`: when it happens, in contributions. */
struct victim {
    char *base;
    uint64_t bytes;
    uint32_t after;
    const char *what;
};

enum { VICTIMS = 12 };

/* Those of a trained piece: what stays from step to step, and its sums while they are in use. */
static unsigned victims_of(struct victim out[VICTIMS], const struct store_fixture *f, uint32_t unit,
                           const struct model_piece *piece, const struct way *way)
{
    const struct store *s = &f->store;
    const uint64_t n_run = model_run_end(piece, piece->offset) - piece->offset; /* of a piece in two slices the first */
    const struct parameters p = store_parameters(s, unit, piece->offset, n_run, 0);
    const uint64_t n_groups = (n_run + MODEL_GROUP - 1) / MODEL_GROUP;
    const uint64_t own = f->model.units[unit].trained_offset + piece->offset;
    const uint32_t n_folds = f->model.units[unit].n_visits * way->n_parts;
    const struct victim all[] = {
        {(char *)p.w, 4 * p.n, 0, "weights"},
        {(char *)p.high, 2 * p.n, 0, "weights"},
        {(char *)p.low, 2 * p.n, 0, "lower halves of weights"},
        {(char *)p.m, 4 * p.n, 0, "first moments"},
        {(char *)p.m16, 2 * p.n, 0, "first moments"},
        {(char *)p.v, 4 * p.n, 0, "second moments"},
        {(char *)p.v16, 2 * p.n, 0, "second moments"},
        {(char *)p.coded.m, p.n, 0, "first moments"},
        {(char *)p.coded.v, p.n, 0, "second moments"},
        {(char *)p.coded.m_scales, 4 * n_groups, 0, "first moments"},
        {(char *)p.coded.v_scales, 4 * n_groups, 0, "second moments"},
        {s->held16 ? (char *)(s->held16 + own)
         : s->held ? (char *)(s->held + own)
                   : NULL,
         p.n * (s->held16 ? 2 : 4), n_folds, "gradient's sum"},
    };
    unsigned n = 0;

    for (size_t i = 0; i < COUNT(all); i++)
        if (all[i].base)
            out[n++] = all[i];
    return n;
}

static void expect_found(const struct store_fixture *f, const char *what, const char *tensor)
{
    char text[256], want[256];

    ck_assert(checks_found(&f->store));
    checks_text(text, sizeof text, &f->store);
    snprintf(want, sizeof want, "the %s of %s (unit ", what, tensor);
    ck_assert_msg(strncmp(text, want, strlen(want)) == 0, "%s: %s", want, text);
    __atomic_store_n(f->store.checks.damage, OPTIMIZER_WHOLE, __ATOMIC_RELAXED);
}

/* Each array of each trained tensor in turn, of large models one array of each; the bit is another each time. The step
 * that reads it next tells. */
TEST_EACH_IF(a_flipped_bit_is_found_and_named_by_the_next_step, COUNT(ways) * COUNT(forms), exists(_i))
{
    const struct way *way = way_of(_i);
    struct victim victims[VICTIMS];
    struct store_fixture f;
    uint64_t t = 1, n = 0;

    open_way(&f, _i, true);
    for (struct store_piece at = {0}; store_fixture_next(&f, &at);) {
        if (at.tensor->frozen)
            continue;
        const unsigned n_victims = victims_of(victims, &f, at.unit, at.piece, way);
        const bool small = way->config == &store_fixture_small;
        for (unsigned k = small ? 0 : (unsigned)(n % n_victims); k < n_victims; k += small ? 1 : n_victims, n++) {
            victims_of(victims, &f, at.unit, at.piece, way); /* the buffers change places */
            const struct flip flip = {victims[k].after, victims[k].base, victims[k].bytes, n * 7919 + n};
            ck_assert_int_eq(step(&f, at.unit, way, t++, &flip), -EIO);
            expect_found(&f, victims[k].what, at.tensor->name);
        }
    }
    ck_assert_uint_gt(n, 0);
    store_fixture_close(&f);
}

/* Sums that live within a step: an accumulator, and the sums of a tied unit, beside accumulators and by themselves. */
TEST_EACH(a_flipped_bit_of_a_sum_is_found_by_the_next_fold_or_the_update, 2)
{
    const int i = (5 + _i) * (int)COUNT(forms); /* three parts, tied */
    const struct way *way = way_of(i);
    struct store_fixture f;

    open_way(&f, i, true);
    for (uint32_t u = 0; u < f.model.n_units; u++) {
        const uint32_t n_folds = f.model.units[u].n_visits * way->n_parts;
        for (uint32_t after = 1; after <= n_folds; after++) {
            const bool tied = f.model.units[u].n_visits > 1;
            const uint64_t lower = tied && after > way->n_parts && _i == 1 ? f.store.own.tied_n : 0;
            const struct flip flip = {after, tied ? (char *)(f.store.tied + lower) : (char *)f.store.accumulators, 4,
                                      3 + after};
            if (tied ? u > 0 : _i == 1)
                continue; /* the first tied unit's are at the beginning; the moments serve the others */
            ck_assert_int_eq(step(&f, u, way, after, &flip), -EIO);
            ck_assert(checks_found(&f.store));
            __atomic_store_n(f.store.checks.damage, OPTIMIZER_WHOLE, __ATOMIC_RELAXED);
        }
    }
    store_fixture_close(&f);
}

static bool scrub_round(struct store_fixture *f)
{
    bool found = false;

    for (int k = 0; k < 64 && !found; k++) /* some 50 MB at 4 MiB each */
        found = checks_scrub(&f->store);
    return found;
}

/* Weights that no step reads: frozen ones, and, with replay, those of the version before. */
TEST_EACH(a_flipped_bit_that_no_step_reads_is_found_by_the_scrub_and_by_a_capture, COUNT(forms))
{
    const int i = (int)COUNT(forms) + _i; /* with replay and frozen weights */
    struct store_fixture f;

    open_way(&f, i, true);
    ck_assert(!scrub_round(&f));
    for (struct store_piece at = {0}; store_fixture_next(&f, &at);) {
        const struct model_unit *u = &f.model.units[at.unit];
        char *const base = (char *)f.store.weights.base +
                           store_weights_at(&f.store, &f.store.own, at.unit, u->n_trained > 0 && !at.tensor->frozen);
        const uint64_t size = number_bytes(f.store.options.precision);
        struct flip flip = {.base = base + at.piece->offset * size,
                            .bytes = at.piece->n * size,
                            .bit = 12345 * at.next};
        if (!at.tensor->frozen)
            flip.base = (char *)f.store.weights.base + store_weights_at(&f.store, &f.store.own, at.unit, 1) +
                        at.piece->offset * size;
        flip_bit(&flip);
        ck_assert(scrub_round(&f));
        expect_found(&f, at.tensor->frozen ? "frozen weights" : "weights", at.tensor->name);
        ck_assert_int_eq(checks_verify(&f.store, at.unit), -EIO);
        expect_found(&f, at.tensor->frozen ? "frozen weights" : "weights", at.tensor->name);
        flip_bit(&flip);
    }
    ck_assert(!scrub_round(&f));
    store_fixture_close(&f);
}

/* The change is found whenever it happens before the slice is folded. What is not finite, and as it was sent, is its
 * sender's. */
TEST_EACH(a_contribution_that_changed_is_memory_s_fault_and_not_its_sender_s, 3)
{
    static const enum number_type types[] = {NUMBER_FP32, NUMBER_BF16, NUMBER_FP16};
    const struct way *way = &ways[3];
    const struct hyper hp = hyper_of(way);
    const size_t each = number_bytes(types[_i]);
    struct store_fixture f;

    open_way(&f, 3 * (int)COUNT(forms), true);
    for (uint32_t u = 0; u < f.model.n_units; u++) {
        const uint64_t n = f.model.units[u].n_trained;
        uint8_t *g = plain_zeros(n, each);
        for (uint64_t k = 0; k < n * each; k++)
            g[k] = (uint8_t)(k % 50);
        struct store_contribution c = {.g = g, .type = types[_i], .first = true, .has_sum = true};
        c.sum = contribution_sum(g, n, each);
        ck_assert_int_eq(store_fold(&f.store, u, 0, &c, STORE_FOLD_MOMENTS, &hp), 0);
        ck_assert_int_eq(store_check(&f.store, &c, n), 0);
        g[u * 31 % (n * each)] ^= 0x40;
        ck_assert_int_eq(store_fold(&f.store, u, 0, &c, STORE_FOLD_MOMENTS, &hp), -EBADMSG);
        ck_assert_int_eq(store_check(&f.store, &c, n), -EBADMSG);
        memset(g, 0xff, each); /* a NaN */
        ck_assert_int_eq(store_fold(&f.store, u, 0, &c, STORE_FOLD_MOMENTS, &hp), -EBADMSG);
        c.sum = contribution_sum(g, n, each);
        ck_assert_int_eq(store_fold(&f.store, u, 0, &c, STORE_FOLD_MOMENTS, &hp), -EDOM);
        ck_assert_int_eq(store_check(&f.store, &c, n), -EDOM);
        ck_assert(!checks_found(&f.store));
        free(g);
    }
    store_fixture_close(&f);
}

/* Two orders of a pass: a long run, which the team shares, and one thread's. */
TEST(the_sum_of_a_long_slice_is_the_same_for_one_thread_and_for_many)
{
    enum { N = 200 * 1024 + 77 };
    float *g = plain_zeros(N, sizeof *g);
    struct block_sum sum;

    for (uint64_t k = 0; k < N; k++)
        g[k] = plain_number(k, 1);
    ck_assert(optimizer_is_finite(optimizer_find(OPTIMIZER_ISA_BEST), g, NUMBER_FP32, N, &sum));
    ck_assert(block_sum_equal(sum, contribution_sum(g, N, sizeof *g)));
    free(g);
}

/* To the byte, in all forms; nothing where memory is not checked. */
TEST_EACH_IF(the_ledger_has_the_sums_that_were_planned, COUNT(ways) * COUNT(forms), exists(_i))
{
    const struct store_options o = options_of(_i, true);
    struct plan_host_setting setting = {.goal = store_goal(&o), .n_workers = 1, .replay = o.replay};
    struct store_fixture f;
    struct plan_host host;

    setting.goal.purpose = PLAN_TRAIN, setting.goal.batch = o.n_parts;
    setting.goal.adamw = way_of(_i)->adamw, setting.goal.moments = o.moments;
    open_way(&f, _i, true);
    plan_host(&host, &f.model, &setting);
    ck_assert_uint_eq(host.bytes[LEDGER_CHECKSUMS],
                      f.ledger.rows[LEDGER_CHECKSUMS].current + (1 + host.n_slots) * sizeof(struct block_sum));
    ck_assert_uint_gt(f.ledger.rows[LEDGER_CHECKSUMS].current, 0);
    store_fixture_close(&f);
    setting.goal.checks_memory = false;
    open_way(&f, _i, false);
    plan_host(&host, &f.model, &setting);
    ck_assert_uint_eq(host.bytes[LEDGER_CHECKSUMS] + f.ledger.rows[LEDGER_CHECKSUMS].current, 0);
    store_fixture_close(&f);
}

/* A bit of one array of the last unit flips once the unit before it is written. */
static void save_damaged(struct store_fixture *f, const struct victim *victim, const char *tensor)
{
    const struct flip flip = {.base = victim->base, .bytes = victim->bytes, .bit = 77};
    const int weights = store_fixture_file(), moments = store_fixture_file();
    const uint32_t unit = f->model.n_units - 1;
    struct checkpoint checkpoint = {0};
    struct store_files files;
    struct error err = {""};

    ck_assert_int_eq(store_files_init(&files, &f->store, &err), 0);
    ck_assert_int_eq(store_files_begin(&files, file_own(weights), file_own(moments), &checkpoint, &err), 0);
    ck_assert_int_eq(store_files_write(&files, unit - 1, &err), 0);
    flip_bit(&flip);
    ck_assert_int_eq(store_files_write(&files, unit, &err), -EIO);
    ck_assert_holds(err.text, "host memory is damaged: the ", victim->what, tensor, " are not as they were written");
    expect_found(f, victim->what, tensor);
    flip_bit(&flip);
    store_files_free(&files);
    checkpoint_free(&checkpoint);
    close(weights), close(moments);
}

/* Between its update and its capture a bit of a unit flips: what is written of it is not what was trained. Each array
 * that is saved, in turn. */
TEST_EACH_IF(a_unit_that_is_damaged_is_not_saved, COUNT(ways) * COUNT(forms), exists(_i))
{
    const struct way *way = way_of(_i);
    struct victim victims[VICTIMS];
    struct store_fixture f;

    open_way(&f, _i, true);
    for (uint32_t u = 0; u < f.model.n_units; u++)
        if (f.model.units[u].n_trained > 0)
            ck_assert_int_eq(step(&f, u, way, 1, NULL), 0);
    const uint32_t unit = f.model.n_units - 1;
    const struct model_piece *piece = &f.model.pieces[f.model.units[unit].first_piece];
    const unsigned n = victims_of(victims, &f, unit, piece, way);
    for (unsigned k = 0; k < n && strcmp(victims[k].what, "gradient's sum") != 0; k++)
        save_damaged(&f, &victims[k], f.model.tensors[piece->tensor].name);
    store_fixture_close(&f);
}

/* Whoever loads writes sums: a damaged store that is loaded anew is whole. */
TEST(a_load_makes_the_sums_anew)
{
    struct store_fixture f, to;

    open_way(&f, 0, true);
    open_way(&to, 0, true);
    for (uint32_t u = 0; u < f.model.n_units; u++)
        ck_assert_int_eq(step(&f, u, &ways[0], 1, NULL), 0);
    store_fixture_reload(&to, &f);
    store_fixture_same_stores(&f, &to);
    ck_assert_int_eq(checks_verify_all(&to.store), 0);
    for (uint32_t u = 0; u < f.model.n_units; u++)
        ck_assert_int_eq(step(&to, u, &ways[0], 2, NULL), 0);
    store_fixture_close(&f);
    store_fixture_close(&to);
}

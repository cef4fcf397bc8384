/* The store with coded moments: whatever must not change a bit changes none; files; bytes by hand; refused files. */
#include "tests/kit/inprocess/model.h"
#include "tests/kit/inprocess/plain.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

#include "eps/store/moments.h"
#include "proto/model/groups.h"
#include "proto/plan/memory/host.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

SUITE_LABELS(single)
SUITE_TIMEOUT(120)

static const struct hyper hyper = {
    .lr = 1e-2, .beta1 = 0.9, .beta2 = 0.99, .epsilon = 1e-8, .weight_decay = 0.5, .grad_scale = 1};

/* An MLP of 3,201, so that the slice ends within a group of its second matrix. */
static const struct model_config cut_in_a_group = GPT2_CONFIG(1, 8, 512, 3201, 8, 10);

/* Small: pieces that begin anywhere, and groups that end with their tensor. The last: a matrix in two slices. */
static const struct way {
    const struct model_config *config;
    bool tied, adamw;
    uint32_t n_parts;
    enum number_type precision;
    bool no_master;
    const char *freeze;
} ways[] = {
    {&store_fixture_small, true, false, 1, NUMBER_BF16, false, ""},
    {&store_fixture_small, false, true, 3, NUMBER_FP32, false, ""},
    {&store_fixture_small, true, true, 2, NUMBER_BF16, true, "h.0.attn.*,h.1.mlp.c_fc.*"},
    {&store_fixture_small, false, true, 2, NUMBER_FP16, false, ""},
    {&cut_in_a_group, false, false, 1, NUMBER_BF16, false, ""},
};

static struct store_options options_of(const struct way *way, bool fenced)
{
    return (struct store_options){.train = true,
                                  .precision = way->precision,
                                  .moments = NUMBER_CODED,
                                  .no_master = way->no_master,
                                  .fenced = fenced,
                                  .n_parts = way->n_parts,
                                  .n_accumulators = !fenced && way->adamw && way->n_parts > 1 ? 2 : 0,
                                  .seed = 7};
}

static void open_way(struct store_fixture *f, const struct way *way, const struct store_options *options)
{
    store_fixture_open_frozen(f, *way->config, way->tied, way->freeze, options);
    store_draw(&f->store, 3);
}

static void train(struct store_fixture *f, const struct way *way, uint64_t first, uint64_t end)
{
    for (uint64_t t = first; t < end; t++)
        for (uint32_t unit = 0; unit < f->model.n_units; unit++) {
            const struct model_unit *u = &f->model.units[unit];
            const enum store_fold how = store_fold_kind(&f->store, unit, way->n_parts, way->adamw);
            float *g = plain_zeros(u->n, sizeof *g);
            for (uint32_t i = 0; u->n_trained > 0 && i < u->n_visits * way->n_parts; i++) {
                struct store_given given = store_fixture_given(f, unit, i, way->n_parts);
                for (uint64_t k = 0; k < u->n_trained; k++)
                    g[k] = plain_number(k, t * 100 + unit * 10 + i);
                given.g = g;
                store_fixture_fold(f, unit, &given, how, &hyper);
            }
            free(g);
            if (u->n_trained == 0)
                continue;
            if (how == STORE_FOLD_HOLD)
                store_join(&f->store, unit);
            ck_assert_int_eq(store_update(&f->store, unit, how, &hyper), 0);
            store_swap(&f->store, unit);
        }
}

/* Codes and scales themselves, beside the values that they stand for. */
static void check_same(const struct store_fixture *a, const struct store_fixture *b)
{
    store_fixture_same_stores(a, b);
    ck_assert_uint_eq(a->store.ledgered[LEDGER_FIRST_MOMENT], b->store.ledgered[LEDGER_FIRST_MOMENT]);
    ck_assert_mem_eq(a->store.m, b->store.m, a->store.ledgered[LEDGER_FIRST_MOMENT]);
    ck_assert_mem_eq(a->store.v, b->store.v, a->store.ledgered[LEDGER_SECOND_MOMENT]);
}

/* A clipped update is that of moments as they are coded, so it is compared with another clipped one. */
enum change { FENCED, CLIPPED, REPLAY, THREADS, V2, V3, CHECKED, CHANGES };

TEST_EACH(what_must_not_change_a_bit_changes_none, CHANGES *COUNT(ways))
{
    const struct way *way = &ways[_i % COUNT(ways)];
    const enum change change = (enum change)(_i / COUNT(ways));
    const bool fp16 = way->precision == NUMBER_FP16;
    struct store_options options = options_of(way, fp16);
    struct store_fixture a, b;

    if (fp16 && change <= REPLAY)
        TEST_SKIP("gradients in fp16 are fenced");
    options.clip_update = change == CLIPPED ? 0.5 : 0;
    open_way(&a, way, &options);
    if (change == FENCED || change == CLIPPED)
        options.fenced = true, options.n_accumulators = 0;
    options.replay = change == REPLAY;
    options.checks_memory = change == CHECKED;
    open_way(&b, way, &options);
    plain_set_threads(change == THREADS ? 3 : 1);
    if (change == V2 || change == V3)
        b.store.kernel = optimizer_find(change == V2 ? OPTIMIZER_ISA_V2 : OPTIMIZER_ISA_V3);
    train(&b, way, 1, 5);
    plain_set_threads(1);
    train(&a, way, 1, 5);
    check_same(&a, &b);
    store_fixture_close(&a), store_fixture_close(&b);
}

/* Moments follow those in fp32: an element of v is off by some steps of its code at most, and of 8 bits the largest
 * step is a 16th of the group's largest. What is not coded has fp32's bits. */
TEST_EACH(moments_are_those_of_fp32_within_their_codes, COUNT(ways))
{
    const struct way *way = &ways[_i];
    struct store_options options = options_of(way, way->precision == NUMBER_FP16);
    struct store_fixture a, b;

    open_way(&a, way, &options);
    options.moments = NUMBER_FP32;
    open_way(&b, way, &options);
    train(&a, way, 1, 2);
    train(&b, way, 1, 2);
    for (struct store_piece at = {0}; store_fixture_next(&a, &at);) {
        if (at.tensor->frozen)
            continue;
        struct store_values x = store_fixture_values(&a, at.unit), y = store_fixture_values(&b, at.unit);
        bool differs = false;
        for (uint64_t i = at.piece->offset; i < at.piece->offset + at.piece->n; i++) {
            ck_assert(x.w[i] == y.w[i]); /* the first step moves weights by moments before they are rounded */
            ck_assert_double_eq_tol((double)x.m[i], (double)y.m[i], 0.1 / 16);
            ck_assert_double_eq_tol(sqrt((double)x.v[i]), sqrt((double)y.v[i]), 0.1 / 64);
            differs |= x.m[i] != y.m[i] || x.v[i] != y.v[i];
        }
        ck_assert_int_eq(differs, at.tensor->n_dims == 2 && strstr(at.tensor->name, ".h.") != NULL);
        store_values_free(&x), store_values_free(&y);
    }
    store_fixture_close(&a), store_fixture_close(&b);
}

/* A run that is saved and goes on in another process: nothing is encoded anew. */
TEST_EACH(a_run_goes_on_from_its_files_bit_for_bit, COUNT(ways))
{
    const struct way *way = &ways[_i];
    const struct store_options options = options_of(way, way->precision == NUMBER_FP16);
    struct store_fixture a, b;

    open_way(&a, way, &options);
    open_way(&b, way, &options);
    train(&a, way, 1, 4);
    store_fixture_reload(&b, &a);
    check_same(&a, &b);
    train(&a, way, 4, 6);
    train(&b, way, 4, 6);
    check_same(&a, &b);
    store_fixture_close(&a), store_fixture_close(&b);
}

/* From run to run, over slices and pieces: the next group's scale is the next one in memory, its codes follow those of
 * the group before, and a group does not go beyond its run. */
TEST_EACH(each_group_has_a_scale_and_codes_of_its_own, COUNT(ways))
{
    const struct store_options options = options_of(&ways[_i], ways[_i].precision == NUMBER_FP16);
    uint64_t n_scales = 0, n_codes = 0, n_cut = 0;
    struct store_fixture f;

    open_way(&f, &ways[_i], &options);
    for (struct store_piece at = {0}; store_fixture_next(&f, &at);) {
        const uint64_t end = at.piece->offset + at.piece->n;
        for (uint64_t i = at.piece->offset, n; at.tensor->grouped && i < end; i += n) {
            const uint64_t slice_end = (i / MODEL_SLICE + 1) * MODEL_SLICE, run_end = slice_end < end ? slice_end : end;
            n = run_end - i < 64 ? run_end - i : 64;
            const struct parameters p = store_parameters(&f.store, at.unit, i, n, 0);
            ck_assert_ptr_eq(p.coded.m_scales, f.store.coded.m_scales + n_scales);
            ck_assert_ptr_eq(p.coded.v_scales, f.store.coded.v_scales + n_scales++);
            ck_assert_ptr_eq(p.coded.m, f.store.coded.m + n_codes);
            ck_assert_ptr_eq(p.coded.v, f.store.coded.v + n_codes);
            n_codes += n, n_cut += n < 64 && run_end < end;
            if (n > 1) /* not a group's first element */
                ck_assert_ptr_null(store_parameters(&f.store, at.unit, i + 1, 1, 0).coded.m);
        }
    }
    ck_assert_ptr_eq(f.store.coded.m_scales + n_scales, f.store.coded.m); /* codes are behind the last scale */
    ck_assert_uint_eq(n_cut, ways[_i].config == &cut_in_a_group);
    store_fixture_close(&f);
}

/* By hand, of a block of 512 with an MLP of 3,201, whose matrices are all of it but 1.5 in a thousand: 1 + 1 byte each,
 * and 4 + 4 for 64. */
TEST(a_matrix_takes_6_bytes_and_an_eighth_a_parameter)
{
    const struct way *way = &ways[4];
    const struct store_options options = options_of(way, false);
    struct plan_host_setting setting = {.goal = store_goal(&options), .n_workers = 1};
    struct plan_host host;
    struct store_fixture f;
    uint64_t matrices = 0, others = 0, scales = 0;

    open_way(&f, way, &options);
    for (struct store_piece at = {0}; store_fixture_next(&f, &at);) {
        const bool coded = at.tensor->n_dims == 2 && strstr(at.tensor->name, ".h.");
        *(coded ? &matrices : &others) += at.piece->n;
        const uint64_t before = at.piece->offset / MODEL_SLICE * MODEL_SLICE + MODEL_SLICE - at.piece->offset;
        const bool is_cut = before < at.piece->n; /* of two slices: groups begin anew in the second */
        if (coded)
            scales += is_cut ? (before + 63) / 64 + (at.piece->n - before + 63) / 64 : (at.piece->n + 63) / 64;
    }
    const uint64_t want = matrices + 4 * scales + 4 * others;
    ck_assert_uint_eq(f.ledger.rows[LEDGER_FIRST_MOMENT].current, want);
    ck_assert_uint_eq(f.ledger.rows[LEDGER_SECOND_MOMENT].current, want);
    setting.goal.purpose = PLAN_TRAIN, setting.goal.moments = NUMBER_CODED, setting.goal.batch = 1;
    plan_host(&host, &f.model, &setting);
    ck_assert_uint_eq(host.bytes[LEDGER_FIRST_MOMENT], want);
    ck_assert_uint_eq(host.bytes[LEDGER_SECOND_MOMENT], want);
    ck_assert_double_eq_tol(2 + 2 + 2 * (double)(matrices + 4 * scales) / (double)matrices, 6.125, 1e-5);
    store_fixture_close(&f);
}

/* ---- files that are refused -------------------------------------------------------------------------------------- */

/* The file of moments of a small store in this form. */
static int written(enum number_type moments)
{
    struct store_options options = options_of(&ways[0], false);
    const int weights = store_fixture_file(), fd = store_fixture_file();
    struct store_fixture f;

    options.moments = moments;
    open_way(&f, &ways[0], &options);
    train(&f, &ways[0], 1, 3);
    store_fixture_write(&f.store, weights, fd, NULL);
    store_fixture_close(&f);
    close(weights);
    return fd;
}

static void expect_refused(int fd, enum number_type moments, const char *name, const char *why)
{
    struct store_options options = options_of(&ways[0], false);
    struct store_fixture f;
    struct error err = {""};

    options.moments = moments;
    open_way(&f, &ways[0], &options);
    ck_assert_int_eq(store_fixture_load_moments(&f.store, &(struct file){.fd = fd}, &err), -EINVAL);
    ck_assert_holds(err.text, name, why);
    store_fixture_close(&f);
}

/* Overwrites the first bytes of an entry. */
static void damage(int fd, const char *name, const void *bytes, size_t n)
{
    struct safetensors file;
    struct error err = {""};

    ck_assert_msg(safetensors_open(&file, fd, &err) == 0, "%s", err.text);
    const struct safetensors_entry *entry = safetensors_find(&file, name);
    ck_assert_ptr_nonnull(entry);
    ck_assert_int_eq(pwrite(fd, bytes, n, (off_t)entry->offset), (ssize_t)n);
    safetensors_close(&file);
}

#define MATRIX "transformer.h.1.mlp.c_fc.weight"

/* A whole file, then the same with one thing wrong: a code that no m has, a scale that no group has. */
TEST(codes_and_scales_that_cannot_be_are_refused)
{
    static const struct {
        const char *name;
        float scale;
        const char *why;
    } cases[] = {
        {"m." MATRIX ".codes", 0, "a code of -128"},
        {"m." MATRIX ".scales", INFINITY, "a scale that is negative or not finite"},
        {"v." MATRIX ".scales", NAN, "a scale that is negative or not finite"},
        {"v." MATRIX ".scales", -1, "a scale that is negative or not finite"},
    };
    const int8_t code = -128;

    for (size_t i = 0; i < COUNT(cases); i++) {
        const int fd = written(NUMBER_CODED);
        if (cases[i].scale == 0)
            damage(fd, cases[i].name, &code, sizeof code);
        else
            damage(fd, cases[i].name, &cases[i].scale, sizeof cases[i].scale);
        expect_refused(fd, NUMBER_CODED, cases[i].name, cases[i].why);
        close(fd);
    }
}

TEST(moments_of_another_form_are_refused)
{
    const int coded = written(NUMBER_CODED), wide = written(NUMBER_FP32), halves = written(NUMBER_BF16);

    expect_refused(wide, NUMBER_CODED, "transformer.h.0.attn.c_attn.weight", "F32, and this run's is coded");
    expect_refused(halves, NUMBER_CODED, "transformer.h.0.attn.c_attn.weight", "BF16, and this run's is coded");
    expect_refused(coded, NUMBER_FP32, "transformer.h.0.attn.c_attn.weight", "a part of a coded moment");
    expect_refused(coded, NUMBER_BF16, "transformer.h.0.attn.c_attn.weight", "a part of a coded moment");
    close(coded), close(wide), close(halves);
}

/* A name in the file's header becomes another of its length: then the part is missing. */
TEST(a_part_that_is_missing_is_named)
{
    static const char *const parts[] = {"m." MATRIX ".codes", "v." MATRIX ".scales"};
    char text[1 << 16];

    for (size_t i = 0; i < COUNT(parts); i++) {
        const int fd = written(NUMBER_CODED);
        const ssize_t n = pread(fd, text, sizeof text, 0);
        ck_assert_int_gt(n, 0);
        char *const at = memmem(text, (size_t)n, parts[i], strlen(parts[i]));
        ck_assert_ptr_nonnull(at);
        /* A norm of no matrix, which a model without norms passes over. */
        memcpy(at, "norms.", 6);
        ck_assert_int_eq(pwrite(fd, text, (size_t)n, 0), n);
        expect_refused(fd, NUMBER_CODED, parts[i], "is missing");
        close(fd);
    }
}

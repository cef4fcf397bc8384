/* Sparse weights: how much there is of them, which are drawn and loaded, and what is saved. */
#include "eps/store/rewire.h"
#include "proto/model/file/safetensors.h"
#include "proto/plan/memory/data.h"
#include "tests/kit/inprocess/plain.h"
#include "tests/kit/inprocess/sparse_fixture.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- how much there is of it ---- */

/* Of matrices of blocks, and of nothing else: 0.3 of their elements, and a quarter more room; a bit for each place,
 * starts of rows. */
TEST(a_sparse_unit_has_its_elements_and_their_places)
{
    const uint64_t sizes[] = {32 * 96, 32 * 32, 32 * 96, 96 * 32}, rows[] = {32, 32, 32, 96};
    uint64_t n = 0, n_places = 0, n_vectors = 4 * 32 + 96 + 32 + 96 + 32;
    struct store_fixture f;

    sparse_fixture_open(&f, &sparse_fixture_usual, &sparse_fixture_forms[0]);
    for (int i = 0; i < 4; i++) {
        const uint64_t begins = sizes[i] * 3 / 10, room = begins * 5 / 4;
        n += room;
        n_places += (4 * (rows[i] + 1) + 63) / 64 * 64 + sizes[i] / 8;
    }
    const struct model_unit *const unit =
        &f.model.units[f.model.visits[f.model.layers[f.model.first_block].first_visit]];
    ck_assert_uint_eq(unit->n, n + n_vectors);
    ck_assert_uint_eq(unit->n_trained, unit->n);
    ck_assert_uint_eq(unit->n_decoded, sizes[0] + sizes[1] + sizes[2] + sizes[3]);
    ck_assert_uint_eq(model_unit_bytes(unit, NUMBER_FP32), model_rounded(unit->n) * 4 + n_places);
    ck_assert_uint_eq(f.model.units[0].n, 17 * 32); /* the table of tokens is dense */
    /* Of eight pieces the widest has 921 elements and room for 1,151. */
    ck_assert_uint_eq(plan_rewire(&f.model).bytes, 8 * PLAN_REWIRE_PIECE + 1151 * (4 + 1));
    store_fixture_close(&f);
}

/* ---- drawn and loaded ---- */

/* Fresh weights are those of the dense model, at some places of each row, in all rows alike. */
TEST(drawn_weights_are_those_of_the_dense_model)
{
    struct store_fixture dense, f;

    sparse_fixture_open_dense(&dense);
    sparse_fixture_open(&f, &sparse_fixture_usual, &sparse_fixture_forms[0]);
    ck_assert_int_eq(store_draw(&f.store, SPARSE_FIXTURE_SEED), 0);
    struct sparse_snapshot s = sparse_snapshot_take(&f);
    for (int i = 0; i < s.n; i++) {
        const struct model_piece *piece = s.piece[i], *whole = &dense.model.pieces[piece - f.model.pieces];
        const float *w = store_weights(&dense.store, s.unit[i]) + whole->offset;
        ck_assert_uint_eq(s.of[i].n, whole->n * 3 / 10);
        for (uint64_t k = 0; k < whole->n; k++)
            ck_assert(!sparse_has(&s.of[i], k) || s.of[i].w[k] == w[k]);
        uint64_t half = 0; /* a quarter of a hundredth of draws is 6 deviations away */
        for (uint64_t k = 0; k < whole->n / 2; k++)
            half += sparse_has(&s.of[i], k);
        ck_assert_double_eq_tol((double)half, 0.5 * (double)s.of[i].n, 6 * sqrt(0.25 * 0.7 * (double)s.of[i].n));
    }
    sparse_snapshot_free(&s);
    store_fixture_close(&f);
    store_fixture_close(&dense);
}

/* Of a dense model the largest weights of each matrix stay, exactly. */
TEST(of_a_dense_model_the_largest_weights_stay)
{
    struct store_fixture dense, f;

    sparse_fixture_open_dense(&dense);
    sparse_fixture_open_given(&f, &dense, &sparse_fixture_forms[0]);
    struct sparse_snapshot s = sparse_snapshot_take(&f);
    for (int i = 0; i < s.n; i++) {
        const struct model_piece *whole = &dense.model.pieces[s.piece[i] - f.model.pieces];
        const float *w = store_weights(&dense.store, s.unit[i]) + whole->offset;
        float least = INFINITY, most = 0;
        for (uint64_t k = 0; k < whole->n; k++) {
            const float magnitude = fabsf(w[k]);
            if (sparse_has(&s.of[i], k)) {
                ck_assert(s.of[i].w[k] == w[k]);
                least = magnitude < least ? magnitude : least;
            } else {
                most = magnitude > most ? magnitude : most;
            }
        }
        ck_assert_uint_eq(s.of[i].n, whole->n * 3 / 10);
        ck_assert(least >= most);
    }
    sparse_snapshot_free(&s);
    store_fixture_close(&f);
    store_fixture_close(&dense);
}

/* ---- checkpoints ---- */

static bool same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

static void check_same(const struct store_fixture *a, const struct store_fixture *b)
{
    struct sparse_snapshot x = sparse_snapshot_take(a), y = sparse_snapshot_take(b);

    for (int i = 0; i < x.n; i++)
        for (uint64_t k = 0; k < x.of[i].n_dense; k++) {
            ck_assert(sparse_has(&x.of[i], k) == sparse_has(&y.of[i], k));
            ck_assert(!sparse_has(&x.of[i], k) ||
                      (same(x.of[i].w[k], y.of[i].w[k]) && same(x.of[i].m[k], y.of[i].m[k]) &&
                       same(x.of[i].v[k], y.of[i].v[k])));
        }
    ck_assert(rewire_threshold(&a->store) == rewire_threshold(&b->store));
    ck_assert(a->store.rewiring.version == b->store.rewiring.version);
    sparse_snapshot_free(&x);
    sparse_snapshot_free(&y);
}

/* Zeros among them stay where they are, and the next change is the same. */
TEST_EACH(a_checkpoint_has_places_and_what_changes_them, SPARSE_FIXTURE_FORMS)
{
    struct store_fixture a, b;

    sparse_fixture_open(&a, &sparse_fixture_usual, &sparse_fixture_forms[_i]);
    sparse_fixture_open(&b, &sparse_fixture_usual, &sparse_fixture_forms[_i]);
    ck_assert_int_eq(store_draw(&a.store, SPARSE_FIXTURE_SEED), 0);
    sparse_fixture_scatter(&a, 7);
    store_rewire(&a.store, SPARSE_FIXTURE_EVERY);
    sparse_fixture_reload(&b, &a);
    check_same(&a, &b);
    ck_assert(!rewire_is_due(&b.store, SPARSE_FIXTURE_EVERY) && rewire_is_due(&b.store, 2 * SPARSE_FIXTURE_EVERY));
    store_rewire(&a.store, 2 * SPARSE_FIXTURE_EVERY);
    store_rewire(&b.store, 2 * SPARSE_FIXTURE_EVERY);
    check_same(&a, &b);
    store_fixture_close(&a);
    store_fixture_close(&b);
}

static void write_rewired(const struct file *moments, const int64_t numbers[3])
{
    struct safetensors read;
    struct error err = {""};

    ck_assert_int_eq(safetensors_open(&read, moments->fd, &err), 0);
    const struct safetensors_entry *const entry = safetensors_find(&read, "rewired");
    ck_assert_uint_eq(entry->n, 3);
    ck_assert_int_eq(pwrite(moments->fd, numbers, 24, (off_t)entry->offset), 24);
    safetensors_close(&read);
}

static const struct {
    int64_t numbers[3];
    int rc;
} rewirings[] = {{{5, -3, 0x3c000000}, 0},       {{5, 3, 0}, 0},
                 {{-1, 0, 0x3c000000}, -EINVAL}, {{5, 121, 0x3c000000}, -EINVAL},
                 {{5, 0, 0x7f800000}, -EINVAL},  {{5, 0, -1}, -EINVAL},
                 {{5, 0, 0x13c000000}, -EINVAL}};

/* The step, doublings, and the first threshold, here 0x1p-7; others are refused. */
TEST_EACH(what_changes_places_is_checked, COUNT(rewirings))
{
    const struct file moments = file_own(store_fixture_file());
    const int weights = store_fixture_file();
    struct error err = {""};
    struct store_fixture a, b;

    sparse_fixture_open(&a, &sparse_fixture_usual, &sparse_fixture_forms[0]);
    sparse_fixture_open(&b, &sparse_fixture_usual, &sparse_fixture_forms[0]);
    ck_assert_int_eq(store_draw(&a.store, SPARSE_FIXTURE_SEED), 0);
    store_fixture_write(&a.store, weights, moments.fd, NULL);
    write_rewired(&moments, rewirings[_i].numbers);
    ck_assert_int_eq(sparse_fixture_load_places(&b, &moments, &err), rewirings[_i].rc);
    if (rewirings[_i].rc == 0)
        ck_assert(rewire_threshold(&b.store) == (_i == 0 ? 0x1p-10f : 0));
    else
        ck_assert_ptr_nonnull(strstr(err.text, "the file is damaged"));
    close(weights);
    close(moments.fd);
    store_fixture_close(&a);
    store_fixture_close(&b);
}

/* By hand: two rows of 40 columns, in two words each, and three elements that there is room for. */
static const struct {
    uint32_t places[4];
    int rc;
} counted[] = {
    {{1, 0, 0x80000000, 0x80}, 0},    {{0, 0, 0, 0x80}, 0}, {{0, 0, 0, 0}, -EINVAL}, /* none */
    {{3, 0, 3, 0}, -EINVAL},                                                         /* more than there is room for */
    {{1, 0x100, 0, 0}, -EINVAL},                                                     /* beyond the columns */
    {{1, 0, 0, 0x80000000}, -EINVAL},
};

TEST_EACH(places_are_counted_row_by_row, COUNT(counted))
{
    uint32_t starts[3], places[4];
    const struct sparse_places p = {.rows = 2, .columns = 40, .words = 2, .n = 3, .starts = starts, .places = places};

    memcpy(places, counted[_i].places, sizeof places);
    ck_assert_int_eq(sparse_places_count(&p), counted[_i].rc);
    if (counted[_i].rc == 0) {
        ck_assert(starts[0] == 0 && starts[1] == (_i == 0 ? 1 : 0) && starts[2] == (_i == 0 ? 3 : 1));
        ck_assert_uint_eq(sparse_next(&p, 0, 0), _i == 0 ? 0 : 40);
        ck_assert_uint_eq(sparse_next(&p, 0, 1), 40);
        ck_assert_uint_eq(sparse_next(&p, 1, 0), _i == 0 ? 31 : 39);
        ck_assert_uint_eq(sparse_next(&p, 1, 32), 39);
        ck_assert_uint_eq(sparse_next(&p, 1, 40), 40);
    }
}

/* Nor are those of a file that has columns, and starts of rows beside them: places of an older version. */
TEST(a_checkpoint_without_places_is_refused)
{
    static char header[1 << 16];
    static const uint32_t none[32 * 96 / 32];
    const struct file moments = file_own(store_fixture_file());
    const int weights = store_fixture_file();
    struct error err = {""};
    struct safetensors read;
    struct store_fixture a, b;

    sparse_fixture_open(&a, &sparse_fixture_usual, &sparse_fixture_forms[0]);
    sparse_fixture_open(&b, &sparse_fixture_usual, &sparse_fixture_forms[0]);
    ck_assert_int_eq(store_draw(&a.store, SPARSE_FIXTURE_SEED), 0);
    store_fixture_write(&a.store, weights, moments.fd, NULL);
    ck_assert_int_eq(safetensors_open(&read, moments.fd, &err), 0);
    const struct safetensors_entry *places = safetensors_find(&read, "places.transformer.h.1.attn.c_attn.weight");
    ck_assert_int_eq(pwrite(moments.fd, none, sizeof none, (off_t)places->offset), sizeof none);
    safetensors_close(&read);
    ck_assert_int_eq(sparse_fixture_load_places(&b, &moments, &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "c_attn.weight are no places"));

    const ssize_t n = pread(moments.fd, header, sizeof header, 0);
    char *const name = memmem(header, (size_t)n, "places.", 7);
    ck_assert_int_eq(pwrite(moments.fd, "starts", 6, name - header), 6);
    ck_assert_int_eq(sparse_fixture_load_places(&b, &moments, &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "older versions of eps"));
    close(weights);
    close(moments.fd);
    store_fixture_close(&a);
    store_fixture_close(&b);
}

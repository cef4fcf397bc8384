/* Sparse weights change places (eps/store/rewire.h). */
#include "eps/store/rewire.h"
#include "tests/kit/inprocess/plain.h"
#include "tests/kit/inprocess/sparse_fixture.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { STEPS = 12 };

static uint64_t count_below(const struct sparse_elements *e, float threshold)
{
    uint64_t n = 0;

    for (uint64_t i = 0; i < e->n_dense; i++)
        n += sparse_has(e, i) && fabsf(e->w[i]) < threshold;
    return n;
}

static bool same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

/* What remains has all its state in its place; what is new had no element before, and begins at 0. Returns the new
 * ones. */
static uint64_t check_piece(const struct sparse_elements *before, const struct sparse_elements *after, float threshold)
{
    uint64_t n_new = 0, n_gone = 0;

    for (uint64_t i = 0; i < before->n_dense; i++) {
        const bool had = sparse_has(before, i), has = sparse_has(after, i);
        const bool pruned = had && fabsf(before->w[i]) < threshold;
        n_gone += had && !has;
        if (had && !has)
            ck_assert(pruned);
        if (had && has)
            ck_assert(!pruned && same(before->w[i], after->w[i]) && same(before->m[i], after->m[i]) &&
                      same(before->v[i], after->v[i]));
        if (!had && has) {
            ck_assert(after->w[i] == 0 && after->m[i] == 0 && after->v[i] == 0);
            n_new++;
        }
    }
    ck_assert_uint_eq(n_gone, count_below(before, threshold));
    return n_new;
}

/* A piece's share is in proportion to what remains, or what it has room for; rounding and lack of room elsewhere
 * aside. */
static void check_share(const struct rewired *r, uint64_t n_new, uint64_t remains, const struct model_piece *piece)
{
    const double share = (double)r->pruned * (double)remains / (double)(r->n - r->pruned);
    const uint64_t room = piece->n - remains;

    if ((double)room > share + 8)
        ck_assert_double_eq_tol((double)n_new, share, 8);
    ck_assert_uint_le(n_new, room);
}

static struct rewired check_change(struct store_fixture *f, uint64_t step)
{
    ck_assert(rewire_is_due(&f->store, step));
    struct sparse_snapshot before = sparse_snapshot_take(f);
    const float threshold = rewire_threshold(&f->store);
    const struct rewired r = store_rewire(&f->store, step);
    struct sparse_snapshot after = sparse_snapshot_take(f);
    uint64_t pruned = 0, grown = 0;

    ck_assert(!rewire_is_due(&f->store, step));
    ck_assert(r.threshold == threshold && r.n == before.n_elements);
    for (int i = 0; i < before.n; i++) {
        const uint64_t gone = count_below(&before.of[i], threshold),
                       n_new = check_piece(&before.of[i], &after.of[i], threshold);
        check_share(&r, n_new, before.of[i].n - gone, before.piece[i]);
        pruned += gone, grown += n_new;
    }
    ck_assert_uint_eq(r.pruned, pruned);
    ck_assert_uint_eq(r.grown, grown);
    ck_assert_uint_eq(grown, pruned);
    ck_assert_uint_eq(after.n_elements, before.n_elements);
    sparse_snapshot_free(&before);
    sparse_snapshot_free(&after);
    return r;
}

/* The threshold doubles below 0.9 of the share that is to move, halves above 1.1 of it, and else stays. */
TEST_EACH(what_is_pruned_grows_elsewhere, SPARSE_FIXTURE_FORMS)
{
    struct store_fixture f;
    unsigned n_doubled = 0, n_halved = 0, n_stayed = 0;

    sparse_fixture_open(&f, &sparse_fixture_usual, &sparse_fixture_forms[_i]);
    ck_assert_int_eq(store_draw(&f.store, SPARSE_FIXTURE_SEED), 0);
    for (uint64_t k = 1; k <= STEPS; k++) {
        sparse_fixture_scatter(&f, k < 5 ? 2 * k : k); /* at first all of one size, which the threshold finds */
        const struct rewired r = check_change(&f, k * SPARSE_FIXTURE_EVERY);
        const double share = (double)r.pruned / (double)r.n;
        const float factor = rewire_threshold(&f.store) / r.threshold;
        ck_assert(factor == (share < 0.9 * sparse_fixture_usual.moved   ? 2
                             : share > 1.1 * sparse_fixture_usual.moved ? 0.5f
                                                                        : 1));
        n_doubled += factor == 2, n_halved += factor == 0.5f, n_stayed += factor == 1;
    }
    ck_assert_uint_gt(n_stayed, 0);
    ck_assert_uint_gt(n_doubled, 0);
    ck_assert_uint_gt(n_halved, 0);
    store_fixture_close(&f);
}

/* Weights of one distribution, of which 0.1 are below 0.004, at each of 100 times: from a threshold below that, or far
 * above, it is reached by doubling or halving at each, and stays; then what moves is within a tenth of what is to
 * move. */
TEST_EACH(the_threshold_settles_where_as_much_moves_as_is_to_move, 2)
{
    enum { REWIRINGS = 100, SETTLED = 2 /* 0.001 x 2^2 */ };
    const int begin = _i ? 5 : 0, n_transient = abs(begin - SETTLED);
    struct store_fixture f;

    sparse_fixture_open(&f, &sparse_fixture_usual, &sparse_fixture_forms[0]);
    ck_assert_int_eq(store_draw(&f.store, SPARSE_FIXTURE_SEED), 0);
    f.store.rewiring.doublings = begin;
    for (int k = 1; k <= REWIRINGS; k++) {
        sparse_fixture_scatter(&f, 2 * (uint64_t)k);
        const struct rewired r = check_change(&f, (uint64_t)k * SPARSE_FIXTURE_EVERY);
        const double moved = (double)r.pruned / (double)r.n / sparse_fixture_usual.moved;
        if (k <= n_transient)
            ck_assert(moved < 0.9 || moved > 1.1);
        else
            ck_assert_msg(moved >= 0.9 && moved <= 1.1, "rewiring %d: %g of what is to move", k, moved);
    }
    ck_assert_int_eq(f.store.rewiring.doublings, SETTLED);
    store_fixture_close(&f);
}

static int compare_magnitudes(const void *a, const void *b)
{
    const float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

/* The magnitude that a share of all elements is below: by sorting them. */
static float magnitude_at(const struct store_fixture *f, double share)
{
    struct sparse_snapshot s = sparse_snapshot_take(f);
    float *const sorted = plain_zeros(s.n_elements, sizeof *sorted);
    uint64_t n = 0;

    for (int i = 0; i < s.n; i++)
        for (uint64_t k = 0; k < s.of[i].n_dense; k++)
            if (sparse_has(&s.of[i], k))
                sorted[n++] = fabsf(s.of[i].w[k]);
    qsort(sorted, n, sizeof *sorted, compare_magnitudes);
    const float at = sorted[(uint64_t)(share * (double)n)];
    free(sorted);
    sparse_snapshot_free(&s);
    return at;
}

/* Of given weights none is small, and a threshold of powers of two would take nothing or most: the first one takes as
 * many as are to move, and doubles and halves from there on. Also where the run is stopped before, which no run of
 * fresh weights is. */
TEST_EACH(of_given_weights_as_many_move_at_first_as_are_to_move, 2 * SPARSE_FIXTURE_FORMS)
{
    const struct store_options *const form = &sparse_fixture_forms[_i / 2];
    struct store_fixture dense, given, resumed, *const f = _i % 2 ? &resumed : &given;

    sparse_fixture_open_dense(&dense);
    sparse_fixture_open_given(&given, &dense, form);
    sparse_fixture_open(&resumed, &sparse_fixture_usual, form);
    sparse_fixture_reload(&resumed, &given);
    ck_assert(rewire_threshold(&f->store) == 0);
    const float wanted = magnitude_at(f, sparse_fixture_usual.moved);
    const struct rewired r = store_rewire(&f->store, SPARSE_FIXTURE_EVERY);
    ck_assert(r.threshold == wanted && wanted > 4 * REWIRE_THRESHOLD);
    ck_assert_double_eq_tol((double)r.pruned / (double)r.n, sparse_fixture_usual.moved,
                            0.1 * sparse_fixture_usual.moved);
    ck_assert_uint_eq(r.grown, r.pruned);
    ck_assert(rewire_threshold(&f->store) == wanted);
    const struct rewired next = check_change(f, 2 * SPARSE_FIXTURE_EVERY);
    ck_assert_uint_eq(next.pruned, r.grown); /* those that grew are 0: they go, no others */
    sparse_fixture_scatter(f, 1);            /* all below it */
    store_rewire(&f->store, 3 * SPARSE_FIXTURE_EVERY);
    ck_assert(rewire_threshold(&f->store) == wanted / 2);
    store_fixture_close(&given);
    store_fixture_close(&resumed);
    store_fixture_close(&dense);
}

/* The first threshold of weights that are zeros for the most part is that of fresh ones: twice 0 would be 0. */
TEST(of_given_zeros_the_threshold_is_that_of_fresh_weights)
{
    struct store_fixture dense, f;

    sparse_fixture_open_dense(&dense);
    for (struct store_piece at = {0}; store_fixture_next(&dense, &at);)
        memset(store_weights(&dense.store, at.unit) + at.piece->offset, 0, at.piece->n * sizeof(float));
    sparse_fixture_open_given(&f, &dense, &sparse_fixture_forms[0]);
    const struct rewired r = store_rewire(&f.store, SPARSE_FIXTURE_EVERY);
    ck_assert(r.threshold == REWIRE_THRESHOLD && r.pruned > r.n / 2);
    store_fixture_close(&f);
    store_fixture_close(&dense);
}

/* Pieces that have room for no more than they begin with get what they lost; the largest of a piece that is below the
 * threshold as a whole stays. */
TEST(a_piece_without_more_room_keeps_its_number)
{
    const struct sparse full = {.keep = 0.5, .room = 1, .every = SPARSE_FIXTURE_EVERY, .moved = 0.1};
    struct store_fixture f;

    sparse_fixture_open(&f, &full, &sparse_fixture_forms[0]);
    ck_assert_int_eq(store_draw(&f.store, SPARSE_FIXTURE_SEED), 0);
    sparse_fixture_scatter(&f, 1);
    struct sparse_snapshot before = sparse_snapshot_take(&f);
    float *const w = store_weights(&f.store, before.unit[2]) + before.piece[2]->offset;
    for (uint64_t i = 0; i < before.of[2].n; i++)
        w[i] = i == 5 ? -9e-4f : 1e-4f;
    const struct rewired r = store_rewire(&f.store, SPARSE_FIXTURE_EVERY);
    struct sparse_snapshot after = sparse_snapshot_take(&f);
    for (int i = 0; i < before.n; i++)
        ck_assert_uint_eq(after.of[i].n, before.of[i].n);
    ck_assert_uint_gt(r.pruned, before.of[2].n - 1);
    uint64_t n_stayed = 0;
    for (uint64_t i = 0; i < after.of[2].n_dense; i++)
        n_stayed += sparse_has(&after.of[2], i) && after.of[2].w[i] == -9e-4f;
    ck_assert_uint_eq(n_stayed, 1);
    sparse_snapshot_free(&before);
    sparse_snapshot_free(&after);
    store_fixture_close(&f);
}

/* In none of 16 equal parts of a matrix grow more or fewer than chance explains: chi-square of 15 degrees, at 0.01.
 * Those that were there are a known share of each part. */
TEST(new_places_are_as_likely_as_others)
{
    enum { PARTS = 16 };
    double seen[PARTS] = {0}, free_places[PARTS] = {0}, chi = 0, n = 0, n_free = 0;
    struct store_fixture f;

    sparse_fixture_open(&f, &sparse_fixture_usual, &sparse_fixture_forms[0]);
    ck_assert_int_eq(store_draw(&f.store, SPARSE_FIXTURE_SEED), 0);
    for (uint64_t k = 1; k <= 40; k++) {
        sparse_fixture_scatter(&f, k);
        struct sparse_snapshot before = sparse_snapshot_take(&f);
        store_rewire(&f.store, k * SPARSE_FIXTURE_EVERY);
        struct sparse_snapshot after = sparse_snapshot_take(&f);
        for (uint64_t i = 0; i < before.of[0].n_dense; i++) {
            const uint64_t part = i * PARTS / before.of[0].n_dense;
            free_places[part] += !sparse_has(&before.of[0], i);
            seen[part] += !sparse_has(&before.of[0], i) && sparse_has(&after.of[0], i);
        }
        sparse_snapshot_free(&before);
        sparse_snapshot_free(&after);
    }
    for (int i = 0; i < PARTS; i++)
        n += seen[i], n_free += free_places[i];
    for (int i = 0; i < PARTS; i++) {
        const double expected = n * free_places[i] / n_free;
        chi += (seen[i] - expected) * (seen[i] - expected) / expected;
    }
    ck_assert_double_gt(n, 2000);
    ck_assert_double_lt(chi, 30.6);
    store_fixture_close(&f);
}

/* Sparse weights: which are drawn and loaded, what is saved of them, and how they change places (eps/store/rewire.h). */
#include "eps/store/rewire.h"
#include "eps/store/sparse.h"
#include "proto/model/safetensors.h"
#include "proto/plan/memory/data.h"
#include "proto/plan/memory/files.h"
#include "tests/kit/inprocess/model.h"
#include "tests/kit/inprocess/plain.h"
#include "tests/kit/inprocess/store_fixture.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { EVERY = 5, SEED = 3, STEPS = 12 };

static const struct model_config config = GPT2_CONFIG(2, 2, 32, 96, 8, 17);
static const struct sparse usual = {.keep = 0.3, .room = 1.25, .every = EVERY, .moved = 0.1};

/* Types of weights and moments, and optimizers, whose elements are in other arrays each time. */
static const struct store_options forms[] = {
    {.train = true, .seed = SEED},
    {.train = true, .seed = SEED, .replay = true},
    {.train = true, .seed = SEED, .fenced = true, .sgd = true, .momentum = 0.9},
    {.train = true, .seed = SEED, .precision = NUMBER_BF16},
    {.train = true, .seed = SEED, .precision = NUMBER_BF16, .moments = NUMBER_BF16, .replay = true},
};

static void open_sparse(struct store_fixture *f, const struct sparse *sparse, const struct store_options *options)
{
    struct model_config c = config;
    struct error err = {""};

    *f = (struct store_fixture){0};
    c.tied = true;
    c.gpt2.scale_attention = true;
    ck_assert_msg(model_init(&f->model, &c, &err) == 0, "%s", err.text);
    model_sparsify(&f->model, sparse);
    ck_assert_msg(store_init(&f->store, &f->model, options, &f->ledger, &err) == 0, "%s", err.text);
}

/* Of one sparse piece, all elements in their places; NAN where there is none. */
struct elements {
    uint64_t n_dense, n;
    float *w, *m, *v;
};

static struct elements elements_of(const struct store *store, uint32_t unit, const struct model_piece *piece)
{
    const struct sparse_places p = store_places(store, unit, piece);
    struct elements e = {.n_dense = piece->dense, .n = sparse_places_used(&p)};
    float *const all[] = {plain_zeros(piece->n, sizeof(float)), plain_zeros(piece->n, sizeof(float)),
                          plain_zeros(piece->n, sizeof(float))};
    float **const out[] = {&e.w, &e.m, &e.v};
    const struct parameters from = store_parameters(store, unit, piece->offset, piece->n, 0);

    optimizer_read(&from, all[0], store_moments(store) > 0 ? all[1] : NULL, store_moments(store) > 1 ? all[2] : NULL);
    for (int a = 0; a < 3; a++) {
        *out[a] = plain_zeros(piece->dense, sizeof(float));
        for (uint64_t i = 0; i < piece->dense; i++)
            (*out[a])[i] = NAN;
        uint64_t at = 0;
        for (uint64_t i = 0; i < piece->dense; i++) {
            const uint64_t row = i / p.columns, column = i % p.columns;
            ck_assert(column > 0 || p.starts[row] == at);
            if (p.places[row * p.words + column / 32] >> column % 32 & 1)
                (*out[a])[i] = all[a][at++];
        }
        ck_assert_uint_eq(at, e.n);
        for (uint64_t i = e.n; i < piece->n; i++) /* what is free is 0 */
            ck_assert(all[a][i] == 0);
        free(all[a]);
    }
    return e;
}

static void elements_free(struct elements *e)
{
    free(e->w);
    free(e->m);
    free(e->v);
}

enum { MOST_PIECES = 16 };

struct snapshot {
    int n;
    uint32_t unit[MOST_PIECES];
    const struct model_piece *piece[MOST_PIECES];
    struct elements of[MOST_PIECES];
    uint64_t n_elements;
};

static struct snapshot take(const struct store_fixture *f)
{
    struct snapshot s = {0};

    for (struct store_piece at = {0}; store_fixture_next(f, &at);) {
        if (at.piece->dense == 0)
            continue;
        ck_assert_int_lt(s.n, MOST_PIECES);
        s.unit[s.n] = at.unit, s.piece[s.n] = at.piece;
        s.of[s.n] = elements_of(&f->store, at.unit, at.piece);
        s.n_elements += s.of[s.n++].n;
    }
    ck_assert_int_eq(s.n, 8); /* four matrices of each block */
    return s;
}

static void snapshot_free(struct snapshot *s)
{
    for (int i = 0; i < s->n; i++)
        elements_free(&s->of[i]);
}

static bool is_there(const struct elements *e, uint64_t i)
{
    return !isnan(e->w[i]);
}

/* Elements that are there get weights around the threshold, of both signs, and moments; of odd seeds smaller ones. */
static void scatter_values(struct store_fixture *f, uint64_t seed)
{
    for (struct store_piece at = {0}; store_fixture_next(f, &at);) {
        if (at.piece->dense == 0)
            continue;
        const struct sparse_places p = store_places(&f->store, at.unit, at.piece);
        for (uint64_t i = 0; i < sparse_places_used(&p); i++) {
            const struct parameters to = store_parameters(&f->store, at.unit, at.piece->offset + i, 1, 0);
            const uint64_t number = at.piece->tensor * UINT64_C(100000) + i;
            const float w = plain_number(number, seed) * (seed % 2 ? 0.008f : 0.04f),
                        m = plain_number(number, seed + 1), v = fabsf(plain_number(number, seed + 2));
            optimizer_write(&to, &w, store_moments(&f->store) > 0 ? &m : NULL,
                            store_moments(&f->store) > 1 ? &v : NULL);
        }
    }
}

/* ---- how much there is of it ---- */

/* Of matrices of blocks, and of nothing else: 0.3 of their elements, and a quarter more room; a bit for each place, starts of
 * rows. */
TEST(a_sparse_unit_has_its_elements_and_their_places)
{
    const uint64_t sizes[] = {32 * 96, 32 * 32, 32 * 96, 96 * 32}, rows[] = {32, 32, 32, 96};
    uint64_t n = 0, n_places = 0, n_vectors = 4 * 32 + 96 + 32 + 96 + 32;
    struct store_fixture f;

    open_sparse(&f, &usual, &forms[0]);
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

static void open_dense(struct store_fixture *f)
{
    struct model_config c = config;

    store_fixture_open_as(f, c, true, &forms[0]);
    store_draw(&f->store, SEED);
}

/* Fresh weights are those of the dense model, at some places of each row, in all rows alike. */
TEST(drawn_weights_are_those_of_the_dense_model)
{
    struct store_fixture dense, f;

    open_dense(&dense);
    open_sparse(&f, &usual, &forms[0]);
    ck_assert_int_eq(store_draw(&f.store, SEED), 0);
    struct snapshot s = take(&f);
    for (int i = 0; i < s.n; i++) {
        const struct model_piece *piece = s.piece[i], *whole = &dense.model.pieces[piece - f.model.pieces];
        const float *w = store_weights(&dense.store, s.unit[i]) + whole->offset;
        ck_assert_uint_eq(s.of[i].n, whole->n * 3 / 10);
        for (uint64_t k = 0; k < whole->n; k++)
            ck_assert(!is_there(&s.of[i], k) || s.of[i].w[k] == w[k]);
        uint64_t half = 0; /* a quarter of a hundredth of draws is 6 deviations away */
        for (uint64_t k = 0; k < whole->n / 2; k++)
            half += is_there(&s.of[i], k);
        ck_assert_double_eq_tol((double)half, 0.5 * (double)s.of[i].n, 6 * sqrt(0.25 * 0.7 * (double)s.of[i].n));
    }
    snapshot_free(&s);
    store_fixture_close(&f);
    store_fixture_close(&dense);
}

/* Of a dense model the largest weights of each matrix stay, exactly. */
TEST(of_a_dense_model_the_largest_weights_stay)
{
    struct store_fixture dense, f;
    struct error err = {""};

    open_dense(&dense);
    const int fd = store_fixture_file();
    store_fixture_write(&dense.store, fd, -1, NULL);
    open_sparse(&f, &usual, &forms[0]);
    const struct file file = file_own(fd);
    ck_assert_msg(store_fixture_load(&f.store, &file, 1, &err) == 0, "%s", err.text);
    struct snapshot s = take(&f);
    for (int i = 0; i < s.n; i++) {
        const struct model_piece *whole = &dense.model.pieces[s.piece[i] - f.model.pieces];
        const float *w = store_weights(&dense.store, s.unit[i]) + whole->offset;
        float least = INFINITY, most = 0;
        for (uint64_t k = 0; k < whole->n; k++) {
            const float magnitude = fabsf(w[k]);
            if (is_there(&s.of[i], k)) {
                ck_assert(s.of[i].w[k] == w[k]);
                least = magnitude < least ? magnitude : least;
            } else {
                most = magnitude > most ? magnitude : most;
            }
        }
        ck_assert_uint_eq(s.of[i].n, whole->n * 3 / 10);
        ck_assert(least >= most);
    }
    snapshot_free(&s);
    close(fd);
    store_fixture_close(&f);
    store_fixture_close(&dense);
}

/* ---- changing places ---- */

static uint64_t count_below(const struct elements *e, float threshold)
{
    uint64_t n = 0;

    for (uint64_t i = 0; i < e->n_dense; i++)
        n += is_there(e, i) && fabsf(e->w[i]) < threshold;
    return n;
}

static bool same(float a, float b)
{
    return memcmp(&a, &b, sizeof a) == 0;
}

/* What remains has all its state in its place; what is new had no element before, and begins at 0. Returns the new ones. */
static uint64_t check_piece(const struct elements *before, const struct elements *after, float threshold)
{
    uint64_t n_new = 0, n_gone = 0;

    for (uint64_t i = 0; i < before->n_dense; i++) {
        const bool had = is_there(before, i), has = is_there(after, i);
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

/* A piece's share is in proportion to what remains, or what it has room for; rounding and lack of room elsewhere aside. */
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
    struct snapshot before = take(f);
    const float threshold = rewire_threshold(&f->store);
    const struct rewired r = store_rewire(&f->store, step);
    struct snapshot after = take(f);
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
    snapshot_free(&before);
    snapshot_free(&after);
    return r;
}

/* The threshold doubles below 0.9 of the share that is to move, halves above 1.1 of it, and else stays. */
TEST_EACH(what_is_pruned_grows_elsewhere, COUNT(forms))
{
    struct store_fixture f;
    unsigned n_doubled = 0, n_halved = 0, n_stayed = 0;

    open_sparse(&f, &usual, &forms[_i]);
    ck_assert_int_eq(store_draw(&f.store, SEED), 0);
    for (uint64_t k = 1; k <= STEPS; k++) {
        scatter_values(&f, k < 5 ? 2 * k : k); /* at first all of one size, which the threshold finds */
        const struct rewired r = check_change(&f, k * EVERY);
        const double share = (double)r.pruned / (double)r.n;
        const float factor = rewire_threshold(&f.store) / r.threshold;
        ck_assert(factor == (share < 0.9 * usual.moved ? 2 : share > 1.1 * usual.moved ? 0.5f : 1));
        n_doubled += factor == 2, n_halved += factor == 0.5f, n_stayed += factor == 1;
    }
    ck_assert_uint_gt(n_stayed, 0);
    ck_assert_uint_gt(n_doubled, 0);
    ck_assert_uint_gt(n_halved, 0);
    store_fixture_close(&f);
}

/* Weights of one distribution, of which 0.1 are below 0.004, at each of 100 times: from a threshold below that, or far above,
 * it is reached by doubling or halving at each, and stays; then what moves is within a tenth of what is to move. */
TEST_EACH(the_threshold_settles_where_as_much_moves_as_is_to_move, 2)
{
    enum { REWIRINGS = 100, SETTLED = 2 /* 0.001 x 2^2 */ };
    const int begin = _i ? 5 : 0, n_transient = abs(begin - SETTLED);
    struct store_fixture f;

    open_sparse(&f, &usual, &forms[0]);
    ck_assert_int_eq(store_draw(&f.store, SEED), 0);
    f.store.rewiring.doublings = begin;
    for (int k = 1; k <= REWIRINGS; k++) {
        scatter_values(&f, 2 * (uint64_t)k);
        const struct rewired r = check_change(&f, (uint64_t)k * EVERY);
        const double moved = (double)r.pruned / (double)r.n / usual.moved;
        if (k <= n_transient)
            ck_assert(moved < 0.9 || moved > 1.1);
        else
            ck_assert_msg(moved >= 0.9 && moved <= 1.1, "rewiring %d: %g of what is to move", k, moved);
    }
    ck_assert_int_eq(f.store.rewiring.doublings, SETTLED);
    store_fixture_close(&f);
}

/* Pieces that have room for no more than they begin with get what they lost; the largest of a piece that is below the
 * threshold as a whole stays. */
TEST(a_piece_without_more_room_keeps_its_number)
{
    const struct sparse full = {.keep = 0.5, .room = 1, .every = EVERY, .moved = 0.1};
    struct store_fixture f;

    open_sparse(&f, &full, &forms[0]);
    ck_assert_int_eq(store_draw(&f.store, SEED), 0);
    scatter_values(&f, 1);
    struct snapshot before = take(&f);
    float *const w = store_weights(&f.store, before.unit[2]) + before.piece[2]->offset;
    for (uint64_t i = 0; i < before.of[2].n; i++)
        w[i] = i == 5 ? -9e-4f : 1e-4f;
    const struct rewired r = store_rewire(&f.store, EVERY);
    struct snapshot after = take(&f);
    for (int i = 0; i < before.n; i++)
        ck_assert_uint_eq(after.of[i].n, before.of[i].n);
    ck_assert_uint_gt(r.pruned, before.of[2].n - 1);
    uint64_t n_stayed = 0;
    for (uint64_t i = 0; i < after.of[2].n_dense; i++)
        n_stayed += is_there(&after.of[2], i) && after.of[2].w[i] == -9e-4f;
    ck_assert_uint_eq(n_stayed, 1);
    snapshot_free(&before);
    snapshot_free(&after);
    store_fixture_close(&f);
}

/* In none of 16 equal parts of a matrix grow more or fewer than chance explains: chi-square of 15 degrees, at 0.01. Those
 * that were there are a known share of each part. */
TEST(new_places_are_as_likely_as_others)
{
    enum { PARTS = 16 };
    double seen[PARTS] = {0}, free_places[PARTS] = {0}, chi = 0, n = 0, n_free = 0;
    struct store_fixture f;

    open_sparse(&f, &usual, &forms[0]);
    ck_assert_int_eq(store_draw(&f.store, SEED), 0);
    for (uint64_t k = 1; k <= 40; k++) {
        scatter_values(&f, k);
        struct snapshot before = take(&f);
        store_rewire(&f.store, k * EVERY);
        struct snapshot after = take(&f);
        for (uint64_t i = 0; i < before.of[0].n_dense; i++) {
            const uint64_t part = i * PARTS / before.of[0].n_dense;
            free_places[part] += !is_there(&before.of[0], i);
            seen[part] += !is_there(&before.of[0], i) && is_there(&after.of[0], i);
        }
        snapshot_free(&before);
        snapshot_free(&after);
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

/* ---- checkpoints ---- */

static void check_same(const struct store_fixture *a, const struct store_fixture *b)
{
    struct snapshot x = take(a), y = take(b);

    for (int i = 0; i < x.n; i++)
        for (uint64_t k = 0; k < x.of[i].n_dense; k++) {
            ck_assert(is_there(&x.of[i], k) == is_there(&y.of[i], k));
            ck_assert(!is_there(&x.of[i], k) || (same(x.of[i].w[k], y.of[i].w[k]) && same(x.of[i].m[k], y.of[i].m[k]) &&
                                                 same(x.of[i].v[k], y.of[i].v[k])));
        }
    ck_assert(rewire_threshold(&a->store) == rewire_threshold(&b->store));
    ck_assert(a->store.rewiring.version == b->store.rewiring.version);
    snapshot_free(&x);
    snapshot_free(&y);
}

static int load_places(struct store_fixture *to, const struct file *moments, struct error *err)
{
    struct reserve reserve = {.bytes = plan_load_bytes(&to->model, 1, 1 << 20)};

    reserve.memory = malloc(reserve.bytes);
    const int rc = store_load_places(&to->store, moments, &reserve, err);
    free(reserve.memory);
    return rc;
}

static void reload(struct store_fixture *to, const struct store_fixture *from)
{
    const struct file weights = file_own(store_fixture_file()), moments = file_own(store_fixture_file());
    struct error err = {""};

    store_fixture_write(&from->store, weights.fd, moments.fd, NULL);
    ck_assert_msg(load_places(to, &moments, &err) == 0, "%s", err.text);
    ck_assert_msg(store_fixture_load(&to->store, &weights, 1, &err) == 0, "%s", err.text);
    ck_assert_msg(store_fixture_load_moments(&to->store, &moments, &err) == 0, "%s", err.text);
    close(weights.fd);
    close(moments.fd);
}

/* Zeros among them stay where they are, and the next change is the same. */
TEST_EACH(a_checkpoint_has_places_and_what_changes_them, COUNT(forms))
{
    struct store_fixture a, b;

    open_sparse(&a, &usual, &forms[_i]);
    open_sparse(&b, &usual, &forms[_i]);
    ck_assert_int_eq(store_draw(&a.store, SEED), 0);
    scatter_values(&a, 7);
    store_rewire(&a.store, EVERY);
    reload(&b, &a);
    check_same(&a, &b);
    ck_assert(!rewire_is_due(&b.store, EVERY) && rewire_is_due(&b.store, 2 * EVERY));
    store_rewire(&a.store, 2 * EVERY);
    store_rewire(&b.store, 2 * EVERY);
    check_same(&a, &b);
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

    open_sparse(&a, &usual, &forms[0]);
    open_sparse(&b, &usual, &forms[0]);
    ck_assert_int_eq(store_draw(&a.store, SEED), 0);
    store_fixture_write(&a.store, weights, moments.fd, NULL);
    ck_assert_int_eq(safetensors_open(&read, moments.fd, &err), 0);
    const struct safetensors_entry *places = safetensors_find(&read, "places.transformer.h.1.attn.c_attn.weight");
    ck_assert_int_eq(pwrite(moments.fd, none, sizeof none, (off_t)places->offset), sizeof none);
    safetensors_close(&read);
    ck_assert_int_eq(load_places(&b, &moments, &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "c_attn.weight are no places"));

    const ssize_t n = pread(moments.fd, header, sizeof header, 0);
    char *const name = memmem(header, (size_t)n, "places.", 7);
    ck_assert_int_eq(pwrite(moments.fd, "starts", 6, name - header), 6);
    ck_assert_int_eq(load_places(&b, &moments, &err), -EINVAL);
    ck_assert_ptr_nonnull(strstr(err.text, "older versions of eps"));
    close(weights);
    close(moments.fd);
    store_fixture_close(&a);
    store_fixture_close(&b);
}

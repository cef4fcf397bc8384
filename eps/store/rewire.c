/* Places and elements move in place. What remains of a piece goes to the end of its arrays, then rows are written
 * from their beginning, and never reach what is not read yet (rewire_rows).
 *
 * How many grow in a piece depends on all pieces, and there is room for the marks of one. So each is marked twice: to
 * be counted, and to be moved. Nothing of it changes in between, so the marks are the same. */
#include "eps/store/rewire.h"

#include "eps/store/checks.h"

#include "eps/store/sparse.h"
#include "proto/base/random.h"
#include "proto/base/size.h"
#include "proto/plan/memory/data.h"

#include <assert.h>
#include <float.h>
#include <math.h>
#include <string.h>

enum { SOME = 1024 };

/* What a piece loses and gains. */
struct change {
    uint32_t unit;
    const struct model_piece *piece;
    uint64_t n, pruned, grown; /* elements before */
};

static_assert(sizeof(struct change) <= PLAN_REWIRE_PIECE, "plan_rewire counts it");

/* The store's memory for it. */
struct scratch {
    struct change *changes; /* (pieces) */
    uint32_t *ranks;        /* (most n) of free places, those that get an element */
    bool *pruned;           /* (most n) */
};

static struct scratch rewire_lay_out(const struct store *store)
{
    const struct plan_rewire of = plan_rewire(store->model);
    char *const at = store->rewiring.room;

    return (struct scratch){.changes = (struct change *)(void *)at,
                            .ranks = (uint32_t *)(void *)(at + of.ranks),
                            .pruned = (bool *)(at + of.pruned)};
}

/* The version at which places last changed is remembered, so a step that is done again does not move them twice. */
bool rewire_is_due(const struct store *store, uint64_t version)
{
    if (!store->rewiring.room) /* nor is there always a model */
        return false;
    const struct sparse *s = &store->model->sparse;
    return s->every > 0 && version > 0 && version % s->every == 0 && (s->until == 0 || version <= s->until) &&
           store->rewiring.version != version;
}

void rewire_leave(struct store *store, uint64_t version)
{
    store->rewiring.version = version;
}

float rewire_threshold(const struct store *store)
{
    return ldexpf(store->rewiring.begin, store->rewiring.doublings);
}

/* ---- pruning ---- */

/* Elements of the piece from `at` on, SOME or those that are left; returns how many. They are read as the master has
 * them, low halves included: the relayed half alone would tie. */
static size_t read_some(float out[SOME], const struct store *store, const struct change *c, uint64_t at)
{
    const size_t n = size_smaller((size_t)(c->n - at), SOME);
    const struct parameters p = store_parameters(store, c->unit, c->piece->offset + at, n, 0);

    optimizer_read(&p, out, NULL, NULL);
    return n;
}

/* All pieces, as they are before they change. */
struct all {
    const struct store *store;
    const struct change *changes;
    uint64_t n_changes;
};

static int rewire_visit_all(const void *of, sparse_visitor *visit, void *context)
{
    const struct all *const all = of;
    float some[SOME];

    for (const struct change *c = all->changes; c < all->changes + all->n_changes; c++)
        for (uint64_t at = 0; at < c->n; at += SOME) {
            const size_t n = read_some(some, all->store, c, at);
            for (size_t i = 0; i < n; i++)
                visit(context, at + i, sparse_pattern(some[i]));
        }
    return 0;
}

/* A threshold that as many of n elements are below as are to move, but for equal ones. Of elements that are 0 for the
 * most part, whose threshold could not double, that of fresh weights. */
static float choose_threshold(const struct all *all, uint64_t n)
{
    const uint64_t wanted = (uint64_t)(all->store->model->sparse.moved * (double)n);
    struct sparse_least least;
    float threshold;

    sparse_find_least(&least, rewire_visit_all, all, n - wanted);
    memcpy(&threshold, &least.pattern, sizeof threshold);
    return threshold >= FLT_MIN ? threshold : REWIRE_THRESHOLD;
}

/* Marks elements below the threshold; of a piece that would lose all of them, all but the largest. */
static void rewire_mark(const struct store *store, struct change *c, float threshold, bool *pruned)
{
    float some[SOME], largest = -1;
    uint64_t at_largest = 0;

    c->pruned = 0;
    for (uint64_t at = 0; at < c->n; at += SOME) {
        const size_t n = read_some(some, store, c, at);
        for (size_t i = 0; i < n; i++) {
            const float magnitude = fabsf(some[i]);
            if (magnitude > largest)
                largest = magnitude, at_largest = at + i;
            pruned[at + i] = magnitude < threshold;
            c->pruned += pruned[at + i];
        }
    }
    if (c->n > 0 && c->pruned == c->n)
        pruned[at_largest] = false, c->pruned--;
}

/* ---- how many grow where ---- */

/* By the piece's room for elements, and by places that had none before: a pruned place is not filled again at once. */
static uint64_t room_to_grow(const struct change *c)
{
    const uint64_t in_piece = c->piece->n - (c->n - c->pruned), places = c->piece->dense - c->n;

    return in_piece < places ? in_piece : places;
}

/* One more, or one less, in a piece that has room for it, drawn among all that have. False: none has. */
static bool change_one(struct change *changes, uint64_t n, bool more, uint32_t word)
{
    uint64_t n_possible = 0;

    for (const struct change *c = changes; c < changes + n; c++)
        n_possible += more ? c->grown < room_to_grow(c) : c->grown > 0;
    if (n_possible == 0)
        return false;
    uint64_t drawn = word * n_possible >> 32;
    for (struct change *c = changes;; c++)
        if ((more ? c->grown < room_to_grow(c) : c->grown > 0) && drawn-- == 0) {
            c->grown += more ? 1 : -(uint64_t)1;
            return true;
        }
}

/* Shares of `all` in proportion to what remains, rounded, as far as there is room; returns their sum. */
static uint64_t share_out(struct change *changes, uint64_t n, uint64_t all)
{
    uint64_t remain = 0, given = 0;

    for (const struct change *c = changes; c < changes + n; c++)
        remain += c->grown < room_to_grow(c) ? c->n - c->pruned : 0;
    for (struct change *c = changes; remain > 0 && c < changes + n; c++) {
        const uint64_t room = room_to_grow(c) - c->grown;
        const uint64_t share = (uint64_t)llround((double)all * (double)(c->n - c->pruned) / (double)remain);
        const uint64_t more = share < room ? share : room;
        c->grown += more, given += more;
    }
    return given;
}

/* What a piece has no room for is shared out again; what rounding leaves over is drawn. Rounding may also give too
 * many: then some are drawn to have one less. */
static uint64_t distribute(struct change *changes, uint64_t n, uint64_t all, struct random_key key)
{
    uint64_t given = 0, more, draws = 0;
    uint32_t words[4];
    bool possible = true;

    /* Each round fills at least one piece, or gives everything: so it ends. */
    do {
        more = given + n < all || given == 0 ? share_out(changes, n, all - given) : 0;
        given += more;
    } while (more > 0 && given < all);
    for (; possible && given != all; draws++) {
        if (draws % 4 == 0)
            random_quad(words, key, UINT64_MAX, draws / 4);
        possible = change_one(changes, n, given < all, words[draws % 4]);
        given += possible ? given < all ? 1 : -(uint64_t)1 : 0;
    }
    return given;
}

/* ---- moving ---- */

/* An array of the piece's elements. */
struct array {
    char *at;
    size_t size;
};

enum { ARRAYS = 4 };

/* Weights, in one array or two, and moments. Returns how many arrays there are. */
static int arrays_of(struct array out[ARRAYS], const struct store *store, const struct change *c)
{
    const struct parameters p = store_parameters(store, c->unit, c->piece->offset, c->piece->n, 0);
    const struct array all[] = {{(char *)p.w, sizeof *p.w},     {(char *)p.high, sizeof *p.high},
                                {(char *)p.low, sizeof *p.low}, {(char *)p.m, sizeof *p.m},
                                {(char *)p.v, sizeof *p.v},     {(char *)p.m16, sizeof *p.m16},
                                {(char *)p.v16, sizeof *p.v16}};
    int n = 0;

    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        if (all[i].at) {
            assert(n < ARRAYS);
            out[n++] = all[i];
        }
    return n;
}

/* What remains, behind what is free. One array at a time, by the same marks: elements keep their order in each. */
static void push_back(const struct array *a, const struct change *c, const bool *pruned)
{
    const uint64_t remain = c->n - c->pruned;
    uint64_t to = 0;

    for (uint64_t i = 0, n; i < c->n; i += n) {
        for (n = 0; i + n < c->n && !pruned[i + n];)
            n++;
        memmove(a->at + to * a->size, a->at + i * a->size, n * a->size);
        to += n;
        n += i + n < c->n; /* the pruned one behind them */
    }
    assert(to == remain);
    memmove(a->at + (c->piece->n - remain) * a->size, a->at, remain * a->size);
}

/* Sorts in place (heapsort: Williams 1964). */
static void rewire_sort(uint32_t *x, uint64_t n)
{
    for (uint64_t begin = n / 2, end = n; end > 1;) {
        uint32_t value;
        if (begin > 0) {
            value = x[--begin];
        } else {
            value = x[--end];
            x[end] = x[0];
        }
        uint64_t at = begin, child;
        while ((child = 2 * at + 1) < end) {
            child += child + 1 < end && x[child + 1] > x[child];
            if (x[child] <= value)
                break;
            x[at] = x[child];
            at = child;
        }
        x[at] = value;
    }
}

/* Which of the piece's free places, in order, get an element: the first of a permutation. A permutation of its own
 * for each tensor and version, so that neither threads nor hosts change it. */
static void draw_ranks(uint32_t *ranks, const struct change *c, struct random_key key)
{
    const uint64_t n_free = c->piece->dense - c->n;

    for (uint64_t i = 0; i < c->grown; i++)
        ranks[i] = (uint32_t)random_permute(key, i, n_free);
    rewire_sort(ranks, c->grown);
}

/* A piece's elements on their way to their new places. */
struct moving {
    const struct change *change;
    const struct scratch *scratch;
    struct sparse_places places;
    struct array arrays[ARRAYS];
    int n_arrays;
    uint64_t from, at;   /* the next element that remains; the next one that is written */
    uint64_t n_run;      /* elements that remain and have their places, but are not written yet */
    uint64_t next, free; /* of the new ones the next; free places in the rows before */
};

/* Elements that remain stay beside each other between two new ones, so they move together. */
static void flush_run(struct moving *m)
{
    for (int i = 0; m->n_run > 0 && i < m->n_arrays; i++) {
        const struct array *a = &m->arrays[i];
        memmove(a->at + m->at * a->size, a->at + m->from * a->size, m->n_run * a->size);
    }
    m->at += m->n_run, m->from += m->n_run;
    m->n_run = 0;
}

/* A new element is 0 in every array: its weight, its moments, and its low half. */
static void add_element(struct moving *m)
{
    flush_run(m);
    for (int i = 0; i < m->n_arrays; i++)
        memset(m->arrays[i].at + m->at * m->arrays[i].size, 0, m->arrays[i].size);
    m->at++;
}

/* Its elements before, first .. end-1, and its new ones, by their columns. A free place's column is its number among
 * the row's free ones and those that had an element before it. The next one that had an element is found before new
 * ones are added in front of it. */
static void rewire_row(struct moving *m, uint64_t row, uint64_t first, uint64_t end)
{
    const struct sparse_places *const places = &m->places;
    const uint32_t *const ranks = m->scratch->ranks;
    const uint64_t n_free = places->columns - (end - first);
    uint64_t had = sparse_next(places, row, 0);

    for (uint64_t i = first;;) {
        const bool grows = m->next < m->change->grown && ranks[m->next] - m->free < n_free;
        const uint64_t column = grows ? ranks[m->next] - m->free + (i - first) : places->columns;
        if (i < end && had <= column) {
            if (m->scratch->pruned[i])
                sparse_flip(places, row, had);
            else
                m->n_run++;
            i++;
            had = sparse_next(places, row, had + 1);
        } else if (grows) {
            sparse_flip(places, row, column);
            add_element(m);
            m->next++;
        } else {
            break;
        }
    }
    m->free += n_free;
}

/* As many grow as were free in front of what remains, or fewer; so nothing is written over that is not read yet. */
static void rewire_rows(struct moving *m)
{
    uint64_t first = 0;

    for (uint64_t row = 0; row < m->places.rows; row++) {
        const uint64_t end = m->places.starts[row + 1];
        m->places.starts[row] = (uint32_t)(m->at + m->n_run);
        rewire_row(m, row, first, end);
        first = end;
    }
    flush_run(m);
    assert(m->from == m->places.n && m->next == m->change->grown);
    m->places.starts[m->places.rows] = (uint32_t)m->at;
}

static void clear_rest(struct moving *m)
{
    for (int i = 0; i < m->n_arrays; i++)
        memset(m->arrays[i].at + m->at * m->arrays[i].size, 0, (m->places.n - m->at) * m->arrays[i].size);
}

/* Places change in the same pass as elements, row by row: starts and bits are those of the new arrangement up to the
 * row that is being written, and of the old one behind it. */
static void move_elements(const struct store *store, const struct change *c, const struct scratch *scratch)
{
    struct moving m = {.change = c,
                       .scratch = scratch,
                       .places = store_places(store, c->unit, c->piece),
                       .from = c->piece->n - (c->n - c->pruned)};

    m.n_arrays = arrays_of(m.arrays, store, c);
    for (int i = 0; i < m.n_arrays; i++)
        push_back(&m.arrays[i], c, scratch->pruned);
    rewire_rows(&m);
    clear_rest(&m);
}

/* ---- all pieces ---- */

/* As in arXiv:1902.05967: the threshold doubles or halves when a tenth less or more is pruned than is to move. */
static void rewire_adapt(struct store *store, const struct rewired *r)
{
    const double wanted = store->model->sparse.moved * (double)r->n;
    int *const doublings = &store->rewiring.doublings;

    if ((double)r->pruned < 0.9 * wanted && *doublings < REWIRE_MOST_DOUBLINGS)
        ++*doublings;
    else if ((double)r->pruned > 1.1 * wanted && *doublings > -REWIRE_MOST_DOUBLINGS)
        --*doublings;
}

/* Lists sparse pieces with their elements; returns how many there are. */
static uint64_t list_changes(const struct store *store, struct change *changes)
{
    const struct model *model = store->model;
    uint64_t n = 0;

    for (uint32_t u = 0; u < model->n_units; u++)
        for (uint32_t i = 0; i < model->units[u].n_pieces; i++) {
            const struct model_piece *piece = &model->pieces[model->units[u].first_piece + i];
            if (piece->dense == 0)
                continue;
            const struct sparse_places places = store_places(store, u, piece);
            changes[n++] = (struct change){.unit = u, .piece = piece, .n = sparse_places_used(&places)};
        }
    return n;
}

/* Damaged memory must not get new sums unseen, nor are damaged places followed. */
static bool verify_sparse(const struct store *store)
{
    bool whole = true;

    for (uint32_t u = store->own.first; u < store->own.end; u++)
        if (store->model->units[u].sparse)
            whole &= checks_verify(store, u) == 0;
    return whole;
}

static void renew_sparse(struct store *store)
{
    for (uint32_t u = store->own.first; u < store->own.end; u++)
        if (store->model->units[u].sparse)
            checks_renew_unit(store, u);
}

/* Runs on the optimizer thread, between steps, when no save reads the version before. With damaged memory it does
 * nothing, and the damage ends the job. */
struct rewired store_rewire(struct store *store, uint64_t version)
{
    const struct random_key key = random_site_key(store->options.seed, version, 0, RANDOM_PLACES);
    const struct scratch scratch = rewire_lay_out(store);
    struct rewired r = {0};

    if (!verify_sparse(store))
        return r;
    const uint64_t n = list_changes(store, scratch.changes);
    for (uint64_t i = 0; i < n; i++)
        r.n += scratch.changes[i].n;
    if (store->rewiring.begin == 0)
        store->rewiring.begin = choose_threshold(&(struct all){store, scratch.changes, n}, r.n);
    r.threshold = rewire_threshold(store);
    for (uint64_t i = 0; i < n; i++) {
        rewire_mark(store, &scratch.changes[i], r.threshold, scratch.pruned);
        r.pruned += scratch.changes[i].pruned;
    }
    r.grown = distribute(scratch.changes, n, r.pruned, key);
    for (uint64_t i = 0; i < n; i++) {
        struct change *const c = &scratch.changes[i];
        if (c->pruned == 0 && c->grown == 0)
            continue;
        rewire_mark(store, c, r.threshold, scratch.pruned);
        draw_ranks(scratch.ranks, c,
                   random_site_key(store->options.seed, version, c->piece->tensor + 1, RANDOM_PLACES));
        move_elements(store, c, &scratch);
    }
    renew_sparse(store);
    rewire_adapt(store, &r);
    store->rewiring.version = version;
    return r;
}

#include "eps/store/rewire.h"

#include "eps/store/sparse.h"
#include "proto/base/random.h"
#include "proto/base/size.h"
#include "proto/plan/memory/data.h"

#include <assert.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SOME = 1024 };

/* What a piece loses and gains. */
struct change {
    uint32_t unit;
    const struct model_piece *piece;
    uint64_t n, pruned, grown; /* elements before */
};

static_assert(sizeof(struct change) <= PLAN_REWIRE_PIECE, "plan_rewire_bytes counts it");

/* The store's memory for it. */
struct room {
    struct change *changes; /* (pieces) */
    uint16_t *columns;      /* (most n) places before */
    uint32_t *starts;       /* (most rows + 1) */
    bool *pruned;           /* (most n) */
};

static struct room divide(const struct store *store)
{
    const struct plan_rewire of = plan_rewire(store->model);
    char *const at = store->rewiring.room;

    return (struct room){.changes = (struct change *)(void *)at,
                         .starts = (uint32_t *)(void *)(at + of.starts),
                         .columns = (uint16_t *)(void *)(at + of.columns),
                         .pruned = (bool *)(at + of.pruned)};
}

bool rewire_is_due(const struct store *store, uint64_t version)
{
    const struct sparse *s = &store->model->sparse;

    return store->rewiring.room && s->every > 0 && version > 0 && version % s->every == 0 &&
           (s->until == 0 || version <= s->until) && store->rewiring.version != version;
}

float rewire_threshold(const struct store *store)
{
    return ldexpf(REWIRE_THRESHOLD, store->rewiring.doublings);
}

/* ---- pruning ---- */

/* Marks elements below the threshold; of a piece that would lose all of them, all but the largest. */
static void mark(const struct store *store, struct change *c, float threshold, bool *pruned)
{
    float some[SOME], largest = -1;
    uint64_t at_largest = 0;

    c->pruned = 0;
    for (uint64_t at = 0; at < c->n; at += SOME) {
        const size_t n = size_smaller((size_t)(c->n - at), SOME);
        const struct parameters p = store_parameters(store, c->unit, c->piece->offset + at, n, 0);
        optimizer_read(&p, some, NULL, NULL);
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

static uint64_t distribute(struct change *changes, uint64_t n, uint64_t all, struct random_key key)
{
    uint64_t remain = 0, given = 0, draws = 0;
    uint32_t words[4];
    bool possible = true;

    for (const struct change *c = changes; c < changes + n; c++)
        remain += c->n - c->pruned;
    for (struct change *c = changes; c < changes + n; c++) {
        const double share = (double)all * (double)(c->n - c->pruned) / (double)remain;
        const uint64_t most = room_to_grow(c), grown = (uint64_t)llround(share);
        given += c->grown = grown < most ? grown : most;
    }
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

/* What remains, behind what is free. */
static void push_back(const struct array *a, const struct change *c, const bool *pruned)
{
    const uint64_t remain = c->n - c->pruned;
    uint64_t to = 0;

    for (uint64_t i = 0; i < c->n; i++)
        if (!pruned[i])
            memcpy(a->at + to++ * a->size, a->at + i * a->size, a->size);
    assert(to == remain);
    memmove(a->at + (c->piece->n - remain) * a->size, a->at, remain * a->size);
}

/* A row's way from its places before to its new ones. */
struct way {
    const struct change *change;
    const struct room *before;
    struct sparse_places to;
    struct array arrays[ARRAYS];
    int n_arrays;
    struct random_key key;
    uint64_t from, at;          /* the next element that remains; the next one that is written */
    uint64_t n_free, n_to_grow; /* places from here on that had none, and how many of them get one */
};

/* Selection sampling (Fan, Muller, Rezucha 1962): each set of as many places is as likely as any other. */
static bool grows(struct way *w, uint64_t place, uint32_t words[4], uint64_t *quad)
{
    if (w->n_to_grow == 0)
        return false;
    if (*quad != place / 4)
        random_quad(words, w->key, w->change->piece->tensor, *quad = place / 4);
    const bool grows = (words[place % 4] * w->n_free >> 32) < w->n_to_grow;
    w->n_free--;
    w->n_to_grow -= grows;
    return grows;
}

static void write_element(struct way *w, uint64_t column, bool is_new)
{
    for (int i = 0; i < w->n_arrays; i++) {
        char *const to = w->arrays[i].at + w->at * w->arrays[i].size;
        if (is_new)
            memset(to, 0, w->arrays[i].size);
        else
            memmove(to, w->arrays[i].at + w->from * w->arrays[i].size, w->arrays[i].size);
    }
    w->from += !is_new;
    w->to.places[w->at++] = (uint16_t)column;
}

/* As many grow as were free in front of what remains, or fewer; so nothing is written over that is not read yet. */
static void rewire_rows(struct way *w)
{
    const struct room *before = w->before;
    uint32_t words[4];
    uint64_t quad = UINT64_MAX;

    for (uint64_t row = 0; row < w->to.rows; row++) {
        uint64_t i = before->starts[row];
        w->to.starts[row] = (uint32_t)w->at;
        for (uint64_t column = 0; column < w->to.columns; column++) {
            const bool had = i < before->starts[row + 1] && before->columns[i] == column;
            if (had ? !before->pruned[i] : grows(w, row * w->to.columns + column, words, &quad))
                write_element(w, column, !had);
            i += had;
        }
    }
    assert(w->from == w->to.n && w->n_to_grow == 0);
    w->to.starts[w->to.rows] = (uint32_t)w->at;
}

static void clear_rest(struct way *w)
{
    for (int i = 0; i < w->n_arrays; i++)
        memset(w->arrays[i].at + w->at * w->arrays[i].size, 0, (w->to.n - w->at) * w->arrays[i].size);
    memset(w->to.places + w->at, 0, (w->to.n - w->at) * sizeof *w->to.places);
}

static void move(const struct store *store, struct change *c, const struct room *room, float threshold,
                 struct random_key key)
{
    struct way w = {.change = c,
                    .before = room,
                    .to = store_places(store, c->unit, c->piece),
                    .key = key,
                    .from = c->piece->n - (c->n - c->pruned),
                    .n_free = c->piece->dense - c->n,
                    .n_to_grow = c->grown};

    if (c->pruned == 0 && c->grown == 0)
        return;
    mark(store, c, threshold, room->pruned);
    memcpy(room->starts, w.to.starts, (w.to.rows + 1) * sizeof *room->starts);
    memcpy(room->columns, w.to.places, c->n * sizeof *room->columns);
    w.n_arrays = arrays_of(w.arrays, store, c);
    for (int i = 0; i < w.n_arrays; i++)
        push_back(&w.arrays[i], c, room->pruned);
    rewire_rows(&w);
    clear_rest(&w);
}

/* ---- all pieces ---- */

static void adapt(struct store *store, const struct rewired *r)
{
    const double wanted = store->model->sparse.moved * (double)r->n;
    int *const doublings = &store->rewiring.doublings;

    if ((double)r->pruned < 0.9 * wanted && *doublings < REWIRE_MOST_DOUBLINGS)
        ++*doublings;
    else if ((double)r->pruned > 1.1 * wanted && *doublings > -REWIRE_MOST_DOUBLINGS)
        --*doublings;
}

struct rewired store_rewire(struct store *store, uint64_t version)
{
    const struct model *model = store->model;
    const struct random_key key = random_site_key(store->options.seed, version, 0, RANDOM_PLACES);
    const struct room room = divide(store);
    struct rewired r = {.threshold = rewire_threshold(store)};
    uint64_t n = 0;

    for (uint32_t u = 0; u < model->n_units; u++)
        for (uint32_t i = 0; i < model->units[u].n_pieces; i++) {
            const struct model_piece *piece = &model->pieces[model->units[u].first_piece + i];
            struct change *const c = &room.changes[n];
            if (piece->dense == 0)
                continue;
            const struct sparse_places places = store_places(store, u, piece);
            *c = (struct change){.unit = u, .piece = piece, .n = sparse_places_used(&places)};
            mark(store, c, r.threshold, room.pruned);
            r.n += c->n, r.pruned += c->pruned;
            n++;
        }
    r.grown = distribute(room.changes, n, r.pruned, key);
    for (uint64_t i = 0; i < n; i++)
        move(store, &room.changes[i], &room, r.threshold, key);
    adapt(store, &r);
    store->rewiring.version = version;
    return r;
}

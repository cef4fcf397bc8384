/* The n-th largest magnitude is found digit by digit, the highest first, as positive floats order like their bit
 * patterns. Digits of 11 bits take three passes over the scores, and their counts, 16 KiB, stay in the first-level
 * cache. Sorting scores, or a heap of the largest, would take memory in proportion to the dense piece, which no plan
 * has. */
#include "eps/store/sparse.h"

#include "eps/store/rewire.h"
#include "proto/base/random.h"
#include "proto/base/size.h"
#include "proto/model/file/checkpoint_layout.h"
#include "proto/model/file/safetensors.h"

#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

enum { SOME = 1024 }; /* elements of a sparse piece at a time */

struct sparse_places store_places(const struct store *store, uint32_t unit, const struct model_piece *piece)
{
    const struct model_unit *u = &store->model->units[unit];
    char *const starts = (char *)store->weights.base + store_weights_at(store, &store->own, unit, 0) +
                         model_starts_at(u, piece, store->options.precision);

    return (struct sparse_places){.rows = piece->n_rows,
                                  .columns = piece->dense / piece->n_rows,
                                  .words = model_places_words(piece) / piece->n_rows,
                                  .n = piece->n,
                                  .starts = (uint32_t *)(void *)starts,
                                  .places = (uint32_t *)(void *)(starts + model_places_at(piece))};
}

/* Bits behind the last column must be 0: a place there would be none. */
int sparse_places_count(const struct sparse_places *p)
{
    uint64_t n = 0;

    for (uint64_t row = 0; row < p->rows; row++) {
        p->starts[row] = (uint32_t)n;
        for (uint64_t word = 0; word < p->words; word++)
            n += (uint64_t)__builtin_popcount(p->places[row * p->words + word]);
        if (p->columns % 32 > 0 && p->places[(row + 1) * p->words - 1] >> p->columns % 32 != 0)
            return -EINVAL;
    }
    p->starts[p->rows] = (uint32_t)n;
    return n > 0 && n <= p->n ? 0 : -EINVAL;
}

/* ---- a choice by scores ---- */

enum { DIGIT_BITS = 11, DIGITS = 1 << DIGIT_BITS, PATTERN_BITS = 31 };

/* Those of the piece, in order. */
struct piece_scores {
    const struct model_piece *piece;
    const struct store_source *from;
};

static int visit_piece(const void *of, sparse_visitor *visit, void *context)
{
    const struct piece_scores *const scores = of;
    float some[SOME];
    int rc = 0;

    for (uint64_t at = 0; rc == 0 && at < scores->piece->dense; at += SOME) {
        const size_t n = size_smaller((size_t)(scores->piece->dense - at), SOME);
        rc = scores->from->read(scores->from->context, at, n, some);
        for (size_t i = 0; rc == 0 && i < n; i++)
            visit(context, at + i, sparse_pattern(some[i]));
    }
    return rc;
}

/* How many of the patterns that begin with `above` have each next digit. */
struct digits {
    uint32_t above;
    int shift; /* bits behind the digit */
    int bits;
    uint64_t n[DIGITS];
};

static void count_digit(void *context, uint64_t at, uint32_t pattern)
{
    struct digits *d = context;

    (void)at;
    if (pattern >> d->shift >> d->bits == d->above)
        d->n[pattern >> d->shift & ((1u << d->bits) - 1)]++;
}

/* n falls by those above: what is left are those of the pattern itself that are among the n largest. */
int sparse_find_least(struct sparse_least *out, sparse_visit *visit, const void *of, uint64_t n)
{
    struct digits d = {.shift = PATTERN_BITS};
    int rc = 0;

    while (rc == 0 && d.shift > 0) {
        d.bits = d.shift < DIGIT_BITS ? d.shift : DIGIT_BITS;
        d.shift -= d.bits;
        memset(d.n, 0, sizeof d.n);
        rc = visit(of, count_digit, &d);
        uint32_t digit = (1u << d.bits) - 1;
        for (; digit > 0 && d.n[digit] < n; digit--)
            n -= d.n[digit];
        d.above = d.above << d.bits | digit;
    }
    *out = (struct sparse_least){d.above, n};
    return rc;
}

struct choice {
    struct sparse_places to;
    struct sparse_least least;
    uint64_t n;
};

/* Called in order of elements. Of those that equal the least, the first ones are taken, so that the number is exact. */
static void sparse_choose(void *context, uint64_t at, uint32_t pattern)
{
    struct choice *c = context;
    const bool is_equal = pattern == c->least.pattern && c->least.n_equal > 0;

    if (at % c->to.columns == 0)
        c->to.starts[at / c->to.columns] = (uint32_t)c->n;
    if (pattern <= c->least.pattern && !is_equal)
        return;
    c->least.n_equal -= is_equal;
    sparse_flip(&c->to, at / c->to.columns, at % c->to.columns);
    c->n++;
}

int store_choose_places(const struct store *store, uint32_t unit, const struct model_piece *piece,
                        const struct store_source *scores)
{
    const struct piece_scores all = {piece, scores};
    struct choice choice = {.to = store_places(store, unit, piece)};
    int rc =
        sparse_find_least(&choice.least, visit_piece, &all, sparse_begins(store->model->sparse.keep, piece->dense));

    memset(choice.to.places, 0, choice.to.rows * choice.to.words * sizeof *choice.to.places);
    if (rc == 0)
        rc = visit_piece(&all, sparse_choose, &choice);
    choice.to.starts[choice.to.rows] = (uint32_t)choice.n;
    return rc;
}

/* ---- elements ---- */

/* Elements on their way to the piece, in order. */
struct outgoing {
    const struct store *store;
    uint32_t unit;
    const struct model_piece *piece;
    uint64_t at;
    size_t n;
    float values[SOME];
};

static void sparse_flush(struct outgoing *out)
{
    const struct parameters p = store_parameters(out->store, out->unit, out->piece->offset + out->at, out->n, 0);

    optimizer_write(&p, out->values, NULL, NULL);
    out->at += out->n;
    out->n = 0;
}

static void store_sparse_put(struct outgoing *out, float value)
{
    out->values[out->n++] = value;
    if (out->n == SOME)
        sparse_flush(out);
}

/* Those of the columns first .. first+n-1 of a row that have an element. */
static void put_columns(struct outgoing *out, const struct sparse_places *p, uint64_t row, uint64_t first, size_t n,
                        const float *values)
{
    for (uint64_t column = sparse_next(p, row, first); column < first + n; column = sparse_next(p, row, column + 1))
        store_sparse_put(out, values[column - first]);
}

int store_fill_places(const struct store *store, uint32_t unit, const struct model_piece *piece,
                      const struct store_source *values)
{
    const struct sparse_places p = store_places(store, unit, piece);
    struct outgoing out = {.store = store, .unit = unit, .piece = piece};
    float some[STORE_RUN];
    int rc = 0;

    for (uint64_t row = 0; rc == 0 && row < p.rows; row++)
        for (uint64_t first = 0; rc == 0 && first < p.columns; first += STORE_RUN) {
            const size_t n = size_smaller((size_t)(p.columns - first), STORE_RUN);
            rc = values->read(values->context, row * p.columns + first, n, some);
            if (rc == 0)
                put_columns(&out, &p, row, first, n, some);
        }
    while (rc == 0 && out.at + out.n < p.n)
        store_sparse_put(&out, 0);
    if (rc == 0 && out.n > 0)
        sparse_flush(&out);
    return rc;
}

struct drawn_scores {
    struct random_key key;
    uint32_t tensor;
};

static int draw_scores(void *context, uint64_t first, size_t n, float *out)
{
    const struct drawn_scores *d = context;

    random_uniform(out, d->key, d->tensor, first, n);
    return 0;
}

/* Places are drawn as the largest of random scores: all sets of n places are equally likely. */
int store_draw_sparse(const struct store *store, uint64_t seed, uint32_t unit, const struct model_piece *piece,
                      const struct store_source *values)
{
    struct drawn_scores d = {random_site_key(seed, 0, 0, RANDOM_PLACES), piece->tensor};
    const int rc = store_choose_places(store, unit, piece, &(struct store_source){draw_scores, &d});

    return rc ? rc : store_fill_places(store, unit, piece, values);
}

void store_read_rows(const struct store *store, uint32_t unit, const struct model_piece *piece, uint64_t first,
                     uint64_t n, float *out)
{
    const struct sparse_places p = store_places(store, unit, piece);
    const struct model_tensor *tensor = &store->model->tensors[piece->tensor];
    const uint64_t end = p.starts[first + n];
    uint64_t row = first, column = sparse_next(&p, row, 0);
    float some[SOME];

    memset(out, 0, n * p.columns * sizeof *out);
    for (uint64_t at = p.starts[first]; at < end; at += SOME) {
        const size_t now = size_smaller((size_t)(end - at), SOME);
        const struct parameters from = store_parameters(store, unit, piece->offset + at, now, 0);
        optimizer_read(&from, some, NULL, NULL);
        for (size_t i = 0; i < now; i++, column = sparse_next(&p, row, column + 1)) {
            while (column == p.columns)
                column = sparse_next(&p, ++row, 0);
            out[(row - first) * p.columns + (model_is_filter(tensor) ? model_place_in_file(tensor, column) : column)] =
                some[i];
        }
    }
}

/* ---- a checkpoint's ---- */

static int read_array(void *out, const struct safetensors *file, const char *prefix, const char *name,
                      enum safetensors_type type, uint64_t n, struct error *err)
{
    char full[CHECKPOINT_MOMENT_BYTES];

    snprintf(full, sizeof full, "%s%s", prefix, name);
    const struct safetensors_entry *entry = safetensors_find(file, full);
    if (!entry)
        return error_set(err, -EINVAL, "%s is missing; are these another model's moments?", full);
    if (entry->type != type || entry->n_dims != 1 || entry->n != n)
        return error_set(err, -EINVAL, "%s is %s of %" PRIu64 " numbers, and this run's sparse weights have %" PRIu64,
                         full, entry->dtype, entry->n, n);
    const int rc = file_read(&entry->file, out, safetensors_entry_bytes(entry), entry->offset, err);
    if (rc != 0)
        error_prefix(err, full);
    return rc;
}

static int load_piece(struct store *store, uint32_t unit, const struct model_piece *piece,
                      const struct safetensors *file, struct error *err)
{
    const struct sparse_places p = store_places(store, unit, piece);
    const char *const name = store->model->tensors[piece->tensor].name;
    char old[CHECKPOINT_MOMENT_BYTES];

    snprintf(old, sizeof old, "starts.%s", name);
    if (safetensors_find(file, old))
        return error_set(
            err, -EINVAL,
            "places of %s are columns, as older versions of eps kept them: one of those can resume this run, or "
            "--model begins a new one from its weights",
            name);
    int rc = read_array(p.places, file, CHECKPOINT_PLACES, name, SAFETENSORS_U32, p.rows * p.words, err);
    if (rc == 0 && sparse_places_count(&p) != 0)
        rc = error_set(err, -EINVAL, "places of %s are no places of its rows: the file is damaged", name);
    return rc;
}

/* What older versions of eps wrote lacks the first threshold, which was always the same. */
static int load_rewiring(struct rewiring *r, const struct safetensors *file, struct error *err)
{
    const struct safetensors_entry *entry = safetensors_find(file, CHECKPOINT_REWIRED);
    int64_t numbers[CHECKPOINT_REWIRED_NUMBERS] = {0, 0, sparse_pattern(REWIRE_THRESHOLD)};
    const uint64_t n = entry && entry->n == 2 ? 2 : CHECKPOINT_REWIRED_NUMBERS;
    const int rc = read_array(numbers, file, CHECKPOINT_REWIRED, "", SAFETENSORS_I64, n, err);

    if (rc != 0)
        return rc;
    const uint32_t pattern = (uint32_t)numbers[2];
    if (numbers[0] < 0 || numbers[1] < -REWIRE_MOST_DOUBLINGS || numbers[1] > REWIRE_MOST_DOUBLINGS || numbers[2] < 0 ||
        numbers[2] >= sparse_pattern(INFINITY))
        return error_set(err, -EINVAL,
                         CHECKPOINT_REWIRED " is no step, no count of doublings or no threshold: the file is damaged");
    r->version = (uint64_t)numbers[0], r->doublings = (int)numbers[1];
    memcpy(&r->begin, &pattern, sizeof r->begin);
    return 0;
}

static int load_places(struct store *store, const struct safetensors *file, struct error *err)
{
    const struct model *model = store->model;
    int rc = load_rewiring(&store->rewiring, file, err);

    for (uint32_t u = 0; rc == 0 && u < model->n_units; u++)
        for (uint32_t i = 0; rc == 0 && i < model->units[u].n_pieces; i++)
            if (model->units[u].sparse >> model->pieces[model->units[u].first_piece + i].slot & 1)
                rc = load_piece(store, u, &model->pieces[model->units[u].first_piece + i], file, err);
    store->rewiring.has_places = rc == 0;
    return rc;
}

int store_load_places(struct store *store, const struct file *from, struct reserve *reserve, struct error *err)
{
    struct safetensors file;

    if (!store->rewiring.room)
        return 0;
    int rc = safetensors_open_within(&file, from, reserve, err);
    if (rc == 0)
        rc = load_places(store, &file, err);
    reserve->used = 0;
    return rc;
}

/* A run's bits depend on this order, so it is the same with every C library: qsort is not stable, hence `order` in a
 * place. Permutations are computed, not drawn one after the other, so an epoch needs none of those before it. */
#include "client/order/batches.h"

#include "client/order/sample.h"
#include "proto/base/random.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { HELD_OUT = 10 }; /* one row in ten */
enum { DRAW_ROWS, DRAW_BATCHES, DRAW_HELD_OUT, DRAW_SHARES /* and the numbers after it: one for each share */ };

struct client_place {
    uint32_t row, length;
    uint32_t order; /* among rows of one length */
};

static int by_length(const void *a, const void *b)
{
    const struct client_place *x = a, *y = b;

    if (x->length != y->length)
        return x->length < y->length ? -1 : 1;
    return (x->order > y->order) - (x->order < y->order);
}

static uint32_t batches_permute(uint64_t seed, uint64_t epoch, unsigned what, uint64_t i, uint64_t n)
{
    return (uint32_t)random_permute(random_site_key(seed, epoch, what, RANDOM_ORDER), i, n);
}

/* ---- Subsets ---- */

int client_subset_init(struct client_subset *out, const uint32_t *lengths, size_t n, struct error *err)
{
    *out = (struct client_subset){.lengths = lengths, .list = calloc(n + 1, sizeof *out->list)};
    return out->list ? 0 : error_memory(err);
}

int client_subset_all(struct client_subset *out, const uint32_t *lengths, size_t n, struct error *err)
{
    const int rc = client_subset_init(out, lengths, n, err);

    for (size_t i = 0; !rc && i < n; i++)
        out->list[out->n++] = (uint32_t)i;
    return rc;
}

size_t client_subset_n_held_out(size_t n)
{
    return n / HELD_OUT ? n / HELD_OUT : 1;
}

void client_subset_draw(bool *held, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < client_subset_n_held_out(n); i++)
        held[batches_permute(seed, 0, DRAW_HELD_OUT, i, n)] = true;
}

int client_subset_divide(struct client_subset *rest, struct client_subset *held_out, const uint32_t *lengths, size_t n,
                         uint64_t seed, struct error *err)
{
    const size_t n_held = client_subset_n_held_out(n);
    int rc = client_subset_init(rest, lengths, n, err);
    const int also = client_subset_init(held_out, lengths, n_held, err);
    bool *held = calloc(n + 1, sizeof *held);

    if (rc || also || !held)
        rc = error_memory(err);
    else if (n < 2)
        rc = error_set(err, -EINVAL, "one row is too few to train on and to hold out another: give more");
    if (!rc)
        client_subset_draw(held, n, seed);
    for (size_t i = 0; !rc && i < n; i++) {
        struct client_subset *to = held[i] ? held_out : rest;
        to->list[to->n++] = (uint32_t)i;
    }
    free(held);
    return rc;
}

int client_subset_divide_data(struct client_subset parts[2], const uint32_t *const lengths[2], const size_t n[2],
                              uint64_t seed, struct error *err)
{
    if (n[1] == 0)
        return client_subset_divide(&parts[0], &parts[1], lengths[0], n[0], seed, err);
    const int rc = client_subset_all(&parts[0], lengths[0], n[0], err);
    return rc ? rc : client_subset_all(&parts[1], lengths[1], n[1], err);
}

/* Length and row in one number. */
static int batches_by_number(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

int client_subset_by_length(struct client_subset *subset, struct error *err)
{
    uint64_t *keys = calloc(subset->n + 1, sizeof *keys);

    if (!keys)
        return error_memory(err);
    for (uint32_t i = 0; i < subset->n; i++)
        keys[i] = (uint64_t)subset->lengths[subset->list[i]] << 32 | subset->list[i];
    qsort(keys, subset->n, sizeof *keys, batches_by_number);
    for (uint32_t i = 0; i < subset->n; i++)
        subset->list[i] = (uint32_t)keys[i];
    free(keys);
    return 0;
}

void client_subset_free(struct client_subset *subset)
{
    free(subset->list);
    *subset = (struct client_subset){0};
}

/* ---- Minibatches ---- */

uint32_t client_share_rows(const struct client_share *share)
{
    const double rows = round(share->weight * share->n);

    return share->n == 0 ? 0 : rows < 1 ? 1 : rows < UINT32_MAX / 2 ? (uint32_t)rows : UINT32_MAX / 2;
}

/* Copies the shares; without any, all rows are one. */
static int take_shares(struct client_batches *b, const struct client_batches_options *o, struct error *err)
{
    const struct client_share all = {.n = o->subset->n, .weight = 1};
    uint64_t n_rows = 0;

    b->n_shares = o->n_shares > 0 ? o->n_shares : 1;
    b->shares = calloc(b->n_shares, sizeof *b->shares);
    if (!b->shares)
        return error_memory(err);
    memcpy(b->shares, o->n_shares > 0 ? o->shares : &all, b->n_shares * sizeof *b->shares);
    for (size_t i = 0; i < b->n_shares; i++)
        n_rows += client_share_rows(&b->shares[i]);
    if (n_rows > UINT32_MAX / 2)
        return error_set(err, -EINVAL, "an epoch of %" PRIu64 " rows is too long: give lower weights", n_rows);
    b->n_rows = (uint32_t)n_rows;
    b->n = (n_rows + b->batch - 1) / b->batch;
    return 0;
}

int client_batches_init(struct client_batches *out, const struct client_batches_options *o, struct error *err)
{
    bool whole = true;

    *out = (struct client_batches){.subset = o->subset,
                                   .batch = o->batch,
                                   .part = o->part ? o->part : o->batch,
                                   .seq = o->seq,
                                   .seed = o->seed,
                                   .order = o->order,
                                   .flows = o->flows};
    const int rc = take_shares(out, o, err);
    if (rc)
        return rc;
    out->places = calloc(out->n_rows + (size_t)1, sizeof *out->places);
    for (int i = 0; i < 2; i++) {
        struct client_epoch *e = &out->epochs[i];
        *e = (struct client_epoch){.number = UINT64_MAX,
                                   .rows = calloc(out->n_rows + (size_t)1, sizeof *e->rows),
                                   .first = calloc(out->n + 1, sizeof *e->first),
                                   .tokens = calloc(out->n + 1, sizeof *e->tokens)};
        whole = whole && e->rows && e->first && e->tokens;
    }
    return whole && out->places ? 0 : error_memory(err);
}

void client_batches_free(struct client_batches *batches)
{
    for (int i = 0; i < 2; i++) {
        free(batches->epochs[i].rows);
        free(batches->epochs[i].first);
        free(batches->epochs[i].tokens);
    }
    free(batches->shares);
    free(batches->places);
    *batches = (struct client_batches){0};
}

static uint32_t batches_length_of(const struct client_batches *b, uint32_t row)
{
    return b->subset->lengths[row] < b->seq ? b->subset->lengths[row] : b->seq;
}

/* Row `at` of a share, counted from the run's beginning. An epoch that takes each row once is permuted as a whole; in
 * other shares each pass over the rows is a permutation of its own. */
static uint32_t row_of_share(const struct client_batches *b, size_t share, uint64_t at)
{
    const struct client_share *s = &b->shares[share];
    const uint64_t pass = at / s->n;
    uint64_t place = at % s->n;

    if (client_share_rows(s) != s->n && b->order != EPS_SEQUENTIAL)
        place = batches_permute(b->seed, pass, DRAW_SHARES + (unsigned)share, place, s->n);
    return b->subset->list[s->first + place];
}

/* Row i of an epoch, share after share. */
static uint32_t row_of_epoch(const struct client_batches *b, uint64_t epoch, uint32_t i)
{
    size_t share = 0;
    uint32_t n;

    while (i >= (n = client_share_rows(&b->shares[share])))
        i -= n, share++;
    return row_of_share(b, share, epoch * n + i);
}

/* Fills b->places with the epoch's rows, sorted within the parts of minibatches. */
static void draw_rows(struct client_batches *b, uint64_t epoch)
{
    const uint32_t n = b->n_rows;

    for (uint32_t i = 0; i < n; i++) {
        const uint32_t row =
            row_of_epoch(b, epoch, b->order == EPS_SEQUENTIAL ? i : batches_permute(b->seed, epoch, DRAW_ROWS, i, n));
        b->places[i] = (struct client_place){row, batches_length_of(b, row), i};
    }
    for (uint32_t at = 0; b->order != EPS_SEQUENTIAL && at < n; at += b->part)
        qsort(b->places + at, n - at < b->part ? n - at : b->part, sizeof *b->places, by_length);
}

/* Tokens of all epochs before one: whole passes over each share, and the begin of another. */
static uint64_t tokens_before(const struct client_batches *b, uint64_t epoch)
{
    uint64_t n = 0;

    for (size_t share = 0; share < b->n_shares; share++) {
        const struct client_share *s = &b->shares[share];
        const uint64_t rows = epoch * client_share_rows(s);
        uint64_t pass = 0;
        for (uint32_t i = 0; i < s->n; i++)
            pass += batches_length_of(b, b->subset->list[s->first + i]);
        n += s->n > 0 ? rows / s->n * pass : 0;
        for (uint64_t at = s->n > 0 ? rows - rows % s->n : 0; at < rows; at++)
            n += batches_length_of(b, row_of_share(b, share, at));
    }
    return n;
}

static const struct client_epoch *find_epoch(struct client_batches *b, uint64_t number)
{
    struct client_epoch *e = &b->epochs[number % 2];
    uint32_t at = 0;

    if (e->number == number)
        return e;
    e->number = number;
    e->before = tokens_before(b, number);
    draw_rows(b, number);
    for (uint64_t i = 0; i < b->n; i++) {
        const uint64_t k = b->order == EPS_SEQUENTIAL ? i : batches_permute(b->seed, number, DRAW_BATCHES, i, b->n);
        e->first[i] = at;
        e->tokens[i + 1] = e->tokens[i];
        for (uint64_t p = k * b->batch; p < (k + 1) * b->batch && p < b->n_rows; p++) {
            e->rows[at++] = b->places[p].row;
            e->tokens[i + 1] += b->places[p].length;
        }
    }
    e->first[b->n] = at;
    return e;
}

void client_batches_get(const uint32_t **rows, uint32_t *n, struct client_batches *b, uint64_t step)
{
    assert(!b->flows);
    const struct client_epoch *e = find_epoch(b, step / b->n);
    const uint64_t i = step % b->n;

    *rows = e->rows + e->first[i];
    *n = e->first[i + 1] - e->first[i];
}

/* Epoch after epoch, in the order of their minibatches. */
static uint32_t pick_flowing(struct client_sample *out, struct client_batches *b, uint64_t step)
{
    for (uint32_t i = 0; i < b->batch; i++) {
        const uint64_t at = step * b->batch + i;
        out[i] = (struct client_sample){.id = find_epoch(b, at / b->n_rows)->rows[at % b->n_rows]};
    }
    return b->batch;
}

uint32_t client_batches_pick(struct client_sample *out, struct client_batches *batches, uint64_t step)
{
    const uint32_t *rows;
    uint32_t n;

    if (batches->flows)
        return pick_flowing(out, batches, step);
    client_batches_get(&rows, &n, batches, step);
    for (uint32_t i = 0; i < n; i++)
        out[i] = (struct client_sample){.id = rows[i]};
    return n;
}

static uint64_t flowing_tokens(struct client_batches *b, uint64_t n_rows)
{
    const struct client_epoch *e = find_epoch(b, n_rows / b->n_rows);
    uint64_t n = e->before;

    for (uint64_t i = 0; i < n_rows % b->n_rows; i++)
        n += batches_length_of(b, e->rows[i]);
    return n;
}

uint64_t client_batches_tokens(struct client_batches *b, uint64_t n_steps)
{
    if (b->flows)
        return flowing_tokens(b, n_steps * b->batch);
    const struct client_epoch *e = find_epoch(b, n_steps / b->n);

    return e->before + e->tokens[n_steps % b->n];
}

/* Tokens that microbatches of so many rows compute of a minibatch, whose part has them in this order. */
static uint64_t computed(const struct client_batches *b, const uint32_t *rows, uint32_t n, uint32_t microbatch)
{
    uint64_t tokens = 0;

    for (uint32_t part = 0; part < n; part += b->part)
        for (uint32_t first = part, end; first < n && first < part + b->part; first = end) {
            uint32_t longest = 0;
            end = first + microbatch < part + b->part ? first + microbatch : part + b->part;
            end = end < n ? end : n;
            for (uint32_t i = first; i < end; i++)
                longest = longest < batches_length_of(b, rows[i]) ? batches_length_of(b, rows[i]) : longest;
            tokens += (uint64_t)(end - first) * client_batches_length(longest, b->seq);
        }
    return tokens;
}

void client_batches_measure(uint32_t row_tokens[PLAN_ROW_TOKENS], struct client_batches *b, uint32_t each)
{
    enum { ROWS = 4096 }; /* that are looked at */
    const struct client_epoch *e = b->n > 0 ? find_epoch(b, 0) : NULL;

    for (int i = 0; e && i < PLAN_ROW_TOKENS; i++) {
        const uint32_t microbatch = (UINT32_C(1) << i) / each;
        uint64_t tokens = 0, rows = 0;
        for (uint64_t k = 0; k < b->n && rows < ROWS; k++) {
            tokens += computed(b, e->rows + e->first[k], e->first[k + 1] - e->first[k], microbatch ? microbatch : 1);
            rows += e->first[k + 1] - e->first[k];
        }
        row_tokens[i] = rows ? (uint32_t)((tokens + rows - 1) / rows) : 0;
    }
}

uint32_t client_batches_length(uint32_t longest, uint32_t seq)
{
    const uint32_t cut = longest < seq ? longest : seq;
    const uint32_t rounded = (cut + PLAN_ROW_ROUND - 1) / PLAN_ROW_ROUND * PLAN_ROW_ROUND;

    return rounded < seq ? rounded : seq;
}

/* Rows are numbered as they are opened, and all rows from n_rows on are empty: so the first row with room is at most
 * n_rows, and a row is opened only if no other has room. A tree finds it, as millions of documents against all open
 * rows would take the square of their number. Documents and rows are permuted by keys of their own: by one key, rows of
 * one document would go through one permutation twice. */
#include "client/order/packing.h"

#include "proto/base/random.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

enum { DRAW_DOCUMENTS, DRAW_ROWS };

static uint32_t packing_permute(uint64_t seed, uint64_t epoch, unsigned what, uint64_t i, uint64_t n)
{
    return (uint32_t)random_permute(random_site_key(seed, epoch, what, RANDOM_ORDER), i, n);
}

/* The room in rows, as a tree: node 1 has the most of all, and node i that of nodes 2i and 2i + 1; node n + r is row
 * r. There are as many rows as documents, at least, so that one has always room. */
struct rooms {
    uint32_t *most; /* (2 n), owned */
    uint32_t n;     /* a power of two */
};

static int make_rooms(struct rooms *out, uint32_t n_rows, uint32_t seq)
{
    out->n = 1;
    while (out->n < n_rows)
        out->n *= 2;
    out->most = calloc(2 * (size_t)out->n, sizeof *out->most);
    for (size_t i = 0; out->most && i < 2 * (size_t)out->n; i++)
        out->most[i] = seq;
    return out->most ? 0 : -ENOMEM;
}

/* The first row with that much room. */
static uint32_t packing_find_room(const struct rooms *rooms, uint32_t length)
{
    size_t i = 1;

    while (i < rooms->n)
        i = 2 * i + (rooms->most[2 * i] < length);
    return (uint32_t)(i - rooms->n);
}

static void take_room(struct rooms *rooms, uint32_t row, uint32_t length)
{
    size_t i = rooms->n + (size_t)row;

    assert(rooms->most[i] >= length);
    rooms->most[i] -= length;
    while ((i /= 2) > 0)
        rooms->most[i] = rooms->most[2 * i] > rooms->most[2 * i + 1] ? rooms->most[2 * i] : rooms->most[2 * i + 1];
}

/* The i-th document to be placed. */
static uint32_t document_at(const struct client_packing *p, uint32_t i, uint32_t n)
{
    return p->order == EPS_SEQUENTIAL ? i : packing_permute(p->seed, 0, DRAW_DOCUMENTS, i, n);
}

/* Places each document: rows (n). In sequential order rows before the last one are full. */
static void packing_place(struct client_packing *p, uint32_t *rows, struct rooms *rooms, const uint32_t *lengths,
                          uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t document = document_at(p, i, n), length = lengths[document];
        uint32_t row = packing_find_room(rooms, length);
        assert(length > 0);
        if (p->order == EPS_SEQUENTIAL && row + 1 < p->n_rows)
            row = rooms->most[rooms->n + p->n_rows - 1] < length ? p->n_rows : p->n_rows - 1;
        take_room(rooms, row, length);
        p->n_rows = row < p->n_rows ? p->n_rows : row + 1;
        p->tokens[row] += length;
        p->first[row + 1]++;
        rows[document] = row;
    }
}

/* Lists the rows' documents: first has how many each row has, one place behind. next (n_rows): room. */
static void packing_list(struct client_packing *p, uint32_t *next, const uint32_t *rows, uint32_t n)
{
    for (uint32_t row = 0; row < p->n_rows; row++) {
        p->first[row + 1] += p->first[row];
        next[row] = p->first[row];
    }
    for (uint32_t i = 0; i < n; i++) {
        const uint32_t document = document_at(p, i, n);
        p->documents[next[rows[document]]++] = document;
    }
}

int client_packing_init(struct client_packing *out, const uint32_t *lengths, uint32_t n, uint32_t seq,
                        enum eps_order order, uint64_t seed, struct error *err)
{
    uint32_t *rows = calloc(n, sizeof *rows), *next = calloc(n, sizeof *next);
    struct rooms rooms = {0};

    assert(n > 0);
    *out = (struct client_packing){.order = order,
                                   .seed = seed,
                                   .documents = calloc(n, sizeof *out->documents),
                                   .first = calloc(n + (size_t)1, sizeof *out->first),
                                   .tokens = calloc(n, sizeof *out->tokens)};
    const bool whole = rows && next && out->documents && out->first && out->tokens && !make_rooms(&rooms, n, seq);
    if (whole) {
        packing_place(out, rows, &rooms, lengths, n);
        packing_list(out, next, rows, n);
    }
    free(rooms.most);
    free(rows);
    free(next);
    return whole ? 0 : error_memory(err);
}

void client_packing_free(struct client_packing *packing)
{
    free(packing->documents);
    free(packing->first);
    free(packing->tokens);
    *packing = (struct client_packing){0};
}

uint32_t client_packing_row(const struct client_packing *p, uint64_t k)
{
    const uint64_t i = k % p->n_rows;

    return p->order == EPS_SEQUENTIAL ? (uint32_t)i : packing_permute(p->seed, k / p->n_rows, DRAW_ROWS, i, p->n_rows);
}

void client_packing_get(const uint32_t **documents, uint32_t *n, const struct client_packing *p, uint32_t row)
{
    assert(row < p->n_rows);
    *documents = p->documents + p->first[row];
    *n = p->first[row + 1] - p->first[row];
}

uint64_t client_packing_tokens(const struct client_packing *p, uint64_t n)
{
    uint64_t all = 0, some = 0;

    for (uint32_t row = 0; row < p->n_rows; row++)
        all += p->tokens[row];
    for (uint64_t k = n / p->n_rows * p->n_rows; k < n; k++)
        some += p->tokens[client_packing_row(p, k)];
    return n / p->n_rows * all + some;
}

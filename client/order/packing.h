/* client/order/packing.h - which documents share a row of a packed run.
 *
 * First fit: each document goes to the first row that has room for it. Documents come in an order drawn by the seed, so
 * that neighbours are of no kind. A packing is made once: an epoch has the same rows each time, in an order of its own,
 * so all epochs have as many, and a run resumes where it stopped. As no document sees another, neighbours change
 * nothing but which documents share a minibatch. Rows come out some 95 % full where documents are short. In sequential
 * order documents come as they are in the data, and only the last row is open, so that another program can do the same:
 * a document that has no room in it begins the next one. */
#ifndef CLIENT_ORDER_PACKING_H
#define CLIENT_ORDER_PACKING_H

#include "client/eps.h"
#include "proto/base/error.h"

#include <stdint.h>

struct client_packing {
    enum eps_order order;
    uint64_t seed;
    uint32_t n_rows;     /* of an epoch */
    uint32_t *documents; /* (n) row after row, each as they lie in it; owned */
    uint32_t *first;     /* (n_rows + 1) where each row begins in them; owned */
    uint32_t *tokens;    /* (n_rows) of each row, without padding; owned */
};

/* lengths (n > 0): tokens of each document, 1..seq; borrowed for the call, which takes time for n log n steps. -ENOMEM.
 * Undo: client_packing_free, also after a failure. */
int client_packing_init(struct client_packing *out, const uint32_t *lengths, uint32_t n, uint32_t seq,
                        enum eps_order order, uint64_t seed, struct error *err);
void client_packing_free(struct client_packing *packing); /* safe on a zeroed struct */

/* The row at place k (from 0) of the run, which takes every row once in each epoch. */
uint32_t client_packing_row(const struct client_packing *packing, uint64_t k);

/* A row's documents: *documents (*n), borrowed. */
void client_packing_get(const uint32_t **documents, uint32_t *n, const struct client_packing *packing, uint32_t row);

/* Tokens, without padding, of the run's first n rows. Takes time for an epoch's rows. */
uint64_t client_packing_tokens(const struct client_packing *packing, uint64_t n);

#endif

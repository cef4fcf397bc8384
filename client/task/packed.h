/* client/task/packed.h - rows of several documents each: a packing (client/order/packing.h) of those that a run keeps.
 *
 * Each document in a row is what it is in a row of its own: its ids, its labels, and positions from 0. */
#ifndef CLIENT_TASK_PACKED_H
#define CLIENT_TASK_PACKED_H

#include "client/order/batches.h"
#include "client/order/packing.h"
#include "client/task/document_rows.h"

struct client_packed {
    const struct client_corpus *documents; /* borrowed */
    struct client_packing packing;         /* its documents are indices of list */
    uint32_t *list;                        /* (n) numbers of documents; owned */
    uint32_t n, seq;
    struct {
        uint64_t n_rows, n_tokens;
    } counted; /* the last answer of client_packed_tokens_before */
};

struct client_packed_options {
    const struct client_corpus *documents; /* borrowed as long as the rows */
    const struct client_subset *subset;    /* of them; not empty */
    const struct client_share *shares;     /* (n_shares) all of the subset, in its order; 0: an epoch takes each once */
    size_t n_shares;
    uint32_t seq; /* longer documents are cut */
    enum eps_order order;
    uint64_t seed;
};

/* -EINVAL: a weight is no whole number, as an epoch has the same rows each time, or an epoch is too long; -ENOMEM.
 * Undo: client_packed_free, also after a failure. */
int client_packed_init(struct client_packed *out, const struct client_packed_options *options, struct error *err);
void client_packed_free(struct client_packed *packed); /* safe on a zeroed struct */

/* Reads row k into fields that are empty. work (seq + 1) is the caller's. Errors as client_documents_get. */
int client_packed_get(const struct client_packed *packed, const struct client_row_fields *row, uint32_t *work,
                      uint32_t k, struct error *err);

/* Tokens, without padding, of all rows together. */
uint64_t client_packed_tokens(const struct client_packed *packed);

/* Tokens of the run's first n rows. Takes time for the rows from the last call's n to this one, an epoch's at most. */
uint64_t client_packed_tokens_before(struct client_packed *packed, uint64_t n);

/* ---- The order of packed documents ---- */

struct client_packed_rows {
    struct client_listed rows;      /* documents, and what becomes of them */
    struct client_packed packed[2]; /* rows, by enum client_part; zeroed but in a packed source */
};

extern const struct client_order client_packed_order;

/* Packs the documents to train on, once they are settled. Errors as client_packed_init. */
int client_packed_settle(struct client_source *source, const struct client_source_rules *rules, struct error *err);

/* The rows to train on of a packed source, once it is settled; borrowed. Its seq is the documents' limit. */
const struct client_packed *client_packed_of(const struct client_source *source);

#endif

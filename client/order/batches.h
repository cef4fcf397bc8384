/* client/order/batches.h - which rows of different length each step of a run gets.
 *
 * An epoch takes every row once, or as often as its share's weight says: a permutation of the rows, cut into
 * minibatches, all minibatches of the epoch permuted. The last rows may form a smaller one; where rows flow, the next
 * epoch's first ones fill it. So minibatches have rows of all lengths: those of like length teach less, as each says
 * that texts end there (tools/bench/README.md has figures). The rows of each of its parts are sorted by length, as a
 * microbatch computes no more tokens of its rows than the longest one has (proto/step/pass.h). This is a function of
 * the seed and the epoch alone, so a run resumes where it stopped. In sequential order rows come as they are in the
 * data. */
#ifndef CLIENT_ORDER_BATCHES_H
#define CLIENT_ORDER_BATCHES_H

#include "client/eps.h"
#include "proto/base/error.h"
#include "proto/plan/memory/plan.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Some of the rows, by their numbers. */
struct client_subset {
    const uint32_t *lengths; /* tokens of each of the rows, uncut; borrowed */
    uint32_t *list;          /* (n), owned */
    uint32_t n;
};

/* How many of n rows are held out: a tenth, and at least one. */
size_t client_subset_n_held_out(size_t n);

/* Sets held (n, zeroed) of these. */
void client_subset_draw(bool *held, size_t n, uint64_t seed);

/* Draws these of n rows by the seed. `held_out` gets them, `rest` the others, each in the data's order.
 * -EINVAL if there are fewer than two rows; -ENOMEM. Undo: client_subset_free for both, also after a failure. */
int client_subset_divide(struct client_subset *rest, struct client_subset *held_out, const uint32_t *lengths, size_t n,
                         uint64_t seed, struct error *err);
int client_subset_all(struct client_subset *out, const uint32_t *lengths, size_t n, struct error *err); /* -ENOMEM */
/* Divides data, with the lengths[0] (n[0]) of its rows, into parts[0] to train on and parts[1], which is held out: all
 * rows of eval_data, lengths[1] (n[1]), or if there are none some of data's. Errors and undo as
 * client_subset_divide. */
int client_subset_divide_data(struct client_subset parts[2], const uint32_t *const lengths[2], const size_t n[2],
                              uint64_t seed, struct error *err);
/* An empty one with room for n. -ENOMEM. */
int client_subset_init(struct client_subset *out, const uint32_t *lengths, size_t n, struct error *err);
/* Sorts it, the shortest row first, so that an evaluation pads little. -ENOMEM. */
int client_subset_by_length(struct client_subset *subset, struct error *err);
void client_subset_free(struct client_subset *subset); /* safe on a zeroed struct */

/* Rows first .. first+n-1 of a subset's list, of which an epoch takes `weight` times n, at least one. All are taken
 * equally often: an epoch goes on where the one before it ended, in permutations of these rows. */
struct client_share {
    uint32_t first, n;
    double weight;
};

/* Rows that an epoch takes. */
uint32_t client_share_rows(const struct client_share *share);

struct client_batches {
    const struct client_subset *subset; /* borrowed */
    struct client_share *shares;        /* (n_shares) which follow each other; owned */
    size_t n_shares;
    uint32_t n_rows; /* of an epoch */
    uint32_t batch, part, seq;
    uint64_t n; /* minibatches of an epoch */
    uint64_t seed;
    enum eps_order order;
    bool flows;
    /* Two epochs, since a step is prepared before the one before it is done. All owned. */
    struct client_epoch {
        uint64_t number;  /* UINT64_MAX: none */
        uint64_t before;  /* tokens of all epochs before it */
        uint32_t *rows;   /* (n_rows) in their order */
        uint32_t *first;  /* (n + 1) where each minibatch begins in them */
        uint64_t *tokens; /* (n + 1) of the minibatches before each: real ones, not padding */
    } epochs[2];
    struct client_place *places; /* (n_rows) to sort */
};

struct client_batches_options {
    const struct client_subset *subset; /* borrowed as long as the minibatches */
    const struct client_share *shares; /* (n_shares) all of the subset, in its order; 0: an epoch takes each row once */
    size_t n_shares;
    uint32_t batch, part, seq; /* rows of a minibatch, and of one of its parts, 0: all; most tokens of a row */
    enum eps_order order;
    uint64_t seed;
    bool flows; /* all minibatches are full: for client_batches_pick and client_batches_tokens alone */
};

/* -EINVAL: an epoch of too many rows; -ENOMEM. Undo: client_batches_free, also after a failure. */
int client_batches_init(struct client_batches *out, const struct client_batches_options *options, struct error *err);
void client_batches_free(struct client_batches *batches); /* safe on a zeroed struct */

/* The rows of a step (from 0): *rows (*n) are numbers of rows, borrowed until the next call for another epoch but
 * one. */
void client_batches_get(const uint32_t **rows, uint32_t *n, struct client_batches *batches, uint64_t step);

/* The rows of a step as samples (at most batch); returns how many there are. */
struct client_sample; /* client/task/source.h */
uint32_t client_batches_pick(struct client_sample *out, struct client_batches *batches, uint64_t step);

/* Real tokens of the first n_steps steps. */
uint64_t client_batches_tokens(struct client_batches *batches, uint64_t n_steps);

/* The tokens that microbatches of 1, 2, 4 ... rows compute of each row (struct plan_goal), in some of the first epoch's
 * minibatches. each: rows of the minibatch that one of these rows is. */
void client_batches_measure(uint32_t row_tokens[PLAN_ROW_TOKENS], struct client_batches *batches, uint32_t each);

/* Length of a minibatch's rows: the longest one's, rounded up to a multiple of 8, at most seq. */
uint32_t client_batches_length(uint32_t longest, uint32_t seq);

#endif

/* proto/model/sparse.h - sparse weights: of a matrix, a part of its elements is trained; all others are 0.
 *
 * A sparse piece has room for its elements, n of them, one behind the other in the order of rows and of their columns:
 * they are what is relayed, contributed, updated and saved, as of any trained piece. Beside them, in the unit's coded
 * bytes, stand their places, each array aligned to 64 bytes:
 *
 *   starts  (n_rows + 1) u32      row r has elements starts[r] .. starts[r+1]-1; those from starts[n_rows] on are free,
 *   and 0
 *   places  (n_rows, words) u32   bit c % 32 of a row's word c / 32: column c has an element; words: columns / 32,
 *   rounded up
 *
 * A bit for each place costs 3.3 bits an element where three in ten are trained. Columns of 16 bits would cost less
 * only where fewer than one in 16 are; a bit is a 32nd of the matrix in fp32, of which the device holds one unit's
 * anyway.
 *
 * The device puts them into their places before it computes, and takes the gradient from there. Which elements are
 * trained changes at the end of some steps: dynamic sparse reparameterization (Mostafa & Wang, arXiv:1902.05967), in
 * eps/store/rewire.h.
 *
 * Sparse are the matrices of blocks that are trained, in nets of images the filters of more than one tap, up to
 * UINT32_MAX elements. All else is dense: tables, vectors, adapters, whatever is frozen. */
#ifndef PROTO_MODEL_SPARSE_H
#define PROTO_MODEL_SPARSE_H

#include <stdbool.h>
#include <stdint.h>

struct model;
struct model_piece;

/* How a run trains them. */
struct sparse {
    double keep;    /* share of elements that are trained, above 0 and below 1; 0: weights are dense */
    double room;    /* from 1: a matrix has room for so many times the elements that it begins with */
    uint32_t every; /* steps after which places change; 0: never */
    uint64_t until; /* they change in no later step; 0: to the end */
    double moved;   /* share of all trained elements that is to change places each time */
};

#define SPARSE_LEAST     1e-4 /* the least share */
#define SPARSE_MOST_ROOM 1e4

/* Elements of a piece of n that a run begins with: at least one. */
static inline uint64_t sparse_begins(double keep, uint64_t n)
{
    const uint64_t kept = (uint64_t)(keep * (double)n + 0.1);

    return kept > 0 ? kept : 1;
}

/* Makes the pieces sparse that can be; none, if one is coded (sparse_check refuses that). Called once, after
 * model_freeze. */
void model_sparsify(struct model *model, const struct sparse *sparse);

/* For a job's plan: -EINVAL with a sentence if numbers are out of range, or the model has nothing that can be
 * sparse. */
struct error;
int model_check_sparse(const struct model *model, const struct sparse *sparse, struct error *err);

/* Words of `places`; bytes from `starts` to `places`, and of both. */
uint64_t model_places_words(const struct model_piece *piece);
uint64_t model_places_at(const struct model_piece *piece);
uint64_t model_places_bytes(const struct model_piece *piece);

#endif

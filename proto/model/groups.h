/* proto/model/groups.h - the groups in which coded moments (--moments coded) have their scales.
 *
 * The moments of a block's trained matrices have 8 bits each; all others stay in fp32: those of vectors, embeddings,
 * heads and routers, which are few, or whose gradients differ most from one element to the next. An element's code
 * counts in parts of its group's scale, one for m and one for v. A trained piece is cut at slices, as its passes are
 * (eps/store/store_walk.h), and each run into groups of MODEL_GROUP elements, of which the last may be shorter. So no
 * slice, no block of a sum of memory and no thread's range cuts a group. */
#ifndef PROTO_MODEL_GROUPS_H
#define PROTO_MODEL_GROUPS_H

#include "proto/model/model.h"

enum { MODEL_GROUP = 64 };

/* A piece is cut at slices, and what is between them into parts of `size` elements: how many come before the one that
 * has element `at` of its unit, which is the piece's. */
static inline uint64_t model_parts_before(const struct model_piece *piece, uint64_t at, uint64_t size)
{
    const uint64_t slice = MODEL_SLICE, first_end = (piece->offset / slice + 1) * slice;

    if (at < first_end)
        return (at - piece->offset) / size;
    return (first_end - piece->offset + size - 1) / size + (at - first_end) / slice * ((slice + size - 1) / size) +
           (at - first_end) % slice / size;
}

/* Where the run that has this element of the piece ends: at its slice's end, or at the piece's. */
static inline uint64_t model_run_end(const struct model_piece *piece, uint64_t at)
{
    const uint64_t slice_end = (at / MODEL_SLICE + 1) * MODEL_SLICE, end = piece->offset + piece->n;

    return slice_end < end ? slice_end : end;
}

#endif

/* proto/plan/memory/checksums.h - the sums of a job that checks its memory (--check-memory): which there are, and
 * where.
 *
 * A trained piece of an own unit is cut at slices, as its passes are (eps/store/store_walk.h), and each run into blocks
 * of PLAN_BLOCK elements, of which the last may be shorter. Blocks are numbered through all own units. Each array of
 * trained elements has a sum for each block. What steps leave alone, frozen weights and the places of sparse ones, is
 * cut into blocks of BLOCK_SUM_BYTES, unit by unit.
 *
 * All are one allocation, of LEDGER_CHECKSUMS: 16 bytes a block of each array, 8 for each piece of the model, and 8.
 * Inboxes have 16 more for each slot. */
#ifndef PROTO_PLAN_MEMORY_CHECKSUMS_H
#define PROTO_PLAN_MEMORY_CHECKSUMS_H

#include "proto/base/block_sum.h"
#include "proto/plan/memory/division.h"
#include "proto/plan/memory/plan.h"

#include <stdint.h>

enum { PLAN_BLOCK = 1024 };

enum plan_checked {
    PLAN_CHECKED_WEIGHTS,
    PLAN_CHECKED_REPLAY, /* the second buffer of trained weights */
    PLAN_CHECKED_MASTER,
    PLAN_CHECKED_FIRST,
    PLAN_CHECKED_SECOND,
    PLAN_CHECKED_FIRST_SCALES, /* of coded moments */
    PLAN_CHECKED_SECOND_SCALES,
    PLAN_CHECKED_HELD,
    PLAN_CHECKED_TIED,
    PLAN_CHECKED_ACCUMULATORS,
    PLAN_CHECKED_FIXED,
    PLAN_CHECKED_ARRAYS
};

struct plan_checksums {
    uint64_t n_blocks, n_tied, n_most,
        n_fixed;                     /* of the own units; of its tied ones, the first; of the largest; fixed ones */
    uint64_t n[PLAN_CHECKED_ARRAYS]; /* sums of each array */
    uint64_t bytes;
};

/* replay, n_accumulators: as in struct plan_host. All zero if the goal does not check memory. */
void plan_checksums(struct plan_checksums *out, const struct model *model, const struct plan_own *own,
                    const struct plan_goal *goal, bool replay, uint32_t n_accumulators);

/* Blocks of a trained piece before the one that has element `at` of its unit, which is the piece's. */
uint64_t plan_blocks_before(const struct model_piece *piece, uint64_t at);
/* Of a trained piece; 0 of a frozen one. */
uint64_t plan_piece_blocks(const struct model *model, const struct model_piece *piece);
/* Of what steps leave alone in a unit. */
uint64_t plan_fixed_blocks(const struct model_unit *unit, enum number_type precision);

#endif

/* proto/model/contribution.h - the name of a slice of a contribution, in messages, relay and device.
 *
 * A name is used up when its slice is folded. Slots are granted, freed and taken over by name, so that a duplicate, or
 * an answer about work that was redone since, never reaches a slot in use. */
#ifndef PROTO_MODEL_CONTRIBUTION_H
#define PROTO_MODEL_CONTRIBUTION_H

#include "proto/base/block_sum.h"

#include <stdbool.h>
#include <stdint.h>

/* Elements of a block of a slice's sum. */
enum { CONTRIBUTION_BLOCK = 1024 };

struct contribution_name {
    uint64_t step;    /* from 0; also the version of the weights that were used */
    uint32_t visit;   /* number of the visit; a tied unit has two */
    uint32_t part;    /* index in the minibatch */
    uint32_t slice;   /* index in the unit: MODEL_SLICE elements each */
    uint32_t attempt; /* one more whenever the part goes to another worker */
};

static inline bool contribution_is(const struct contribution_name *a, const struct contribution_name *b)
{
    return a->step == b->step && a->visit == b->visit && a->part == b->part && a->slice == b->slice &&
           a->attempt == b->attempt;
}

/* Of a slice of n elements of each_bytes, 2 or 4: as its sender and whoever folds it make it. */
static inline struct block_sum contribution_sum(const void *slice, uint64_t n, size_t each_bytes)
{
    return block_sum_run(slice, n * each_bytes, CONTRIBUTION_BLOCK * each_bytes);
}

#endif

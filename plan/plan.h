/* plan/plan.h - where every byte of a device's arena lies, before there is an arena.
 *
 * The plan is the arena's own allocator run dry: it lays out the same buffers in the same order, so what it predicts is
 * what is used, to the byte. It is pure arithmetic, and needs neither device nor daemon: what a device's operations need
 * is in a table (plan/backend.h). The setting is given; the choice is what a planner can trade against it.
 *
 * The arrangement: n_weight_buffers of the largest unit, one contribution sum, every layer's input stashed on the
 * device, recompute in backward. Boundary activations are (share rows * tokens, width), one for each layer but the
 * last: layer l reads boundary l-1 and writes boundary l; the embedding reads ids, and the head writes losses.
 *
 * To generate, one row's keys and values are kept in a cache, and its tokens run through all layers in tiles. Each token
 * visits all weights, so as many units as the budget holds stay on the device, the lowest ones; what is left passes
 * through the weight buffers, token by token. */
#ifndef PLAN_PLAN_H
#define PLAN_PLAN_H

#include "plan/backend.h"
#include "proto/error.h"
#include "proto/ledger.h"
#include "proto/model.h"
#include "proto/number.h"

#include <stdbool.h>

enum {
    PLAN_MAX_WEIGHT_BUFFERS = 3,
    PLAN_HEAD_TILE = 256,    /* tokens whose logits are there at a time: a constant of the model */
    PLAN_GENERATE_TILE = 64, /* tokens of a prompt that run through the layers at a time, at most */
    PLAN_ALIGNMENT = 64,     /* of every buffer: a cache line */
};

enum plan_purpose {
    PLAN_TRAIN,
    PLAN_EVALUATE, /* forward only: no contribution, no gradient, two boundaries in turn */
    PLAN_GENERATE, /* forward only, of one row (share_rows and part_rows are 1) of up to seq tokens */
};

/* What is given. */
struct plan_setting {
    const struct plan_backend *backend;
    enum plan_purpose purpose;
    enum number_type precision; /* of weights on the device, activations, stash */
    uint32_t share_rows;        /* rows of the largest share: parts * rows of a part */
    uint32_t part_rows, seq, n_threads;
};

/* What can be chosen. */
struct plan_choice {
    uint32_t microbatch;       /* rows, 1..part_rows: the one choice that changes bits (rounding) */
    bool host_stash;           /* boundaries and their gradient live in a host segment; the device has tiles of them */
    uint32_t n_kept;           /* blocks, the topmost, whose internals are kept from forward to backward */
    uint32_t n_weight_buffers; /* 1..3 */
    uint32_t n_resident;       /* units that stay: to generate the lowest, for good; to train those visited last by
                                * forward, from their first visit of a step to their last */
    bool whole_head;           /* the head's units and their contributions are on the device at once: one pass */
};

/* Offsets are in bytes from the arena's start, multiples of PLAN_ALIGNMENT. */
struct plan {
    struct plan_setting setting;
    struct plan_choice choice;
    uint32_t n_boundaries;
    uint64_t weights[PLAN_MAX_WEIGHT_BUFFERS]; /* largest unit each */
    uint64_t contribution;                     /* largest unit, fp32 */
    uint64_t boundaries, boundary_bytes; /* layer l's output at boundaries + (l % n_boundaries) * boundary_bytes */
    uint64_t gradient;                   /* (share tokens, width) */
    uint64_t running;                    /* (share tokens, 3) log-sum-exp of the head */
    uint64_t losses;                     /* (share tokens) double */
    uint64_t ids, labels;                /* (share tokens) u32 each */
    /* Of a plan to generate, whose boundaries and ids are those of one tile: */
    uint64_t resident;                   /* unit u < n_resident at resident + units[u].offset * element size */
    uint64_t resident_bytes;             /* of those units' weights; without others, no weight buffers */
    uint64_t cache, cache_bytes;         /* keys and values: of block i at cache + i * cache_bytes */
    uint64_t logits;                     /* (vocabulary) of the last token */
    uint64_t workspace, workspace_bytes; /* the largest that a layer asks for one microbatch */
    uint64_t arena_bytes;                /* the whole arena */
    uint64_t host_stash_bytes;           /* of the segment that takes the boundaries; 0 without host_stash */
    /* The same, by category, and the library's: sums to plan_total. */
    uint64_t bytes[LEDGER_CATEGORIES];
};

/* -EINVAL with a sentence: more tokens than the model has positions, no rows, more than 2^32 tokens, generating more
 * than one row. */
int plan_check(const struct model *model, const struct plan_setting *setting, struct error *err);

/* The setting must have been checked. -EINVAL with a sentence: a microbatch of no rows or beyond the part's, numbers
 * that no plan has. */
int plan_check_choice(const struct model *model, const struct plan_setting *setting, const struct plan_choice *choice,
                      struct error *err);

/* Cannot fail: both must have been checked. */
void plan_lay_out(struct plan *out, const struct model *model, const struct plan_setting *setting,
                  const struct plan_choice *choice);

/* The arena and what libraries take besides: what is compared with a budget. */
uint64_t plan_total(const struct plan *plan);

#endif

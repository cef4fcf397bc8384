/* device/plan.h - where every byte of the arena lies, before there is an arena.
 *
 * The plan is the arena's own allocator run dry: it lays out the same buffers in the same order, so what it predicts is
 * what is used, to the byte. It needs no device: scratch sizes come from the operations table.
 *
 * The arrangement: n_weight_buffers of the largest unit, one contribution sum, every layer's input stashed on the
 * device, recompute in backward. Boundary activations are (share rows * tokens, width) fp32, one for each layer but the
 * last: layer l reads boundary l-1 and writes boundary l; the embedding reads ids, and the head writes losses.
 *
 * To generate, one row's keys and values are kept in a cache, and its tokens run through all layers in tiles. Each token
 * visits all weights, so as many units as the budget holds stay on the device, the lowest ones; what is left passes
 * through the weight buffers, token by token. */
#ifndef DEVICE_PLAN_H
#define DEVICE_PLAN_H

#include "device/device.h"
#include "proto/error.h"
#include "proto/ledger.h"
#include "proto/model.h"

enum {
    PLAN_MAX_WEIGHT_BUFFERS = 3,
    PLAN_HEAD_TILE = 256,    /* tokens whose logits are there at a time: a constant of the model */
    PLAN_GENERATE_TILE = 64, /* tokens of a prompt that run through the layers at a time, at most */
    PLAN_ALIGNMENT = 64,     /* of every buffer: a cache line */
};

struct plan_options {
    const struct device_ops *ops;
    uint64_t budget;     /* bytes of the device, library_bytes included */
    uint32_t share_rows; /* rows of the largest share: parts * rows of a part */
    uint32_t part_rows;
    uint32_t seq;
    uint32_t microbatch;       /* rows; 0: the largest that fits */
    uint32_t n_weight_buffers; /* 1..3 */
    uint32_t n_threads;
    bool train;    /* else forward only: no contribution, no gradient, two boundaries in turn */
    bool generate; /* forward only, of one row (share_rows and part_rows are 1) of up to seq tokens */
};

/* Offsets are in bytes from the arena's start, multiples of PLAN_ALIGNMENT. */
struct plan {
    struct plan_options options; /* microbatch filled in */
    uint32_t n_boundaries;
    uint64_t weights[PLAN_MAX_WEIGHT_BUFFERS]; /* largest unit each */
    uint64_t contribution;                     /* largest unit, fp32 */
    uint64_t boundaries, boundary_bytes; /* layer l's output at boundaries + (l % n_boundaries) * boundary_bytes */
    uint64_t gradient;                   /* (share tokens, width) */
    uint64_t running;                    /* (share tokens, 3) log-sum-exp of the head */
    uint64_t losses;                     /* (share tokens) double */
    uint64_t ids, labels;                /* (share tokens) u32 each */
    /* Of a plan to generate, whose boundaries and ids are those of one tile: */
    uint32_t n_resident;         /* units 0 .. n_resident-1 stay on the device; without others, no weight buffers */
    uint64_t resident;           /* unit u at resident + units[u].offset * sizeof(float) */
    uint64_t resident_bytes;     /* of those units' weights */
    uint64_t cache, cache_bytes; /* keys and values: of block i at cache + i * cache_bytes */
    uint64_t logits;             /* (vocabulary) of the last token */
    uint64_t workspace, workspace_bytes; /* the largest that a layer asks for one microbatch */
    uint64_t arena_bytes;                /* the whole arena */
    /* The same, by category, and the library's: sums to arena_bytes + library_bytes. */
    uint64_t bytes[LEDGER_CATEGORIES];
};

/* 0 and *out. -ENOSPC if it does not fit, with a sentence that names the smallest sufficient budget in bytes (for the
 * given microbatch, and for 1 row) and the terms that take most; *out is then the plan for 1 row, or to generate the
 * smallest one. -EINVAL with a
 * sentence, and *out untouched: a microbatch beyond the part's rows, more tokens than the model has positions, no rows,
 * more than 2^32 tokens. */
int plan_make(struct plan *out, const struct model *model, const struct plan_options *options, struct error *err);

#endif

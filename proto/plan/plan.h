/* proto/plan/plan.h - where every byte of a device's arena lies, before there is an arena.
 *
 * The plan is the arena's own allocator run dry: it lays out the same buffers in the same order, so what it predicts is
 * what is used, to the byte. It is pure arithmetic, and needs neither device nor daemon: what a device's operations need
 * is in a table (proto/plan/backend.h). The setting is given; the choice is what a planner can trade against it.
 *
 * The arrangement: weight buffers, each of the largest unit that is uploaded and does not stay; units that stay; one
 * contribution sum, or some; boundary activations and their gradient; the workspace of one microbatch inside one layer. There is
 * a boundary (share tokens, width) for each layer but the last: layer l reads boundary l-1 and writes boundary l; the
 * embedding reads ids, and the head writes losses. They are the stash: on the device, or in a segment of the host, and
 * then the device has tiles of one microbatch and no term of the arena grows with depth.
 *
 * A device that works beside the host copies while it computes: where it has two weight buffers or more, it has two sets
 * of tiles, and two sums at least: one on its way to the host while the next is made. With more of them it goes on
 * computing while several wait for the link.
 *
 * The embedding's rows are gathered where the host has them: its units take no room but for their contributions.
 *
 * To generate, one row's keys and values are kept in a cache, and its tokens run through all layers in tiles. Each token
 * visits all weights, so as many units as the budget holds stay on the device; what is left passes through the weight
 * buffers, token by token.
 */
#ifndef PROTO_PLAN_PLAN_H
#define PROTO_PLAN_PLAN_H

#include "proto/base/error.h"
#include "proto/base/ledger.h"
#include "proto/base/number.h"
#include "proto/model/model.h"
#include "proto/plan/attention.h"

#include <stdbool.h>

/* Within the limits of a share and those of proto/model_config.h no sum of bytes reaches 2^63: the most is what 4,096
 * blocks keep, 2^12 * 2^28 tokens * (8 width + inner + heads) of 2^16, 2^20 and 2^16 * 4 bytes = 2^62.7. */
enum {
    PLAN_MAX_TOKENS = 1 << 28, /* of a share */
    PLAN_MAX_PARTS = 1 << 16,  /* of a share */
    PLAN_MAX_THREADS = 1 << 16,
    PLAN_MAX_WEIGHT_BUFFERS = 3,
    PLAN_MAX_SETS = 2, /* of tiles */
    PLAN_MAX_SUMS = 16,
    PLAN_GENERATE_TILE = 64, /* tokens of a prompt that run through the layers at a time, at most */
    PLAN_ALIGNMENT = 64,     /* of every buffer: a cache line */
    PLAN_NAMED_TERMS = 3,    /* in a refusal: the largest say what to change */
};

enum plan_purpose {
    PLAN_TRAIN,
    PLAN_EVALUATE, /* forward only: no contribution, no gradient, two boundaries in turn */
    PLAN_GENERATE, /* forward only, of one row (share_rows and part_rows are 1) of up to seq tokens */
};

/* What a job is for: the same for all of its workers. */
struct plan_goal {
    enum plan_purpose purpose;
    enum number_type precision; /* of weights on the device, activations, stash */
    enum number_type moments;   /* of m and v in host memory; bf16: v in 8 + 8 bits */
    enum number_type grad;      /* of contributions as they travel */
    bool fenced;                /* commit: updates once all of a step is folded; else eager */
    bool adamw;                 /* several parts are summed before they are squared */
    uint32_t batch;             /* rows of a minibatch, a multiple of n_parts */
    uint32_t seq;               /* tokens of a row */
    uint32_t n_parts;
};

/* What is given: the goal, for one worker and its device. */
struct plan_setting {
    const struct plan_backend *backend;
    struct plan_goal goal;
    uint32_t share_rows; /* rows of the largest share: parts * rows of a part */
    uint32_t part_rows, n_threads;
    enum plan_attention attention; /* how the device can compute attention's gradient (device_facts) */
    uint64_t library_bytes; /* outside the arena, where the device has said (device_facts); 0: what the backend's table
                             * says of devices in general */
};

/* What can be chosen. */
struct plan_choice {
    uint32_t microbatch; /* rows, 1..part_rows: the one choice that changes bits (rounding) */
    bool host_stash;     /* boundaries and their gradient live in a host segment; the device has tiles of them */
    /* The n_kept topmost blocks keep the values `kept` from forward to backward, the others `kept_below`: as in struct
     * model_program. Backward computes the rest again. */
    uint32_t n_kept, kept, kept_below;
    uint32_t n_weight_buffers; /* 1..3 */
    uint32_t n_sums;           /* 0..PLAN_MAX_SUMS: no fewer than sets of tiles, and where there is one of these, one */
    uint32_t n_resident; /* units that stay, in the order of plan_unit_at (proto/plan/units.h): to generate for good, to
                                * train from their first visit of a step to their last */
    bool whole_head;     /* the head's units and their contributions of every part are on the device at once, and
                                * so are the logits of a tile: it computes them once. A head of one unit with one part
                                * in the share always does */
};

/* What some of the blocks keep. */
struct plan_kept {
    uint32_t keeping;         /* as in struct model_program */
    uint32_t first, n_blocks; /* the lowest, and how many there are */
    uint64_t at, bytes;       /* of block `first`; of each block */
    uint64_t part;            /* bytes of one part in there, microbatch after microbatch */
    uint64_t microbatch;      /* bytes of one microbatch in there */
};

/* Offsets are in bytes from the arena's start, multiples of PLAN_ALIGNMENT. */
struct plan {
    struct plan_setting setting;
    struct plan_choice choice;
    uint32_t n_resident;               /* those chosen; with the head apart, the head's at least */
    uint64_t resident, resident_bytes; /* plan_resident() of a unit; what they hold, rounding not counted */
    uint32_t n_weight_buffers;         /* those chosen, but no more than there are units that do not stay */
    uint64_t weights[PLAN_MAX_WEIGHT_BUFFERS];
    uint32_t n_sets; /* of input, output and dy, used in turn: 2 where copies run beside computing */
    uint32_t n_sums; /* used in turn: n_sets at least, else no more than there are contributions to sum up in them */
    /* One per layer but the last, or two in turn to evaluate and to generate: layer l's output is at
     * boundaries + (l % n_boundaries) * boundary_bytes, in the arena or the host's stash. */
    uint32_t n_boundaries;
    uint64_t boundaries, boundary_bytes;
    uint64_t gradient; /* (share tokens, width): where the boundaries are */
    /* With the stash on the host: tiles (microbatch tokens, width); dy of gradient. */
    uint64_t input[PLAN_MAX_SETS], output[PLAN_MAX_SETS], dy[PLAN_MAX_SETS];
    uint64_t contribution[PLAN_MAX_SUMS]; /* of one unit, fp32 */
    uint64_t rounding_bytes;              /* that bf16 begins before the sum it is made of; 0: where it does */
    bool one_pass;                        /* the head computes its logits once */
    bool head_apart;                      /* its contributions have a place of their own: plan_head_contribution() */
    uint32_t head_tile;                   /* tokens whose logits are there at a time, at most */
    uint32_t head_pad;                    /* its units have whole so many rows: plan_unit_room() */
    /* Its units, one after another, add up their input's gradient in fp32. In one pass those of a tile are in the
     * workspace, behind its logits. Else from `gradient_sum` on (share tokens, width), where the boundaries are, and
     * `gradient` is made of it, in its place; with the stash on the host its tiles take the place of output and dy. */
    bool head_sums;
    uint64_t gradient_sum;
    uint64_t head, head_bytes;   /* contributions of part i of the share to the head: at head + i * head_bytes */
    uint64_t running;            /* (share tokens, 3) log-sum-exp of the head */
    uint64_t losses;             /* (share tokens) double */
    uint64_t ids, labels;        /* (share tokens) u32 each; to generate, ids of one tile */
    struct plan_kept kept[2];    /* of the lower blocks, and of the n_kept topmost */
    uint64_t cache, cache_bytes; /* to generate: keys and values, of block i at cache + i * cache_bytes */
    uint64_t logits;             /* to generate: (vocabulary) of the last token */
    uint64_t workspace, workspace_bytes; /* the largest that a layer asks for one microbatch */
    uint64_t arena_bytes;                /* the whole arena */
    uint64_t host_stash_bytes;           /* of the segment that takes boundaries and gradient; 0 without host_stash */
    /* The same, by category, and the library's: sums to plan_total. */
    uint64_t bytes[LEDGER_CATEGORIES];
};

/* Fills in what a setting has by its goal's batch and parts, shared by n_workers (1 .. n_parts) on a machine of n_cores:
 * the largest share's rows, a part's, and threads. */
void plan_share(struct plan_setting *setting, uint32_t n_workers, long n_cores);

/* -EINVAL with a sentence: no rows, tokens or threads, more of them than the limits above, more tokens than the model
 * has positions, generating more than one row. */
int plan_check(const struct model *model, const struct plan_setting *setting, struct error *err);

/* The setting must have been checked. -EINVAL with a sentence: a microbatch of no rows or beyond the part's, numbers
 * that no plan has. */
int plan_check_choice(const struct model *model, const struct plan_setting *setting, const struct plan_choice *choice,
                      struct error *err);

/* Cannot fail: both must have been checked. */
void plan_lay_out(struct plan *out, const struct model *model, const struct plan_setting *setting,
                  const struct plan_choice *choice);

/* Whether blocks can keep values: only to train, with the stash on the device. */
static inline bool plan_may_keep(const struct plan_setting *setting, const struct plan_choice *choice)
{
    return setting->goal.purpose == PLAN_TRAIN && !choice->host_stash;
}

/* What a block of this index keeps. */
static inline const struct plan_kept *plan_kept_of(const struct plan *plan, uint32_t index)
{
    return &plan->kept[index >= plan->kept[1].first];
}

/* Where a unit that stays lies, from the arena's start. */
uint64_t plan_resident(const struct plan *plan, const struct model *model, uint32_t unit);

/* Where the sum of a part's contributions to the head's unit number i, from the bottom, lies: those that lie apart. */
uint64_t plan_head_contribution(const struct plan *plan, const struct model *model, uint32_t part, uint32_t i);

/* For sentences that name what takes most: the largest of n terms (at most 32) that is none of *named, a set of bits,
 * which it then is. -1: what is left is 0. */
int plan_largest(const uint64_t *bytes, int n, uint32_t *named);

/* The arena and what libraries take besides: what is compared with a budget. */
uint64_t plan_total(const struct plan *plan);

#endif

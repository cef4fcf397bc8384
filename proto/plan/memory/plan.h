/* proto/plan/memory/plan.h - where every byte of a device's arena lies, before there is an arena.
 *
 * The plan is the arena's own allocator run dry: it lays out the same buffers in the same order, so its prediction is
 * exact to the byte. It is pure arithmetic and needs neither device nor daemon: the sizes that a device's operations
 * need are in a table (proto/operation/backend.h). The setting is given; the choice is what a planner can trade against
 * it.
 *
 * The arena holds weight buffers, each as large as the largest unit that passes through them; resident units;
 * contribution sums; boundary values and their gradients (proto/model/config/values.h); the workspace of one microbatch
 * in one layer. Every layer but the last gives the stream (share tokens, width) to the next one; the embedding reads
 * ids, and the head writes losses. Boundary values that backward reads are the stash (activation checkpoints). It is on
 * the device, or in a host segment; then the device has tiles of one microbatch, and no term of the arena grows with
 * depth. Of the stash, some may be made again before backward reads it: segments.h, chains.h.
 *
 * A device with memory of its own copies while it computes. With two or more weight buffers it has two sets of tiles
 * and at least two sums: one is sent to the host while the next is computed. With more sums it computes on while
 * several wait for the link.
 *
 * The embedding's rows are gathered in host memory: on the device its units have only contributions.
 *
 * In generation, `microbatch` texts advance together, each with its keys and values in a cache. A pass runs a tile of
 * each text's new tokens through all layers. It reads all weights, so as many units as fit are resident; the others
 * come through the weight buffers in each pass.
 *
 * A step may have shorter rows than `seq`; it uses the beginning of each place. */
#ifndef PROTO_PLAN_MEMORY_PLAN_H
#define PROTO_PLAN_MEMORY_PLAN_H

#include "proto/base/error.h"
#include "proto/base/ledger.h"
#include "proto/base/number.h"
#include "proto/model/model.h"
#include "proto/operation/attention_way.h"
#include "proto/operation/call/preference.h"
#include "proto/operation/sampling.h"

#include <stdbool.h>

/* Within these limits and those of model_config_check no sum of bytes reaches 2^63. The largest is what 4,096 blocks
 * keep: 2^12 * 2^28 tokens * (8 width + inner + heads) of 2^16, 2^20 and 2^16 * 4 bytes = 2^62.7. */
enum {
    PLAN_MAX_TOKENS = 1 << 28, /* in a share */
    PLAN_MAX_PARTS = 1 << 16,  /* in a share */
    PLAN_MAX_THREADS = 1 << 16,
    PLAN_MAX_WEIGHT_BUFFERS = 3,
    PLAN_MAX_SETS = 2, /* sets of tiles */
    PLAN_MAX_SUMS = 16,
    PLAN_MAX_CUTS = 64,      /* between segments of layers */
    PLAN_GENERATE_TILE = 64, /* maximum tokens of a text in one pass through the layers */
    PLAN_GENERATE_ROWS = 64, /* maximum texts of a job that generates */
    PLAN_ALIGNMENT = 64,     /* alignment of every buffer: a cache line */
    PLAN_NAMED_TERMS = 3,    /* largest terms that a refusal names */
};

enum plan_purpose {
    PLAN_TRAIN,
    PLAN_EVALUATE, /* forward only: no contribution, no gradient, two boundaries in turn */
    PLAN_GENERATE, /* forward only: texts of up to seq tokens, in one part */
};

/* In generation: new tokens of one text, a row of the data segment. */
struct plan_tokens {
    uint32_t from; /* the row whose tokens before `first` these follow: this row or another */
    uint32_t first,
        n; /* tokens first .. first+n-1 are new; any that were run from `first` on are forgotten. n 0: none */
    /* Tokens of the row's source, in an encoder-decoder, whose rows are targets: it is run before, `first` being 0.
     * 0: the row keeps the source that it, or `from`, has. */
    uint32_t source;
};

enum { PLAN_ROW_TOKENS = 8 }; /* of plan_goal.row_tokens */

/* Rows that are cut, or padded no further, have a multiple of so many tokens, or as many as a row can have. */
enum { PLAN_ROW_ROUND = 8 };

/* A job's purpose, formats and sizes, common to all its workers. */
struct plan_goal {
    enum plan_purpose purpose;
    enum number_type precision; /* type of weights on the device, activations, stash */
    enum form base;             /* form of frozen weights: model_base_of */
    enum number_type moments;   /* type of m and v in host memory; bf16: v in 8 + 8 bits */
    enum number_type grad;      /* type of contributions as they travel */
    bool no_master;             /* updates round 16-bit weights stochastically, and nothing completes these */
    /* The commit, not both; neither: eager, each unit is updated once its contributions are folded. */
    bool fenced;                  /* all units are updated once the step is known good; until then it is held as sums */
    bool folded;                  /* all are updated once the step is folded, which goes into the moments as it comes */
    enum number_type sums;        /* type in which a fenced commit sums contributions: fp32 or bf16 */
    bool adamw;                   /* several parts are summed before they are squared; of SGD it says nothing */
    bool sgd;                     /* SGD in the place of Adam (eps/store/optimizer.h) */
    bool nesterov;                /* SGD has Nesterov's momentum */
    double momentum;              /* SGD's: from 0, which keeps none, and below 1 */
    bool packs;                   /* a row is several documents, none of which sees another */
    uint32_t kept_bits;           /* 8 or 4: of activations that blocks keep; 0: as they are */
    uint32_t pooled;              /* 2, 4 or 8: side of the blocks that convolutions read as means; 0: exact */
    struct sampling sampling;     /* gradients that are estimated from some rows, or queries */
    struct sparse sparse;         /* of matrices, a part of the elements is trained (proto/model/sparse.h) */
    double drop_layers;           /* probability that a step drops a block (proto/model/drop.h), from 0 and below 1 */
    bool chooses;                 /* the client says which blocks a step drops, and which it does not train */
    double smoothing;             /* of labels, from 0 and below 1 (struct device_cross_entropy) */
    struct preference preference; /* rows are pairs of texts, of which the first is preferred, if beta > 0 */
    bool checks_memory; /* blocks of weights and moments, and contributions, have sums (proto/base/block_sum.h) */
    bool weighted;      /* each token's loss has a weight, and an evaluation returns log p of each token */
    uint32_t entries;   /* tokens of the training data whose norms are remembered (proto/model/norms.h); 0: none */
    uint32_t batch;     /* rows of a minibatch, a multiple of n_parts */
    uint32_t seq;       /* tokens of a row, at most */
    /* Where rows differ in length: tokens of each that are expected to be computed in microbatches of 2^i rows, the
     * last of as many or more; 0: seq. */
    uint32_t row_tokens[PLAN_ROW_TOKENS];
    uint32_t source; /* those of its source, in an encoder-decoder; seq to generate targets; else 0 */
    uint32_t n_parts;
    /* How attention is to be computed; but for our own kernels, in bf16 on CUDA alone. Workers have
     * plan_setting.attention. */
    enum plan_attention_wish attention;
};

/* Arrays of the optimizer's state, each of one element a trained parameter: m and v, or SGD's momentum alone. */
static inline unsigned plan_moments(const struct plan_goal *goal)
{
    return !goal->sgd ? 2 : goal->momentum > 0;
}

/* True if several parts are summed before the optimizer sees them. SGD folds them into its momentum as they come,
 * unless the step needs their sum by itself. */
static inline bool plan_sums_parts(const struct plan_goal *goal)
{
    return goal->sgd ? goal->nesterov || goal->momentum == 0 : goal->adamw;
}

/* True if no unit is updated before all of the step is folded. So version t of each stands until then, no replay is
 * needed, and row groups are possible: parts that pass the model one after another. */
static inline bool plan_updates_last(const struct plan_goal *goal)
{
    return goal->fenced || goal->folded;
}

/* True if each visit of a tied unit has a sum of its own, and the update adds the two. So no bit depends on whether all
 * parts come to one visit before one comes to the other, as they do without row groups. */
static inline bool plan_sums_visits(const struct plan_goal *goal)
{
    return goal->n_parts > 1;
}

/* True if the visits of a tied unit are summed before the optimizer sees them. */
static inline bool plan_sums_tied(const struct plan_goal *goal)
{
    return !goal->sgd || plan_sums_parts(goal) || plan_sums_visits(goal);
}

/* Sums of each tied unit beside the held one and accumulators. Fenced, with several parts: that of its lower visit.
 * Else: one of all visits; with several parts two, of which the lower visit's is an accumulator where there are
 * some. */
static inline uint32_t plan_tied_sums(const struct plan_goal *goal)
{
    if (goal->fenced)
        return plan_sums_visits(goal) ? 1 : 0;
    if (!plan_sums_tied(goal))
        return 0;
    return plan_sums_visits(goal) && !plan_sums_parts(goal) ? 2 : 1;
}

/* True if a step may leave out blocks. */
static inline bool plan_may_drop(const struct plan_goal *goal)
{
    return goal->drop_layers > 0 || goal->chooses;
}

/* True if two rows, one behind the other, are a pair of texts. */
static inline bool plan_has_pairs(const struct plan_goal *goal)
{
    return goal->preference.beta > 0;
}

/* Rows that a range of an evaluation never divides. */
static inline uint32_t plan_whole_rows(const struct plan_goal *goal)
{
    return plan_has_pairs(goal) ? 2 : 1;
}

/* Rows that a part and a microbatch never divide: those, or a ghost batch. */
static inline uint32_t plan_joined_rows(const struct plan_goal *goal, const struct model_config *config)
{
    const bool ghosts = goal->purpose == PLAN_TRAIN && config->image.ghost_batch > 0;

    return ghosts ? config->image.ghost_batch : plan_whole_rows(goal);
}

/* Given to the planner: the goal, one worker's share, and its device. */
struct plan_setting {
    const struct plan_backend *backend;
    struct plan_goal goal;
    uint32_t share_rows; /* rows of the largest share: parts * rows of a part */
    uint32_t part_rows, n_threads;
    enum plan_attention attention; /* the job's way, which the device supports */
    uint32_t convolution;          /* the library by which it can compute convolutions (device_facts); 0: none */
    uint64_t library_bytes;        /* memory outside the arena, as the device reported (device_facts); 0: the
                             * estimate of the backend's table */
};

/* Values that the blocks of a class keep from forward to backward: `kept` in the n_kept topmost blocks, `kept_below` in
 * the others, sets as in struct model_program. Backward recomputes the rest. */
struct plan_keeping {
    uint32_t n_kept, kept, kept_below;
};

/* Chosen by the planner. */
struct plan_choice {
    /* Rows, 1..part_rows: the one choice that changes bits (rounding), though not in generation. */
    uint32_t microbatch;
    /* Parts of the share that pass the model together, a row group; 0: all. If fewer, groups pass one after another,
     * and pull the weights once each: so units are updated last. No bit depends on it. */
    uint32_t group_parts;
    bool host_stash; /* boundaries and their gradient live in a host segment; the device has tiles of them */
    /* Layers at which segments begin (proto/plan/memory/segments.h), ascending; none:
     * each layer's inputs are there from forward to backward. No bit depends on them. */
    uint32_t n_cuts, cuts[PLAN_MAX_CUTS];
    /* Derivable values are not stored: each chain of them is derived again (proto/plan/memory/chains.h). No bit depends
     * on it. */
    bool derives;
    struct plan_keeping keeping[MODEL_CLASSES]; /* (the model's n_classes) further ones keep nothing */
    uint32_t n_weight_buffers;                  /* 1..3 */
    uint32_t n_sums;     /* 0..PLAN_MAX_SUMS: at least as many as sets of tiles; with one set, one */
    uint32_t n_resident; /* resident units, in the order of plan_unit_at (proto/plan/memory/units.h): for good in
                          * generation, in training from their first visit of a step to their last, and what is frozen
                          * of them for good, too (plan_stays) */
    bool whole_head;     /* the head's units, their contributions of every part and a tile's logits are on the device at
                                * once, so logits are computed once. Implied by one unit in the head and one part in the
                                * share. Not for pairs of texts */
    bool sparse_singly; /* in training, a sparse piece is decoded where it is read, each time, in the place of its dense
                          * gradient: of those of a unit, one is on the device. Else all are, as long as its visit
                          * lasts */
};

/* Kept values of some of a class's blocks. */
struct plan_kept {
    uint32_t keeping;         /* as in struct model_program */
    uint32_t first, n_blocks; /* the lowest, by rank, and how many there are */
    uint64_t at, bytes;       /* at: offset of block `first`; bytes: size of each block's values */
    uint64_t part;            /* bytes of one part, microbatch after microbatch */
    uint64_t microbatch;      /* bytes of one microbatch */
};

/* Places of boundary values of one shape, one behind the other: each `bytes` after the one before. */
struct plan_values {
    uint64_t bytes, row_bytes;            /* row_bytes: in generation, size of a row's tile where rows are not joined */
    uint64_t stashed, passing, gradients; /* offset of the first place of each kind, in the arena or the host's stash */
};

/* Offsets are in bytes from the arena's start, multiples of PLAN_ALIGNMENT. */
struct plan {
    struct plan_setting setting;
    struct plan_choice choice;
    uint32_t n_resident;               /* as chosen; at least the head's if it is apart */
    uint64_t resident, resident_bytes; /* offset of resident units, for plan_resident(); their bytes without rounding */
    uint32_t share_parts;              /* of the whole share; setting.share_rows are those of a row group */
    uint32_t n_weight_buffers;         /* as chosen, at most the number of units that are not resident */
    uint64_t weights[PLAN_MAX_WEIGHT_BUFFERS];
    uint64_t decoded, decoded_head; /* coded and sparse pieces as layers read them: plan_decoded_at(). Not those that
                                     * are decoded singly, at `dense` */
    uint32_t n_sets; /* sets of input, output and dy, used in turn: 2 if copies and computation overlap */
    uint32_t n_sums; /* sums, used in turn: at least n_sets, otherwise at most as many as contributions use */
    struct plan_values values[MODEL_SHAPES]; /* by the model's shapes: plan_value(), plan_gradient() */
    /* With cuts: offset of what is stored of each segment, where that of the one below ends. */
    uint64_t stored[PLAN_MAX_CUTS + 2];
    uint64_t chains[MODEL_CHAINS]; /* if it derives: offset of each chain's values */
    uint64_t chain_units;          /* likewise: what their layers' units are copied to, plan_chain_unit() */
    uint64_t gradient;             /* gradient of the head's input (share tokens, width), in the memory of values */
    /* Tiles of a microbatch's inputs, outputs and gradients, for layers that do not work on what is stored
     * (plan_tiles). */
    uint64_t input[PLAN_MAX_SETS], output[PLAN_MAX_SETS], dy[PLAN_MAX_SETS];
    uint64_t contribution[PLAN_MAX_SUMS]; /* offset of each sum: one unit's contribution, fp32 */
    uint64_t dense; /* fp32: the gradient of one sparse piece, while it is added to; or its weights, decoded singly */
    uint64_t rounding_bytes; /* distance by which the rounded bf16 begins before its sum; 0: same start */
    bool one_pass;           /* the head's logits are computed once */
    bool head_apart;         /* its contributions lie apart from the sums: plan_head_contribution() */
    uint32_t head_tile;      /* maximum tokens whose logits exist at a time */
    uint32_t head_pad;       /* its units' rows are padded to a multiple of this: plan_unit_room() */
    /* The head's units, one after another, sum their input's gradient in fp32. In one pass, a tile's sum is in the
     * workspace, after its logits. Otherwise it is at `gradient_sum` (share tokens, width), in the memory of values,
     * and `gradient` is rounded from it in place; with the stash on the host, its tiles replace output and dy. */
    bool head_sums;
    uint64_t gradient_sum;
    uint64_t head, head_bytes; /* the share's part i has its contributions to the head at head + i * head_bytes */
    uint64_t running;          /* (share tokens, 3) log-sum-exp of the head */
    uint64_t losses;           /* (share tokens) double */
    uint64_t ids, labels;      /* (share tokens) u32 each; in generation, ids of one pass */
    uint64_t positions;        /* packed jobs alone: (share tokens) u32 */
    /* If the model remembers norms: for each set, (parts of the share, most norms of a unit) bf16. */
    uint64_t norms[PLAN_MAX_SETS];
    /* Pairs of texts alone: (share rows) float, the reference model's log p; (share rows) double, the model's. Those
     * and jobs with weights: (share tokens) float, the factors of the tokens' gradients. */
    uint64_t references, log_p, scales;
    uint64_t lengths, segments;              /* classifiers alone: (share rows) and (share tokens) u32 */
    struct plan_kept kept[MODEL_CLASSES][2]; /* [0]: a class's lower blocks; [1]: its n_kept topmost */
    /* Generation: keys and values of row r are at cache + r * row_cache_bytes, class after class, of each block after
     * block. */
    uint64_t cache, row_cache_bytes;
    struct {
        uint64_t at, bytes; /* offset of the class's lowest block within a row's cache; bytes of each block */
        uint64_t source;    /* within a block's: offset of what targets read of their source (program_source_read) */
    } caches[MODEL_CLASSES];
    uint64_t logits;        /* generation: (microbatch, vocabulary), last tokens'; classifier: (share rows, labels) */
    uint64_t logits_stride; /* generation: elements from row to row */
    uint64_t workspace, workspace_bytes; /* the most that a layer needs for one microbatch */
    uint64_t arena_bytes;                /* the whole arena */
    uint64_t host_stash_bytes;           /* size of the segment with values and gradients; 0 without host_stash */
    /* Bytes by category, the library's included: they sum to plan_total. */
    uint64_t bytes[LEDGER_CATEGORIES];
};

/* Sets a setting's threads, and the rows of the largest share and of a part, from its goal and the n_workers (1 ..
 * n_parts) on a machine of n_cores. */
void plan_share(struct plan_setting *setting, uint32_t n_workers, long n_cores);

/* -EINVAL with a sentence: the model cannot generate, as it is masked, or reads whole rows. */
int plan_check_generates(const struct model_config *config, struct error *err);

/* -EINVAL with a sentence: a row cannot be several documents, as it has one label, or as an operation of the model
 * mixes them. */
int plan_check_packs(const struct model *model, struct error *err);

/* -EINVAL with a sentence: no rows, tokens or threads, more of them than the limits above, more tokens than the model
 * has positions or too few for it, generating in several parts, packed rows or pairs, more than PLAN_GENERATE_ROWS
 * rows, or with a masked model; packed rows of which plan_check_packs disapproves; pairs of texts in parts of an odd
 * number of rows, in packed rows, or for a model that does not predict the next token; parts that would divide a ghost
 * batch. */
int plan_check(const struct model *model, const struct plan_setting *setting, struct error *err);

/* True if row groups are possible: plan_updates_last. */
bool plan_may_group(const struct plan_setting *setting);

/* -EINVAL with a sentence that names the microbatch: its rows would divide a pair of texts, or a ghost batch
 * (plan_joined_rows). 0 rows divide none. */
int plan_check_rows(const struct model *model, const struct plan_setting *setting, uint32_t microbatch,
                    struct error *err);

/* The setting must have been checked. -EINVAL with a sentence: a microbatch of no rows, beyond the part's, or that
 * plan_check_rows refuses; other counts out of range. */
int plan_check_choice(const struct model *model, const struct plan_setting *setting, const struct plan_choice *choice,
                      struct error *err);

/* Cannot fail: both must have been checked. */
void plan_lay_out(struct plan *out, const struct model *model, const struct plan_setting *setting,
                  const struct plan_choice *choice);
/* The same, of a model and a setting of which others were laid out before. known: proto/plan/memory/layers.h. */
struct plan_workspaces;
void plan_lay_out_next(struct plan *out, const struct model *model, const struct plan_setting *setting,
                       const struct plan_choice *choice, struct plan_workspaces *known);

/* True if blocks can keep values: only in training, with the stash on the device. Nor with segments: a byte that stores
 * a layer's input saves the whole layer's forward pass, one that keeps an activation a part of it. */
static inline bool plan_may_keep(const struct plan_setting *setting, const struct plan_choice *choice)
{
    return setting->goal.purpose == PLAN_TRAIN && !choice->host_stash && choice->n_cuts == 0;
}

/* The kept values of a layer of a block. */
static inline const struct plan_kept *plan_kept_of(const struct plan *plan, const struct model_layer *block)
{
    const struct plan_kept *kept = plan->kept[model_class_of(block)];

    return &kept[block->rank >= kept[1].first];
}

/* The keeping of a layer: for a layer of a block, the plan's; any other layer keeps nothing. */
static inline uint32_t plan_keeping_of(const struct plan *plan, const struct model_layer *layer)
{
    return layer->kind == MODEL_BLOCK ? plan_kept_of(plan, layer)->keeping : MODEL_KEEPS_NOTHING;
}

/* In generation: the offset of a row's keys and values, and from there that of a block's; of those of its source. */
uint64_t plan_row_cache(const struct plan *plan, uint32_t row);
uint64_t plan_block_cache(const struct plan *plan, const struct model_layer *block);
uint64_t plan_source_cache(const struct plan *plan, const struct model_layer *block);

/* Offset of a resident unit from the arena's start. */
uint64_t plan_resident(const struct plan *plan, const struct model *model, uint32_t unit);

/* Offset of the decoded pieces of a unit: those of the unit that is visited, and of all units of the head if it is
 * apart. */
uint64_t plan_decoded_at(const struct plan *plan, const struct model *model, uint32_t unit);

/* Offset of the sum of a part's contributions to the head's unit i, counted from the bottom; only if they lie apart. */
uint64_t plan_head_contribution(const struct plan *plan, const struct model *model, uint32_t part, uint32_t i);

/* For sentences that name the largest terms: the largest of n terms (at most 32) that is not in the bit set *named, to
 * which it is added. -1: the rest are 0. */
int plan_largest(const uint64_t *bytes, int n, uint32_t *named);

/* The arena plus the libraries' bytes: what is compared with a budget. */
uint64_t plan_total(const struct plan *plan);

#endif

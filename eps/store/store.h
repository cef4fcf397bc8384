/* eps/store/store.h - the units: relayed weights, what completes them, moments, sums.
 *
 * Bytes a parameter (each block but the weights has model.trained_n elements, unless said otherwise):
 *   LEDGER_WEIGHTS        4, or 2 in bf16     shared segment (model.segment_n), which workers map read-only; in fp32 it
 *                                             is the master
 *   LEDGER_MASTER         2, bf16 in training the low halves of the split master (proto/base/number.h)
 *   LEDGER_FIRST_MOMENT   4, or 2 in bf16     training
 *   LEDGER_SECOND_MOMENT  4, or 2 in 8 + 8    training
 *   LEDGER_SUM            4                   training with a fenced commit: the gradient, held until the step is known
 *                                             good
 *   LEDGER_TIED           4                   training, not fenced: tied units alone, each as model_rounded
 *   LEDGER_ACCUMULATORS   4                   training, not fenced: n_accumulators of the largest unit, as model_rounded;
 *                                             of units, here and above, the trained elements
 *   LEDGER_OTHER          tables, each that is over 4 KiB: 8 (sums) + 8 (updates) bytes a unit, 4 an accumulator; and
 *                         training, for files: plan_host_files, and PLAN_HOST_RUN_BYTES where not all is fp32
 * So fp32 takes 12, bf16 12, with 16-bit moments 8, fenced 4 more. An evaluation takes 4 or 2, and so do frozen tensors:
 * in bf16 these weights are rounded to nearest from the file, and the rest of them is nowhere.
 *
 * All but the segment is private to the daemon. Memory is bound by hwloc, asked for in huge pages and page-locked where
 * the system allows (eps/store/memory.h), and first touched by the optimizer's threads, in the ranges in which they will
 * work. None is taken after store_init. */
#ifndef EPS_STORE_STORE_H
#define EPS_STORE_STORE_H

#include "eps/store/optimizer.h"
#include "proto/base/ledger.h"
#include "proto/model/model.h"
#include "proto/wire/segment.h"

#include <stdbool.h>

struct store_options {
    bool train;                          /* moments, sums; else weights alone */
    enum number_type precision, moments; /* of the relayed weights; of both moments, in their 16-bit forms if bf16 */
    bool fenced;                         /* contributions are held: STORE_FOLD_HOLD */
    bool require_pinned;                 /* memory that cannot be locked is refused */
    struct memory *memory;   /* prepares it, what the caller has prepared counts too; NULL: the store's own */
    unsigned said;           /* MEMORY_...: what the log need not say again */
    uint32_t n_accumulators; /* 0 unless adamw with several parts, not fenced */
    uint64_t seed;           /* of the rounding of 16-bit moments */
    uint64_t *read;          /* raised by __atomic_fetch_add at each run that is read of a file; or NULL */
    double clip_update;      /* 0: none; else d of store_update */
};

struct store {
    const struct model *model; /* borrowed */
    struct store_options options;
    const struct optimizer_kernel *kernel; /* this machine's best */
    struct segment weights;                /* model.segment_n elements of the precision, units at their offsets */
    int16_t *low;               /* (trained_n) what completes bf16 weights; NULL in fp32 and without training */
    float *m, *v;               /* (trained_n) each, the same offsets; NULL without training, or if they are these: */
    uint16_t *m16, *v16;        /* (trained_n) each */
    float *held;                /* (trained_n) fenced: the sum of the contributions; else NULL */
    float **sums;               /* (n_units) NULL, or where the unit's contributions are summed in this step */
    float *tied;                /* sums of all tied units, one block, each rounded up as in the segment */
    float *accumulators;        /* n_accumulators blocks of the largest unit, rounded likewise */
    uint32_t *accumulator_unit; /* (n_accumulators) the unit that has it, or UINT32_MAX */
    uint32_t n_accumulators;
    float *run;                /* training, not all fp32: room for a run of a file (eps/store/store_files.h) */
    uint64_t *updates;         /* (n_units) Adam's t of the unit */
    struct store_files *files; /* training: for one save after the other; owned */
    unsigned denied;           /* MEMORY_...: what the system did not allow (eps/store/memory.h) */
    struct ledger *ledger;     /* borrowed */
    uint64_t ledgered[LEDGER_CATEGORIES]; /* what store_free gives back */
};

/* Allocates and zeroes, touching pages with the caller's OpenMP team, and logs once what the system did not allow.
 * -ENOMEM with a sentence; -EPERM with one that says what `ulimit -l` is and must be, if locking was required and
 * refused. Undo: store_free. */
int store_init(struct store *store, const struct model *model, const struct store_options *options,
               struct ledger *ledger, struct error *err);
void store_free(struct store *store); /* safe on a zeroed one */

/* GPT-2's initialisation, each element a function of (seed, tensor, index) alone. */
void store_draw(struct store *store, uint64_t seed);

/* Reads weights from open safetensors files (fds stay the caller's): names with or without "transformer." in front;
 * F32, F16, BF16. Every tensor of the model exactly once with its shape; names known to be no weights (attention mask
 * buffers) are passed over, a tied model's copy of its head too if it equals the table of tokens; anything else unknown,
 * missing, twice, of another shape or type, or not finite is -EINVAL, by name. -ENOMEM. After a failure the weights
 * are to be loaded anew. */
int store_load(struct store *store, const int *fds, unsigned n_fds, struct error *err);

/* Reads both moments and the counts of updates from an open optimizer.safetensors (proto/model/checkpoint.h; fd stays the
 * caller's): "m.NAME" and "v.NAME" of every trained tensor exactly once, F32, with its shape, finite, v not negative, and
 * "updates"; anything else unknown, missing, twice or misshapen is -EINVAL, by name. Into 16 bits they go to nearest,
 * which changes none that were written by a run with such moments. -ENOMEM. The store trains (asserted); after a
 * failure it is to be thrown away. Writing: eps/store/store_files.h. */
int store_load_moments(struct store *store, int fd, struct error *err);

/* Of fp32 weights (asserted). */
float *store_weights(const struct store *store, uint32_t unit);

/* n parameters of a unit, from its element `first` on, all trained or all frozen; part: whose fold their rounding is for.
 * In an evaluation, and for frozen ones, there are no moments, and bf16 weights have no low halves. */
struct parameters store_parameters(const struct store *store, uint32_t unit, uint64_t first, size_t n, uint32_t part);

/* The tasks of the optimizer thread. slice: 0-based, of MODEL_SLICE elements.
 *
 * How contributions of a unit become its update, the same for all of a step:
 *   DIRECT    one part, untied: first fold and update in one pass; store_update then only counts
 *   MOMENTS   AdamA: each part goes into the moments; store_update moves the weights
 *   SUM       tied units, AdamW with several parts: parts are summed; store_update folds the sum and moves the
 * weights. An accumulator is taken at an untied unit's first fold and given back by store_update; that one is free
 *             is the relay's promise (assert).
 *   HOLD      fenced: the same in the unit's own buffer, so that nothing has changed until store_update, which
 *             multiplies the sum by hp->grad_scale first. What is not updated leaves no trace. The bits of AdamW are
 *             the same as if it were not fenced, as are AdamA's with one part
 * -EDOM, with nothing changed: the slice is not finite. -ERANGE: all was done, and a weight is not finite afterwards.
 * Slices that are finite can come to that, by their sum or by a rate that is too high; those weights are void. */
enum store_fold { STORE_FOLD_DIRECT, STORE_FOLD_MOMENTS, STORE_FOLD_SUM, STORE_FOLD_HOLD };

struct store_contribution {
    const void *g; /* the slice, in an inbox; not trusted */
    enum number_type type;
    bool first; /* of the slice in this step */
    uint32_t part;
};

int store_fold(struct store *store, uint32_t unit, uint32_t slice, const struct store_contribution *contribution,
               enum store_fold how, const struct hyper *hp);

/* With clip_update = d, the update u = mhat / (sqrt(vhat) + epsilon) of each tensor is divided by max(1, RMS(u) / d)
 * before the learning rate (Shazeer & Stern, arXiv:1804.04235, section 6). A tensor that is cut into units is clipped
 * unit by unit, each piece by its own RMS: no unit waits for another. 0 or -ERANGE, as above. */
int store_update(struct store *store, uint32_t unit, enum store_fold how, const struct hyper *hp);

/* The sum of squares of a unit's held sum, whose root over all units is the norm of the gradient; tied weights are in
 * it once. The same bits for every number of threads; infinite if a sum of contributions has overflowed. */
double store_sum_squares(const struct store *store, uint32_t unit);

/* How contributions to a unit are folded: both visits of a tied unit are one gradient and are summed before they are
 * squared; so are the parts of AdamW. Clipped updates need their moments before they can move anything. */
enum store_fold store_fold_kind(const struct store *store, uint32_t unit, uint32_t n_parts, bool adamw);

#endif

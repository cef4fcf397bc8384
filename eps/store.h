/* eps/store.h - the units: relayed weights, moments, sums.
 *
 * In fp32 the relayed weights are the master: 4 bytes in a shared segment that workers map read-only, and 4 + 4 bytes
 * of moments private to the daemon: 12 bytes a parameter. Memory is bound by hwloc, asked for in huge pages and
 * page-locked where the system allows (eps/memory.h), and first touched by the optimizer's threads, in the ranges in
 * which they will work. */
#ifndef EPS_STORE_H
#define EPS_STORE_H

#include "eps/optimizer.h"
#include "proto/ledger.h"
#include "proto/model.h"
#include "proto/segment.h"

#include <stdbool.h>

struct eps_store_options {
    bool train;              /* moments, sums; else weights alone */
    uint32_t n_accumulators; /* 0 unless adamw with several parts */
};

struct eps_store {
    const struct model *model; /* borrowed */
    struct segment weights;    /* model.segment_n floats, units at their offsets */
    float *m, *v;              /* (segment_n) each, the same offsets; NULL without training */
    float **sums;              /* (n_units) NULL, or where the unit's contributions are summed in this step */
    float *tied;               /* sums of all tied units, one block, each rounded up to 16 elements as in the segment */
    float *accumulators;       /* n_accumulators blocks of the largest unit, rounded likewise */
    uint32_t *accumulator_unit; /* (n_accumulators) the unit that has it, or UINT32_MAX */
    uint32_t n_accumulators;
    uint64_t *updates;                    /* (n_units) Adam's t of the unit */
    struct ledger *ledger;                /* borrowed */
    uint64_t ledgered[LEDGER_CATEGORIES]; /* what eps_store_free gives back */
};

/* Allocates and zeroes, touching pages with the caller's OpenMP team, and logs once what the system did not allow.
 * -ENOMEM with a sentence. Undo: eps_store_free. */
int eps_store_init(struct eps_store *store, const struct model *model, const struct eps_store_options *options,
                   struct ledger *ledger, struct error *err);
void eps_store_free(struct eps_store *store); /* safe on a zeroed one */

/* Bytes of the block of all tied units' sums, and of one accumulator: terms of the plan. */
uint64_t eps_store_tied_bytes(const struct model *model);
uint64_t eps_store_accumulator_bytes(const struct model *model);

/* GPT-2's initialisation, each element a function of (seed, tensor, index) alone. */
void eps_store_draw(struct eps_store *store, uint64_t seed);

/* Reads weights from open safetensors files (fds stay the caller's): names with or without "transformer." in front;
 * F32, F16, BF16. Every tensor of the model exactly once with its shape; names known to be no weights (attention mask
 * buffers) are passed over, lm_head.weight of a tied model too if its bits equal wte's; anything else unknown,
 * missing, twice, of another shape or type, or not finite is -EINVAL, by name. -ENOMEM. After a failure the weights
 * are to be loaded anew. */
int eps_store_load(struct eps_store *store, const int *fds, unsigned n_fds, struct error *err);

/* Reads both moments and the counts of updates from an open optimizer.safetensors (proto/checkpoint.h; fd stays the
 * caller's): "m.NAME" and "v.NAME" of every tensor exactly once, F32, with its shape, finite, v not negative, and
 * "updates"; anything else unknown, missing, twice or misshapen is -EINVAL, by name. -ENOMEM. The store trains
 * (asserted); after a failure it is to be thrown away. Writing: eps/store_files.h. */
int eps_store_load_moments(struct eps_store *store, int fd, struct error *err);

float *eps_store_weights(const struct eps_store *store, uint32_t unit);

/* The jobs of the optimizer thread. slice: 0-based, of MODEL_SLICE elements. g: its contribution, in an inbox.
 *
 * How contributions of a unit become its update, the same for all of a step:
 *   DIRECT    one part, untied: first fold and update in one pass; eps_store_update then only counts
 *   MOMENTS   AdamA: each part goes into the moments; eps_store_update moves the weights
 *   SUM       tied units, AdamW with several parts: parts are summed; eps_store_update folds the sum and moves the
 * weights. An accumulator is taken at an untied unit's first fold and given back by eps_store_update; that one is free
 *             is the relay's promise (assert).
 * first: of the slice in this step. Returns false, with nothing changed, if the slice is not finite. */
enum eps_store_fold { EPS_FOLD_DIRECT, EPS_FOLD_MOMENTS, EPS_FOLD_SUM };
bool eps_store_fold(struct eps_store *store, uint32_t unit, uint32_t slice, const float *g, bool first,
                    enum eps_store_fold how, const struct eps_hyper *hp);
void eps_store_update(struct eps_store *store, uint32_t unit, enum eps_store_fold how, const struct eps_hyper *hp);

/* How contributions to a unit are folded: both visits of a tied unit are one gradient and are summed before they are
 * squared; so are the parts of AdamW. */
enum eps_store_fold eps_store_fold_kind(const struct eps_store *store, uint32_t unit, uint32_t n_parts, bool adamw);

#endif

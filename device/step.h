/* device/step.h - one worker's side of a step: every visit, every part, every microbatch, in the relay's order.
 *
 * Forward: for each visit from the bottom: pull its unit, run every microbatch of every part. The head's forward pass finds every row's
 * log-sum-exp and so all losses of the share; they are told before any contribution is offered. Backward: for each visit from the top: pull, and part by
 * part: recompute, sum the contribution over the part's microbatches, offer it in slices.
 *
 * The step knows neither sockets nor relay: it speaks through a link, which is a session in eps-worker and plain function calls in
 * tests and benchmarks. */
#ifndef DEVICE_STEP_H
#define DEVICE_STEP_H

#include "device/device.h"
#include "device/plan.h"
#include "proto/ledger.h"
#include "proto/model.h"

struct device_share {
    uint64_t step;         /* the version of every unit that is pulled; also names dropout's bits */
    uint64_t n_valid;      /* T */
    uint32_t n_parts;      /* of this share */
    const uint32_t *parts; /* (n_parts) */
    const uint32_t *ids,
        *labels; /* (batch * seq) the whole minibatch, host memory, not trusted: ids are checked against the vocabulary */
};

/* All calls block until done and return 0, or -ECANCELED when the job ends meanwhile: the step then returns at once. */
struct device_link {
    /* Asks for a unit; returns at once. At most n_weight_buffers are outstanding or in use. */
    int (*pull)(void *context, uint64_t version, uint32_t unit);
    /* Waits for the oldest pull; *weights (unit.n) stays readable until the contribution of this visit is accepted, or for a forward visit until the step's end. */
    int (*wait_weights)(void *context, const float **weights);
    int (*loss)(void *context, uint32_t part, double sum, bool finite);
    /* Waits for room for one slice, *slot (n floats) in host memory to be filled by the caller. */
    int (*wait_slot)(void *context, uint32_t visit, uint32_t part, uint32_t slice, float **slot);
    /* The slot is filled. */
    int (*contribute)(void *context, uint32_t visit, uint32_t part, uint32_t slice);
    /* All slices of this visit and part were contributed: where the worker takes turns with the optimizer, waits until they are folded. */
    int (*contributed)(void *context, uint32_t visit, uint32_t part);
};

struct device_worker {
    const struct device_ops *ops;
    struct device *dev;
    struct model model;
    struct plan plan;
    uint64_t seed;         /* of dropout */
    uint32_t batch;        /* rows of the whole minibatch */
    struct ledger *ledger; /* borrowed; the arena stands in it, category by category */
};

/* Plans, claims the arena, enters it in the ledger. -ENOSPC, -ENOMEM, -ENODEV with a sentence. Undo: device_worker_free. */
int device_worker_init(struct device_worker *worker, const struct model_config *config,
                       const struct plan_options *options, uint32_t batch, uint64_t seed, struct ledger *ledger,
                       struct error *err);
void device_worker_free(struct device_worker *worker); /* safe on a zeroed one */

/* One training step. 0; -ECANCELED from the link; -EINVAL with a sentence for a token id outside the vocabulary; -EIO: the device is lost. */
int device_worker_step(struct device_worker *worker, const struct device_share *share, const struct device_link *link,
                       void *context, struct error *err);

/* Forward only, without dropout, over n_rows rows of ids and labels from first_row on, share_rows at a time; *sum = -log p over all labels that count, in double, added in row order. */
int device_worker_evaluate(struct device_worker *worker, uint64_t version, const uint32_t *ids, const uint32_t *labels,
                           uint32_t first_row, uint32_t n_rows, const struct device_link *link, void *context,
                           double *sum, struct error *err);

#endif

/* device/step/step.h - one worker's side of a step: every visit, every part, every microbatch, in the relay's order.
 *
 * Forward: for each visit from the bottom: pull its unit, run every microbatch of every part. The head's forward pass
 * finds every row's log-sum-exp and so all losses of the share; they are told before any contribution is offered. Where
 * the plan has room for all of the head, that pass does the head's backward pass too: its logits are not computed again.
 * Backward: for each visit from the top: pull, and part by part: recompute or read what was kept, sum the contribution
 * over the part's microbatches, offer it in slices.
 *
 * A device that works beside the host always has work queued: one contribution is offered while the next is made, a
 * unit is uploaded while the one before it is visited, and so are tiles of a stash on the host (where the plan has room
 * for two of each). The three queues are ordered by marks alone; within a step the host waits for copies that it needs,
 * never for computing. Nothing borrowed is in use by the device any more when a step has returned.
 *
 * The step knows neither sockets nor relay: it speaks through a link, which is a session in eps-worker and plain
 * function calls in tests and benchmarks. It allocates nothing. */
#ifndef DEVICE_STEP_STEP_H
#define DEVICE_STEP_STEP_H

#include "device/device.h"
#include "proto/base/ledger.h"
#include "proto/base/trace.h"
#include "proto/model/model.h"
#include "proto/plan/plan.h"

struct device_share {
    uint64_t step;         /* the version of every unit that is pulled; also names dropout's bits */
    uint64_t n_valid;      /* T */
    uint32_t n_parts;      /* of this share */
    const uint32_t *parts; /* (n_parts), ascending */
    /* (batch * seq) each, the whole minibatch, host memory that others can write: copied first, then the copy is
     * checked against the vocabulary. */
    const uint32_t *ids, *labels;
};

/* Rows to evaluate: first_row .. first_row + n_rows - 1 of ids and labels, which are as in a share. */
struct device_evaluation {
    uint64_t version; /* of every unit that is pulled */
    const uint32_t *ids, *labels;
    uint32_t first_row, n_rows;
};

/* All calls return 0, or -ECANCELED when the job ends meanwhile: the step then returns at once. */
struct device_link {
    /* Asks for a unit; returns at once. At most n_weight_buffers are outstanding or in use. A unit that an earlier
     * visit left on the device (the head's top one, as forward turns into backward) is not asked for again. */
    int (*pull)(void *context, uint64_t version, uint32_t unit);
    /* Waits for the oldest pull; *weights (unit.n values) stays readable until the contribution of this visit is
     * accepted, for a forward visit until the step's end, and to generate until the job's. */
    int (*wait_weights)(void *context, const void **weights);
    /* sum: of -log p over the part's labels, nats; not divided by T. Once for each part of the share, ascending. */
    int (*loss)(void *context, uint32_t part, double sum, bool finite);
    /* Takes room for one slice: *slot (n numbers of the worker's `grad` type) in host memory, to be filled by the caller.
     * `wait`: until there is some; the caller has then contributed all that it took. Otherwise *slot is NULL if there is
     * none now. */
    int (*take_slot)(void *context, uint32_t visit, uint32_t part, uint32_t slice, bool wait, void **slot);
    /* The slot is filled; slots in the order in which they were taken. */
    int (*contribute)(void *context, uint32_t visit, uint32_t part, uint32_t slice, const void *slot);
    /* All slices of this visit and part were contributed: where the worker takes turns with the optimizer, waits until
     * they are folded. */
    int (*contributed)(void *context, uint32_t visit, uint32_t part);
    /* Whether the job has ended meanwhile: 0 or -ECANCELED, without waiting. */
    int (*ended)(void *context);
};

struct device_worker_options {
    struct model_config config;
    const struct device_ops *ops;
    struct plan_setting setting;
    struct plan_choice choice;
    uint32_t batch; /* rows of the whole minibatch: a multiple of setting.part_rows */
    uint64_t seed;  /* of dropout */
    unsigned index; /* of the device: cuda:1 */
};

struct layer_chunk;

struct device_worker {
    const struct device_ops *ops;
    struct device *dev;
    char attention[DEVICE_TOLD]; /* how it is computed: a line for the log, or empty */
    struct model model;
    struct plan plan;
    uint64_t seed;
    uint32_t batch;
    struct ledger *ledger; /* borrowed; the arena stands in it, category by category */
    struct trace *trace;   /* borrowed: set by the caller after init; NULL: nothing is recorded */
    void *stash;           /* borrowed: (plan.host_stash_bytes) of the host's, set by the caller after init; or NULL */
    struct layer_chunk *chunks; /* (units of the head) of the run under way */
    uint64_t *stashed; /* (share_rows) with the stash on the host: DEVICE_PUSH, when what was last written there of the
                        * microbatch from this row on is there; or NULL */
    /* Generating (device/step/generate.h): */
    const void **tables; /* (the embedding's visits) where the host has their units, once they are: */
    bool loaded;         /* with the units that stay on the device */
    uint32_t n_run;      /* tokens whose keys and values are in the cache */
};

/* The model and the plan, before anything is taken of the device: worker->plan says how much that will be. -EINVAL, -ENOMEM
 * with a sentence; *worker is then zeroed. Undo: device_worker_free. */
int device_worker_lay_out(struct device_worker *worker, const struct device_worker_options *options,
                          struct ledger *ledger, struct error *err);
/* Claims the arena that was laid out, and enters it in the ledger. -EINVAL, -ENOMEM, -ENODEV with a sentence; *worker is
 * then zeroed. */
int device_worker_claim(struct device_worker *worker, const struct device_worker_options *options, struct error *err);
/* Both. */
int device_worker_init(struct device_worker *worker, const struct device_worker_options *options, struct ledger *ledger,
                       struct error *err);
void device_worker_free(struct device_worker *worker); /* safe on a zeroed one */

/* One training step; an empty share is done at once. 0; -ECANCELED from the link; -EINVAL with a sentence for a token
 * id outside the vocabulary or parts that are not a share of this worker; -EIO: the device is lost. */
int device_worker_step(struct device_worker *worker, const struct device_share *share, const struct device_link *link,
                       void *context, struct error *err);

/* Forward only, without dropout, share_rows rows at a time; of the link, pull and wait_weights alone are called.
 * *sum = -log p over all labels that count, in double, added in row order. Errors as device_worker_step. */
int device_worker_evaluate(struct device_worker *worker, const struct device_evaluation *evaluation,
                           const struct device_link *link, void *context, double *sum, struct error *err);

#endif

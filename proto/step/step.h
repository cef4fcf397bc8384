/* proto/step/step.h - one worker's side of a step: every visit, part and microbatch, in the relay's order.
 *
 * Forward: for each visit from the bottom: pull its unit, run every microbatch of every part. The head's forward pass
 * computes every row's log-sum-exp, and so all losses of the share; they are told before any contribution is offered.
 * If the plan has room for the whole head, the same pass also runs the head's backward, so its logits are not computed
 * again. Backward: for each visit from the top: pull its unit; for each part: recompute activations or read kept ones,
 * sum the contribution over the part's microbatches, offer it in slices. A frozen unit contributes nothing; backward
 * ends at the lowest layer that is trained. If the plan divides layers into segments (proto/plan/memory/segments.h),
 * forward runs once more over the lower layers of each before the backward of its topmost. Of a block that the step
 * drops (proto/model/drop.h) nothing is pulled or contributed: its visits copy. If row groups are chosen (struct
 * plan_choice), all of this happens for each group of the share's parts, one after another.
 *
 * A device that works in parallel with the host always has work queued: one contribution is offered while the next is
 * made, and a unit is uploaded during the visit before it; the same holds for tiles of a stash on the host, if the plan
 * has room for two of each. Marks alone order the three queues. Within a step the host waits for copies that it needs,
 * never for computation. When a step has returned, the device no longer uses anything borrowed.
 *
 * The step knows neither sockets nor relay. It uses a link: a session in eps-worker, function calls in tests and
 * benchmarks. It allocates nothing. The timeline runs it over a clock, to predict its time (proto/step/timeline.h). */
#ifndef PROTO_STEP_STEP_H
#define PROTO_STEP_STEP_H

#include "proto/operation/device.h"
#include "proto/base/ledger.h"
#include "proto/base/trace.h"
#include "proto/model/contribution.h"
#include "proto/model/drop.h"
#include "proto/model/model.h"
#include "proto/model/order.h"
#include "proto/plan/memory/data.h"
#include "proto/plan/memory/plan.h"

/* A minibatch in host memory that others can write: a copy is checked against model and plan, and used. */
struct device_rows {
    uint32_t n_tokens;            /* tokens of each row: 1..seq */
    const uint32_t *ids, *labels; /* (batch, n_tokens) */
    const uint32_t *positions;    /* (batch, n_tokens) for a packed job; else unused */
    const struct plan_row *rows;  /* (batch) for a classifier; else NULL */
    const float *references;      /* (batch) for pairs of texts; else NULL */
    const float *weights;         /* (batch, n_tokens) of a job with weights, for a step; else NULL */
    const uint16_t *norms; /* (n_norm_maps, batch*seq) if the model remembers norms (struct plan_data); or NULL */
};

struct device_share {
    uint64_t step;         /* version of every pulled unit; also a key of dropout's bits */
    uint64_t n_valid;      /* T: valid tokens of the minibatch; of pairs of texts, the pairs */
    float loss_scale;      /* the loss's factor, in its gradients alone; 0: none */
    uint32_t n_parts;      /* in this share */
    const uint32_t *parts; /* (n_parts), ascending */
    bool groups; /* parts that do not follow each other pass the model one after another (struct relay_config) */
    struct device_rows rows;
    const struct model_drop *drop;   /* blocks that the step leaves out, if the plan's goal allows it; NULL: none */
    const struct model_drop *frozen; /* blocks that it computes and does not train, if the goal chooses; NULL: none */
    const struct model_order *order; /* in which blocks are computed, if the goal chooses; NULL: the model's */
};

/* Rows to evaluate: first_row .. first_row + n_rows - 1 of a minibatch. */
struct device_evaluation {
    uint64_t version; /* version of every pulled unit */
    struct device_rows rows;
    uint32_t first_row, n_rows;
    bool drops;    /* with dropout, as in */
    uint64_t step; /* this step */
    bool base;     /* without adapters */
    float
        *logits; /* (batch, plan_data.outputs): these rows' are written. NULL: they are not needed, or there are none */
};

/* Where a unit is in host memory, as it is relayed: its first byte. Trained weights are read from one place, those
 * behind them from another, or mostly from the same. */
struct device_link_weights {
    const void *trained, *frozen;
    bool lent; /* until the next wait; an embedding's table never is */
};

/* A slice that was contributed. */
struct device_link_slice {
    uint64_t n;                  /* numbers of the worker's `grad` type */
    const struct block_sum *sum; /* contribution_sum of it, if the goal checks memory; else NULL */
};

/* All calls return 0, -ECANCELED if the job ended meanwhile, or -EPROTO if the other side broke the rules: the step
 * then returns that at once. */
struct device_link {
    /* Requests a unit and returns at once. At most n_weight_buffers are outstanding or in use. A unit that an earlier
     * visit left on the device (the head's top one, when forward turns into backward) is not requested again. */
    int (*pull)(void *context, uint64_t version, uint32_t unit);
    /* Waits for the oldest pull. *weights stays readable until the step's end, for generation until the job's, unless
     * it is lent. */
    int (*wait_weights)(void *context, struct device_link_weights *weights);
    /* sum: the sum of -log p over the part's labels, in nats, or of the losses of its pairs; not divided by T. rewards:
     * those of the pairs, else zeros. Called once for each part, ascending. */
    int (*loss)(void *context, uint32_t part, double sum, const struct preference_rewards *rewards, bool finite);
    /* Takes room for one slice: *slot (n numbers of the worker's `grad` type) in host memory, for the caller to fill.
     * `wait`: blocks until there is a slot; the caller has then contributed all that it took. Otherwise *slot is NULL
     * if there is none now. */
    int (*take_slot)(void *context, uint32_t visit, uint32_t part, uint32_t slice, bool wait, void **slot);
    /* The slot is filled, and belongs to others now. Slots are contributed in the order in which they were taken. */
    int (*contribute)(void *context, uint32_t visit, uint32_t part, uint32_t slice, const void *slot,
                      const struct device_link_slice *of);
    /* All slices of this visit and part were contributed. If the worker takes turns with the optimizer, waits until
     * they are folded. */
    int (*contributed)(void *context, uint32_t visit, uint32_t part);
    /* Returns -ECANCELED if the job has ended, else 0, without waiting. */
    int (*ended)(void *context);
};

struct device_worker_options {
    struct model_config config;
    const char *freeze; /* patterns: model_freeze */
    const struct device_ops *ops;
    struct plan_setting setting;
    struct plan_choice choice;
    uint64_t seed;  /* for dropout */
    unsigned index; /* index of the device: 1 for cuda:1 */
    uint64_t *done; /* device_ops.count: counts what is prepared, too; NULL: nobody looks. Borrowed until close */
};

struct layer_chunk;
struct layer_ops;

struct device_worker {
    const struct device_ops *ops;
    struct device *dev;
    const struct layer_ops *const *layers; /* layers' functions, by enum model_layer_kind: layer_table */
    char attention[DEVICE_TOLD];           /* method of attention: a line for the log, or empty */
    char convolutions[DEVICE_TOLD];        /* the same of convolutions */
    struct model model;
    struct plan plan;
    uint64_t seed;
    struct ledger *ledger; /* borrowed; the arena is entered in it by category */
    struct trace *trace;   /* borrowed, set by the caller after init; NULL: not traced */
    void *stash;           /* borrowed: (plan.host_stash_bytes) of host memory, set by the caller after init; or NULL */
    struct layer_chunk *chunks; /* (units of the head) of the current run */
    uint32_t *contributing;     /* (model.n_trained_visits) the visits that contribute to this step, from the top */
    uint32_t *homes;            /* (model.n_visits) of the layers that this step's visits run: model_order_homes */
    /* (share_rows) with the stash on the host: DEVICE_PUSH, when the last write of the microbatch that begins at this
     * row has arrived; or NULL. */
    uint64_t *stashed;
    bool *staying;        /* (model.n_units) its frozen elements are on the device, and stay there: plan_stays */
    uint32_t *row_tokens; /* (share_rows) tokens of each row of the microbatch that begins at this row of the pass */
    /* For generation (proto/step/generate.h): */
    const void **tables;                 /* (the embedding's visits) their units in host memory, once `loaded` */
    bool loaded;                         /* resident units are on the device, and `tables` are known */
    uint32_t n_run[PLAN_GENERATE_ROWS];  /* tokens whose keys and values are cached */
    uint32_t n_tail[PLAN_GENERATE_ROWS]; /* tokens that the tails stand after, with model_has_tails; none: UINT32_MAX */
    uint32_t n_source[PLAN_GENERATE_ROWS]; /* those of the source; 0: it has not run */
};

/* Lays out model and plan before any device memory is taken; worker->plan tells how much that will be. -EINVAL, -ENOMEM
 * with a sentence; *worker is then zeroed. Undo: device_worker_free. */
int device_worker_lay_out(struct device_worker *worker, const struct device_worker_options *options,
                          struct ledger *ledger, struct error *err);
/* Claims the laid-out arena and enters it in the ledger. -EINVAL, -ENOMEM, -ENODEV with a sentence; *worker is then
 * zeroed. */
int device_worker_claim(struct device_worker *worker, const struct device_worker_options *options, struct error *err);
/* device_worker_lay_out, then device_worker_claim. */
int device_worker_init(struct device_worker *worker, const struct device_worker_options *options, struct ledger *ledger,
                       struct error *err);
void device_worker_free(struct device_worker *worker); /* safe on a zeroed struct */

/* Runs one training step; an empty share is done at once. 0; -ECANCELED from the link; -EINVAL with a sentence for a
 * token id or label out of range, lengths of rows or positions that cannot be, or parts that are no share of this
 * worker; -EIO: the device is lost. */
int device_worker_step(struct device_worker *worker, const struct device_share *share, const struct device_link *link,
                       void *context, struct error *err);

/* Runs forward only, share_rows rows at a time; where a layer is finished, a part's rows. Calls only
 * pull and wait_weights of the link. *sum = -log p over all valid labels, in double, added in row order. Errors as
 * device_worker_step. */
int device_worker_evaluate(struct device_worker *worker, const struct device_evaluation *evaluation,
                           const struct device_link *link, void *context, double *sum, struct error *err);

#endif

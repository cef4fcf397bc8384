/* tests/kit/inprocess/inprocess.h - daemon and workers in one process, with function calls for messages.
 *
 * The same relay, store, optimizer calls and worker steps as in epsd and eps-worker; only sessions are missing. Each
 * worker is a thread; whatever it says is done under one lock, folds and updates included, so that a step is what the
 * protocol makes of it and nothing else. Tests hold the real processes against this, bit for bit, and the overhead of
 * messages is measured against it. */
#ifndef TESTS_KIT_INPROCESS_INPROCESS_H
#define TESTS_KIT_INPROCESS_INPROCESS_H

#include "proto/step/step.h"
#include "eps/relay/relay.h"
#include "eps/store/store.h"

#include <pthread.h>

enum { INPROCESS_MAX_WORKERS = 8, INPROCESS_MAX_SLOTS = 4 };

struct inprocess_options {
    struct model_config config;
    const char *freeze;                              /* patterns: model_freeze */
    uint32_t batch, seq, n_parts, microbatch;        /* microbatch 0: a part's rows, or what the planner chooses */
    uint32_t n_workers, n_weight_buffers, n_threads; /* 0: 1, 2 and 1 */
    uint64_t budget; /* bytes of each worker: the planner chooses all but a microbatch; 0: nothing is chosen */
    /* Without a budget: 1 to 8 eighths of the bytes that segments of layers (proto/plan/memory/segments.h) can save are
     * saved. 0: the inputs of all layers are there from forward to backward */
    uint32_t saved_eighths;
    bool derives;                        /* without a budget: as in struct plan_choice */
    enum number_type precision, moments; /* of weights and on the device; of the moments. fp32 */
    enum form base;                      /* of frozen weights */
    bool adamw, deterministic, evaluate_only;
    bool sgd, nesterov; /* as in struct plan_goal, */
    double momentum;    /* and so is this */
    bool fenced, folded, replay;
    struct sampling sampling;     /* gradients of matrices are estimated, if share > 0 */
    uint32_t pooled;              /* as in struct plan_goal */
    struct preference preference; /* rows are pairs of texts if beta > 0 */
    bool chooses;                 /* the caller sets the order of blocks: inprocess.order */
    struct sparse sparse;         /* keep 0: weights are dense */
    double drop_layers;           /* probability that a step drops a block: its scale alone, see inprocess.drop */
    double clip_norm;             /* of a fenced one; 0: not clipped */
    float loss_scale;             /* of a fenced one, whose updates take it out again; 0: none */
    uint64_t seed;                /* of fresh weights and dropout */
    uint64_t first_step;          /* updates done before: steps are numbered from here */
};

struct inprocess_worker {
    struct inprocess *ip;
    uint32_t id;
    struct device_worker worker;
    struct ledger ledger;
    pthread_t thread;
    bool running;
    struct device_share share;
    uint32_t parts[64];
    int rc;
    struct {
        uint32_t unit, buffer;
        bool ready;
    } pulls[PLAN_MAX_WEIGHT_BUFFERS];
    uint32_t n_pulls;
    void *stash; /* the host's; NULL: on the device */
    float *inbox;
    bool slot_used[1 + INPROCESS_MAX_SLOTS], granted;
    uint32_t granted_part; /* fenced: the last that the reserved slot is for, in this step */
};

struct inprocess {
    struct inprocess_options options;
    struct model model;
    struct store store;
    struct relay *relay;
    struct ledger ledger;
    uint32_t n_slots, *slices, *frozen;
    uint32_t n_left_out;      /* of `frozen`: the model's, and units of blocks that the step drops */
    struct model_drop drop;   /* blocks that the next step drops: set by the caller */
    struct model_order order; /* of the blocks of the next step: the same */
    uint32_t *homes, *visits; /* (model.n_visits) in that order */
    size_t slot_n;            /* floats */
    uint64_t n_opened, n_done;
    bool covered;
    struct hyper hyper;
    double norm; /* fenced: of the last step's gradient, before it was clipped; NAN while a step has not updated */
    double part_loss[64];
    struct preference_rewards rewards; /* of the last step: the sum of what parts told */
    bool failed;                       /* the relay refused, skipped or tore: the step returns -EPROTO */
    float *gradient; /* (model.segment_n) or NULL: set by the caller, who zeroes it; contributions are added */
    /* A reader's captures, told under the lock: set by the caller. NULL: no reader may be announced. */
    void (*on_capture)(void *data, uint32_t reader, uint32_t unit, uint64_t step);
    void *capture_data;
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct inprocess_worker workers[INPROCESS_MAX_WORKERS];
};

/* Owned: inprocess_close. Weights are drawn from the seed; tests may overwrite them (inprocess_piece). */
int inprocess_open(struct inprocess **out, const struct inprocess_options *options, struct error *err);
void inprocess_close(struct inprocess *ip);

/* One step over ids and labels (batch * seq each). *loss: nats per token before the update. */
int inprocess_step(struct inprocess *ip, const uint32_t *ids, const uint32_t *labels, uint64_t n_valid,
                   const struct hyper *hyper, double *loss, struct error *err);
/* The same over rows of any length up to seq. */
int inprocess_step_rows(struct inprocess *ip, const struct device_rows *rows, uint64_t n_valid,
                        const struct hyper *hyper, double *loss, struct error *err);
/* Announces a reader, or releases a unit; from any thread. */
void inprocess_read(struct inprocess *ip, uint32_t reader);
void inprocess_release(struct inprocess *ip, uint32_t reader, uint32_t unit);

/* Sum of -log p over rows first_row .. first_row + n_rows - 1, on the first worker. */
int inprocess_evaluate(struct inprocess *ip, const uint32_t *ids, const uint32_t *labels, uint32_t first_row,
                       uint32_t n_rows, double *sum, struct error *err);

/* The same; the version is filled in here. */
int inprocess_evaluate_rows(struct inprocess *ip, const struct device_evaluation *evaluation, double *sum,
                            struct error *err);

/* Elements of the units before this one, each as model_rounded: a unit's place in a buffer of whole units. That of the
 * model's n_units: the buffer's elements. Without a base or sparse weights, the offset in the weight segment, and
 * model.segment_n. */
uint64_t inprocess_at(const struct model *model, uint32_t unit);

/* Of all units the weights as the optimizer has them, joined if they are split, decoded if they are coded, into
 * `segment`, a buffer of whole units. */
void inprocess_masters(const struct inprocess *ip, float *segment);

/* A store_source, of a piece's values in memory. context: they. */
int inprocess_values(void *context, uint64_t first, size_t n, float *out);

/* Copies a whole tensor (its n elements, in row order) out of, or into, a buffer of whole units: masters, the gradient;
 * without a base store.weights.base, store.m, store.v (in fp32). tensor: index into model.tensors. */
void inprocess_get(const struct inprocess *ip, float *out, const float *segment, uint32_t tensor);
void inprocess_set(const struct inprocess *ip, float *segment, uint32_t tensor, const float *values);

#endif

/* proto/step/pass.h - one pass of some rows through the model, for a step or an evaluation.
 *
 * The rows come in runs: the parts of a share, or one run for an evaluation. On the device they are packed, run after
 * run. */
#ifndef PROTO_STEP_PASS_H
#define PROTO_STEP_PASS_H

#include "proto/step/offers.h"
#include "proto/step/step.h"
#include "proto/step/weights.h"

struct layer_pass;

struct device_pass {
    struct device_worker *worker;
    const struct device_link *link;
    void *context;
    struct error *err;
    char *arena;
    struct device_weights weights;
    const uint32_t *parts; /* (n_runs), or NULL: one run from first_row on */
    uint32_t n_runs, run_rows, first_row;
    uint32_t n_tokens; /* tokens of each row of the minibatch; a microbatch's rows have as many, or fewer */
    bool row_logits;   /* the head writes logits of each row: plan.logits */
    uint64_t step;
    uint64_t n_pairs; /* training on pairs: the minibatch's, which its first rows are; the rest is padding */
    float loss_scale;
    bool train;
    bool drops;                         /* with dropout */
    bool base;                          /* without adapters */
    const struct model_drop *drop;      /* blocks that the step leaves out; NULL: none */
    const struct model_drop *frozen;    /* blocks that it computes and does not train; NULL: none */
    uint32_t lowest;                    /* training: the visit at which backward ends, a layer's first */
    uint32_t place;                     /* in the sequence of weights: the visit being queued */
    uint64_t forward;                   /* DEVICE_COMPUTE: the losses are computed */
    bool told;                          /* the losses were told */
    const uint16_t *norms;              /* of the minibatch, in host memory (struct device_rows); NULL: none */
    const float *token_weights;         /* likewise */
    uint64_t norms_used[PLAN_MAX_SETS]; /* DEVICE_COMPUTE: nothing before reads this set of the plan's norms */
    struct device_offers offers;
    struct device_tiles {
        uint64_t used;  /* DEVICE_COMPUTE: its last use is done */
        uint64_t saved; /* DEVICE_PUSH: its content is on the host */
    } tiles[PLAN_MAX_SETS];
    uint32_t tile; /* the next set */
};

/* True if the host queues ahead of the device, so that copies and computation overlap. */
static inline bool device_pass_overlaps(const struct device_pass *pass)
{
    return pass->worker->plan.n_sets > 1;
}

/* Rows of the microbatch that begins at a row of a run. */
static inline uint32_t device_pass_rows(const struct device_pass *pass, uint32_t row)
{
    const uint32_t most = pass->worker->plan.choice.microbatch;

    return pass->run_rows - row < most ? pass->run_rows - row : most;
}

/* Tokens of each of these rows, once they are loaded. */
static inline uint32_t device_pass_tokens(const struct device_pass *pass, uint32_t run, uint32_t row)
{
    return pass->worker->row_tokens[(size_t)run * pass->run_rows + row];
}

static inline uint32_t device_pass_count_microbatches(const struct device_pass *pass)
{
    const uint32_t most = pass->worker->plan.choice.microbatch;

    return (pass->run_rows + most - 1) / most;
}

/* The home of the layer that a visit runs (proto/model/order.h). */
static inline uint32_t device_pass_home(const struct device_pass *pass, uint32_t visit)
{
    return model_order_home(pass->weights.homes, visit);
}

/* Records an event under the name of the visit's unit, if traced. */
void device_pass_record(const struct device_pass *pass, uint64_t since, const char *what, uint32_t visit,
                        const struct trace_arg *args);

/* Makes the host wait for a mark. -EIO with a sentence. */
int device_pass_finish(const struct device_pass *pass, enum device_queue queue, uint64_t mark);

/* Address in the arena. */
static inline void *device_pass_address(const struct device_pass *pass, uint64_t offset)
{
    return pass->arena + offset;
}

/* Row of the minibatch. */
static inline uint64_t device_pass_first_row(const struct device_pass *pass, uint32_t run)
{
    return pass->parts ? (uint64_t)pass->parts[run] * pass->run_rows : pass->first_row;
}

/* Token of the pass, as packed on the device: the first of the microbatch that begins at this row. Its rows then follow
 * each other without gaps. */
static inline size_t device_pass_token(const struct device_pass *pass, uint32_t run, uint32_t row)
{
    return ((size_t)run * pass->run_rows + row) * pass->n_tokens;
}

/* Token of the pass among those that have a prediction, as packed on the device. */
static inline size_t device_pass_predicted(const struct device_pass *pass, uint32_t run, uint32_t row)
{
    return ((size_t)run * pass->run_rows + row) * model_predicted(&pass->worker->model, pass->n_tokens);
}

/* Called before the visit at this place is queued: uploads what its unit remembers of the share's tokens
 * (proto/model/norms.h) to the next set of the plan's norms. Sets are used in turn. */
void device_norms_next(struct device_pass *pass, uint32_t place);

/* Called when it is queued. */
void device_norms_leave(struct device_pass *pass, uint32_t place);

/* Sets norms of a visit to a run: what is known, and where the contribution (NULL: none) has those to come. */
void device_norms_set(struct layer_pass *visit, const struct device_pass *pass, uint32_t run, float *contribution);

/* Loads ids and labels of all runs, of a packed job positions, of a classifier lengths and segments, of pairs the
 * reference model's log p, of a weighted step the factors of the tokens' gradients. Each microbatch has as few tokens
 * of each row as hold what any of its rows trains on or reads: padding behind that changes no result. 0; -EINVAL with a
 * sentence for a number that is out of range; -EIO. */
int device_pass_load_rows(struct device_pass *pass, const struct device_rows *rows);

/* Adds the losses of one run, computed by forward, to *sum: row by row and token by token, each times its weight if it
 * has one; or pair by pair, of which the rewards are added, too. 0 or -EIO. */
int device_pass_add_losses(struct device_pass *pass, uint32_t run, double *sum, struct preference_rewards *rewards);

/* Copies log p of the pass's rows, in one run, to `out`: of each pair's texts, or of each token's label, rows a goal's
 * seq apart. 0 or -EIO. */
int device_pass_take_log_p(struct device_pass *pass, float *out);
int device_pass_take_token_log_p(struct device_pass *pass, float *out);

/* Tells the losses of all parts, once. -EIO, or errors of the link. */
int device_pass_tell_losses(struct device_pass *pass);

#endif

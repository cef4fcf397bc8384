/* eps/step/steps.h - training steps: messages <-> relay <-> optimizer thread. */
#ifndef EPS_STEP_STEPS_H
#define EPS_STEP_STEPS_H

#include "eps/save/save.h"
#include "eps/step/fence.h"

/* The last steps that were covered, for observers. */
struct steps_recent {
    uint64_t n, tokens; /* since the job began: steps, and the tokens in them */
    struct steps_covered {
        float loss;
        double lr;
        uint64_t covered_ms, tokens; /* on the loop's clock; tokens of the job until then */
    } steps[MESSAGE_RECENT_STEPS];   /* step number i since the job began is at i modulo this */
};

struct commit_ops; /* eps/step/commit.h */
struct sharded;

enum { STEPS_MAX_PULLS = 16 }; /* pulls of one worker that are not answered; it has fewer weight buffers than that */

struct steps {
    struct job *job;
    struct saves *saves;
    const struct commit_ops *commit; /* the present job's; never NULL */
    struct sharded *sharded;         /* eps/step/sharded.h's; NULL: this host is alone */
    uint64_t n_opened;               /* job->step, or one or two more */
    bool covered;                    /* the relay's last step is folded entirely */
    bool arrived;           /* the relay's last step has all it needs of the workers, and the client was told */
    bool rewires, rewiring; /* places of sparse weights change before the last step is done; they do now */
    bool has_ahead;         /* one more was opened meanwhile and workers have their shares; not told to the relay yet */
    struct message ahead;   /* its OPEN_STEP */
    uint64_t announced_ahead; /* the step announced to the present workers ahead; MESSAGE_NO_STEP: none */
    uint64_t n_over;          /* steps that the relay has covered or skipped: what is pulled of them is void */
    uint32_t n_changes;       /* workers that left the job, or joined it, and shares that changed */
    uint32_t n_unreviewed;    /* steps since the shares were compared with the speeds */
    uint64_t n_audits;        /* steps that were audited to the end since the job began */
    uint64_t n_redone;        /* results of audited parts that were asked for again, as two differed */
    uint64_t failed_in;       /* the step, from 1, that a worker could not finish; 0: none */
    /* The worker whose gradient of the open step was not finite; 0: none. */
    struct {
        uint32_t worker;
        char device[32]; /* "": it has left, or was joining */
    } fault;
    bool reads_before;  /* weights of the open step were read from the second buffer, where no update checks them */
    uint32_t n_damaged; /* contributions of the open step that were not what was sent; the last one */
    struct error damage;
    /* The relay's last step: */
    struct message open; /* its OPEN_STEP */
    struct hyper hyper;
    struct fence fence;
    uint64_t busy_ns;                    /* of the optimizer's thread, when the last step was done */
    double open_scale;                   /* of its loss, as in struct loss_scale */
    double part_loss[MESSAGE_MAX_PARTS]; /* of all hosts' parts; NAN: not known */
    struct preference_rewards part_rewards[MESSAGE_MAX_PARTS]; /* of the parts whose loss is known */
    uint32_t *slices;                                          /* (n_visits) for the relay's open */
    /* (plan_host_ordered) for a client that may choose an order: homes (proto/model/order.h) and units of visits */
    uint32_t *homes, *visits;
    /* (plan_host_frozen) the same: the model's units, then those of blocks that the step drops or freezes. */
    uint32_t *frozen;
    uint32_t lowest_visit; /* of those that contribute to the step */
    /* The last covered step; the next may be open when it is done: */
    double loss;                       /* NAN before there is one */
    struct preference_rewards rewards; /* of the step whose loss this is */
    double grad_norm;                  /* as in the message */
    bool skipped;
    double loss_scale; /* as in the message */
    struct steps_recent recent;
    struct message_done ended[MESSAGE_DONE_STEPS]; /* step t is at t modulo this: for a client that takes over */
};

/* There is no job yet. saves is borrowed, to the daemon's end. */
void steps_start(struct steps *steps, struct saves *saves);
/* A job was planned: chooses how its steps are committed, and tells the other hosts that compute it. The job may have
 * ended when this returns. */
void steps_begin(struct steps *steps);
/* Takes the tables for it. -ENOMEM. Undo: steps_free, which is safe after failure, twice, and without a job. */
int steps_init(struct steps *steps, struct error *err);
void steps_free(struct steps *steps);

/* True if the job's state permits OPEN_STEP. */
bool steps_may_open(const struct steps *steps);
/* The job may have ended when any of these returns. */
void steps_open(struct steps *steps, const struct message *m);
void steps_on_worker(struct steps *steps, struct peer *worker, const struct message *m);
/* The optimizer thread has done a fold or an update. */
void steps_on_optimizer(struct steps *steps, const struct updater_task *work);
/* Feeds the relay and carries out its actions. Does nothing if the job is not open. */
void steps_feed(struct steps *steps, const struct relay_event *event);
/* An event of a reader, for the relay that readers attach to. */
void steps_feed_reader(struct steps *steps, const struct relay_event *event);
/* The OPEN_STEP of this step, or of the relay's last one if it is another: that step is over. Borrowed. */
static inline const struct message *steps_opened(const struct steps *steps, uint64_t step)
{
    return steps->has_ahead && step == steps->ahead.open_step.step ? &steps->ahead : &steps->open;
}
/* Begins the step ahead, if there is one and it is due. False: it did not. */
bool steps_begin_ahead(struct steps *steps);
/* In steps_rewire.c: places of sparse weights change at the end of some steps, before anybody sees their weights
 * (eps/store/rewire.h). The step is updated: true if that is to come, and steps_end_step follows it. */
bool steps_rewires_after(struct steps *steps, uint64_t step);
/* True if places are still to change before this step, which is not ahead of its turn then. */
bool steps_rewires_before(const struct steps *steps, uint64_t step);
/* Begins it if it is due, and no save reads older weights. False: it did not. */
bool steps_rewire(struct steps *steps);
/* On the optimizer thread. context: the job. */
int steps_do_rewire(void *context);
void steps_on_rewired(struct steps *steps);
/* A step is done: the client is told. */
void steps_end_step(struct steps *steps);
/* Workers came, went, or get other shares: those told ahead are not those that the step will open with. */
void steps_note_change(struct steps *steps);
/* True if the open step goes on only once another worker has joined, on this host or another. False while it still
 * needs nothing but folds, and without an open step. */
bool steps_wait(const struct steps *steps);
/* Fills in TAKEN. */
void steps_announce_taken(const struct steps *steps, struct message *m);
/* A fenced step does not count. */
void steps_skip(struct steps *steps, uint64_t step);
/* The step is covered, or done, wherever it must be (eps/step/commit.h): the client is told. */
void steps_on_covered(struct steps *steps, uint64_t step);
void steps_on_done(struct steps *steps, uint64_t step);
/* Hyperparameters of the step that this OPEN_STEP opens. */
struct hyper steps_hyper(const struct job *job, const struct message *open);
/* A step begins: no loss of it is known, nor anything folded. */
void steps_clear(struct steps *steps);
/* In steps_blocks.c. False if the model cannot drop or freeze these blocks, compute them in this order, or train
 * nothing then. */
bool steps_may_compute(const struct job *job, const struct message *open);
/* Sets the order of the step's visits, and their slices. Returns the unit of each; borrowed. */
const uint32_t *steps_arrange(struct steps *steps, const struct message *open);
/* After steps_arrange: adds the units of the blocks that the step drops or freezes to the frozen ones, which the model
 * has anyway. Finds the lowest visit that contributes. Returns the number of units. */
uint32_t steps_leave_out(struct steps *steps, const struct message *open);
/* Tells a worker which parts of the open step it still has to send, if any. */
void steps_share(struct steps *steps, struct peer *worker);

#endif

/* eps/step/commit.h - how a step's contributions become new weights: on one host, or on several.
 *
 * A job's relay says what is folded and updated when, whoever has the units. On one host they are here, and the
 * optimizer thread does both at once. On several, each unit has an owner: a fold sends a slice there, an update is done
 * when the owner has the next version, and weights of others are fetched when workers pull them (eps/step/sharded.h).
 * steps_begin chooses the table, by the job's facts; else nobody asks on how many hosts a job trains.
 *
 * All run on the loop's thread and return at once. All but `end` and `lost` are called for an open job alone, and the
 * job may have ended (job_end) when they return: on one host by what the relay makes of it, on several also with
 * -ENOMEM, or -EPROTO for what another host said. Pointers are borrowed during the call. Every member is required. */
#ifndef EPS_STEP_COMMIT_H
#define EPS_STEP_COMMIT_H

#include "eps/step/steps.h"

/* Weights that answer a pull: the unit's present ones, those before its last update, or none. */
enum commit_weights { COMMIT_NOW, COMMIT_BEFORE, COMMIT_VOID };

struct commit_ops {
    /* The job was planned and is not loaded yet: the other hosts hear of it. */
    void (*begin)(struct steps *steps);
    /* This host's workers have their memory. Once all hosts' have, the client hears that the job is open. */
    void (*ready)(struct steps *steps);
    /* A step is asked for. The relay may be in the one before, and workers may lack. */
    void (*request)(struct steps *steps, const struct message *open);
    /* The relay is about to hear of that step. */
    void (*begin_step)(struct steps *steps);
    /* The part's loss has become known, or the step was skipped for it. part: of all hosts'. */
    void (*loss)(struct steps *steps, uint32_t part);
    /* Actions of the relay. It is told of the end of each: a fold by RELAY_FOLDED, an update by RELAY_UPDATED. */
    void (*fold)(struct steps *steps, const struct relay_action *fold);
    void (*update)(struct steps *steps, const struct relay_action *update);
    /* The optimizer thread has done one of the job's tasks. */
    void (*optimized)(struct steps *steps, const struct updater_task *work);
    /* The relay has covered, or done, the step. steps_on_covered, steps_on_done follow once all hosts' have. */
    void (*covered)(struct steps *steps, uint64_t step);
    void (*done)(struct steps *steps, uint64_t step);
    /* A worker pulls a unit of the model; `answer` follows, now or later. */
    void (*pull)(struct steps *steps, const struct peer *worker, uint64_t version, uint32_t unit);
    /* Sends WEIGHTS, now or once they are here; or VOID, which comes too if the pull is stale by then. */
    void (*answer)(struct steps *steps, struct peer *worker, uint64_t version, uint32_t unit,
                   enum commit_weights which);
    /* The worker has read weights that were lent. One that was lent nothing is refused. */
    void (*read)(struct steps *steps, struct peer *worker, uint64_t version, uint32_t unit);
    /* An event of a save, for the relay that it reads. */
    void (*feed_reader)(struct steps *steps, const struct relay_event *event);
    /* The worker has no seat any more: it is answered no pull, and reads nothing. */
    void (*leave)(struct steps *steps, const struct peer *worker);
    /* LOST, for the client, wherever it is. In any state. */
    void (*lost)(struct steps *steps, const struct message *lost);
    /* The job's memory is given back. Also for a job that was never open. Cannot fail. */
    void (*end)(struct steps *steps);
};

extern const struct commit_ops commit_local, commit_sharded;

/* The task of an action of this relay: all but its hyper, and of a fold also .contribution.g and .context. */
struct updater_task commit_task(struct steps *steps, const struct relay *relay, const struct relay_action *a);
/* Copies what is remembered of an own unit, at the version of an open step, to the step's minibatch: before the step
 * changes it, so for the unit's first pull at the latest. Once a step; nothing for other versions. */
void commit_give_norms(struct steps *steps, uint64_t version, uint32_t unit);
/* What a relay hears of a task that has ended. */
struct relay_event commit_event(const struct updater_task *work);

#endif

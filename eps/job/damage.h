/* eps/job/damage.h - a job whose memory is checked (--check-memory) and was found damaged ends, and says so.
 *
 * What memory held is lost, so the job ends with -EIO, which a run with --restarts follows from its last whole
 * checkpoint. Before anything else is blamed for a number that is not finite, the weights and moments are looked
 * through by the optimizer thread. */
#ifndef EPS_JOB_DAMAGE_H
#define EPS_JOB_DAMAGE_H

#include "eps/job/job.h"
#include "eps/store/updater.h"

/* Ends the job if a block was found damaged, by whatever thread. True: it has ended now. */
bool damage_end(struct job *job);
/* The optimizer thread has found a contribution (FOLD, CHECK) or a block (all kinds) damaged: -EIO. Ends the job. */
void damage_on_task(struct job *job, const struct updater_task *work);
/* "host memory is damaged: ..." of the task's contribution. */
void damage_describe(struct error *out, const struct job *job, const struct updater_task *work);
/* Ends the job with this and the remedy. */
void damage_end_with(struct job *job, const struct error *what);

/* Has the weights and moments looked through, if the job checks memory, unless that is under way. */
void damage_look(struct job *job);
/* The same, from the beginning in any case, before the task that is submitted next, which finds the job's memory
 * damaged, too, then. */
void damage_look_before(struct job *job);
/* Ends the job for this reason, a number that is not finite; or, if memory turns out to be damaged, for that. Until a
 * look that begins now is over, damage_is_pending, and nothing more reaches the relay. */
void damage_end_otherwise(struct job *job, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
static inline bool damage_is_pending(const struct job *job)
{
    return job->verdict.code != 0;
}

/* Has the present weights of a job at rest looked through, once somebody has read them: `looked` follows, if the job is
 * open still and they are whole; else it ends. One at a time. False: the job checks no memory, or cannot be asked
 * now. */
bool damage_look_at_weights(struct job *job, void (*looked)(struct job *job));
int damage_do_look_at_weights(void *context);
void damage_on_weights(struct job *job);

/* On the optimizer thread. context: the job. */
int damage_do_look(void *context);
void damage_on_looked(struct job *job);

#endif

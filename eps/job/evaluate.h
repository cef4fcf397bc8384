/* eps/job/evaluate.h - evaluations, and tokens, one after another: forward passes, during which weights stand still, so that
 * whatever version is asked for, it is the one there is.
 *
 * An evaluation's rows are divided among all workers, which tell their sums. To generate, the client names the tokens that
 * are new, one worker runs them, and the logits of the last stand in the data segment. The daemon knows nothing of
 * sampling. */
#ifndef EPS_JOB_EVALUATE_H
#define EPS_JOB_EVALUATE_H

#include "eps/job/job.h"

/* The job rests. A request that cannot be costs the client its session. */
void evaluate_start(struct job *job, const struct message *m);
void evaluate_generate(struct job *job, const struct message *m);
/* While it does either. */
void evaluate_on_worker(struct job *job, struct peer *worker, const struct message *m);

#endif

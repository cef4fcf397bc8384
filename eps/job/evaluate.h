/* eps/job/evaluate.h - evaluations, and generation of tokens, one at a time. Both are forward passes: weights do not
 * change, so workers always ask for the current version.
 *
 * All workers share an evaluation's rows and report their sums. To generate, the client names new tokens of its texts
 * and one worker runs them; the logits of each text's last token go to the data segment. Sampling is the client's. */
#ifndef EPS_JOB_EVALUATE_H
#define EPS_JOB_EVALUATE_H

#include "eps/job/job.h"

/* The job is at rest. An impossible request costs the client its session. */
void evaluate_start(struct job *job, const struct message *m);
void evaluate_generate(struct job *job, const struct message *m);
/* True if this worker computes rows of the evaluation under way, or tokens of the generation. */
bool evaluate_has(struct job *job, const struct peer *worker);
/* Gives rows or tokens that nobody computes to workers that have none: a worker has joined. */
void evaluate_go_on(struct job *job);
/* A worker has gone; whatever it had to compute, others do. */
void evaluate_on_left(struct job *job, const struct peer *worker);
/* A worker's message during an evaluation or generation, other than a pull. */
void evaluate_on_worker(struct job *job, struct peer *worker, const struct message *m);

#endif

/* eps/step/faults.h - who is at fault: a worker that breaks the relay's rules, or whose gradient is not finite.
 *
 * A gradient that is not finite is mostly the run's: its learning rate is too high. Eager: so the part is computed once
 * more, from the same weights: by another worker, if one has memory for it; else by the same one. If it is finite then,
 * the first worker was at fault, and loses its session. If it is not, the run ends, and nobody loses a session. Fenced:
 * the step is skipped at once. Folded: as eager, and so is a loss that is not finite once other parts are in the
 * moments; as these are void in the end, the run ends as one that lost a process, which --restarts follows.
 *
 * Or nobody is, as host memory has changed (--check-memory). Then the part is computed once more, too. */
#ifndef EPS_STEP_FAULTS_H
#define EPS_STEP_FAULTS_H

#include "eps/step/steps.h"

/* The relay has taken its parts from the worker, whose gradient is not finite; or has given the step up, as another's
 * of the same part was not finite either. worker NULL: it has left, or is joining. */
void faults_suspect(struct steps *steps, struct peer *worker, uint32_t id);
/* The step is covered: its numbers were finite in another attempt, and suspects were at fault. */
void faults_convict(struct steps *steps);
/* The step was given up: suspects were not at fault. */
void faults_acquit(struct steps *steps);
/* The worker broke a rule: it loses its session, and others do what it was to do. The job may have ended then. */
void faults_blame(struct steps *steps, struct peer *worker, const char *why);
/* The optimizer thread has found a contribution that is not what was sent, before it was folded: its worker begins its
 * share anew, and the step keeps its bits. Ends the job where that cannot be. */
void faults_on_damaged(struct steps *steps, const struct updater_task *work);
/* Ends the job, as its step was begun and cannot be finished. */
void faults_end_torn(struct steps *steps, uint64_t step);
/* Ends the job with the sentence for a gradient that is not finite. torn: others are in the moments already. */
void faults_end(struct steps *steps, uint64_t step, bool torn);

#endif

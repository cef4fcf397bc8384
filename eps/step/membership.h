/* eps/step/membership.h - workers that leave and join while a job runs.
 *
 * A job has a seat for each worker (eps/job/job.h), as many as there are parts at most. An idle worker takes a vacant
 * seat at once, or a new one. If a worker is lost, its parts of the open step are redone at the same version: by the
 * others, if they have memory for them; or by an idle worker; or by one of the others, which gives its memory back and
 * is planned anew for more parts; or by the next worker that attaches, for which the step waits. Contributions that the
 * lost one had sent before count. So the run ends with the weights that it would have had.
 *
 * A worker that is told to leave finishes its share first. */
#ifndef EPS_STEP_MEMBERSHIP_H
#define EPS_STEP_MEMBERSHIP_H

#include "eps/step/steps.h"

/* A worker is gone; nothing happens if the job has no seat for it. If its parts cannot be redone, the job has ended
 * when this returns. */
void membership_leave(struct steps *steps, struct peer *worker, const char *reason);
/* The relay has taken the worker's parts: it gives its memory back, and keeps its session. */
void membership_put_aside(struct steps *steps, struct peer *worker);
/* The worker loses its seat, if it has one, for this reason, and its session. */
void membership_expel(struct steps *steps, struct peer *worker, const char *reason, const char *why);
/* The worker is to leave: its session ends once its share is done; at once, if it has none. */
void membership_on_leaving(struct steps *steps, struct peer *worker);
/* The worker could not finish its share. It loses its session, and others redo it. If that cannot be, or if another
 * worker failed in this step as well, the job has ended when this returns. */
void membership_on_failed(struct steps *steps, struct peer *worker, const struct message *m);
/* Does one thing that is due: tells the relay of a loss, gives a seat to an idle worker, takes one from a worker that
 * leaves. False: nothing is due. */
bool membership_go_on(struct steps *steps);
/* A worker has answered ASSIGN. */
void membership_on_assigned(struct steps *steps, struct peer *worker, const struct message *m);

#endif

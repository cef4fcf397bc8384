/* eps/step/roster.h - workers that leave and join while a job runs.
 *
 * A job has a seat for each worker that it began with (eps/job/job.h). If a worker leaves, its parts of the open step
 * are redone at the same version by the others, if they have memory for that, or by the next worker that takes its
 * seat; until then the step waits. Contributions that it had sent before count. So the run ends with the weights that
 * it would have had. An idle worker takes a vacant seat at once. */
#ifndef EPS_STEP_ROSTER_H
#define EPS_STEP_ROSTER_H

#include "eps/step/steps.h"

/* A worker is gone; nothing happens if the job has no seat for it. If its parts cannot be redone, the job has ended when
 * this returns. */
void roster_leave(struct steps *steps, struct peer *worker, const char *reason);
/* Does one thing that is due: tells the relay of a loss, or gives a seat to an idle worker. False: nothing is due. */
bool roster_go_on(struct steps *steps);
/* A worker that joins an open job has answered ASSIGN. */
void roster_on_assigned(struct steps *steps, struct peer *worker, const struct message *m);

#endif

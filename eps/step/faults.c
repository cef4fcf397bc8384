#include "eps/step/faults.h"

#include "eps/job/damage.h"
#include "eps/step/membership.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

void faults_suspect(struct steps *steps, struct peer *worker, uint32_t id)
{
    struct job *job = steps->job;

    steps->fault.worker = id;
    snprintf(steps->fault.device, sizeof steps->fault.device, "%s", worker ? worker->device : "");
    if (!worker)
        return;
    if (relay_has_worker(job->relay, id)) /* it is not the first: the step is given up, and nobody loses a seat */
        return;
    if (!worker->suspect)
        log_line("worker %u (%s): its gradient of step %" PRIu64 " is not finite; its parts are computed again",
                 worker->id, worker->device, job->step + 1);
    worker->suspect = true;
    damage_look(job);
    membership_put_aside(steps, worker);
}

void faults_convict(struct steps *steps)
{
    char why[120];

    snprintf(why, sizeof why, "its gradient of step %" PRIu64 " was not finite, and was finite when computed again",
             steps->job->step + 1);
    for (struct peer *p = steps->job->peers->first; p; p = p->next)
        if (p->suspect && !p->refused) {
            p->suspect = false;
            membership_expel(steps, p, why, why);
        }
}

void faults_acquit(struct steps *steps)
{
    for (struct peer *p = steps->job->peers->first; p; p = p->next)
        p->suspect = false;
}

void faults_blame(struct steps *steps, struct peer *worker, const char *why)
{
    char reason[160];

    snprintf(reason, sizeof reason, "it was at fault: %s", why);
    membership_expel(steps, worker, reason, why);
}

void faults_end(struct steps *steps, uint64_t step)
{
    const char *device = steps->fault.device;

    damage_end_otherwise(steps->job, -EDOM,
                         "the gradient of step %" PRIu64 " is not finite, as worker %u%s%s%s has it: try a lower --lr",
                         step + 1, steps->fault.worker, *device ? " (" : "", device, *device ? ")" : "");
}

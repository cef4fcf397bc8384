/* Nobody is expelled on suspicion: a worker that is suspected leaves the step at once, its session only when the step
 * is covered and so its numbers can be finite. Of a step that is given up, all suspects go free together. Damaged
 * memory is asked about before anybody is blamed, as it makes every worker look guilty. */
#include "eps/step/faults.h"

#include "eps/job/damage.h"
#include "eps/step/commit.h"
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

enum { MOST_DAMAGED = 8 }; /* slices of a step: memory that changes faster than that lets no step end */

/* Of several hosts, an owner cannot have a slice sent anew; its fold may be of a step that is not open for this host's
 * workers yet. What is not finite of a fenced unit may be a sum without the damaged slice: nobody would be right to skip
 * the step for it. */
void faults_on_damaged(struct steps *steps, const struct updater_task *work)
{
    struct job *job = steps->job;
    const bool is_current = work->step == steps->open.open_step.step || work->kind == UPDATER_CHECK;

    if (work->result == -EBADMSG && job_is_sharded(job) && work->kind == UPDATER_FOLD) {
        damage_on_task(job, work);
        return;
    }
    if (!job_is_open(job) || damage_end(job))
        return;
    if (is_current && work->result == -EBADMSG) {
        damage_describe(&steps->damage, job, work);
        steps->n_damaged++;
        fence_forget_fold(&steps->fence, work->unit);
    }
    if (work->result != -EBADMSG || steps->n_damaged > MOST_DAMAGED) {
        damage_end_with(job, &steps->damage);
        return;
    }
    if (is_current)
        log_warning("%s; its part is computed again", steps->damage.text);
    steps->commit->optimized(steps, work);
}

void faults_end_torn(struct steps *steps, uint64_t step)
{
    if (steps->fault.worker)
        faults_end(steps, step, true);
    else if (steps->n_damaged > 0)
        damage_end_with(steps->job, &steps->damage);
    else
        job_end(steps->job, -EDOM,
                "step %" PRIu64 " was begun and could not be finished; the weights in memory are void", step + 1);
}

void faults_end(struct steps *steps, uint64_t step, bool torn)
{
    const char *device = steps->fault.device;
    const bool folded = torn && steps->job->facts.folded;

    damage_end_otherwise(steps->job, folded ? -EIO : -EDOM,
                         "the gradient of step %" PRIu64 " is not finite, as worker %u%s%s%s has it: %s", step + 1,
                         steps->fault.worker, *device ? " (" : "", device, *device ? ")" : "",
                         folded ? "some of it is in the moments already, so the model in memory is void; go on "
                                  "from the last checkpoint, as --restarts does, try a lower --lr, or --commit fenced, "
                                  "which skips such a step"
                                : "try a lower --lr");
}

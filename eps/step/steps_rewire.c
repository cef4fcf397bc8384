/* Places of sparse weights change between two steps. */
#include "eps/step/steps.h"

#include "eps/store/rewire.h"

#include <inttypes.h>

int steps_do_rewire(void *context)
{
    struct job *job = context;
    const struct rewired r = store_rewire(&job->store, job->step);

    log_line("step %" PRIu64 ": %" PRIu64 " of %" PRIu64 " sparse weights were below %g; %" PRIu64 " grow elsewhere",
             job->step, r.pruned, r.n, (double)r.threshold, r.grown);
    return 0;
}

void steps_on_rewired(struct steps *steps)
{
    steps->rewiring = false;
    if (job_is_open(steps->job))
        save_resume(steps->saves);
}

bool steps_must_rewire(const struct steps *steps)
{
    return rewire_is_due(&steps->job->store, steps->ahead.open_step.step);
}

bool steps_rewire(struct steps *steps)
{
    struct job *job = steps->job;
    const struct updater_task work = {.kind = UPDATER_CALL,
                                      .call = steps_do_rewire,
                                      .context = job,
                                      .trace = job_trace(job, &job->optimizer_trace)};

    if (job->step != steps->ahead.open_step.step || save_is_busy(steps->saves))
        return false;
    steps->rewiring = true;
    save_hold(steps->saves);
    updater_submit(job->peers->updater, &work);
    return true;
}

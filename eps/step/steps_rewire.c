/* Places of sparse weights change at the end of some steps. */
#include "eps/step/steps.h"

#include "eps/store/rewire.h"

#include <inttypes.h>

bool steps_rewires_before(const struct steps *steps, uint64_t step)
{
    return steps->rewires || rewire_is_due(&steps->job->store, step);
}

bool steps_rewires_after(struct steps *steps, uint64_t step)
{
    steps->rewires = rewire_is_due(&steps->job->store, step + 1);
    return steps->rewires;
}

int steps_do_rewire(void *context)
{
    struct job *job = context;
    struct trace *const track = job_trace(job, &job->optimizer_trace);
    const uint64_t since = trace_begin(track);
    const struct rewired r = store_rewire(&job->store, job->step + 1);

    if (track)
        trace_end(track, since, "rewire", NULL, (struct trace_arg[]){{"step", job->step + 1}, {NULL, 0}});
    log_line("step %" PRIu64 ": %" PRIu64 " of %" PRIu64 " sparse weights were below %g; %" PRIu64 " grow elsewhere",
             job->step + 1, r.pruned, r.n, (double)r.threshold, r.grown);
    return 0;
}

bool steps_rewire(struct steps *steps)
{
    struct job *job = steps->job;
    const struct updater_task work = {.kind = UPDATER_CALL, .call = steps_do_rewire, .context = job};

    if (!steps->rewires || steps->rewiring || !job_is_open(job) || save_is_busy(steps->saves))
        return false;
    steps->rewiring = true;
    save_hold(steps->saves);
    updater_submit(job->peers->updater, &work);
    return true;
}

void steps_on_rewired(struct steps *steps)
{
    steps->rewires = steps->rewiring = false;
    if (!job_is_open(steps->job))
        return;
    steps_end_step(steps);
    save_resume(steps->saves);
}

/* Workers that are attached, and take no part in the job. */
#include "eps/job/job.h"
#include "proto/base/log.h"

#include <errno.h>
#include <stdio.h>

void job_leave_out(struct job *job, struct peer *worker, const char *why)
{
    log_warning("worker %u (%s) is left out of the job: %s", worker->id, worker->device, why);
    worker->unfit = true;
    worker->announced_unfit = false;
    snprintf(worker->why_unfit.text, sizeof worker->why_unfit.text, "%s", why);
    error_set(&job->missed, 0, "worker %u (%s%s%s) is left out: %s", worker->id, worker->device,
              *worker->host ? " on " : "", worker->host, why);
}

/* Whoever shares the host may give memory back. */
static bool may_fit_later(const struct peer *worker, int code)
{
    return code == -ENOMEM || (code == -ENOSPC && worker->backend->takes_turns);
}

void job_pass_over(struct job *job, struct peer *worker, int code, const char *why)
{
    enum { FIRST_TICKS = 10, MOST_TICKS = 320 };
    const bool again = worker->retry_pause > 0;

    if (!job_is_open(job) || !may_fit_later(worker, code)) {
        job_leave_out(job, worker, why);
        return;
    }
    if (again)
        worker->unfit = true;
    else
        job_leave_out(job, worker, why);
    worker->retry_pause = again ? 2 * worker->retry_pause : FIRST_TICKS;
    if (worker->retry_pause > MOST_TICKS)
        worker->retry_pause = MOST_TICKS;
    worker->retry_ticks = worker->retry_pause;
}

void job_tick(struct job *job)
{
    for (struct peer *p = job->peers->first; p; p = p->next)
        if (p->retry_ticks > 0 && --p->retry_ticks == 0)
            p->unfit = false;
}

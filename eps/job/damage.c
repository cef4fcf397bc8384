/* Only the optimizer thread looks, as nobody else may read what it writes; the loop hears of it when the task comes
 * back. A reason to end that a damaged number may have caused waits for a look that begins after it: one that is under
 * way may have passed the place already. Looks are counted, as several may be on their way, and only the last one
 * acquits. */
#include "eps/job/damage.h"

#include "eps/store/checks.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>

#define REMEDY "go on from the last checkpoint, as --restarts does, and have this machine's memory tested"

bool damage_end(struct job *job)
{
    char what[ERROR_TEXT_BYTES / 2];

    if (!job_is_open(job) || !job_goal(job)->checks_memory || !checks_found(&job->store))
        return false;
    checks_text(what, sizeof what, &job->store);
    const bool in_step = job->state == JOB_STEPPING;
    job_end(job, -EIO, "host memory is damaged: %s step %" PRIu64 ", %s are not as they were written; " REMEDY,
            in_step ? "in" : "after", job->step + in_step, what);
    return true;
}

void damage_describe(struct error *out, const struct job *job, const struct updater_task *work)
{
    const struct job_seat *seat = work->context;
    const uint64_t step = work->kind == UPDATER_FOLD ? work->step : job->step;
    char unit[MODEL_NAME_BYTES], worker[32] = "a worker";

    if (seat)
        snprintf(worker, sizeof worker, "worker %u", seat->worker);
    snprintf(out->text, sizeof out->text,
             "host memory is damaged: in step %" PRIu64
             ", slice %u of the contribution of %s to unit %s is not as it was written",
             step + 1, work->slice, worker, model_unit_name(unit, &job->model, work->unit));
}

void damage_end_with(struct job *job, const struct error *what)
{
    job_end(job, -EIO, "%s; " REMEDY, what->text);
}

void damage_on_task(struct job *job, const struct updater_task *work)
{
    struct error what;

    if (!job_is_open(job) || damage_end(job))
        return;
    damage_describe(&what, job, work);
    damage_end_with(job, &what);
}

int damage_do_look(void *context)
{
    struct job *job = context;

    return checks_verify_all(&job->store);
}

void damage_look_before(struct job *job)
{
    const struct updater_task work = {.kind = UPDATER_CALL, .call = damage_do_look, .context = job};

    if (!job_goal(job)->checks_memory)
        return;
    job->verdict.n_looks++;
    updater_submit(job->peers->updater, &work);
}

void damage_look(struct job *job)
{
    if (job->verdict.n_looks == 0 && job_is_open(job))
        damage_look_before(job);
}

int damage_do_look_at_weights(void *context)
{
    struct job *job = context;

    return checks_verify_weights(&job->store);
}

bool damage_look_at_weights(struct job *job, void (*looked)(struct job *job))
{
    const struct updater_task work = {.kind = UPDATER_CALL, .call = damage_do_look_at_weights, .context = job};

    if (!job_goal(job)->checks_memory || job->verdict.looked)
        return false;
    job->verdict.looked = looked;
    updater_submit(job->peers->updater, &work);
    return true;
}

void damage_on_weights(struct job *job)
{
    void (*const looked)(struct job * job) = job->verdict.looked;

    job->verdict.looked = NULL;
    if (job_is_open(job) && !damage_end(job))
        looked(job);
}

void damage_end_otherwise(struct job *job, int code, const char *format, ...)
{
    struct error why;
    va_list args;

    va_start(args, format);
    vsnprintf(why.text, sizeof why.text, format, args);
    va_end(args);
    if (!job_goal(job)->checks_memory || !job_is_open(job)) {
        job_end(job, code, "%s", why.text);
        return;
    }
    if (damage_is_pending(job))
        return;
    job->verdict.code = code;
    job->verdict.why = why;
    damage_look_before(job); /* one that is under way may have passed what was damaged since */
}

void damage_on_looked(struct job *job)
{
    job->verdict.n_looks--;
    if (!damage_end(job) && damage_is_pending(job) && job->verdict.n_looks == 0)
        job_end(job, job->verdict.code, "%s", job->verdict.why.text);
}

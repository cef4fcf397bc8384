/* Who keeps a job waiting, and for how long: so that nothing waits for ever.
 *
 * Whatever the daemon waits for, somebody owes: a worker the answer to ASSIGN or RELEASE, its part of an evaluation, the
 * next loss or contribution of the step; the optimizer thread what it was given. Each has a count that goes up as it
 * works: of a worker's device operations, which comes with its PONGs; of jobs done, and of runs of a file read. Who owes
 * something and whose count stands still for too long hangs. A worker that waits for weights, for a slot or for its
 * next share owes nothing.
 *
 * Too long is 60 ticks, or eight times the longest silence that it has come back from, whichever is more. On top comes
 * what a single operation can take: memory that is claimed, given back, folded or updated, at 64 MiB/s; and of a device
 * that runs behind the host, which counts what is queued, eight times a step's computing by the plan. Ticks are the
 * daemon's own seconds: a machine that was suspended has had none.
 *
 * A worker that hangs loses its session, and with it the job that needs it ends. The optimizer thread cannot be taken
 * its memory away: so the client is told, and the daemon ends. A worker that counts without working is not found: it is
 * as a slow one. */
#include "eps/job/job_state.h"
#include "proto/plan/cost.h"

#include <errno.h>
#include <stdio.h>
#include <unistd.h>

enum {
    TICK_MS = 1000,
    MOST_QUIET = 60,        /* ticks */
    PATIENCE = 8,           /* times what has been seen, or planned */
    MEMORY_RATE = 64 << 20, /* bytes a tick */
    UPDATE_BYTES = 40,      /* of a parameter, read and written: weights, both moments, a sum */
};

bool watch_tick(struct watch *w, bool owes, uint64_t progress, unsigned most_quiet, double allowance)
{
    if (owes && progress == w->progress) {
        const unsigned shown = PATIENCE * w->slowest;
        return ++w->quiet > (shown > most_quiet ? shown : most_quiet) + allowance;
    }
    if (owes && w->slowest < w->quiet)
        w->slowest = w->quiet;
    w->quiet = 0;
    w->progress = progress;
    return false;
}

static bool has_parts(const struct job *job, const struct peer *peer)
{
    for (uint32_t i = 0; i < job->n_workers; i++)
        if (job->workers[i] == peer)
            return true;
    return false;
}

/* What the job waits for; NULL: for nothing of this worker's. Pulls that are not answered are ours to answer. */
static const char *owed_by(const struct daemon *d, const struct peer *worker)
{
    const struct job *job = &d->job;

    if (worker->state == PEER_ASSIGNING)
        return "the job waits for it to claim its memory";
    if (worker->state == PEER_RELEASING)
        return "the last job's memory waits for it to let go";
    if (worker->state == PEER_IDLE || !has_parts(job, worker))
        return NULL;
    if (job->state == JOB_EVALUATING && worker->evaluating)
        return "the job waits for its part of an evaluation";
    if (job->state == JOB_GENERATING)
        return "the job waits for the token that it computes";
    if (job->state == JOB_STEPPING && worker->n_pulls == 0 && !eps_updater_pending(d->updater) &&
        relay_owes(job->relay) == worker->id)
        return "the job waits for its part of the step";
    return NULL;
}

static double memory_ticks(uint64_t bytes)
{
    return (double)bytes / MEMORY_RATE;
}

static double allowance_of(const struct daemon *d, const struct peer *worker)
{
    const struct job *job = &d->job;
    struct plan_cost cost;

    if (worker->state != PEER_ASSIGNED)
        return memory_ticks(plan_total(&worker->plan) + job->host.total);
    if (worker->backend->takes_turns || profile_check(&worker->profile, NULL))
        return 0;
    plan_cost(&cost, &worker->plan, &job->model, &job->host_setting, &worker->profile);
    return PATIENCE * cost.compute_ms / TICK_MS;
}

static void watch_worker(struct daemon *d, struct peer *worker)
{
    const char *owed = worker->refused ? NULL : owed_by(d, worker);
    const bool hangs = watch_tick(&worker->watch, owed != NULL, session_peer_progress(worker->session), d->most_quiet,
                                  owed ? allowance_of(d, worker) : 0);
    char reason[160];

    if (!hangs)
        return;
    snprintf(reason, sizeof reason, "it hangs: nothing done for %u s, and %s", worker->watch.quiet, owed);
    peer_refuse(worker, reason);
}

/* A unit's update, its largest job; or all memory that it takes for a job, and what it reads then. */
static double optimizer_allowance(const struct job *job)
{
    uint64_t most = 0;

    if (job->state == JOB_LOADING)
        return memory_ticks(job->host.total);
    for (uint32_t u = 0; u < job->model.n_units; u++)
        if (most < job->model.units[u].n)
            most = job->model.units[u].n;
    return memory_ticks(most * UPDATE_BYTES);
}

/* The client has had a tick to read why. */
static void end_process(struct daemon *d)
{
    if (!d->stopping)
        session_unlisten(d->listener, NULL); /* its files at least */
    _exit(1);
}

static void watch_optimizer(struct daemon *d)
{
    const uint64_t done = eps_updater_taken(d->updater) + __atomic_load_n(&d->job.n_read, __ATOMIC_RELAXED);
    const bool hangs = watch_tick(&d->optimizer, eps_updater_pending(d->updater) > 0, done, d->most_quiet,
                                  optimizer_allowance(&d->job));

    if (d->hung)
        end_process(d);
    if (!hangs)
        return;
    d->hung = true;
    log_line("the optimizer thread hangs: nothing done for %u s; the daemon ends", d->optimizer.quiet);
    job_end(d, -EIO, "the daemon's optimizer thread hangs: nothing done for %u s; the daemon ends with it",
            d->optimizer.quiet);
}

static void on_tick(uv_timer_t *timer)
{
    struct daemon *d = timer->data;

    for (struct peer *p = d->peers; p; p = p->next)
        if (p->role == ROLE_WORKER)
            watch_worker(d, p);
    watch_optimizer(d);
}

void watch_start(struct daemon *d, unsigned most_quiet)
{
    d->most_quiet = most_quiet ? most_quiet : MOST_QUIET;
    uv_timer_init(d->loop, &d->watch);
    d->watch.data = d;
    uv_timer_start(&d->watch, on_tick, TICK_MS, TICK_MS);
}

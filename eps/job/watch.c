/* Finds who keeps a job waiting for too long, so that nothing waits for ever.
 *
 * Whatever the daemon waits for, somebody owes. A worker owes the answer to ASSIGN or RELEASE, its part of an
 * evaluation, or the next loss or contribution of the step. The optimizer thread owes what it was given. Each has a
 * count that rises as it works. A worker's counts device operations and comes with its PONGs. The optimizer thread's
 * counts tasks done and pieces of a load (eps/store/pieces.h). A party that owes something hangs if its count does not
 * rise for too long. A worker that waits for weights of the open step, for a slot or for its next share owes nothing.
 *
 * Too long is 60 ticks, or eight times the longest silence that it has come back from, whichever is more. Time for a
 * single operation is added: memory that is claimed, given back, folded or updated, at 64 MiB/s. A device that runs
 * behind the host counts queued operations: for it, eight times a step's computing by the plan is added. Ticks are
 * the daemon's own seconds: a suspended machine has none.
 *
 * A worker that hangs loses its session; others redo its parts (eps/step/membership.h). If the optimizer thread hangs
 * while it loads a job, in a file of a disk that does not answer, say, the job ends and is set aside with the thread
 * (eps/aside.h). In a step nobody can take memory away from it: the client is told, and the daemon ends.
 *
 * A worker may count without working. So what it owes has a deadline, too, whatever it counts: a share, rows of an
 * evaluation, tokens, an answer. Only ticks count in which others wait for it. The deadline is 600 ticks, or eight
 * times the longest that a share of as much work has taken this worker in this job, its own waiting included, whichever
 * is more. Before it has done such a share, nothing is known of its speed but what it says itself, which is not
 * believed. Then it has the time that its plan takes a device of 1 GFLOP/s, whose memory, or host, gives 64 MiB/s, or
 * 256 KiB/s by tcp. One core of any processor that runs eps (x86-64-v2) computes ten times as fast, so nine other
 * programs may share it. An honest worker is late only if it gets eight times slower than it ever was, and takes ten
 * minutes. */
#include "eps/job/watch.h"

#include "eps/job/evaluate.h"

#include "proto/plan/time/cost.h"

#include <errno.h>
#include <stdio.h>

enum {
    TICK_MS = 1000,
    MEMORY_RATE = 64 << 20, /* bytes a tick */
    UPDATE_BYTES = 40,      /* of a parameter, read and written: weights, both moments, a sum */
    REMOTE_RATE = 256 << 10,
    LEAST_FLOPS = 1000000000, /* a second */
};

static bool has_parts(const struct job *job, const struct peer *peer)
{
    for (uint32_t i = 0; i < job->n_workers; i++)
        if (job->workers[i] == peer)
            return true;
    return false;
}

/* What the job waits for from this worker; NULL: nothing. The daemon itself owes the answers to pulls. */
static const char *owed_by(struct job *job, const struct peer *worker)
{
    if (worker->state == PEER_ASSIGNING)
        return "the job waits for it to claim its memory";
    if (worker->state == PEER_RELEASING)
        return "its memory in a job waits for it to let go";
    if (worker->state == PEER_IDLE || worker->awaits || !has_parts(job, worker))
        return NULL;
    if (evaluate_has(job, worker))
        return job->state == JOB_GENERATING ? "the job waits for the token that it computes"
                                            : "the job waits for its part of an evaluation";
    if (job->state == JOB_STEPPING && !updater_pending(job->peers->updater) && relay_owes(job->relay) == worker->id)
        return "the job waits for its part of the step";
    return NULL;
}

static double memory_ticks(uint64_t bytes)
{
    return (double)bytes / MEMORY_RATE;
}

static double allowance_of(const struct job *job, const struct peer *worker)
{
    struct plan_cost cost;

    if (worker->state != PEER_ASSIGNED)
        return memory_ticks(plan_total(&worker->plan) + job->host.total);
    if (worker->backend->takes_turns || profile_check(&worker->profile, NULL))
        return 0;
    plan_cost(&cost, &worker->plan, &job->model, &job->host_setting, &worker->profile, NULL);
    return SILENCE_PATIENCE * cost.compute_ms / TICK_MS;
}

/* Ticks that the work planned for the worker takes on the slowest device. A RELEASE may find it still at that work. */
static double slowest_ticks(const struct job *job, const struct peer *worker)
{
    const double link = session_peer_uid(worker->session) == SESSION_REMOTE_USER ? REMOTE_RATE : MEMORY_RATE;
    struct profile slowest = {.link_bytes_per_s = link,
                              .memory_bytes_per_s = MEMORY_RATE,
                              .update_parameters_per_s = (double)MEMORY_RATE / UPDATE_BYTES};
    struct plan_cost cost;

    if (worker->state == PEER_ASSIGNING)
        return memory_ticks(plan_total(&worker->plan) + job->host.total);
    for (int type = 0; type < PROFILE_TYPES; type++) {
        for (int rows = 0; rows < PROFILE_ROWS; rows++)
            slowest.matmul_flops[type][rows] = LEAST_FLOPS;
        for (int direction = 0; direction < PROFILE_DIRECTIONS; direction++)
            slowest.attention_flops[direction][ATTENTION_PLAIN][type] = LEAST_FLOPS;
    }
    plan_cost(&cost, &worker->plan, &job->model, &job->host_setting, &slowest, NULL);
    const double ms = cost.compute_ms + cost.pull_ms + cost.push_ms + cost.stash_ms;
    const uint32_t n_times = job->state == JOB_GENERATING ? job_goal(job)->seq : 1; /* cost is a token's */
    return n_times * ms / TICK_MS + (worker->state == PEER_RELEASING ? memory_ticks(job->host.total) : 0);
}

static void watch_worker(const struct watch *watch, struct peer *worker)
{
    const struct job *job = watch->job;
    const char *owed = worker->refused ? NULL : owed_by(watch->job, worker);
    const bool hangs = silence_tick(&worker->silence, owed != NULL, session_peer_progress(worker->session),
                                    watch->most_quiet, owed ? allowance_of(job, worker) : 0);
    const bool is_late =
        deadline_tick(&worker->deadline, owed != NULL, watch->most_late, owed ? slowest_ticks(job, worker) : 0);
    char reason[160];

    if (!hangs && !is_late)
        return;
    if (hangs)
        snprintf(reason, sizeof reason, "it hangs: nothing done for %u s, and %s", worker->silence.ticks, owed);
    else
        snprintf(reason, sizeof reason, "it hangs: nothing finished for %u s, and %s", worker->deadline.waited, owed);
    peer_refuse(worker, reason);
}

/* Ticks for the largest operation of the optimizer thread: a unit's update; or the memory of a seat, or at the end of
 * the job, given back to the system in one call. A load consists of small pieces. */
static double optimizer_allowance(const struct job *job)
{
    uint64_t most = 0;

    if (job->loading)
        return 0;
    if (job->state == JOB_ENDING)
        return memory_ticks(job->host.total);
    for (uint32_t u = 0; u < job->model.n_units; u++)
        if (most < job->model.units[u].n_trained * UPDATE_BYTES)
            most = job->model.units[u].n_trained * UPDATE_BYTES;
    for (uint32_t i = 0; i < job->n_seats; i++)
        if (job->seats[i].renewing && most < job->host.inbox_bytes + job->seats[i].stash_bytes)
            most = job->host.inbox_bytes + job->seats[i].stash_bytes;
    return memory_ticks(most);
}

/* A thread that waits for a client which serves its files goes on as soon as the job has ended.
 * On several hosts the others' daemons wait for this one, whose job alone cannot be set aside. */
static bool hangs_loading(const struct job *job)
{
    return job->loading && job->facts.may_be_set_aside;
}

static void watch_optimizer(struct watch *watch)
{
    struct job *job = watch->job;
    const struct updater *updater = job->peers->updater;
    const uint64_t done = updater_taken(updater) + pieces_count(&job->load_pieces);

    if (!silence_tick(&watch->optimizer, updater_pending(updater) > 0, done, watch->most_quiet,
                      optimizer_allowance(job)))
        return;
    if (hangs_loading(job)) {
        job->hangs = !job->files || watch->optimizer.ticks > 2 * watch->most_quiet;
        job_end(job, -ETIMEDOUT, "loading the job hangs: nothing read for %u s; %s", watch->optimizer.ticks,
                job->files ? "is its client stopped, or does the disk of its files not answer?"
                           : "does the disk of its files answer?");
        return;
    }
    watch->hung = true;
    log_error("the optimizer thread hangs: nothing done for %u s; the daemon ends", watch->optimizer.ticks);
    job_end(job, -EIO, "the daemon's optimizer thread hangs: nothing done for %u s; the daemon ends with it",
            watch->optimizer.ticks);
}

bool watch_tick(struct watch *watch)
{
    const bool hung = watch->hung;

    for (struct peer *p = watch->job->peers->first; p; p = p->next)
        if (p->role == ROLE_WORKER)
            watch_worker(watch, p);
    watch_optimizer(watch);
    return hung;
}

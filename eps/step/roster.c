#include "eps/step/roster.h"

#include "eps/job/evaluate.h"
#include "proto/base/process.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- leaving ---------------------------------------------------------------------------------------------------- */

/* Removes the worker from those that get parts, if it is one of them. */
static void unlist(struct job *job, const struct peer *worker)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < job->n_workers; i++)
        if (job->workers[i] != worker)
            job->workers[n++] = job->workers[i];
    job->n_workers = n;
}

static void list(struct job *job, struct peer *worker)
{
    uint32_t i = job->n_workers++;

    for (; i > 0 && job->workers[i - 1]->id > worker->id; i--)
        job->workers[i] = job->workers[i - 1];
    job->workers[i] = worker;
}

/* Shares that workers were told ahead are not those that the step will open with. */
static void note_change(struct steps *steps)
{
    steps->n_changes++;
    steps->told_ahead = MESSAGE_NO_STEP;
}

static void end_job(struct job *job, const struct peer *worker, const char *reason)
{
    if (job->state == JOB_STEPPING)
        job_end(job, -EIO,
                "worker %u (%s) was lost in step %" PRIu64
                ": %s; its part of the step cannot be redone, so the run ends here",
                worker->id, worker->device, job->step + 1, reason);
    else
        job_end(job, -EIO, "worker %u (%s) was lost after %" PRIu64 " steps: %s; the run ends here", worker->id,
                worker->device, job->step, reason);
}

static void tell_client(const struct job *job, const struct peer *worker, const char *reason)
{
    struct message m = {.kind = MESSAGE_LOST};

    m.lost.worker = worker->id;
    m.lost.pid = (uint32_t)session_peer_pid(worker->session);
    m.lost.step = job->step;
    m.lost.waits = !job_has_room(job);
    snprintf(m.lost.device, sizeof m.lost.device, "%s", worker->device);
    snprintf(m.lost.error.text, sizeof m.lost.error.text, "%s", reason);
    session_send(job->client->session, &m);
}

void roster_leave(struct steps *steps, struct peer *worker, const char *reason)
{
    struct job *job = steps->job;
    struct job_seat *seat = job_find_seat(job, worker->id);

    if (!seat || seat->peer != worker)
        return;
    unlist(job, worker);
    if (!job_is_open(job) || !job_trains(job) || !relay_can_lose(job->relay, worker->id)) {
        seat->peer = NULL;
        end_job(job, worker, reason);
        return;
    }
    job_vacate(seat);
    note_change(steps);
    log_line("worker %u (%s) was lost after %" PRIu64 " steps: %s; %s", worker->id, worker->device, job->step, reason,
             job_has_room(job) ? "the others go on without it" : "the job waits for another worker");
    if (job->client)
        tell_client(job, worker, reason);
    if (job->state == JOB_EVALUATING)
        evaluate_on_left(job, worker);
}

/* ---- the relay --------------------------------------------------------------------------------------------------- */

/* Parts that the workers could still take into their memory. */
static uint32_t count_room(const struct job *job)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < job->n_seats; i++) {
        const struct peer *worker = job->seats[i].peer;
        const uint32_t load = worker ? relay_load(job->relay, worker->id) : 0;
        if (worker && load < job_most_parts(job))
            n += job_most_parts(job) - load;
    }
    return n;
}

/* True if it has sent all that it had to: then its inbox is waited for, and nothing is redone. */
static bool has_sent_all(const struct job *job, uint32_t worker)
{
    struct relay_part parts[MESSAGE_MAX_PARTS];

    return relay_load(job->relay, worker) > 0 && relay_missing(job->relay, worker, parts) == 0;
}

/* From here on its inbox counts no longer, and its parts are other workers'. */
static void tell_relay(struct steps *steps, struct job_seat *seat)
{
    const struct relay_event event = {.kind = RELAY_LOST, .worker = seat->left};

    seat->left = 0;
    steps_feed(steps, &event);
}

static bool may_tell(const struct job *job, const struct job_seat *seat, uint32_t room)
{
    return seat->left && !has_sent_all(job, seat->left) && relay_load(job->relay, seat->left) <= room;
}

/* ---- joining ---------------------------------------------------------------------------------------------------- */

/* Whom the seat fits; its plan is then made. */
static struct peer *find_candidate(const struct job_seat *seat)
{
    struct error err;

    for (struct peer *p = seat->job->hub->peers; p; p = p->next) {
        if (p->role != ROLE_WORKER || p->refused || p->unfit || p->state != PEER_IDLE)
            continue;
        if (!job_plan_seat(&p->plan, seat, p, &err))
            return p;
        log_line("worker %u cannot join the job: %s", p->id, err.text);
        memset(&p->plan, 0, sizeof p->plan);
        p->unfit = true;
    }
    return NULL;
}

/* The relay hears of the new worker first, so that it gets the parts of the one before. */
static void join(struct steps *steps, struct job_seat *seat, struct peer *worker)
{
    const struct relay_event event = {.kind = RELAY_ATTACHED, .worker = worker->id};

    worker->state = PEER_JOINING;
    seat->peer = worker;
    steps_feed(steps, &event);
    if (seat->left && job_is_open(steps->job))
        tell_relay(steps, seat);
}

static bool is_vacant(const struct job *job, const struct job_seat *seat)
{
    return !seat->peer && !seat->renewing && (!seat->left || !has_sent_all(job, seat->left));
}

bool roster_go_on(struct steps *steps)
{
    struct job *job = steps->job;

    if (!job_is_open(job) || !job_trains(job))
        return false;
    for (uint32_t i = 0; i < job->n_seats; i++) {
        struct job_seat *seat = &job->seats[i];
        struct peer *candidate;
        if (!seat->peer && may_tell(job, seat, count_room(job))) {
            tell_relay(steps, seat);
            return true;
        }
        if (is_vacant(job, seat) && (candidate = find_candidate(seat))) {
            join(steps, seat, candidate);
            return true;
        }
        if (seat->peer && seat->peer->state == PEER_JOINING && !seat->renewing && seat->n_folds == 0) {
            job_renew_seat(seat);
            return true;
        }
    }
    return false;
}

void roster_on_assigned(struct steps *steps, struct peer *worker, const struct message *m)
{
    struct job *job = steps->job;
    struct job_seat *seat = job_find_seat(job, worker->id);
    char arena[PROCESS_BYTES_TEXT];

    if (m->kind == MESSAGE_REFUSED) {
        log_line("worker %u cannot join the job: %s", worker->id, m->refused.error.text);
        worker->state = PEER_IDLE;
        worker->unfit = true;
        job_vacate(seat);
        return;
    }
    worker->state = PEER_ASSIGNED;
    list(job, worker);
    note_change(steps);
    log_line("worker %u joins after %" PRIu64 " steps: arena of %s", worker->id, job->step,
             process_format_bytes(arena, m->assigned.arena_bytes));
    if (job->state == JOB_STEPPING)
        steps_share(steps, worker);
    else if (job->state == JOB_EVALUATING)
        evaluate_go_on(job);
}

/* A lost worker leaves its seat at once, and the relay later (membership_feed_loss). Until then its inbox counts: what
 * it has sent is not computed again, and without replay a part that was begun could not be. An idle worker joins before
 * another one grows, which gives all of its share back first; suspects join last. Each iteration of the loop comes
 * here, and the plan of a large model takes long: so what did not fit is not tried again until n_changes has moved. */
#include "eps/step/membership.h"

#include "eps/base/rights.h"
#include "eps/job/evaluate.h"
#include "eps/step/audits.h"
#include "eps/step/commit.h"
#include "proto/base/process.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- leaving ---------------------------------------------------------------------------------------------------- */

static void membership_end_job(struct job *job, const struct peer *worker, const char *reason)
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

/* True if it has sent all that it had to: then its inbox is waited for, and nothing is redone. */
static bool has_sent_all(const struct job *job, uint32_t worker)
{
    struct relay_part parts[MESSAGE_MAX_PARTS];

    return relay_load(job->relay, worker) > 0 && relay_missing(job->relay, worker, parts) == 0;
}

/* ---- memory for more parts -------------------------------------------------------------------------------------- */

static uint32_t membership_larger(uint32_t a, uint32_t b)
{
    return a > b ? a : b;
}

static uint32_t membership_count_taken(const struct job *job)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < job->n_seats; i++)
        n += job_is_taken(&job->seats[i]);
    return n;
}

static uint32_t lacking_room(const struct job *job)
{
    const uint32_t n_parts = job->n_parts, room = job_room(job);

    return n_parts > room ? n_parts - room : 0;
}

/* A worker that has memory for more parts than it was planned for. */
struct grown {
    struct job_seat *seat;
    uint32_t n_parts;
};

/* Whether a worker can give its memory back now: it has nothing of the step, or another can redo what it has, and the
 * step waits for a worker anyway. */
static bool may_retire(const struct job *job, const struct peer *worker)
{
    return relay_load(job->relay, worker->id) == 0 ||
           (relay_n_waiting(job->relay) > 0 && relay_can_redo_all(job->relay, worker->id));
}

/* Whether a worker can give its memory back once the relay knows of a loss and what cannot be redone is finished. */
static bool may_retire_soon(const struct job *job, const struct peer *worker)
{
    return may_retire(job, worker) || relay_can_redo_all(job->relay, worker->id);
}

/* The most parts from `least` to `most` that a worker can be planned for in the seat, with that plan; 0: not even the
 * least. Fewer parts never need more memory. */
static uint32_t plan_most(struct plan *out, const struct job_seat *seat, const struct peer *worker, uint32_t least,
                          uint32_t most, struct error *err)
{
    uint32_t fits = least - 1, too_many = most + 1, n = most;
    struct plan plan;

    while (n > fits && n < too_many) {
        if (job_plan_seat(&plan, seat, worker, n, err) == 0) {
            fits = n;
            *out = plan;
        } else {
            too_many = n;
        }
        n = fits + (too_many - fits) / 2;
    }
    return fits < least ? 0 : fits;
}

/* The most parts up to `wanted` that the seat's worker can have room for, more than it has now; else 0. */
static uint32_t membership_find_room(const struct steps *steps, struct job_seat *seat, uint32_t wanted)
{
    const bool tried = seat->too_many && seat->tried == steps->n_changes;
    const uint32_t most = tried && seat->too_many <= wanted ? seat->too_many - 1 : wanted;
    struct plan plan;
    struct error err;

    const uint32_t n = most > seat->room ? plan_most(&plan, seat, seat->peer, seat->room + 1, most, &err) : 0;
    if (n < wanted) {
        seat->too_many = membership_larger(n, seat->room) + 1;
        seat->tried = steps->n_changes;
    }
    return n;
}

/* Finds a worker that can be planned at once for more parts, where room for all is lacking: for up to an equal share,
 * or else for all that is lacking. */
static bool find_grown(struct steps *steps, struct grown *out)
{
    struct job *job = steps->job;
    const uint32_t n_parts = job->n_parts, lacking = lacking_room(job), n = membership_count_taken(job);

    for (int all = 0; lacking > 0 && n > 0 && all < 2; all++)
        for (uint32_t i = 0; i < job->n_seats; i++) {
            struct job_seat *seat = &job->seats[i];
            const uint32_t wanted = all ? seat->room + lacking : (n_parts + n - 1) / n;
            if (!job_is_taken(seat) || wanted <= seat->room || !may_retire(job, seat->peer))
                continue;
            *out = (struct grown){seat, membership_find_room(steps, seat, wanted)};
            if (out->n_parts)
                return true;
        }
    return false;
}

/* Whether they will have room for all parts, planned anew one by one. */
static bool can_grow(struct steps *steps)
{
    struct job *job = steps->job;
    const uint32_t lacking = lacking_room(job);
    uint32_t room = 0;

    for (uint32_t i = 0; i < job->n_seats; i++) {
        struct job_seat *seat = &job->seats[i];
        if (job_is_taken(seat) && may_retire_soon(job, seat->peer))
            room += membership_larger(seat->room, membership_find_room(steps, seat, seat->room + lacking));
        else if (job_is_taken(seat))
            room += seat->room;
    }
    return room >= job->n_parts;
}

/* A private run's client starts another worker instead. */
static bool may_replan(const struct job *job)
{
    return job_trains(job) && !job->peers->is_private && (job->state == JOB_RESTING || job->state == JOB_STEPPING);
}

/* ---- leaving, continued ----------------------------------------------------------------------------------------- */

/* Whether the step waits, or will wait, for a worker that is not there. */
static bool lacks_workers(struct steps *steps)
{
    const struct job *job = steps->job;

    return job_trains(job) ? !job_has_room(job) && !(may_replan(job) && can_grow(steps)) : !job->n_workers;
}

/* LOST, for the client. */
static void send_lost(struct steps *steps, const struct peer *worker, enum message_loss how, bool waits,
                      const char *reason)
{
    const struct job *job = steps->job;
    struct message m = {.kind = MESSAGE_LOST, .lost = {.worker = worker->id, .how = how, .waits = waits}};

    m.lost.pid = (uint32_t)session_peer_pid(worker->session);
    m.lost.step = job->step;
    snprintf(m.lost.device, sizeof m.lost.device, "%s", worker->device);
    snprintf(m.lost.host, sizeof m.lost.host, "%s", worker->host);
    snprintf(m.lost.error.text, sizeof m.lost.error.text, "%s", reason);
    steps->commit->lost(steps, &m);
}

/* The worker has no seat any more. */
static void announce_loss(struct steps *steps, const struct peer *worker, const char *reason)
{
    const struct job *job = steps->job;
    const bool waits = lacks_workers(steps);

    log_warning("worker %u (%s) %s after %" PRIu64 " steps: %s; %s", worker->id, worker->device,
                worker->leaves ? "left" : "was lost", job->step, reason,
                waits ? "the job waits for another worker" : "the others go on without it");
    if (job_trains(job))
        send_lost(steps, worker, worker->leaves ? LOSS_TOLD : LOSS_WORKING, waits, reason);
}

/* Tells of a worker that was left out of the job. One that the job may not have is nothing to its client. */
static bool announce_unfit(struct steps *steps)
{
    const struct job *job = steps->job;
    struct error none;

    if (job->state == JOB_NONE || job->state == JOB_ENDING)
        return false;
    for (struct peer *p = job->peers->first; p; p = p->next)
        if (p->unfit && !p->announced_unfit) {
            p->announced_unfit = true;
            if (rights_compute(job->peers, p, job->uid, &none)) /* however many another user attaches */
                continue;
            send_lost(steps, p, LOSS_UNFIT, job_is_open(job) && lacks_workers(steps), p->why_unfit.text);
            return true;
        }
    return false;
}

/* Whether the job can go on without the worker. */
static bool can_lose(const struct job *job, const struct peer *worker)
{
    return job_is_open(job) && relay_can_lose(job->relay, worker->id);
}

static void membership_forget(struct steps *steps, struct peer *worker)
{
    job_unlist(steps->job, worker);
    steps->commit->leave(steps, worker);
    steps_note_change(steps);
    evaluate_on_left(steps->job, worker);
}

void membership_leave(struct steps *steps, struct peer *worker, const char *reason)
{
    struct job *job = steps->job;
    struct job_seat *seat = job_find_seat(job, worker->id);

    if (!seat || seat->peer != worker) {
        if ((worker->suspect || worker->accused) && !worker->refused &&
            job_is_open(job)) /* the job waits for another one */
            announce_loss(steps, worker, reason);
        return;
    }
    if ((job->state == JOB_LOADING || job->state == JOB_ASSIGNING) && (job->n_workers > 1 || !job->peers->is_private)) {
        job_unlist(job, worker);
        log_warning("worker %u (%s) was lost before the first step: %s; %s", worker->id, worker->device, reason,
                    job->n_workers ? "the others begin without it" : "it was the job's only one");
        error_set(&job->missed, 0, "worker %u (%s%s%s) was lost: %.400s", worker->id, worker->device,
                  *worker->host ? " on " : "", worker->host, reason);
        job_vacate(seat);
        send_lost(steps, worker, LOSS_EARLY, false, reason);
        return;
    }
    if (!can_lose(job, worker)) {
        job_unlist(job, worker);
        seat->peer = NULL;
        membership_end_job(job, worker, reason);
        return;
    }
    job_vacate(seat);
    membership_forget(steps, worker);
    announce_loss(steps, worker, reason);
}

void membership_expel(struct steps *steps, struct peer *worker, const char *reason, const char *why)
{
    const struct job_seat *seat = job_find_seat(steps->job, worker->id);

    if (seat && seat->peer == worker)
        membership_leave(steps, worker, reason);
    else
        announce_loss(steps, worker, reason);
    peer_refuse(worker, why);
}

void membership_on_leaving(struct steps *steps, struct peer *worker)
{
    struct job *job = steps->job;
    const struct job_seat *seat = job_find_seat(job, worker->id);
    const struct relay_event event = {.kind = RELAY_ROOM, .worker = worker->id, .room = 0};

    if (worker->leaves)
        return;
    worker->leaves = true;
    log_line("worker %u (%s) leaves%s", worker->id, worker->device,
             seat && seat->peer == worker ? " once its share is done" : "");
    if (!seat || seat->peer != worker || !job_is_open(job))
        return;
    steps_note_change(steps);
    steps_feed(steps, &event);
}

void membership_on_failed(struct steps *steps, struct peer *worker, const struct message *m)
{
    struct job *job = steps->job;
    const int code = m->failed.code ? m->failed.code : -EIO;
    bool others = false;
    struct error err;

    for (const struct peer *p = job->peers->first; p; p = p->next)
        others = others || (p != worker && p->role == ROLE_WORKER && !p->refused && !p->unfit && !p->leaves &&
                            !rights_compute(job->peers, p, job->uid, &err));
    if ((code != -EIO && !others) || steps->failed_in == job->step + 1 || !can_lose(job, worker)) {
        job_end(job, code, "worker %u (%s): %s", worker->id, worker->device, m->failed.error.text);
        return;
    }
    if (code != -EIO) /* a device may be lost for this process only; anything else would repeat in the next one */
        steps->failed_in = job->step + 1;
    membership_expel(steps, worker, m->failed.error.text, m->failed.error.text);
}

/* ---- the relay --------------------------------------------------------------------------------------------------- */

/* From here on its inbox counts no longer, and its parts are other workers'. */
static void membership_feed_loss(struct steps *steps, struct job_seat *seat)
{
    const struct relay_event event = {.kind = RELAY_LOST, .worker = seat->left};

    seat->left = 0;
    steps_feed(steps, &event);
}

/* Contributions that can neither be redone nor are missing are folded first. */
static bool may_feed_loss(const struct job *job, const struct job_seat *seat)
{
    return seat->left && !has_sent_all(job, seat->left) && relay_can_redo_all(job->relay, seat->left);
}

/* ---- joining ---------------------------------------------------------------------------------------------------- */

/* Parts that a worker which joins is planned for: an equal share, or what the others lack room for. */
static uint32_t wanted_parts(const struct job *job, const struct peer *worker)
{
    const uint32_t n_parts = job->n_parts, n = job_trains(job) ? membership_count_taken(job) + 1 : job->n_ranges;

    if (worker->n_parts)
        return worker->n_parts;
    return membership_larger((n_parts + n - 1) / n, job_trains(job) ? lacking_room(job) : 0);
}

/* As job_plan_seat, for as many parts as it can have. */
static int plan_candidate(struct peer *worker, const struct job_seat *seat, struct error *err)
{
    struct plan none;

    if (plan_most(&worker->plan, seat, worker, 1, wanted_parts(seat->job, worker), err) > 0)
        return 0;
    return job_plan_seat(&none, seat, worker, 1, err);
}

/* True if the relay has yet to hear that the worker left its last seat. */
static bool is_still_there(const struct job *job, const struct peer *worker)
{
    return job_is_open(job) && relay_has_worker(job->relay, worker->id);
}

/* Whom the seat fits; its plan is then made. One whose numbers were not finite is asked last. */
static struct peer *find_candidate(const struct job_seat *seat, bool suspect)
{
    struct error err;

    for (struct peer *p = seat->job->peers->first; p; p = p->next) {
        if (p->role != ROLE_WORKER || p->refused || p->unfit || p->leaves || p->suspect != suspect || p->accused ||
            p->state != PEER_IDLE || is_still_there(seat->job, p))
            continue;
        const int rc = plan_candidate(p, seat, &err);
        if (!rc)
            return p;
        memset(&p->plan, 0, sizeof p->plan);
        job_pass_over(seat->job, p, rc, err.text);
    }
    return NULL;
}

static void membership_join(struct steps *steps, struct job_seat *seat, struct peer *worker)
{
    job_take_seat(seat, worker);
    if (!job_is_open(steps->job)) { /* which tells the relay of all */
        job_list(steps->job, worker);
        return;
    }
    const struct relay_event event = {.kind = RELAY_ATTACHED, .worker = worker->id, .room = seat->room};
    steps_feed(steps, &event);
}

/* What an inbox that is kept holds may wait at another host for parts that are to be redone: whoever redoes them does
 * not wait for this inbox. */
static bool is_vacant(const struct job_seat *seat)
{
    return !seat->peer && !seat->renewing && !seat->left && (seat->n_folds == 0 || !seat->job->facts.keeps_inboxes);
}

static struct job_seat *find_vacant(struct job *job)
{
    for (uint32_t i = 0; i < job->n_seats; i++)
        if (is_vacant(&job->seats[i]))
            return &job->seats[i];
    return job_new_seat(job);
}

static bool join_one(struct steps *steps, bool suspect)
{
    struct job_seat *seat = find_vacant(steps->job);
    struct peer *worker = seat ? find_candidate(seat, suspect) : NULL;

    if (worker)
        membership_join(steps, seat, worker);
    return worker != NULL;
}

/* ---- going at the end of a share -------------------------------------------------------------------------------- */

void membership_put_aside(struct steps *steps, struct peer *worker)
{
    job_release_seat(job_find_seat(steps->job, worker->id));
    membership_forget(steps, worker);
}

/* Its seat is vacant then, and all that it has of the step, if anything, is others'. */
static void retire(struct steps *steps, struct job_seat *seat)
{
    const struct relay_event event = {.kind = RELAY_LOST, .worker = seat->peer->id};

    membership_put_aside(steps, seat->peer);
    steps_feed(steps, &event);
}

static bool retire_one(struct steps *steps)
{
    struct job *job = steps->job;

    for (uint32_t i = 0; i < job->n_seats; i++) {
        struct job_seat *seat = &job->seats[i];
        struct peer *worker = seat->peer;
        if (!worker || worker->state != PEER_ASSIGNED || !(worker->leaves || worker->n_parts) ||
            !may_retire(job, worker) || evaluate_has(job, worker))
            continue;
        retire(steps, seat);
        if (worker->leaves)
            announce_loss(steps, worker, "it was told to leave");
        return true;
    }
    return false;
}

/* Plans a worker anew for more parts. Nothing is tried twice in the same state. */
static bool grow_one(struct steps *steps)
{
    struct job *job = steps->job;
    struct grown grown;

    if (!may_replan(job) || job_has_room(job))
        return false;
    for (const struct peer *p = job->peers->first; p; p = p->next)
        if (p->state == PEER_JOINING || p->state == PEER_ASSIGNING || p->state == PEER_RELEASING)
            return false;
    if (!find_grown(steps, &grown))
        return false;
    log_line("worker %u is planned anew, for %u parts", grown.seat->peer->id, grown.n_parts);
    grown.seat->peer->n_parts = grown.n_parts;
    retire(steps, grown.seat);
    return true;
}

static bool dismiss_one(struct steps *steps)
{
    for (struct peer *p = steps->job->peers->first; p; p = p->next)
        if (p->leaves && p->state == PEER_IDLE && !p->refused) {
            p->refused = true;
            session_close(p->session);
            return true;
        }
    return false;
}

/* One seat's memory at a time: each is counted before the next is made. */
static bool is_renewing(const struct job *job)
{
    for (uint32_t i = 0; i < job->n_seats; i++)
        if (job->seats[i].renewing)
            return true;
    return false;
}

/* Rows or tokens that are left have nobody: unlike a run, this costs no more than to begin again. */
static bool end_without_workers(struct job *job)
{
    if (job_trains(job) || job->n_workers > 0)
        return false;
    for (uint32_t i = 0; i < job->n_seats; i++)
        if (job->seats[i].peer)
            return false;
    job_end(job, -EIO, "the job's last worker was lost or left, and no other one fits%s",
            job->peers->is_private ? "" : ": attach one with eps-worker --connect NAME, and begin again");
    return true;
}

/* Before the job is open, an idle worker takes the place of a missing one only if the others cannot do without. */
static bool replace_one(struct steps *steps)
{
    const struct job *job = steps->job;

    return (job->n_workers == 0 || (job_trains(job) && !job_has_room(job))) &&
           (join_one(steps, false) || join_one(steps, true));
}

/* Tells the client, who may wait for another worker and ask again. A job that was begun could only wait in silence. */
static bool end_unopened(struct steps *steps)
{
    struct job *job = steps->job;

    if (job->n_workers == 0)
        job_end(job, -EAGAIN, "no worker is left that can do this job: %.400s", job->missed.text);
    else if (job_is_open(job) && !job->peers->is_private && lacks_workers(steps))
        job_end(job, -EAGAIN, "the workers that are left have memory for %u of %u parts of a step: %.400s",
                job_room(job), job->n_parts, job->missed.text);
    else
        return false;
    return true;
}

/* Opens a job once all of its workers are assigned. */
static bool membership_open_job(struct steps *steps)
{
    struct job *job = steps->job;

    if (job->state != JOB_ASSIGNING)
        return false;
    for (uint32_t i = 0; i < job->n_seats; i++) {
        struct job_seat *seat = &job->seats[i];
        if (seat->renewing || (seat->peer && seat->peer->state == PEER_ASSIGNING))
            return false;
        if (seat->peer && seat->peer->state == PEER_JOINING) {
            job_renew_seat(seat);
            return true;
        }
    }
    if (replace_one(steps) || end_unopened(steps))
        return true;
    job_open(job);
    if (job_is_open(job) && !end_unopened(steps))
        steps->commit->ready(steps);
    return true;
}

bool membership_go_on(struct steps *steps)
{
    struct job *job = steps->job;

    if (dismiss_one(steps) || announce_unfit(steps) || membership_open_job(steps))
        return true;
    if (!job_is_open(job))
        return false;
    if (audits_give_up(steps))
        return true;
    const bool renewing = is_renewing(job);
    for (uint32_t i = 0; i < job->n_seats; i++) {
        struct job_seat *seat = &job->seats[i];
        if (!seat->peer && may_feed_loss(job, seat)) {
            membership_feed_loss(steps, seat);
            return true;
        }
        if (seat->peer && seat->peer->state == PEER_JOINING && !renewing && seat->n_folds == 0) {
            job_renew_seat(seat);
            return true;
        }
    }
    return retire_one(steps) || join_one(steps, false) || grow_one(steps) ||
           (!job_has_room(job) && join_one(steps, true)) || end_without_workers(job);
}

void membership_on_assigned(struct steps *steps, struct peer *worker, const struct message *m)
{
    struct job *job = steps->job;
    struct job_seat *seat = job_find_seat(job, worker->id);
    char arena[PROCESS_BYTES_TEXT];

    if (m->kind == MESSAGE_REFUSED && job->state != JOB_ENDING) {
        if (job->state == JOB_ASSIGNING &&
            job->peers->is_private) /* its client started it, and no other one would do */
            job_end(job, m->refused.code ? m->refused.code : -EPROTO, "%s", m->refused.error.text);
        else
            job_turn_away(seat, m->refused.code, m->refused.error.text);
        return;
    }
    if (!job_is_open(job)) {
        job_on_assigned(job, worker, m);
        return;
    }
    worker->state = PEER_ASSIGNED;
    worker->retry_pause = 0;
    job_list(job, worker);
    steps_note_change(steps);
    log_line("worker %u joins after %" PRIu64 " steps: arena of %s for %u part%s", worker->id, job->step,
             process_format_bytes(arena, m->assigned.arena_bytes), seat->room, seat->room > 1 ? "s" : "");
    if (job->state == JOB_STEPPING)
        steps_share(steps, worker);
    else
        evaluate_go_on(job);
}

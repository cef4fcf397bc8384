/* A review may give a worker more parts than it has memory for, if it can be planned for them. One that cannot is
 * limited to the room that it has, and the parts are divided again: at most once for each worker, and never without
 * room for all, as the shares that are divided now have it. */
#include "eps/step/shares.h"

#include <inttypes.h>
#include <stdio.h>

_Static_assert((int)THROUGHPUT_WORKERS >= (int)PEERS_MAX_WORKERS, "as many as a job can have");

/* The seats that get parts, in order of their workers. Returns their number. */
static uint32_t list_taken(struct job *job, struct job_seat *seats[PEERS_MAX_WORKERS])
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < job->n_workers; i++) {
        struct job_seat *seat = job_find_seat(job, job->workers[i]->id);
        if (job_is_taken(seat))
            seats[n++] = seat;
    }
    return n;
}

static void shares_divide(struct job *job, struct job_seat *const *seats, uint32_t n)
{
    struct throughput_share shares[PEERS_MAX_WORKERS];

    for (uint32_t i = 0; i < n; i++)
        shares[i] =
            (struct throughput_share){.part_ms = throughput_of(&seats[i]->peer->throughput), .room = seats[i]->room};
    throughput_divide(shares, n, job->n_parts);
    for (uint32_t i = 0; i < n; i++)
        seats[i]->n_parts = shares[i].n;
    job->divided = true;
}

void shares_find_owners(struct job *job, struct peer *owners[MESSAGE_MAX_PARTS])
{
    struct job_seat *seats[PEERS_MAX_WORKERS];
    const uint32_t n = list_taken(job, seats);
    uint32_t p = 0;

    if (!job->divided)
        shares_divide(job, seats, n);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < seats[i]->n_parts; j++)
            owners[p++] = seats[i]->peer;
}

/* The worker's parts of the step that `open` opens. Workers number the parts of all hosts; the relay, this host's. */
void shares_send(const struct job *job, struct peer *worker, const struct message *open, const struct relay_part *parts,
                 uint32_t n, struct shares_audit audit)
{
    struct message m = {.kind = MESSAGE_SHARE};

    if (n == 0 && audit.audit == UINT32_MAX)
        return;
    m.share.step = open->open_step.step;
    m.share.buffer = open->open_step.buffer;
    m.share.n_valid = open->open_step.n_valid;
    m.share.n_tokens = open->open_step.n_tokens;
    m.share.n = n;
    m.share.loss_scale = loss_scale_factor(&job->loss_scale);
    m.share.drop = open->open_step.drop;
    m.share.frozen = open->open_step.frozen;
    m.share.order = open->open_step.order;
    for (uint32_t i = 0; i < n; i++) {
        m.share.parts[i].part = job->first_part + parts[i].part;
        m.share.parts[i].attempt = parts[i].attempt;
    }
    progress_begin(&worker->progress, PHASE_FORWARD, n ? parts[0].part : 0, n);
    const bool audits = audit.audit != UINT32_MAX;
    m.share.audit = audits ? job->first_part + audit.audit + 1 : 0;
    m.share.audited = audit.audited != UINT32_MAX ? job->first_part + audit.audited + 1 : 0;
    throughput_begin(&worker->throughput, audits ? 0 : n); /* what it audits would count as its share */
    deadline_begin(&worker->deadline, open->open_step.step, n + audits, open->open_step.n_tokens);
    session_send(worker->session, &m);
}

/* Whether each has memory for its share, or can be planned for it: those that can are marked. If one cannot, its room
 * is the limit, and false is returned. */
static bool check_rooms(struct job_seat *const *seats, struct throughput_share *shares, uint32_t n)
{
    bool all = true;

    for (uint32_t i = 0; i < n; i++) {
        struct plan plan;
        struct error err;
        if (shares[i].n > seats[i]->room && job_plan_seat(&plan, seats[i], seats[i]->peer, shares[i].n, &err)) {
            shares[i].room = seats[i]->room;
            all = false;
        }
    }
    return all;
}

static void log_shares(const struct job *job, struct job_seat *const *seats, const struct throughput_share *shares,
                       uint32_t n)
{
    char text[400] = "";
    size_t used = 0;

    for (uint32_t i = 0; i < n && used < sizeof text; i++)
        used += (size_t)snprintf(text + used, sizeof text - used, "%s%u to worker %u", i ? ", " : "", shares[i].n,
                                 seats[i]->peer->id);
    log_line("shares follow speed after %" PRIu64 " steps: of %u parts, %s", job->step, job->n_parts, text);
}

void shares_review(struct steps *steps)
{
    struct job *job = steps->job;
    struct job_seat *seats[PEERS_MAX_WORKERS];
    struct throughput_share shares[PEERS_MAX_WORKERS];
    const uint32_t n = list_taken(job, seats), n_parts = job->n_parts;

    if (!job->divided || ++steps->n_unreviewed < THROUGHPUT_STEPS || n < 2)
        return;
    for (uint32_t i = 0; i < n; i++)
        shares[i] = (struct throughput_share){.part_ms = throughput_of(&seats[i]->peer->throughput),
                                              .room = n_parts,
                                              .n = seats[i]->n_parts};
    const double now_ms = throughput_time(shares, n);
    if (!(now_ms > 0))
        return;
    steps->n_unreviewed = 0;
    throughput_divide(shares, n, n_parts);
    if (!throughput_is_worth(now_ms, throughput_time(shares, n)))
        return;
    while (!check_rooms(seats, shares, n))
        throughput_divide(shares, n, n_parts);
    if (!throughput_is_worth(now_ms, throughput_time(shares, n)))
        return;
    for (uint32_t i = 0; i < n; i++)
        if (shares[i].n > seats[i]->room)
            seats[i]->peer->n_parts = shares[i].n;
    steps_note_change(steps); /* the next step divides them, when each has its memory */
    log_shares(job, seats, shares, n);
}

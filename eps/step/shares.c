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

static void divide(struct job *job, struct job_seat *const *seats, uint32_t n)
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
        divide(job, seats, n);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t j = 0; j < seats[i]->n_parts; j++)
            owners[p++] = seats[i]->peer;
}

/* Whether each has memory for its share, or can be planned for it: those that can are marked. If one cannot, its room is
 * the limit, and false is returned. */
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

/* eps/step/audits.c - chooses the audited part and its auditor, and says what came of it.
 *
 * steps.c asks audits_choose twice for a step that is announced ahead: when shares are announced, and when the relay
 * opens it. Both get the same answer unless workers or shares changed meanwhile, and then all shares are sent again. */
#include "eps/step/audits.h"

#include "eps/job/damage.h"
#include "eps/step/membership.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

static bool has_part(const struct job *job, struct peer *const *owners, const struct peer *worker)
{
    for (uint32_t p = 0; p < job->n_parts; p++)
        if (owners[p] == worker)
            return true;
    return false;
}

struct audits_choice audits_choose(const struct job *job, uint64_t step, struct peer *const *owners)
{
    const uint64_t every = job->request.job.audit_every;
    struct peer *able[PEERS_MAX_WORKERS];
    uint32_t n = 0;

    if (every == 0 || job_is_sharded(job) || (step + 1) % every != 0)
        return (struct audits_choice){0};
    const uint64_t audit = (step + 1) / every - 1;
    const uint32_t part = (uint32_t)(audit % job->n_parts);
    for (uint32_t i = 0; i < job->n_workers; i++)
        if (job->workers[i] != owners[part] && has_part(job, owners, job->workers[i]))
            able[n++] = job->workers[i];
    return (struct audits_choice){.auditor = n ? able[audit / job->n_parts % n] : owners[part], .part = part};
}

static struct peer *audits_find_peer(const struct steps *steps, uint32_t id)
{
    return peer_find_worker(steps->job->peers->first, id);
}

/* ---- digests ---------------------------------------------------------------------------------------------------- */

void audits_on_digest(struct steps *steps, struct peer *worker, const struct message *m)
{
    const struct job *job = steps->job;
    const struct relay_event event = {.kind = RELAY_DIGEST,
                                      .worker = worker->id,
                                      .name = {.step = m->digest.step,
                                               .visit = m->digest.visit,
                                               .part = m->digest.part - job->first_part,
                                               .slice = m->digest.slice},
                                      .digest = m->digest.digest};
    const bool is_over = m->digest.step < steps->n_over || m->digest.step < steps->fence.n_past,
               is_ahead = steps->has_ahead && m->digest.step == steps->ahead.open_step.step,
               is_outdated = steps->n_changes > 0 && m->digest.step == steps->open.open_step.step &&
                             !relay_is_auditor(job->relay, worker->id);

    if (is_over || (steps->n_changes > 0 && (is_ahead || is_outdated)))
        return;
    steps_feed(steps, &event);
}

bool audits_give_up(struct steps *steps)
{
    const struct job *job = steps->job;

    for (uint32_t i = 0; i < job->n_seats; i++) {
        const uint32_t left = job->seats[i].left;
        if (left && relay_audit_of(job->relay, left) != UINT32_MAX) {
            steps_feed(steps, &(struct relay_event){.kind = RELAY_UNAUDIT, .worker = left});
            return true;
        }
    }
    return false;
}

void audits_on_covered(struct steps *steps)
{
    const struct relay *relay = steps->job->relay;

    if (relay_audited(relay) == UINT32_MAX)
        return;
    if (relay_is_audited(relay))
        steps->n_audits++;
    else
        log_line("the audit of step %" PRIu64 " ended with its auditor", steps->open.open_step.step + 1);
}

/* ---- differences ------------------------------------------------------------------------------------------------- */

static const char *device_of(const struct peer *worker)
{
    return worker ? worker->device : "gone";
}

/* What it has sent of its share is outdated. */
static void restart(struct steps *steps, uint32_t id, const char *does)
{
    const struct job *job = steps->job;

    log_warning("audit of step %" PRIu64 ": results of part %u differ; worker %u (%s) %s it to see which is wrong",
                steps->open.open_step.step + 1, job->first_part + relay_audited(job->relay), id,
                device_of(audits_find_peer(steps, id)), does);
    steps->n_redone++;
    steps_note_change(steps);
}

void audits_recruit(struct steps *steps, uint32_t id)
{
    const struct job *job = steps->job;
    struct relay_part parts[MESSAGE_MAX_PARTS];
    struct peer *worker = audits_find_peer(steps, id);

    restart(steps, id, "audits");
    if (worker && worker->state == PEER_ASSIGNED && relay_missing(job->relay, id, parts) == 0)
        steps_share(steps, worker); /* no share follows */
}

void audits_try_again(struct steps *steps, uint32_t id)
{
    restart(steps, id, "computes again");
}

static void tell_why(char *out, size_t cap, uint64_t step)
{
    snprintf(out, cap, "its gradient of step %" PRIu64 " was wrong: two other results have the same bits", step);
}

/* Weights that changed between two workers' reads of them make two results, and no worker wrong. */
void audits_convict(struct steps *steps, uint32_t id)
{
    struct peer *worker = audits_find_peer(steps, id);
    const uint64_t step = steps->open.open_step.step + 1;
    char why[160];

    tell_why(why, sizeof why, step);
    if (!worker || worker->refused) {
        log_warning("worker %u, which has left: %s", id, why);
        return;
    }
    const struct job_seat *seat = job_find_seat(steps->job, id);
    if (seat && seat->peer == worker && worker->state == PEER_ASSIGNED) /* the relay has lost it already */
        membership_put_aside(steps, worker);
    if (job_goal(steps->job)->checks_memory) {
        worker->accused = step;
        damage_look_before(steps->job);
    } else {
        membership_expel(steps, worker, why, why);
    }
}

void audits_on_looked(struct steps *steps)
{
    char why[160];

    if (!job_is_open(steps->job) || steps->job->verdict.n_looks > 0)
        return;
    for (struct peer *p = steps->job->peers->first; p; p = p->next) {
        if (p->accused == 0)
            continue;
        tell_why(why, sizeof why, p->accused);
        p->accused = 0;
        if (!p->refused)
            membership_expel(steps, p, why, why);
    }
}

void audits_end(struct steps *steps, uint32_t owner, uint32_t auditor)
{
    struct job *job = steps->job;
    const uint64_t step = steps->open.open_step.step + 1;
    const uint32_t part = job->first_part + relay_audited(job->relay);

    if (owner == auditor)
        damage_end_otherwise(job, -EIO,
                             "audit of step %" PRIu64
                             ": worker %u (%s) has computed part %u with different results, and none twice: "
                             "its device or its memory is faulty",
                             step, owner, device_of(audits_find_peer(steps, owner)), part);
    else
        damage_end_otherwise(
            job, -EIO,
            "audit of step %" PRIu64
            ": workers %u (%s) and %u (%s) have computed part %u differently, and no third result says which is "
            "wrong: the device or the memory of one of them is faulty",
            step, owner, device_of(audits_find_peer(steps, owner)), auditor,
            device_of(audits_find_peer(steps, auditor)), part);
}

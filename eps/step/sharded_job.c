/* How a job begins and ends on all hosts. */
#include "eps/step/sharded_state.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- a job's beginning ------------------------------------------------------------------------------------------ */

/* All that an earlier job left is forgotten; hosts themselves stay. */
static void begin_sharing(struct sharded *s)
{
    assert(!s->shared);
    s->shared = true;
    s->announced_waits = s->end_said = s->end_heard = s->quiet_said = s->is_refused = false;
    s->opening = s->own_covered = s->local_covered = s->announced_covered = s->own_skipped = false;
    s->n_queue = s->n_folded = s->n_arrived = 0;
    s->n_held = s->n_left_norms = s->n_untold = 0;
    for (uint32_t h = 0; h < s->n; h++) {
        struct sharded_host *other = &s->others[h];
        other->is_granted = other->ready = other->waits = false;
        other->covered = other->done = 0;
        memset(other->is_sent, 0, sizeof other->is_sent);
        memset(other->slots, 0, sizeof other->slots);
    }
}

void sharded_forward(struct sharded *s)
{
    struct job *job = s->job;
    struct error err;

    const int rc = forward_print(&s->text, &s->text_bytes, job, &err);
    if (rc) {
        job_end(job, rc, "%s", err.text);
        return;
    }
    begin_sharing(s);
    job->lent = true;
    s->ops->expose(s->hosts, REGION_TEXT, s->text, s->text_bytes);
    sharded_say_all(s, &(struct host_message){.kind = HOST_JOB, .job = job->id, .bytes = s->text_bytes});
}

/* The job is never begun here, so its end is told at once, and awaited from host 0. */
static void sharded_job_refuse(struct sharded *s, int code, const char *why)
{
    struct host_message message = {.kind = HOST_END, .code = code};

    s->is_refused = s->end_said = true;
    snprintf(message.text, sizeof message.text, "%s", why);
    sharded_say(s, 0, &message);
}

/* Host 0 has one job after another, but its next one may be known here before this one's end is known from all. */
void sharded_on_job(struct sharded *s, const struct host_message *message)
{
    s->next_job = *message;
    s->has_next_job = true;
    s->next_has_ended = false;
}

bool sharded_begin_next(struct sharded *s)
{
    if (!s->has_next_job || s->shared || s->job->state != JOB_NONE)
        return false;
    s->has_next_job = false;
    begin_sharing(s);
    if (s->next_has_ended) {
        s->is_refused = s->end_said = s->end_heard = true;
        return true;
    }
    s->text_bytes = s->next_job.bytes;
    s->text = malloc(s->text_bytes);
    const struct sharded_fetch text = {.region = REGION_TEXT,
                                       .into = s->text,
                                       .bytes = s->text_bytes,
                                       .token = SHARDED_TOKEN_REQUEST};
    s->n_left_text = s->text ? sharded_fetch(s, &text) : 0;
    if (s->n_left_text == 0)
        sharded_job_refuse(s, -ENOMEM, "out of memory");
    return true;
}

/* Once for each job: the text has arrived. False also if it was refused here. */
bool sharded_take_request(struct sharded *s, struct forward *out)
{
    struct error err;

    if (!s->has_text)
        return false;
    s->has_text = false;
    if (s->end_heard) {
        s->is_refused = s->end_said = true;
        return false;
    }
    if (s->stops) {
        sharded_job_refuse(s, -ECANCELED, "the daemon was stopped");
        return false;
    }
    const int rc = forward_open(out, s->text, s->text_bytes, &err);
    if (rc)
        sharded_job_refuse(s, rc, err.text);
    return rc == 0;
}

void sharded_begun(struct sharded *s, const struct forward *forward)
{
    struct error err;

    s->job->id = s->next_job.job;
    s->job->lent = true;
    if (s->job->state == JOB_ENDING)
        return;
    const int rc = forward_check(forward, s->job, &err);
    if (rc)
        job_end(s->job, rc, "%s", err.text);
}

/* The job has its memory: opens `own`, whose workers are the hosts. -ENOMEM. */
static int sharded_job_open_own(struct sharded *s)
{
    struct job *job = s->job;
    const struct message *m = &job->request;
    const struct relay_config config = {
        .first_step = m->job.step,
        .n_parts = m->job.goal.n_parts,
        .n_slots = SHARDED_SLOTS - 1,
        .n_accumulators = job->store.n_accumulators,
        .adamw = plan_sums_parts(&m->job.goal),
        .deterministic = m->job.deterministic,
        .fenced = job_is_fenced(job),
        .replay = job_replays(job),
    };
    int rc = sharded_take_tables(s);

    if (!rc)
        rc = relay_open(&job->own, &config);
    for (uint32_t h = 0; !rc && h < s->n; h++) {
        const struct relay_action *actions;
        const struct relay_event event = {.kind = RELAY_ATTACHED, .worker = h, .room = m->job.goal.n_parts};
        rc = relay_feed(job->own, &event, &actions) < 0 ? -ENOMEM : 0;
    }
    ring_init(&s->ring, job->host.n_ring);
    s->n_opened = s->n_done = m->job.step;
    for (uint32_t h = 0; h < s->n; h++)
        s->others[h].covered = s->others[h].done = m->job.step;
    return rc;
}

void sharded_on_ready(struct sharded *s, uint32_t host)
{
    s->others[host].ready = true;
    for (uint32_t h = 0; h < s->n; h++)
        if (!s->others[h].ready)
            return;
    if (s->job->state != JOB_RESTING)
        return;
    s->job->aligned = true;
    job_announce_opened(s->job);
    save_aligned(s->steps->saves);
}

/* Regions are exposed before READY is said: from then on others may fetch. */
void sharded_get_ready(struct sharded *s)
{
    struct job *job = s->job;

    if (sharded_job_open_own(s)) {
        job_end_memory(job);
        return;
    }
    s->ops->expose(s->hosts, REGION_WEIGHTS, job->store.weights.base, job->store.weights.bytes);
    s->ops->expose(s->hosts, REGION_DATA, job->data.base, job->data.bytes);
    if (s->host == 0)
        sharded_on_ready(s, 0);
    else
        sharded_say(s, 0, &(struct host_message){.kind = HOST_READY});
}

/* ---- a job's end ------------------------------------------------------------------------------------------------ */

void sharded_on_end(struct sharded *s, uint32_t from, const struct host_message *message)
{
    char text[sizeof message->text];

    if (s->has_next_job) { /* it is not begun here */
        s->next_has_ended = true;
        return;
    }
    snprintf(text, sizeof text, "%s", message->text); /* ends with a 0 */
    s->end_heard = s->end_heard || s->host != 0;
    if (s->host == 0)
        job_end(s->job, message->code, "host %u: %s", from, text);
    else
        job_end(s->job, message->code, "%s", text);
}

/* The job has ended here: the others are told. */
static bool announce_end(struct sharded *s)
{
    struct job *job = s->job;
    struct host_message message = {.kind = HOST_END, .code = job->end_code};

    if (s->end_said || job->state != JOB_ENDING)
        return false;
    s->end_said = true;
    snprintf(message.text, sizeof message.text, "%s", job->end.text);
    s->end_heard = s->end_heard || s->host == 0;
    if (s->host == 0)
        sharded_say_all(s, &message);
    else if (!s->end_heard)
        sharded_say(s, 0, &message);
    s->n_fetches = 0;
    return true;
}

/* Once the optimizer thread reads none: another host may go on with the step until it hears of the end. */
static bool free_slots(struct sharded *s)
{
    bool any = false;

    if (!s->end_said || updater_pending(s->peers->updater) > 0)
        return false;
    for (uint32_t h = 0; h < s->n; h++)
        for (uint32_t k = 0; k < SHARDED_SLOTS; k++)
            if (h != s->host && s->others[h].slots[k].taken) {
                s->others[h].slots[k].taken = false;
                s->ops->free_slot(s->hosts, h, k);
                any = true;
            }
    return any;
}

static bool uses_others(const struct sharded *s)
{
    for (uint32_t h = 0; h < s->n; h++)
        for (uint32_t k = 0; k < SHARDED_SLOTS; k++)
            if (h != s->host && s->others[h].is_sent[k])
                return true;
    return s->n_fetching > 0;
}

/* Once every host has said the same, nobody uses another's memory for this job any more. */
static bool get_quiet(struct sharded *s)
{
    if (s->quiet_said || !s->end_said || !s->end_heard || uses_others(s))
        return false;
    s->quiet_said = true;
    sharded_say_all(s, &(struct host_message){.kind = HOST_QUIET});
    return true;
}

/* The inbox's pages go back to the system, while its addresses stay. */
static void sharded_job_forget_job(struct sharded *s)
{
    for (uint32_t r = 0; r < HOSTS_REGIONS; r++)
        s->ops->expose(s->hosts, r, NULL, 0);
    madvise(s->inbox, s->inbox_bytes, MADV_DONTNEED);
    free(s->text);
    s->text = NULL;
    for (uint32_t h = 0; h < s->n; h++) { /* fetches that were not begun */
        free(s->others[h].notes);
        s->others[h].notes = NULL;
        s->others[h].n_left_notes = 0;
    }
    s->shared = s->has_text = false;
    s->job->lent = false;
}

static bool part(struct sharded *s)
{
    if (!s->quiet_said || updater_pending(s->peers->updater) > 0)
        return false;
    for (uint32_t h = 0; h < s->n; h++)
        if (h != s->host && s->others[h].n_quiet == 0)
            return false;
    for (uint32_t h = 0; h < s->n; h++)
        s->others[h].n_quiet -= h != s->host;
    sharded_job_forget_job(s);
    return true;
}

/* In the order of a job's end: it is told, slots are freed, quiet is said, and all part. */
bool sharded_job_go_on(struct sharded *s)
{
    return s->shared && (announce_end(s) || free_slots(s) || get_quiet(s) || part(s));
}

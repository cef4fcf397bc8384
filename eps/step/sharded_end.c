/* The end of a step on several hosts: new weights come from their owners, and a checkpoint may follow. */
#include "eps/step/sharded_state.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- new weights ------------------------------------------------------------------------------------------------ */

static void announce_updated(struct sharded *s, const struct updater_task *work)
{
    sharded_say_all(s, &(struct host_message){.kind = HOST_UPDATED, .step = work->step, .unit = work->unit});
}

/* Swapped once the relay updates the unit and its owner's version is here, in whatever order. */
static void note_unit(struct sharded *s, uint32_t unit, enum sharded_unit flag)
{
    s->units[unit] |= (uint8_t)flag;
    if (s->units[unit] == (SHARDED_WANTED | SHARDED_HERE))
        s->arrived[s->n_arrived++] = unit;
}

/* A table that is kept here is copied into its other buffer, if it has two. */
static void sharded_end_on_updated(struct sharded *s, uint32_t from, const struct host_message *w)
{
    const struct job *job = s->job;
    const struct store *store = &job->store;

    if (w->unit >= job->model.n_units || s->owner[w->unit] != from || w->step != relay_version(job->relay, w->unit)) {
        job_end(s->job, -EPROTO, "host %u tells of a version that cannot be", from);
        return;
    }
    if (!store_keeps(store, w->unit)) {
        note_unit(s, w->unit, SHARDED_HERE);
        return;
    }
    const uint32_t buffer = job_replays(job) ? !store_buffer(store, w->unit, false) : 0;
    const struct sharded_fetch table = {.from = from,
                                        .region = REGION_WEIGHTS,
                                        .offset = store_weights_at(store, &s->owns[from], w->unit, buffer),
                                        .into = (char *)store->weights.base +
                                                store_weights_at(store, &store->own, w->unit, buffer),
                                        .bytes = job->model.units[w->unit].n_trained *
                                                 number_bytes(job_goal(job)->precision),
                                        .token = w->unit};
    s->n_left[w->unit] = sharded_fetch(s, &table);
}

void sharded_on_table_fetched(struct sharded *s, uint32_t unit)
{
    if (job_is_open(s->job))
        note_unit(s, unit, SHARDED_HERE);
}

void sharded_on_update(struct sharded *s, uint32_t unit)
{
    note_unit(s, unit, SHARDED_WANTED);
}

/* From now on, workers are answered with the unit's next version. */
static bool announce_arrived(struct sharded *s)
{
    if (s->n_arrived == 0)
        return false;
    const uint32_t unit = s->arrived[--s->n_arrived];
    s->units[unit] = 0;
    if (s->owner[unit] != s->host) {
        store_swap(&s->job->store, unit);
        s->turns[unit]++;
    }
    steps_feed(s->steps, &(struct relay_event){.kind = RELAY_UPDATED, .unit = unit});
    return true;
}

/* Local waits for it: own has updated the unit after the last of this host's slices, too. */
void sharded_on_updated(struct sharded *s, const struct updater_task *work)
{
    assert(s->units[work->unit] == SHARDED_WANTED);
    note_unit(s, work->unit, SHARDED_HERE);
    announce_arrived(s);
    announce_updated(s, work);
    sharded_feed(s, &(struct relay_event){.kind = RELAY_UPDATED, .unit = work->unit});
}

/* ---- the end of a step ------------------------------------------------------------------------------------------ */

/* A fenced step is covered on all hosts. They update their units, or none does. norm: NAN: the step is skipped. */
static void on_verdict(struct sharded *s, double norm)
{
    const uint64_t step = s->n_opened - 1;

    s->is_decided = true;
    if (isnan(norm))
        steps_skip(s->steps, step);
    else
        s->hyper.grad_scale = fence_commit(&s->steps->fence, norm, s->job->request.job.clip_norm);
    for (uint32_t u = 0; u < s->job->model.n_units && job_is_open(s->job); u++) {
        const bool due = s->units[u] & SHARDED_DUE, wanted = s->units[u] & SHARDED_WANTED;
        s->units[u] &= (uint8_t)~SHARDED_DUE;
        if (due && isnan(norm))
            sharded_feed(s, &(struct relay_event){.kind = RELAY_UPDATED, .unit = u});
        else if (due)
            sharded_submit(s, &(struct relay_action){.kind = RELAY_UPDATE, .unit = u});
        if (wanted && isnan(norm))
            note_unit(s, u, SHARDED_HERE);
    }
    if (!job_is_open(s->job))
        return;
    steps_on_covered(s->steps, step);
    if (s->local_done)
        sharded_on_done(s, step);
}

static void hear_verdict(struct sharded *s, const struct host_message *message)
{
    if (!job_is_fenced(s->job) || message->step != s->n_opened - 1 || !s->announced_covered || s->is_decided)
        job_end(s->job, -EPROTO, "host 0 tells of the end of a step that cannot be");
    else
        on_verdict(s, message->x);
}

static void sharded_end_decide(struct sharded *s, uint64_t step)
{
    const double norm = s->any_skipped ? NAN : fence_norm(&s->steps->fence);

    sharded_say_all(s, &(struct host_message){.kind = HOST_VERDICT, .step = step, .x = norm});
    on_verdict(s, norm);
}

/* Called on host 0 alone, which hears of all hosts. */
static void note_covered(struct sharded *s, uint32_t host, uint64_t step, bool skipped)
{
    s->others[host].covered = step + 1;
    s->any_skipped |= skipped;
    for (uint32_t h = 0; h < s->n; h++)
        if (s->others[h].covered <= step)
            return;
    if (job_is_fenced(s->job))
        sharded_end_decide(s, step);
    else
        steps_on_covered(s->steps, step);
}

/* Of the step that is open, once. */
static void hear_covered(struct sharded *s, uint32_t from, const struct host_message *message)
{
    if (s->host != 0 || message->step != s->n_opened - 1 || s->others[from].covered != message->step)
        job_end(s->job, -EPROTO, "host %u tells of the end of a step that cannot be", from);
    else
        note_covered(s, from, message->step, message->code != 0);
}

static void announce_squares(struct sharded *s, uint64_t step)
{
    for (uint32_t u = 0; u < s->job->model.n_units; u++)
        if (s->owner[u] == s->host && s->job->model.units[u].n_trained > 0)
            sharded_say(
                s, 0,
                &(struct host_message){.kind = HOST_SQUARES, .step = step, .unit = u, .x = s->steps->fence.squares[u]});
}

static void on_squares(struct sharded *s, uint32_t from, const struct host_message *message)
{
    if (message->unit >= s->steps->fence.n_units || s->owner[message->unit] != from)
        job_end(s->job, -EPROTO, "host %u tells of a gradient that cannot be", from);
    else
        fence_note_squares(&s->steps->fence, message->unit, message->x);
}

/* The step is folded as far as this host is concerned: its parts everywhere, its units of all parts. */
static bool announce_covered(struct sharded *s)
{
    const uint64_t step = s->n_opened - 1;

    if (!s->own_covered || !s->local_covered || s->announced_covered || ring_is_fetching(&s->ring, step) ||
        s->n_left_norms > 0)
        return false;
    s->announced_covered = true;
    if (s->host == 0) {
        note_covered(s, 0, step, s->own_skipped);
    } else {
        if (!job_is_fenced(s->job))
            steps_on_covered(s->steps, step);
        else if (!s->own_skipped)
            announce_squares(s, step);
        sharded_say(s, 0, &(struct host_message){.kind = HOST_COVERED, .step = step, .code = s->own_skipped});
    }
    if (!job_is_fenced(s->job) && s->local_done)
        sharded_on_done(s, step);
    return true;
}

static void note_done(struct sharded *s, uint32_t host, uint64_t step)
{
    s->others[host].done = step + 1;
    for (uint32_t h = 0; h < s->n; h++)
        if (s->others[h].done <= s->n_done)
            return;
    steps_on_done(s->steps, s->n_done++);
}

/* Of each step once, in their order, and after its COVERED. */
static void hear_done(struct sharded *s, uint32_t from, const struct host_message *message)
{
    const struct sharded_host *other = &s->others[from];

    if (s->host != 0 || message->step != other->done || message->step >= other->covered)
        job_end(s->job, -EPROTO, "host %u tells of weights of a step that cannot be", from);
    else
        note_done(s, from, message->step);
}

/* Others are told first that the step is covered. Local may be done before: it has skipped a fenced step, or a fetch is
 * still under way that nobody waits for any more. */
void sharded_on_done(struct sharded *s, uint64_t step)
{
    if (step == s->n_opened - 1 && !(job_is_fenced(s->job) ? s->is_decided : s->announced_covered)) {
        s->local_done = true;
        return;
    }
    if (s->host == 0) {
        note_done(s, 0, step);
        return;
    }
    steps_on_done(s->steps, step);
    sharded_say(s, 0, &(struct host_message){.kind = HOST_DONE, .step = step});
}

/* ---- workers that leave ----------------------------------------------------------------------------------------- */

void sharded_on_lost(struct sharded *s, const struct message *lost)
{
    struct host_message message = {.kind = HOST_LOST,
                                   .id = lost->lost.worker,
                                   .code = lost->lost.waits | (int)lost->lost.how << 1};

    snprintf(message.text, sizeof message.text, "%s\n%s\n%.400s", lost->lost.device, lost->lost.host,
             lost->lost.error.text);
    if (s->host == 0)
        job_announce(s->job, lost);
    else
        sharded_say(s, 0, &message);
}

/* The text is "device\nhost\nwhy", as sharded_on_lost wrote it. Any of them may be missing. */
static void hear_lost(struct sharded *s, uint32_t from, const struct host_message *message)
{
    struct message m = {.kind = MESSAGE_LOST};
    const size_t n_device = strcspn(message->text, "\n");
    const char *host = message->text + n_device + (message->text[n_device] != 0);
    const size_t n_host = strcspn(host, "\n");
    const char *why = host + n_host + (host[n_host] != 0);

    m.lost.worker = message->id;
    m.lost.step = s->job->step;
    m.lost.waits = message->code & 1;
    m.lost.how = message->code >> 1 & 3;
    snprintf(m.lost.device, sizeof m.lost.device, "%.*s of host %u", (int)n_device, message->text, from);
    snprintf(m.lost.host, sizeof m.lost.host, "%.*s", (int)n_host, host);
    snprintf(m.lost.error.text, sizeof m.lost.error.text, "%s", why);
    log_warning("host %u: worker %u %s: %s", from, message->id,
                m.lost.how == LOSS_UNFIT  ? "is left out"
                : m.lost.how == LOSS_TOLD ? "left"
                                          : "was lost",
                m.lost.error.text);
    job_announce(s->job, &m);
}

/* Host 0 tells a client of its own waits and of others' alike (others_wait). */
static bool announce_waits(struct sharded *s)
{
    const bool waits = steps_wait(s->steps);

    if (s->host == 0 || !job_is_open(s->job) || waits == s->announced_waits)
        return false;
    s->announced_waits = waits;
    sharded_say(s, 0, &(struct host_message){.kind = HOST_WAITS, .code = waits});
    return true;
}

static void hear_waits(struct sharded *s, uint32_t from, const struct host_message *message)
{
    s->others[from].waits = message->code != 0;
    s->job->others_wait = false;
    for (uint32_t h = 0; h < s->n; h++)
        s->job->others_wait |= s->others[h].waits;
}

/* ---- saves ------------------------------------------------------------------------------------------------------ */

/* Fetches the notes that another host has written for a save; of one save at a time. */
static void fetch_notes(struct sharded *s, uint32_t from, const struct host_message *message)
{
    struct sharded_host *other = &s->others[from];

    if (!save_wants_notes(s->steps->saves, message->id)) /* it has failed meanwhile, and they may be gone */
        return;
    if (other->n_left_notes > 0 || !save_may_have_notes(s->steps->saves, message->bytes)) {
        job_end(s->job, -EPROTO, "host %u tells of notes of a checkpoint that cannot be", from);
        return;
    }
    other->notes = malloc(message->bytes);
    other->n_notes_bytes = message->bytes;
    other->save = message->id;
    if (!other->notes) {
        job_end_memory(s->job);
        return;
    }
    other->n_left_notes = sharded_fetch(s, &(struct sharded_fetch){.from = from,
                                                                   .region = REGION_TEXT,
                                                                   .into = other->notes,
                                                                   .bytes = message->bytes,
                                                                   .token = SHARDED_TOKEN_NOTES + from});
}

/* What saves have to tell: host 0 all others, they host 0. The end of a save waits until its notes are fetched: they
 * are kept no longer. Its beginning does not wait: the next step may be opened at once. */
static bool announce_save(struct sharded *s)
{
    const void *notes;
    struct host_message message;

    bool is_fetching = false;

    for (uint32_t h = 0; h < s->n; h++)
        is_fetching = is_fetching || s->others[h].n_left_notes > 0;
    if (!save_next_word(s->steps->saves, &message, &notes, !is_fetching))
        return false;
    if (message.kind == HOST_RUNS)
        s->ops->expose(s->hosts, REGION_TEXT, notes, message.bytes);
    sharded_announce(s, &message);
    return true;
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

void sharded_on_message_of_end(struct sharded *s, uint32_t from, const struct host_message *message)
{
    if (message->kind == HOST_UPDATED)
        sharded_end_on_updated(s, from, message);
    else if (message->kind == HOST_SQUARES)
        on_squares(s, from, message);
    else if (message->kind == HOST_COVERED)
        hear_covered(s, from, message);
    else if (message->kind == HOST_VERDICT)
        hear_verdict(s, message);
    else if (message->kind == HOST_DONE)
        hear_done(s, from, message);
    else if (message->kind == HOST_LOST)
        hear_lost(s, from, message);
    else if (message->kind == HOST_WAITS)
        hear_waits(s, from, message);
    else if (message->kind == HOST_RUNS)
        fetch_notes(s, from, message);
}

bool sharded_end_go_on(struct sharded *s)
{
    return announce_save(s) || announce_covered(s) || announce_arrived(s) || announce_waits(s);
}

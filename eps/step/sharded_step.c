/* A step on several hosts: slices go to the owners of their units, and new weights come from them.
 *
 * Two relays run on each host. `local` has the host's workers and parts, of all units: to it, another host's owner is
 * an optimizer that takes slices. `own` has the host's units, of all parts: to it, each host is a worker with
 * SHARDED_SLOTS slots. A slice is folded once, by own at its owner, and local hears of it when the owner frees the
 * slot. So both keep the rules of one host, and neither knows of the other. */
#include "eps/step/commit.h"
#include "eps/step/sharded_state.h"
#include "proto/model/norms.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

/* ---- tables ----------------------------------------------------------------------------------------------------- */

/* One block holds all tables, so that the plan counts one number, and nothing is left behind after a failure. Tables
 * follow each other by falling alignment, without gaps. */
static void *carve(char **at, size_t n, size_t size)
{
    void *table = *at;

    *at += n * size;
    return table;
}

/* The tables have room for one fold of each slice: local has no more under way. -ENOMEM. */
int sharded_take_tables(struct sharded *s)
{
    struct job *job = s->job;
    const struct model *model = &job->model;
    const uint32_t n_units = model->n_units;
    struct error err;

    char *at = s->tables = job_take_table(job, 1, job->hosts_tables);
    if (!at)
        return -ENOMEM;
    s->owns = carve(&at, s->n, sizeof *s->owns); /* those that are aligned to 8 bytes, to 4, to none */
    s->turns = carve(&at, n_units, sizeof *s->turns);
    s->norms_told = carve(&at, n_units, sizeof *s->norms_told);
    s->norms_here = carve(&at, n_units, sizeof *s->norms_here);
    s->queue = carve(&at, model->n_slices, sizeof *s->queue);
    s->folded = carve(&at, model->n_slices, sizeof *s->folded);
    s->owner = carve(&at, n_units, sizeof *s->owner);
    s->not_own = carve(&at, n_units, sizeof *s->not_own);
    s->n_left = carve(&at, n_units, sizeof *s->n_left);
    s->arrived = carve(&at, n_units, sizeof *s->arrived);
    s->units = carve(&at, n_units, sizeof *s->units);
    assert(at == (char *)s->tables + job->hosts_tables);
    for (uint32_t h = 0; h < s->n; h++) {
        uint32_t first, n;
        const int rc = plan_divide(&first, &n, model, s->n, h, &err);
        assert(rc == 0); /* as when the job was planned */
        plan_own(&s->owns[h], model, job_goal(s->job)->precision, first, n);
        for (uint32_t u = first; u < first + n; u++)
            s->owner[u] = h;
    }
    /* Both relays give at most one task for each slice and each unit; some come besides. */
    return updater_reserve(s->peers->updater, 2 * ((size_t)model->n_slices + n_units) + PEERS_MAX_WORKERS + 7);
}

void sharded_free_tables(struct sharded *s)
{
    free(s->tables);
    s->tables = NULL;
    s->folded = NULL;
}

static uint32_t host_of_part(const struct sharded *s, uint32_t part)
{
    const uint64_t n_parts = job_goal(s->job)->n_parts;
    uint32_t h = 0;

    while (part >= n_parts * (h + 1) / s->n)
        h++;
    return h;
}

/* ---- slices on their way ---------------------------------------------------------------------------------------- */

/* From above, then part by part: as the relays fold. */
static bool is_before(const struct contribution_name *a, const struct contribution_name *b)
{
    return a->visit != b->visit ? a->visit > b->visit : a->part != b->part ? a->part < b->part : a->slice < b->slice;
}

/* A unit's slice has at most one fold under way, so unit and slice name it without its part. It is there: local gave it
 * out. */
static struct sharded_slice *find_slice(struct sharded *s, uint32_t unit, uint32_t slice)
{
    struct sharded_slice *x = s->queue;

    while (x->unit != unit || x->name.slice != slice)
        x++;
    assert(x < s->queue + s->n_queue);
    return x;
}

/* The order within the queue has no meaning: sharded_step_find_next looks for the first in fold order each time. */
static void unqueue(struct sharded *s, struct sharded_slice *x)
{
    *x = s->queue[--s->n_queue];
}

/* Kept for later (announce_folded): this may run while own carries out an action, and local is fed between events
 * alone. */
static void end_fold(struct sharded *s, const struct sharded_slice *x, int result)
{
    s->folded[s->n_folded++] = (struct sharded_folded){x->unit, x->name.slice, x->seat, result};
}

/* The optimizer thread looks whether it is finite, so that the worker at fault is known here. Fenced: its owner finds
 * it, and nobody is at fault. */
void sharded_on_fold(struct sharded *s, const struct relay_action *a)
{
    struct job *job = s->job;
    const struct model_unit *unit = &job->model.units[a->unit];
    struct job_seat *seat = job_find_seat(job, a->worker); /* its worker may be gone */
    struct updater_task work = {.kind = UPDATER_CHECK,
                                .unit = a->unit,
                                .slice = a->name.slice,
                                .n = model_slice_of(unit, a->name.slice).n};

    assert(seat && seat->worker == a->worker);
    seat->n_folds++;
    work.contribution.g = (const char *)seat->inbox.base + a->slot * job->host.slot_bytes;
    work.contribution.type = job_goal(job)->grad;
    work.contribution.has_sum = seat->sums != NULL;
    if (seat->sums)
        work.contribution.sum = seat->sums[a->slot];
    struct sharded_slice *x = &s->queue[s->n_queue++];
    *x = (struct sharded_slice){.name = a->name,
                                .unit = a->unit,
                                .seat = seat,
                                .data = work.contribution.g,
                                .sum = work.contribution.sum,
                                .bytes = work.n * number_bytes(work.contribution.type)};
    x->name.part += job->first_part;
    x->checked = job_is_fenced(job);
    if (!x->checked)
        updater_submit(s->peers->updater, &work);
}

static void sharded_step_on_checked(struct sharded *s, const struct updater_task *work)
{
    struct sharded_slice *x = find_slice(s, work->unit, work->slice);

    x->checked = true;
    if (work->result == 0)
        return;
    end_fold(s, x, work->result);
    unqueue(s, x);
}

/* A slot of the owner that the slice may go into; SHARDED_SLOTS: none. */
static uint32_t sharded_step_find_slot(const struct sharded_host *owner, const struct contribution_name *name)
{
    const struct host_message *grant = &owner->grant;
    uint32_t k = 1;

    while (k < SHARDED_SLOTS && owner->is_sent[k])
        k++;
    /* Slot 0 is reserved: it takes what the owner has granted by name, when all ordinary slots are in use. */
    if (k == SHARDED_SLOTS && owner->is_granted && !owner->is_sent[0] && grant->step == name->step &&
        grant->visit == name->visit && grant->part == name->part && grant->slice == name->slice)
        k = 0;
    return k;
}

/* The first that can be sent. A slice must not overtake the messages before it. */
static struct sharded_slice *sharded_step_find_next(struct sharded *s, uint32_t *slot)
{
    struct sharded_slice *next = NULL;

    for (struct sharded_slice *x = s->queue; x < s->queue + s->n_queue; x++) {
        const struct sharded_host *owner = &s->others[s->owner[x->unit]];
        const uint32_t k =
            x->checked && owner->n_messages == 0 ? sharded_step_find_slot(owner, &x->name) : SHARDED_SLOTS;
        if (k == SHARDED_SLOTS || (next && !is_before(&x->name, &next->name)))
            continue;
        next = x;
        *slot = k;
    }
    return next;
}

static void sharded_step_free_slot(struct sharded *s, uint32_t host, uint32_t slot)
{
    if (host == s->host) {
        sharded_on_freed(s, host, slot);
        return;
    }
    s->others[host].slots[slot].taken = false;
    s->ops->free_slot(s->hosts, host, slot);
}

/* Another host's slice: fed to own, or freed if own has skipped the step, of which others still send what they have. */
static void feed_contribution(struct sharded *s, uint32_t host, uint32_t slot, const struct host_message *message)
{
    if (s->own_skipped) {
        sharded_step_free_slot(s, host, slot);
        return;
    }
    sharded_feed(s, &(struct relay_event){.kind = RELAY_CONTRIBUTION,
                                          .worker = host,
                                          .slot = slot,
                                          .name = {.step = message->step,
                                                   .visit = message->visit,
                                                   .part = message->part,
                                                   .slice = message->slice}});
}

static bool send_next(struct sharded *s)
{
    uint32_t slot;
    struct sharded_slice *x = sharded_step_find_next(s, &slot);
    uint8_t buf[HOST_MESSAGE_MAX_BYTES];

    if (!x)
        return false;
    const uint32_t to = s->owner[x->unit];
    const struct host_message message = {.kind = HOST_SLICE,
                                         .step = x->name.step,
                                         .visit = x->name.visit,
                                         .part = x->name.part,
                                         .slice = x->name.slice,
                                         .sum = x->sum};
    /* unqueue moves another slice to the place of this one. */
    const struct sharded_slice sent = *x;
    s->others[to].is_sent[slot] = true;
    s->others[to].sent[slot] = sent;
    unqueue(s, x);
    if (to == s->host)
        feed_contribution(s, to, slot, &message);
    else
        s->ops->send_slice(s->hosts, to, slot, buf, host_message_encode(buf, &message), sent.data, sent.bytes);
    return true;
}

/* The job may be over already, and its tables freed; a slot is marked free all the same, as slots outlive jobs. */
void sharded_on_freed(struct sharded *s, uint32_t owner, uint32_t slot)
{
    struct sharded_host *other = &s->others[owner];

    assert(other->is_sent[slot]);
    other->is_sent[slot] = false;
    if (s->folded)
        end_fold(s, &other->sent[slot], 0);
}

/* Tells local of one fold. One a call: what local does upon it may make another event due first (drain_take_next). */
static bool announce_folded(struct sharded *s)
{
    if (s->n_folded == 0)
        return false;
    const struct sharded_folded f = s->folded[0];
    memmove(s->folded, s->folded + 1, --s->n_folded * sizeof *s->folded);
    f.seat->n_folds--;
    const struct updater_task folded = {.kind = UPDATER_FOLD, .unit = f.unit, .slice = f.slice, .result = f.result};
    const struct relay_event event = commit_event(&folded);
    steps_feed(s->steps, &event);
    return true;
}

/* ---- own -------------------------------------------------------------------------------------------------------- */

/* Where a slice is that a host has sent: in its slot here, or still in the inbox of this host's worker. */
static const void *find_contribution(const struct sharded *s, uint32_t host, uint32_t slot)
{
    return host == s->host ? s->others[host].sent[slot].data
                           : s->inbox + ((size_t)host * SHARDED_SLOTS + slot) * MODEL_SLICE * sizeof(float);
}

/* Its sender's sum of it. */
static struct block_sum find_sum(const struct sharded *s, uint32_t host, uint32_t slot)
{
    return host == s->host ? s->others[host].sent[slot].sum : s->others[host].slots[slot].message.sum;
}

void sharded_submit(struct sharded *s, const struct relay_action *a)
{
    struct updater_task work = commit_task(s->steps, s->job->own, a);

    work.hyper = s->hyper;
    if (a->kind == RELAY_FOLD) {
        work.contribution.g = find_contribution(s, a->worker, a->slot);
        work.contribution.has_sum = job_goal(s->job)->checks_memory;
        work.contribution.sum = find_sum(s, a->worker, a->slot);
    }
    updater_submit(s->peers->updater, &work);
}

static void sharded_step_grant(struct sharded *s, const struct relay_action *a)
{
    struct sharded_host *own = &s->others[s->host];
    const struct host_message message = {
        .kind = HOST_GRANT, .step = a->name.step, .visit = a->name.visit, .part = a->name.part, .slice = a->name.slice};

    if (a->worker != s->host) {
        sharded_say(s, a->worker, &message);
        return;
    }
    own->is_granted = true;
    own->grant = message;
}

/* Unless the commit is fenced, each host has seen its losses and slices to be finite. */
static void end_changed(struct job *job, uint64_t step)
{
    job_end(job, -EPROTO, "step %" PRIu64 " cannot be finished: its numbers changed on their way", step + 1);
}

/* Carries out one action of own. Whatever local must hear is left for sharded_go_on. */
static void sharded_step_act(struct sharded *s, const struct relay_action *a)
{
    switch (a->kind) {
    case RELAY_FOLD:
        sharded_submit(s, a);
        break;
    case RELAY_UPDATE:
        if (job_is_fenced(s->job))
            s->units[a->unit] |= SHARDED_DUE;
        else
            sharded_submit(s, a);
        break;
    case RELAY_FREE:
        sharded_step_free_slot(s, a->worker, a->slot);
        break;
    case RELAY_GRANT:
        sharded_step_grant(s, a);
        break;
    case RELAY_COVERED:
        s->own_covered = true;
        break;
    case RELAY_REFUSE:
        assert(!a->to_reader);
        job_end(s->job, -EPROTO, "what came from host %u does not fit the step: %s", a->worker, a->why);
        break;
    case RELAY_SKIPPED:
        s->own_skipped = job_is_fenced(s->job);
        if (!s->own_skipped)
            end_changed(s->job, a->step);
        break;
    case RELAY_TORN:
        end_changed(s->job, a->step);
        break;
    case RELAY_CAPTURE:
        save_on_capture(s->steps->saves, a);
        break;
    case RELAY_AUDIT: /* no step of several hosts is audited */
    case RELAY_AGAIN:
    case RELAY_REDO: /* local alone hears of damage */
    case RELAY_LIAR:
    case RELAY_UNDECIDED:
    case RELAY_SHARE: /* the hosts know their parts */
    case RELAY_ANSWER:
    case RELAY_DONE: /* local says so */
    case RELAY_SAVED:
    case RELAY_ABANDON:
        break;
    }
}

/* Own may end the job by what it does; its remaining actions are then void. */
void sharded_feed(struct sharded *s, const struct relay_event *event)
{
    struct job *job = s->job;
    const struct relay_action *actions;
    const int n = job_is_open(job) ? relay_feed(job->own, event, &actions) : 0;

    if (n < 0)
        job_end_memory(job);
    for (int i = 0; i < n && job_is_open(job); i++)
        sharded_step_act(s, &actions[i]);
}

/* The sum is noted even if own needs it no more: host 0 reports the loss of all parts. */
static void sharded_step_feed_loss(struct sharded *s, uint32_t host, const struct host_message *message)
{
    s->steps->part_loss[message->part] = message->x;
    s->steps->part_rewards[message->part] = message->rewards;
    if (s->own_covered) /* skipped, or all that this host owns is frozen */
        return;
    sharded_feed(s, &(struct relay_event){.kind = RELAY_LOSS,
                                          .worker = host,
                                          .name = {.step = message->step, .part = message->part},
                                          .ok = isfinite(message->x)});
}

/* Every host must know every loss to be finite before it folds anything of the step, as one host does. */
void sharded_on_loss(struct sharded *s, uint32_t part, double sum)
{
    const struct host_message message = {
        .kind = HOST_LOSS, .step = s->n_opened - 1, .part = part, .x = sum, .rewards = s->steps->part_rewards[part]};

    sharded_say_all(s, &message);
    sharded_step_feed_loss(s, s->host, &message);
}

/* ---- opening ---------------------------------------------------------------------------------------------------- */

/* Parts are given to hosts as workers have them on one host. Units of others count as frozen: own never updates them,
 * and their visits keep their numbers, so a name means the same on all hosts. */
static void sharded_step_open_own(struct sharded *s, uint64_t step)
{
    struct job *job = s->job;
    const struct model *model = &job->model;
    const uint32_t n_parts = job_goal(job)->n_parts;
    uint32_t owners[MESSAGE_MAX_PARTS], *others = s->not_own, n = 0;

    for (uint32_t p = 0; p < n_parts; p++)
        owners[p] = host_of_part(s, p);
    for (uint32_t u = 0; u < model->n_units; u++)
        if (s->owner[u] != s->host || model->units[u].n_trained == 0)
            others[n++] = u;
    sharded_feed(s, &(struct relay_event){.kind = RELAY_OPEN,
                                          .step = step,
                                          .visits = model->visits,
                                          .n_slices = s->steps->slices,
                                          .n_visits = model->n_visits,
                                          .frozen = others,
                                          .n_frozen = n,
                                          .owners = owners,
                                          .n_owners = n_parts});
}

/* What came for this step before it was open here: losses first, as they were sent. */
static void take_held(struct sharded *s)
{
    const uint32_t n = s->n_held;

    s->n_held = 0;
    for (uint32_t i = 0; i < n && job_is_open(s->job); i++)
        sharded_step_feed_loss(s, s->held_from[i], &s->held[i]);
    for (uint32_t h = 0; h < s->n; h++)
        for (uint32_t k = 0; k < SHARDED_SLOTS; k++) {
            struct sharded_slot *slot = &s->others[h].slots[k];
            if (slot->held && job_is_open(s->job)) {
                slot->held = false;
                feed_contribution(s, h, k, &slot->message);
            }
        }
}

static void announce_open(struct sharded *s, const struct message *m)
{
    sharded_say_all(s, &(struct host_message){.kind = HOST_OPEN,
                                              .step = m->open_step.step,
                                              .buffer = m->open_step.buffer,
                                              .n_tokens = m->open_step.n_tokens,
                                              .n_valid = m->open_step.n_valid,
                                              .n_real = m->open_step.n_real,
                                              .x = m->open_step.lr});
}

/* Saves that began before the first step: their readers come before anything of it is folded. */
static void announce_readers(struct sharded *s)
{
    uint32_t reader;

    while (job_is_open(s->job) && save_take_reader(s->steps->saves, &reader))
        sharded_feed(s, &(struct relay_event){.kind = RELAY_SAVE, .reader = reader});
}

/* The order counts. Others are told first, so that they fetch the minibatch meanwhile. All flags are reset before own's
 * open, which may cover the step at once if nothing of it is this host's. What came early is fed last. */
void sharded_open_step(struct sharded *s, const struct message *m)
{
    if (s->host == 0)
        announce_open(s, m);
    s->own_covered = s->local_covered = s->announced_covered = false;
    s->own_skipped = s->any_skipped = s->is_decided = s->local_done = false;
    s->job->aligned = false;
    s->n_opened = m->open_step.step + 1;
    s->hyper = steps_hyper(s->job, m);
    steps_clear(s->steps);
    ring_begin(&s->ring, m->open_step.step);
    sharded_step_open_own(s, m->open_step.step);
    if (m->open_step.step == s->job->request.job.step)
        announce_readers(s);
    sharded_open_norms(s);
    take_held(s);
}

/* One buffer of the two that minibatches alternate between: while this one is fetched, workers may still read the
 * other. */
static void sharded_step_on_open(struct sharded *s, const struct host_message *w)
{
    const struct job *job = s->job;
    const struct plan_data data = plan_data_of(job_goal(job), job->model.config.n_labels);
    const uint64_t first = data.buffers[w->buffer & 1].at[PLAN_FIELD_IDS],
                   end = w->buffer & 1 ? data.logits : data.buffers[1].at[PLAN_FIELD_IDS];

    s->open = (struct message){.kind = MESSAGE_OPEN_STEP,
                               .open_step = {.step = w->step,
                                             .buffer = w->buffer,
                                             .n_valid = w->n_valid,
                                             .n_tokens = w->n_tokens,
                                             .n_real = w->n_real,
                                             .lr = w->x}};
    s->n_left_data = sharded_fetch(s, &(struct sharded_fetch){.region = REGION_DATA,
                                                              .offset = first,
                                                              .into = (char *)job->data.base + first,
                                                              .bytes = end - first,
                                                              .token = SHARDED_TOKEN_DATA});
}

void sharded_on_data_fetched(struct sharded *s)
{
    if (job_is_open(s->job))
        steps_open(s->steps, &s->open);
}

/* ---- events ----------------------------------------------------------------------------------------------------- */

/* A host that is ahead may send for a step that is not open here. Its slots bound how much: such a slice stays in its
 * slot. */
void sharded_on_slice(struct sharded *s, uint32_t from, uint32_t slot, const struct host_message *message)
{
    s->others[from].slots[slot] = (struct sharded_slot){.taken = true, .message = *message};
    if (message->step >= s->n_opened)
        s->others[from].slots[slot].held = true;
    else
        feed_contribution(s, from, slot, message);
}

/* What another host says is judged before it is used as an index, and what is held is bounded by the parts of a
 * step. */
static void sharded_step_on_loss(struct sharded *s, uint32_t from, const struct host_message *message)
{
    if (message->part >= job_goal(s->job)->n_parts || s->n_held == MESSAGE_MAX_PARTS) {
        job_end(s->job, -EPROTO, "host %u tells of a loss that cannot be", from);
    } else if (message->step + 1 < s->n_opened) { /* its step was skipped for another loss */
        return;
    } else if (message->step >= s->n_opened) {
        s->held_from[s->n_held] = from;
        s->held[s->n_held++] = *message;
    } else {
        sharded_step_feed_loss(s, from, message);
    }
}

static void feed_folded(struct sharded *s, const struct updater_task *work)
{
    const struct relay_event event = commit_event(work);

    sharded_feed(s, &event);
}

/* The updater has made the next version current, so local must hear of it before it answers another pull. */
void sharded_on_optimizer(struct sharded *s, const struct updater_task *work)
{
    switch (work->kind) {
    case UPDATER_CHECK:
        sharded_step_on_checked(s, work);
        break;
    case UPDATER_FOLD:
        feed_folded(s, work);
        break;
    case UPDATER_UPDATE:
        sharded_on_updated(s, work);
        break;
    case UPDATER_CALL:
        break;
    }
}

void sharded_on_message_of_step(struct sharded *s, uint32_t from, const struct host_message *message)
{
    if (message->kind == HOST_OPEN) {
        sharded_step_on_open(s, message);
    } else if (message->kind == HOST_LOSS) {
        sharded_step_on_loss(s, from, message);
    } else if (message->kind == HOST_GRANT) {
        s->others[from].is_granted = true;
        s->others[from].grant = *message;
    } else if (message->kind == HOST_NORMS) {
        sharded_on_norms(s, from, message);
    }
}

bool sharded_step_go_on(struct sharded *s)
{
    return announce_folded(s) || send_next(s);
}

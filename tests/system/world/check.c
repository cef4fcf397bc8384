/* What must hold at every event. The folds and updates are counted here anew, from what the daemon gives to its
 * optimizer thread, by the promises of eps/relay/relay.h and nothing of its code. */
#include "device/worker/link.h"
#include "eps/drain.h"
#include "eps/step/membership.h"
#include "proto/model/norms.h"
#include "tests/eps/step/sharded_look.h"
#include "tests/system/world/world.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { MOST_UNITS = 64, MOST_VISITS = 64, MOST_PARTS = 8, MOST_PENDING = 512 };

int __real_updater_start(struct updater **out, struct store *store, unsigned n_threads, void (*on_done)(void *context),
                         void *context);
int __wrap_updater_start(struct updater **out, struct store *store, unsigned n_threads, void (*on_done)(void *context),
                         void *context);
void __real_updater_submit(struct updater *updater, const struct updater_task *task);
void __wrap_updater_submit(struct updater *updater, const struct updater_task *task);
bool __real_updater_take(struct updater *updater, struct updater_task *task);
bool __wrap_updater_take(struct updater *updater, struct updater_task *task);

struct pending {
    const void *bytes;
    size_t n;
    uint64_t hash;
};

/* Of a daemon: */
struct seen {
    struct seen *next;
    struct daemon *daemon;
    struct process *process;
    bool begun;                               /* the job's relay has opened a step */
    uint64_t step;                            /* of the folds counted: */
    uint64_t folded[MOST_VISITS][MOST_PARTS]; /* a bit for each slice */
    uint32_t n_folds[MOST_UNITS];
    uint64_t given[MOST_UNITS], done[MOST_UNITS]; /* updates: to the optimizer thread, and by it */
    uint64_t n_covered;                           /* steps that the job's relay has covered, from the model's first */
    struct pending pending[MOST_PENDING];
    unsigned n_pending;
    bool had_left, had_ahead, had_save;
    unsigned states; /* of several hosts: tests/eps/step/sharded_look.h */
    uint64_t idle_bytes;
    bool knows_idle;
};

static struct seen *seen_all, *seen; /* seen: of the daemon that runs, or is looked at */

static void see(const struct process *daemon)
{
    seen = seen_all;
    while (seen->process != daemon)
        seen = seen->next;
}

int __wrap_updater_start(struct updater **out, struct store *store, unsigned n_threads, void (*on_done)(void *context),
                         void *context)
{
    for (seen = seen_all; seen && seen->process != process_running;)
        seen = seen->next;
    if (!seen) { /* its first thread: another one takes over from one that hangs */
        seen = world_alloc(sizeof *seen);
        seen->daemon = context;
        seen->process = process_running;
        seen->next = seen_all;
        seen_all = seen;
    }
    return __real_updater_start(out, store, n_threads, on_done, context);
}

static void begin_job(void)
{
    seen->begun = false;
    seen->n_pending = 0;
    seen->n_covered = 0;
}

/* Of several hosts, another one folds it. */
static bool is_elsewhere(uint32_t unit)
{
    const struct daemon *d = seen->daemon;

    return job_is_sharded(d->job) && !sharded_look_owns(d->steps.sharded, unit);
}

/* The step leaves the unit out. */
static bool is_dropped(uint64_t step, uint32_t unit)
{
    const struct model *model = &seen->daemon->job->model;
    struct model_drop drop;
    uint32_t visit = 0;

    model_drop_draw(&drop, world_is->n_layers, world_is->drop_layers, WORLD_SEED, step);
    while (model->visits[visit] != unit)
        visit++;
    return model_drop_has(&drop, model, visit);
}

/* The unit of a visit in the step's order. */
static uint32_t unit_at(uint64_t step, uint32_t visit)
{
    const struct model *model = &seen->daemon->job->model;
    static struct model_order order;
    uint32_t homes[64];

    if (!world_is->orders)
        return model->visits[visit];
    if (model->n_visits > sizeof homes / sizeof *homes)
        world_fail("more visits than a world with orders has");
    world_order(&order, step);
    model_order_homes(homes, &order, model);
    return model->visits[homes[visit]];
}

static void begin_step(uint64_t step)
{
    const struct model *model = &seen->daemon->job->model;

    if (seen->begun && step == seen->step)
        return;
    if (seen->begun && step != seen->step + 1)
        world_fail("a fold of step %" PRIu64 " after one of step %" PRIu64, step, seen->step);
    for (uint32_t u = 0; u < model->n_units; u++) {
        if (seen->begun && model->units[u].n_trained > 0 && !is_elsewhere(u) &&
            seen->done[u] != step - is_dropped(seen->step, u))
            world_fail("a fold of step %" PRIu64 ", and unit %u has had %" PRIu64 " updates%s", step, u, seen->done[u],
                       is_dropped(seen->step, u) ? ", and was dropped" : "");
        seen->given[u] = seen->done[u] = step;
    }
    seen->begun = true;
    seen->step = step;
    memset(seen->folded, 0, sizeof seen->folded);
    memset(seen->n_folds, 0, sizeof seen->n_folds);
}

static struct process *process_of(const struct peer *peer)
{
    return process_by_pid(session_peer_pid(peer->session));
}

/* Where a slice came from; on several hosts, the one that is looked at before it goes to its owner. NULL: from another
 * host, or through the observer. */
static const struct job_seat *seat_of(const struct updater_task *task)
{
    const struct sharded *s = seen->daemon->steps.sharded;

    if (!s)
        return task->context;
    return task->kind == UPDATER_CHECK ? sharded_look_seat(s, task->unit, task->slice) : NULL;
}

/* Its worker's device has erred: the pattern is not finite in fp32 and in bf16. Or memory has: a bit is another. */
static void spoil(const struct updater_task *task)
{
    static const uint32_t nan = 0x7FC07FC0;
    uint8_t *const bytes = (uint8_t *)(uintptr_t)task->contribution.g;
    const struct job_seat *seat = seat_of(task);
    const struct peer *worker = seat ? peer_find(seen->daemon->peers.first, seat->worker) : NULL;
    struct process *p = worker ? process_of(worker) : NULL;

    if (p && p->changes) {
        p->changes = false;
        bytes[0] ^= 1;
        world_say("a contribution of %s changes", p->name);
        world_rare("a contribution changes", 2);
    }
    if (!p || !p->spoils)
        return;
    p->spoils = false;
    p->has_spoilt = true;
    world_say("a contribution of %s is spoilt", p->name);
    memcpy(bytes, &nan, sizeof nan);
}

static void note_fold(const struct updater_task *task)
{
    const struct job *job = seen->daemon->job;
    const struct model_unit *unit = &job->model.units[task->unit];
    const uint32_t part = task->contribution.part;
    struct pending *p = &seen->pending[seen->n_pending++];

    begin_step(task->step);
    if (task->visit >= job->model.n_visits || unit_at(task->step, task->visit) != task->unit ||
        task->slice >= unit->n_slices || part >= job->request.job.goal.n_parts || is_elsewhere(task->unit) ||
        seen->n_pending == MOST_PENDING)
        world_fail("a fold of visit %u, part %u, slice %u, unit %u", task->visit, part, task->slice, task->unit);
    if (is_dropped(task->step, task->unit))
        world_fail("a fold of unit %u in step %" PRIu64 ", which drops it", task->unit, task->step);
    if (seen->folded[task->visit][part] >> task->slice & 1)
        world_fail("visit %u, slice %u of part %u is folded twice in step %" PRIu64, task->visit, task->slice, part,
                   task->step);
    seen->folded[task->visit][part] |= 1ull << task->slice;
    seen->n_folds[task->unit]++;
    spoil(task);
    p->bytes = task->contribution.g;
    p->n = model_slice_of(unit, task->slice).n * number_bytes(task->contribution.type);
    p->hash = XXH3_64bits(p->bytes, p->n);
}

static void note_update(const struct updater_task *task)
{
    const struct job *job = seen->daemon->job;
    const struct model_unit *unit = &job->model.units[task->unit];

    if (!seen->begun || task->step != seen->step)
        world_fail("an update of step %" PRIu64, task->step);
    if (seen->n_folds[task->unit] != unit->n_visits * unit->n_slices * job->request.job.goal.n_parts)
        world_fail("unit %u is updated in step %" PRIu64 " with %u folds", task->unit, task->step,
                   seen->n_folds[task->unit]);
    if (seen->given[task->unit] > task->step)
        world_fail("unit %u is updated twice in step %" PRIu64, task->unit, task->step);
    seen->given[task->unit] = task->step + 1;
}

void __wrap_updater_submit(struct updater *updater, const struct updater_task *task)
{
    see(process_running);
    if (task->kind == UPDATER_FOLD)
        note_fold(task);
    else if (task->kind == UPDATER_UPDATE)
        note_update(task);
    else if (task->kind == UPDATER_CHECK)
        spoil(task);
    else if (seen->daemon->job->state == JOB_LOADING)
        begin_job();
    __real_updater_submit(updater, task);
}

/* The slot belongs to the optimizer until then. */
bool __wrap_updater_take(struct updater *updater, struct updater_task *task)
{
    if (!__real_updater_take(updater, task))
        return false;
    see(process_running);
    if (task->kind == UPDATER_UPDATE)
        seen->done[task->unit]++;
    if (task->kind == UPDATER_FOLD && task->result) { /* not finite: nothing was folded */
        seen->folded[task->visit][task->contribution.part] &= ~(1ull << task->slice);
        seen->n_folds[task->unit]--;
    }
    for (unsigned i = 0; task->kind == UPDATER_FOLD && i < seen->n_pending; i++)
        if (seen->pending[i].bytes == (const void *)task->contribution.g) {
            if (XXH3_64bits(seen->pending[i].bytes, seen->pending[i].n) != seen->pending[i].hash)
                world_fail("a slot of unit %u was written while it was folded", task->unit);
            seen->pending[i] = seen->pending[--seen->n_pending];
            return true;
        }
    if (task->kind == UPDATER_FOLD)
        world_fail("a fold of unit %u that was not given", task->unit);
    return true;
}

/* ---- peers ------------------------------------------------------------------------------------------------------ */

void __real_peer_refuse(struct peer *peer, const char *reason);
void __wrap_peer_refuse(struct peer *peer, const char *reason);
void __real_job_announce(const struct job *job, const struct message *m);
void __wrap_job_announce(const struct job *job, const struct message *m);
void __real_membership_leave(struct steps *steps, struct peer *worker, const char *reason);
void __wrap_membership_leave(struct steps *steps, struct peer *worker, const char *reason);
int __real_relay_feed(struct relay *relay, const struct relay_event *event, const struct relay_action **actions);
int __wrap_relay_feed(struct relay *relay, const struct relay_event *event, const struct relay_action **actions);
bool __real_watch_tick(struct watch *watch);
bool __wrap_watch_tick(struct watch *watch);

/* All speak the protocol, slow ones, too. So the daemon ends nobody's session but that of a peer to which a fault has
 * come: which has failed, or may be thought dead. */
static void check_blame(const struct peer *peer, const char *reason, bool is_for_silence)
{
    see(process_running);
    const struct process *p = process_of(peer);
    const bool is_silent = is_for_silence && (p->ailing || seen->process->ailing);

    if (p->alive && !p->starved_at && !p->has_spoilt && !is_silent && !seen->daemon->stopping)
        world_fail("the daemon ends the session of %s, which is well: %s", p->name, reason);
}

void __wrap_peer_refuse(struct peer *peer, const char *reason)
{
    check_blame(peer, reason, strncmp(reason, "it hangs", 8) == 0);
    __real_peer_refuse(peer, reason);
}

static uint64_t n_lost; /* messages LOST that were announced */

void __wrap_job_announce(const struct job *job, const struct message *m)
{
    n_lost += m->kind == MESSAGE_LOST;
    __real_job_announce(job, m);
}

void __wrap_membership_leave(struct steps *steps, struct peer *worker, const char *reason)
{
    see(process_running);
    const struct process *p = process_of(worker);
    const struct job_seat *seat = job_find_seat(seen->daemon->job, worker->id);

    if (seat && seat->peer == worker && !worker->refused && !worker->leaves)
        check_blame(worker, reason, true);
    const bool is_out = !seat && (worker->suspect || worker->accused) && !worker->refused &&
                        job_is_open(seen->daemon->job) && !job_is_sharded(seen->daemon->job);
    const uint64_t n_told = n_lost;
    if (strcmp(reason, "killed") == 0 && p->n_unread > 0)
        world_fail("%s was killed, and %u messages that it had sent were not read", p->name, p->n_unread);
    world_rare("membership_leave", 4);
    __real_membership_leave(steps, worker, reason);
    if (is_out && n_lost == n_told)
        world_fail("worker %u, which is to be judged, is gone, and nobody is told", worker->id);
}

int __wrap_relay_feed(struct relay *relay, const struct relay_event *event, const struct relay_action **actions)
{
    const int n = __real_relay_feed(relay, event, actions);

    see(process_running);
    const struct job *job = seen->daemon->job;
    uint32_t redoes = UINT32_MAX; /* parts that it has, until the relay hears of its loss */
    for (int i = 0; i < n && relay == job->relay && job_is_open(job); i++) { /* an ending one acts on captures alone */
        const struct relay_action *a = &(*actions)[i];
        const struct job_seat *seat = a->kind == RELAY_SHARE ? job_find_seat(seen->daemon->job, a->worker) : NULL;
        if (a->kind == RELAY_REDO)
            redoes = a->worker;
        if (a->kind == RELAY_SHARE && a->worker != redoes && (!seat || !seat->peer))
            world_fail("worker %u, which is gone, is given parts", a->worker);
        if (a->kind == RELAY_COVERED)
            seen->n_covered = a->step + 1;
    }
    return n;
}

void __real_job_send_weights(struct job *job, struct peer *worker, uint64_t version, uint32_t unit,
                             struct job_weights weights);
void __wrap_job_send_weights(struct job *job, struct peer *worker, uint64_t version, uint32_t unit,
                             struct job_weights weights);

/* Memory has erred since the unit's last update; never twice in one bit, which would be right again. */
static void misread(const struct job *job, const struct peer *worker, uint32_t unit, uint64_t at)
{
    struct process *p = process_of(worker);
    static unsigned n;

    if (!p || !p->misreads || job->model.units[unit].n_trained == 0)
        return;
    p->misreads = false;
    ((uint8_t *)job->store.weights.base)[at] ^= (uint8_t)(1u << n++ % 7);
    world_say("weights of unit %u change", unit);
}

/* Of a step that is over, weights may be overwritten at any moment, and a stale pull gets none. */
void __wrap_job_send_weights(struct job *job, struct peer *worker, uint64_t version, uint32_t unit,
                             struct job_weights weights)
{
    see(process_running);
    if (version < seen->n_covered)
        world_fail("worker %u is given unit %u of step %" PRIu64 ", and %" PRIu64 " are covered", worker->id, unit,
                   version, seen->n_covered);
    if (version != MESSAGE_NO_STEP && is_dropped(version, unit))
        world_fail("worker %u is given unit %u of step %" PRIu64 ", which drops it", worker->id, unit, version);
    misread(job, worker, unit, weights.at);
    __real_job_send_weights(job, worker, version, unit, weights);
}

/* The daemon is at rest then, and its watch leaves alone whoever waits for another host, and nobody else. */
bool __wrap_watch_tick(struct watch *watch)
{
    see(process_running);
    const struct daemon *d = seen->daemon;
    const bool is_shared = job_is_open(d->job) && job_is_sharded(d->job);

    for (const struct peer *p = d->peers.first; is_shared && p; p = p->next)
        if (p->awaits != sharded_look_waits(d->steps.sharded, p))
            world_fail("worker %u %s for another host", p->id, p->awaits ? "does not wait" : "waits");
    return __real_watch_tick(watch);
}

/* ---- workers ---------------------------------------------------------------------------------------------------- */

void __real_mailbox_wait(struct mailbox *box, struct mail *mail);
void __wrap_mailbox_wait(struct mailbox *box, struct mail *mail);
bool __real_mailbox_poll(struct mailbox *box, struct mail *mail);
bool __wrap_mailbox_poll(struct mailbox *box, struct mail *mail);
void __real_mailbox_post(struct mailbox *box, const struct message *m);
void __wrap_mailbox_post(struct mailbox *box, const struct message *m);
void __real_link_begin(struct link *link, uint64_t step);
void __wrap_link_begin(struct link *link, uint64_t step);
void __real_link_end(struct link *link);
void __wrap_link_end(struct link *link);

static void note_mail(const struct mail *mail)
{
    process_running->n_lent += mail->message.kind == MESSAGE_WEIGHTS && mail->message.weights.lent;
}

void __wrap_mailbox_wait(struct mailbox *box, struct mail *mail)
{
    __real_mailbox_wait(box, mail);
    note_mail(mail);
}

bool __wrap_mailbox_poll(struct mailbox *box, struct mail *mail)
{
    if (!__real_mailbox_poll(box, mail))
        return false;
    note_mail(mail);
    return true;
}

void __wrap_mailbox_post(struct mailbox *box, const struct message *m)
{
    process_running->n_lent -= m->kind == MESSAGE_READ;
    __real_mailbox_post(box, m);
}

/* Every other step, as a worker would that was slow: it asks for weights of a step that is over, or about to be, and
 * waits for no answer. */
static void pull_late(const struct link *link, uint64_t step)
{
    struct message m = {.kind = MESSAGE_PULL, .pull = {.version = step}};

    m.pull.unit = (uint32_t)(step * 5 / 2 % link->model->n_units);
    if (step % 2 == 0)
        __real_mailbox_post(link->box, &m);
}

/* Whatever came is read, or nobody waits for it. */
void __wrap_link_begin(struct link *link, uint64_t step)
{
    if (process_running->n_lent > 0)
        world_fail("%s begins a step, and has not read %u units", process_running->name, process_running->n_lent);
    __real_link_begin(link, step);
    if (step != MESSAGE_NO_STEP && step > 0)
        pull_late(link, step - 1);
}

void __wrap_link_end(struct link *link)
{
    __real_link_end(link);
    if (link->step != MESSAGE_NO_STEP && !link->cancelled && !link->superseded)
        pull_late(link, link->step);
}

/* ---- rare places ------------------------------------------------------------------------------------------------- */

/* Of several hosts. */
static void note_shared(unsigned states)
{
    static const struct {
        unsigned state, odds;
        const char *name;
    } rare[] = {{SHARDED_HOLDS_SLICE, 4, "a slice of a step that is not open here"},
                {SHARDED_HOLDS_LOSS, 8, "a loss of a step that is not open here"},
                {SHARDED_USES_RESERVED, 4, "a reserved slot of a host"},
                {SHARDED_HAS_NO_ROOM, 8, "words wait for room"},
                {SHARDED_HAS_NEXT_JOB, 2, "a job before the last one's end"}};

    for (size_t i = 0; i < sizeof rare / sizeof *rare; i++)
        if (states & rare[i].state & ~seen->states)
            world_rare(rare[i].name, rare[i].odds);
    seen->states = states;
}

/* States that are rare, once each time that they come about. */
static void note_states(const struct daemon *d)
{
    bool has_left = false;

    for (uint32_t i = 0; i < d->job->n_seats; i++)
        has_left = has_left || d->job->seats[i].left;
    if (has_left && !seen->had_left)
        world_rare("the inbox of one that is gone counts", 2);
    if (d->steps.has_ahead && !seen->had_ahead)
        world_rare("a step ahead", 4);
    if (d->saves.first && !seen->had_save)
        world_rare("a save", 8);
    seen->had_left = has_left;
    seen->had_ahead = d->steps.has_ahead;
    seen->had_save = d->saves.first != NULL;
}

/* ---- the daemon at rest ----------------------------------------------------------------------------------------- */

static void check_ledger(const struct ledger *ledger, bool is_idle)
{
    uint64_t sum = 0;

    for (unsigned c = 0; c < LEDGER_CATEGORIES; c++)
        sum += ledger->rows[c].current;
    if (sum != ledger->total.current)
        world_fail("the ledger's rows add up to %" PRIu64 ", not %" PRIu64, sum, ledger->total.current);
    if (!is_idle)
        return;
    if (!seen->knows_idle) {
        seen->knows_idle = true;
        seen->idle_bytes = sum;
    }
    if (sum != seen->idle_bytes)
        world_fail("without a job the ledger has %" PRIu64 " bytes, not %" PRIu64, sum, seen->idle_bytes);
}

static bool is_peer(const struct daemon *d, const struct peer *peer)
{
    const struct peer *p = d->peers.first;

    while (p && p != peer)
        p = p->next;
    return p != NULL;
}

/* The hosts share no job: nothing of the last one is left. */
static void check_shared(const struct sharded_look *sharded)
{
    if (sharded->n_slots)
        world_fail("without a job, %u slots of host %u for others, or of them, are in use", sharded->n_slots,
                   sharded->host);
    if (sharded->n_fetches || sharded->has_request_text)
        world_fail("without a job, host %u has %u fetches", sharded->host, sharded->n_fetches);
}

static void check_ring(const struct sharded *s)
{
    const char *wrong = sharded_look_ring(s);

    if (wrong)
        world_fail("the ring: %s", wrong);
}

static uint32_t count_slices(const struct daemon *d)
{
    struct sharded_look sharded;

    if (!job_is_sharded(d->job))
        return seen->n_pending;
    sharded_look(&sharded, d->steps.sharded);
    return sharded.n_slices;
}

static void check_membership(const struct daemon *d)
{
    const struct job *job = d->job;
    uint32_t n_folds = 0;

    for (uint32_t i = 0; i < job->n_workers; i++)
        if (!is_peer(d, job->workers[i]))
            world_fail("the job has a worker that is gone");
    for (uint32_t i = 0; i < job->n_seats; i++) {
        if (job->seats[i].peer && !is_peer(d, job->seats[i].peer))
            world_fail("seat %u has a worker that is gone", i);
        if (job_is_sharded(job) && job->seats[i].n_folds && job->seats[i].peer &&
            job->seats[i].peer->state == PEER_JOINING)
            world_fail("seat %u is taken, and its inbox waits for other hosts", i);
        n_folds += job->seats[i].n_folds;
    }
    const uint32_t n_under_way = count_slices(d);
    if (n_folds != n_under_way)
        world_fail("the seats have %u folds, and %u are under way", n_folds, n_under_way);
    if (job->client && !is_peer(d, job->client))
        world_fail("the job has a client that is gone");
}

/* A unit is at most one step ahead. On several hosts, another one's word that it is done with a step may take longer
 * than all that follows it, up to the end of the next step. */
static void check_versions(const struct job *job)
{
    struct relay_view views[MOST_UNITS];
    const uint32_t n = job->model.n_units, most = job_is_sharded(job) ? 2 : 1;

    if (!seen->begun || n > MOST_UNITS)
        return;
    relay_observe(job->relay, 0, n, views);
    for (uint32_t u = 0; u < n; u++)
        if (views[u].version < job->step || views[u].version > job->step + most ||
            (job->state == JOB_RESTING && views[u].version != job->step))
            world_fail("unit %u is at version %" PRIu64 ", with %" PRIu64 " steps done", u, views[u].version,
                       job->step);
        else if (job_is_sharded(job) && !is_elsewhere(u) && relay_version(job->own, u) != views[u].version)
            world_fail("unit %u is at version %" PRIu64 " for workers, and at %" PRIu64 " for hosts", u,
                       views[u].version, relay_version(job->own, u));
}

/* A step that nobody is to move would wait for ever. */
static void check_owner(struct daemon *d)
{
    struct job *job = d->job;

    if (job->state != JOB_STEPPING || updater_pending(d->peers.updater) || d->saves.first || d->peers.n_events)
        return;
    for (uint32_t i = 0; i < job->n_seats; i++)
        if (!job->seats[i].peer || job->seats[i].peer->state != PEER_ASSIGNED || job->seats[i].left)
            return;
    if (!job_has_room(job) && (relay_n_waiting(job->relay) > 0 || d->steps.has_ahead)) /* for another worker */
        return;
    if (relay_owes(job->relay) == UINT32_MAX)
        world_fail("step %" PRIu64 " waits for nobody", job->step);
}

static void check_daemon(struct daemon *d)
{
    check_ledger(&d->peers.ledger, d->job->state == JOB_NONE && !d->asides);
    if (d->steps.sharded) {
        struct sharded_look sharded;
        sharded_look(&sharded, d->steps.sharded);
        if (!sharded.is_shared && !sharded.is_lost)
            check_shared(&sharded);
        note_shared(sharded.states);
    }
    if (!job_is_open(d->job))
        return;
    check_membership(d);
    if (job_is_sharded(d->job))
        check_ring(d->steps.sharded);
    if (job_trains(d->job))
        check_versions(d->job);
    if (!d->steps.sharded)
        check_owner(d);
    note_states(d);
}

void check_event(void)
{
    for (seen = seen_all; seen; seen = seen->next)
        if (seen->process->alive)
            check_daemon(seen->daemon);
}

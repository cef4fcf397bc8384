/* eps/hosts/hosts.h between simulated daemons. What it leaves open is drawn: when anything arrives, what overtakes what, at
 * which moments the bytes of a fetch are read, who notices first that a host is lost.
 *
 * It uses all that the table allows: memory that it may write holds no number from the call on, and what it may read for
 * longer must not change meanwhile. */
#include "eps/hosts/hosts.h"

#include "eps/hosts/host_message.h"
#include "tests/system/world/world.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { MOST_SLOTS = 8, TICK_S = 5, PIECES = 3 };

enum item_kind { ITEM_MESSAGE, ITEM_CREDIT, ITEM_SLICE, ITEM_FREED, ITEM_FETCH, ITEM_LOST };

/* Under way. */
struct item {
    struct item *next;
    enum item_kind kind;
    uint32_t from; /* of a fetch: whose memory is read */
    uint64_t due;
    struct hosts_event event;
    const uint8_t *data;          /* of a slice */
    uint64_t hash;                /* of what is read, when that began */
    unsigned n_credits, n_pieces; /* n_pieces: of a fetch, still to be read */
    uint32_t region, lost;
    uint64_t offset, done;
    uint8_t *into;
};

enum slot_state { SLOT_FREE, SLOT_COMING, SLOT_ARRIVED, SLOT_TAKEN };

/* To another host, and from it. */
struct link {
    unsigned window, n_taken;
    bool is_short;
    uint64_t last_due; /* of messages to it */
    bool is_sent[MOST_SLOTS];
    enum slot_state slots[MOST_SLOTS];
};

struct queued {
    struct queued *next;
    struct hosts_event event;
};

enum phase { PHASE_OPEN, PHASE_STARTING, PHASE_RUNNING, PHASE_CLOSING, PHASE_CLOSED };

struct hosts {
    struct process *process;
    struct hosts **team; /* (n) by host; NULL: not opened yet */
    uint32_t host, n;
    enum phase phase;
    struct hosts_options options;
    struct link links[WORLD_MOST_HOSTS];
    struct {
        const uint8_t *base;
        uint64_t bytes;
    } regions[HOSTS_REGIONS];
    struct item *items; /* on their way to it, earliest first */
    struct queued *events;
    unsigned n_fetches, window;
    uint64_t ticked_at, silent_ns; /* of the host before it */
    bool is_lost, is_cut;
    bool was_told; /* of the loss, before it was closed */
    char why[100];
};

static struct {
    struct process *processes[WORLD_MOST_HOSTS];
    struct hosts *hosts[WORLD_MOST_HOSTS];
    uint32_t n;
    unsigned window;
} team;

void hosts_launch(struct process *const *processes, unsigned n)
{
    memset(&team, 0, sizeof team);
    memcpy(team.processes, processes, n * sizeof *processes);
    team.n = n;
    team.window = chance(2) ? HOSTS_WINDOW : 1 + (unsigned)chance(3);
}

static struct hosts *find(const struct process *p)
{
    for (uint32_t h = 0; h < team.n; h++)
        if (team.processes[h] == p)
            return team.hosts[h];
    return NULL;
}

/* ---- what is under way -------------------------------------------------------------------------------------------- */

static uint64_t draw_due(const struct hosts *a, const struct hosts *b)
{
    uint64_t due = world_now() + chance_time(10 * US, chance(8) ? 200 * US : 20 * MS);

    if (world_now() < a->process->slow_until)
        due += chance(a->process->slow_ns + 1);
    if (world_now() < b->process->slow_until)
        due += chance(b->process->slow_ns + 1);
    return due;
}

/* Later than all that is due at that time, so what may not overtake does not. */
static void put(struct hosts *to, struct item *item)
{
    struct item **at = &to->items;

    while (*at && (*at)->due <= item->due)
        at = &(*at)->next;
    item->next = *at;
    *at = item;
}

static bool reach(const struct hosts *a, const struct hosts *b)
{
    return b && a->process->alive && b->process->alive && !a->is_cut && !b->is_cut && !a->is_lost && !b->is_lost &&
           a->phase < PHASE_CLOSED && b->phase < PHASE_CLOSED;
}

/* NULL: it will not arrive. */
static struct item *item_new(const struct hosts *from, uint32_t to, enum item_kind kind)
{
    struct item *item;

    if (!reach(from, team.hosts[to]))
        return NULL;
    item = world_alloc(sizeof *item);
    item->kind = kind;
    item->from = from->host;
    item->event.host = from->host;
    item->due = draw_due(from, team.hosts[to]);
    return item;
}

static void drop_items(struct hosts *to, uint32_t from, bool (*is_dropped)(const struct item *item, uint64_t after),
                       uint64_t after)
{
    for (struct item **at = &to->items, *item; (item = *at);) {
        if (item->from != from || !is_dropped(item, after)) {
            at = &item->next;
            continue;
        }
        *at = item->next;
        free(item);
    }
}

static bool is_any(const struct item *item, uint64_t after)
{
    (void)item, (void)after;
    return true;
}

/* Of a dead process, whose memory cannot be read any more. */
static bool is_lost_with_it(const struct item *item, uint64_t after)
{
    return item->kind == ITEM_SLICE || item->kind == ITEM_FETCH || item->due > after;
}

static bool reads_memory(const struct item *item, uint64_t after)
{
    (void)after;
    return item->kind == ITEM_SLICE || item->kind == ITEM_FETCH;
}

static void drop_all(struct hosts *h)
{
    for (uint32_t other = 0; other < team.n; other++) {
        drop_items(h, other, is_any, 0);
        if (team.hosts[other] && other != h->host)
            drop_items(team.hosts[other], h->host, reads_memory, 0);
    }
}

/* ---- events ------------------------------------------------------------------------------------------------------- */

static void tell(struct hosts *h, const struct hosts_event *event)
{
    struct queued *q = world_alloc(sizeof *q), **last = &h->events;

    q->event = *event;
    while (*last)
        last = &(*last)->next;
    *last = q;
    h->options.notify(h->options.data);
}

static void lose(struct hosts *h, uint32_t lost, const char *why)
{
    struct item *item;

    if (h->is_lost || h->phase >= PHASE_CLOSED)
        return;
    snprintf(h->why, sizeof h->why, "host %u is lost: %s", lost, why);
    world_say("%s: %s", h->process->name, h->why);
    for (uint32_t other = 0; other < h->n; other++)
        if (other != h->host && other != lost && (item = item_new(h, other, ITEM_LOST))) {
            item->lost = lost;
            put(team.hosts[other], item);
        }
    h->is_lost = true;
    drop_all(h);
    tell(h, &(struct hosts_event){.kind = HOSTS_LOST, .host = lost, .why = h->why});
}

static const uint8_t *exposed(const struct hosts *h, const struct item *item)
{
    const struct hosts *of = team.hosts[item->from];

    if (item->offset > of->regions[item->region].bytes ||
        item->event.bytes > of->regions[item->region].bytes - item->offset)
        world_fail("host %u fetches %" PRIu64 " bytes at %" PRIu64 " of region %u of host %u, which exposes %" PRIu64,
                   h->host, item->event.bytes, item->offset, item->region, item->from, of->regions[item->region].bytes);
    return of->regions[item->region].base + item->offset;
}

/* A piece is read now. True: it was the last. */
static bool read_piece(struct hosts *h, struct item *item)
{
    const uint64_t left = item->event.bytes - item->done;
    const uint64_t n = --item->n_pieces ? chance(left + 1) : left;
    const uint8_t *bytes = exposed(h, item);

    if (XXH3_64bits(bytes, item->event.bytes) != item->hash)
        world_fail("what host %u fetches of region %u of host %u changed meanwhile", h->host, item->region, item->from);
    memcpy(item->into + item->done, bytes + item->done, n);
    item->done += n;
    return item->n_pieces == 0;
}

static void *slot_of(const struct hosts *h, uint32_t from, uint32_t slot)
{
    return (uint8_t *)h->options.inbox + ((size_t)from * h->options.n_slots + slot) * h->options.slot_bytes;
}

static void take_slice(struct hosts *h, const struct item *item)
{
    const struct hosts_event *e = &item->event;

    if (XXH3_64bits(item->data, e->bytes) != item->hash)
        world_fail("a slice of host %u for host %u changed on its way", item->from, h->host);
    memcpy(slot_of(h, e->host, e->slot), item->data, e->bytes);
    h->links[e->host].slots[e->slot] = SLOT_ARRIVED;
    tell(h, e);
}

static void deliver(struct hosts *h, struct item *item)
{
    struct link *link = &h->links[item->from];

    switch (item->kind) {
    case ITEM_CREDIT:
        link->window += item->n_credits;
        if (!link->is_short)
            break;
        link->is_short = false;
        tell(h, &(struct hosts_event){.kind = HOSTS_ROOM, .host = item->from});
        break;
    case ITEM_SLICE:
        take_slice(h, item);
        break;
    case ITEM_FETCH:
        if (!read_piece(h, item)) {
            item->due = draw_due(h, team.hosts[item->from]);
            put(h, item);
            return;
        }
        /* fall through */
    case ITEM_MESSAGE:
    case ITEM_FREED:
        tell(h, &item->event);
        break;
    case ITEM_LOST:
        lose(h, item->lost, "another host said so");
        break;
    }
    free(item);
}

/* ---- the thread --------------------------------------------------------------------------------------------------- */

/* A thread that is stalled sends none, as it would under MPI. */
static bool beats(const struct hosts *a, const struct hosts *b)
{
    return reach(a, b) && a->process->stopped_until <= world_now() &&
           (a->process->hung_until <= world_now() || a->process->hung_until == NEVER);
}

/* All have said goodbye, so nobody is missed. */
static bool all_close(const struct hosts *h)
{
    for (uint32_t other = 0; other < h->n; other++)
        if (!team.hosts[other] || team.hosts[other]->phase < PHASE_CLOSING)
            return false;
    return true;
}

static void tick(struct hosts *h)
{
    const uint32_t before = (h->host + h->n - 1) % h->n;
    const uint64_t passed = world_now() - h->ticked_at;

    h->silent_ns = beats(team.hosts[before], h) || all_close(h)
                       ? 0
                       : h->silent_ns + (passed < TICK_S * SECOND ? passed : TICK_S * SECOND);
    h->ticked_at = world_now();
    if (h->silent_ns >= h->options.silence_ms * (uint64_t)MS)
        lose(h, before, "nothing comes from it");
}

static uint64_t due_carry(void *arg)
{
    const struct hosts *h = arg;
    const uint64_t at = h->ticked_at + TICK_S * SECOND;

    if (h->is_lost || h->phase == PHASE_CLOSED)
        return NEVER;
    return h->items && h->items->due < at ? h->items->due : at;
}

static void carry(void *arg)
{
    struct hosts *h = arg;

    for (;;) {
        fiber_wait(due_carry, h);
        struct item *item = h->items;
        if (item && item->due <= world_now()) {
            h->items = item->next;
            deliver(h, item);
        } else {
            tick(h);
        }
    }
}

void hosts_process_died(struct process *p)
{
    struct hosts *h = find(p), *other;

    if (!h || h->phase == PHASE_CLOSED)
        return;
    const uint64_t written = world_now() + chance(20 * MS);
    for (uint32_t to = 0; to < team.n; to++) {
        drop_items(h, to, is_any, 0);
        other = to == h->host ? NULL : team.hosts[to];
        if (!other || other->phase < PHASE_RUNNING)
            continue;
        drop_items(other, h->host, is_lost_with_it, written);
        if (!h->is_lost && !h->is_cut && !other->is_cut && !other->is_lost && chance(2)) {
            struct item *item = world_alloc(sizeof *item);
            *item = (struct item){.kind = ITEM_LOST,
                                  .from = h->host,
                                  .lost = h->host,
                                  .due = written + chance_time(1 * MS, 2 * SECOND)};
            put(other, item);
        }
    }
}

void hosts_cut(struct process *p)
{
    struct hosts *h = find(p);

    if (!h)
        return;
    h->is_cut = true;
    for (uint32_t other = 0; other < team.n; other++)
        if (team.hosts[other] && other != h->host) {
            drop_items(h, other, is_any, 0);
            drop_items(team.hosts[other], h->host, is_any, 0);
        }
}

bool hosts_has_lost(const struct process *p)
{
    const struct hosts *h = find(p);

    return h && h->was_told;
}

/* ---- the table ---------------------------------------------------------------------------------------------------- */

static int open_world(struct hosts **out, uint32_t *number, uint32_t *n, struct error *err)
{
    struct hosts *h = world_alloc(sizeof *h);

    (void)err;
    h->process = process_running;
    h->host = process_running->host;
    h->n = team.n;
    for (uint32_t other = 0; other < h->n; other++)
        h->links[other].window = team.window;
    assert(team.processes[h->host] == process_running);
    team.hosts[h->host] = h;
    *number = h->host;
    *n = h->n;
    *out = h;
    return 0;
}

static bool has_dead(void)
{
    for (uint32_t h = 0; h < team.n; h++)
        if (!team.processes[h]->alive)
            return true;
    return false;
}

static uint64_t due_started(void *arg)
{
    (void)arg;
    for (uint32_t h = 0; h < team.n; h++)
        if (!has_dead() && (!team.hosts[h] || team.hosts[h]->phase < PHASE_STARTING))
            return NEVER;
    return 0;
}

static int start_world(struct hosts *h, const struct hosts_options *options, struct error *err)
{
    assert(options->n_slots <= MOST_SLOTS);
    h->options = *options;
    h->phase = PHASE_STARTING;
    fiber_wait(due_started, h);
    if (has_dead())
        return error_set(err, -EINVAL, "the hosts of this job do not reach each other");
    h->phase = PHASE_RUNNING;
    h->ticked_at = world_now();
    fiber_start(carry, h, true);
    return 0;
}

static void say_message(const struct hosts *h, uint32_t to, const char *what, const void *message, size_t bytes)
{
    struct host_message word;

    if (!world_traces)
        return;
    host_message_decode(&word, message, bytes);
    world_say("=> %s: %s: word %d, step %" PRIu64 ", unit %u, visit %u, part %u, x %g", team.processes[to]->name, what,
              (int)word.kind, word.step, word.unit, word.visit, word.part, word.x);
    (void)h;
}

static void set_message(struct item *item, enum hosts_event_kind kind, const void *message, size_t bytes)
{
    assert(bytes <= HOSTS_MESSAGE_BYTES);
    item->event.kind = kind;
    item->event.message_bytes = bytes;
    memcpy(item->event.message, message, bytes);
}

static int send_world(struct hosts *h, uint32_t to, const void *message, size_t bytes)
{
    struct link *link = &h->links[to];
    struct item *item;

    assert(to < h->n && to != h->host);
    if (h->is_lost)
        return -EIO;
    if (link->window == 0) {
        link->is_short = true;
        return -EAGAIN;
    }
    link->window--;
    say_message(h, to, "message", message, bytes);
    item = item_new(h, to, ITEM_MESSAGE);
    if (!item)
        return 0;
    set_message(item, HOSTS_MESSAGE, message, bytes);
    item->due = item->due > link->last_due ? item->due : link->last_due;
    link->last_due = item->due;
    put(team.hosts[to], item);
    return 0;
}

static int send_slice_world(struct hosts *h, uint32_t to, uint32_t slot, const void *message, size_t message_bytes,
                            const void *data, size_t bytes)
{
    struct item *item;

    assert(to < h->n && to != h->host && slot < h->options.n_slots && bytes <= h->options.slot_bytes);
    if (h->is_lost)
        return -EIO;
    if (h->links[to].is_sent[slot])
        world_fail("host %u sends into slot %u of host %u, which it uses already", h->host, slot, to);
    h->links[to].is_sent[slot] = true;
    say_message(h, to, "slice", message, message_bytes);
    item = item_new(h, to, ITEM_SLICE);
    if (!item)
        return 0;
    assert(team.hosts[to]->links[h->host].slots[slot] == SLOT_FREE);
    team.hosts[to]->links[h->host].slots[slot] = SLOT_COMING;
    memset(slot_of(team.hosts[to], h->host, slot), 0xFF, bytes);
    set_message(item, HOSTS_SLICE, message, message_bytes);
    item->event.slot = slot;
    item->event.bytes = bytes;
    item->data = data;
    item->hash = XXH3_64bits(data, bytes);
    item->due = item->due > h->links[to].last_due ? item->due : h->links[to].last_due; /* after earlier messages */
    put(team.hosts[to], item);
    return 0;
}

static int free_slot_world(struct hosts *h, uint32_t from, uint32_t slot)
{
    struct item *item;

    assert(from < h->n && from != h->host && slot < h->options.n_slots);
    if (h->is_lost)
        return -EIO;
    if (h->links[from].slots[slot] != SLOT_TAKEN)
        world_fail("host %u frees slot %u of host %u, which has nothing in it", h->host, slot, from);
    h->links[from].slots[slot] = SLOT_FREE;
    item = item_new(h, from, ITEM_FREED);
    if (!item)
        return 0;
    item->event.kind = HOSTS_FREED;
    item->event.slot = slot;
    put(team.hosts[from], item);
    return 0;
}

/* Nobody may be reading what was exposed. */
static void expose_world(struct hosts *h, uint32_t region, const void *base, size_t bytes)
{
    for (uint32_t other = 0; other < h->n; other++)
        for (const struct item *item = team.hosts[other] ? team.hosts[other]->items : NULL; item; item = item->next)
            if (item->kind == ITEM_FETCH && item->from == h->host && item->region == region &&
                reach(h, team.hosts[other]))
                world_fail("host %u takes region %u back, which host %u reads", h->host, region, other);
    h->regions[region].base = base;
    h->regions[region].bytes = bytes;
}

static int fetch_world(struct hosts *h, uint32_t from, uint32_t region, uint64_t offset, void *into, size_t bytes,
                       uint64_t token)
{
    struct item *item;

    assert(from < h->n && from != h->host && region < HOSTS_REGIONS && bytes > 0);
    if (h->is_lost)
        return -EIO;
    if (h->n_fetches++ == HOSTS_FETCHES)
        world_fail("host %u has more than %d fetches", h->host, HOSTS_FETCHES);
    world_say("fetches %zu bytes at %" PRIu64 " of region %u of host %u: token %" PRIu64, bytes, offset, region, from,
              token);
    world_rare("a fetch", 100);
    memset(into, 0xFF, bytes);
    item = item_new(h, from, ITEM_FETCH);
    if (!item)
        return 0;
    item->from = from; /* due here */
    item->event.host = from;
    item->event.kind = HOSTS_FETCHED;
    item->event.token = token;
    item->event.bytes = bytes;
    item->region = region;
    item->offset = offset;
    item->into = into;
    item->n_pieces = 1 + (unsigned)chance(PIECES);
    item->hash = XXH3_64bits(exposed(h, item), bytes);
    put(h, item);
    return 0;
}

static void credit(struct hosts *h, uint32_t from)
{
    struct link *link = &h->links[from];
    struct item *item;

    if (++link->n_taken < (team.window + 1) / 2)
        return;
    item = item_new(h, from, ITEM_CREDIT);
    if (item) {
        item->n_credits = link->n_taken;
        put(team.hosts[from], item);
    }
    link->n_taken = 0;
}

static bool next_world(struct hosts *h, struct hosts_event *event)
{
    struct queued *q = h->events;

    if (!q)
        return false;
    static const char *const names[] = {"message", "room", "slice", "freed", "fetched", "lost"};

    h->events = q->next;
    *event = q->event;
    free(q);
    world_say("<= host %u: %s, slot %u, token %" PRIu64, event->host, names[event->kind], event->slot, event->token);
    if (event->kind == HOSTS_MESSAGE)
        credit(h, event->host);
    if (event->kind == HOSTS_SLICE)
        h->links[event->host].slots[event->slot] = SLOT_TAKEN;
    if (event->kind == HOSTS_FREED)
        h->links[event->host].is_sent[event->slot] = false;
    h->n_fetches -= event->kind == HOSTS_FETCHED;
    h->was_told = h->was_told || event->kind == HOSTS_LOST;
    return true;
}

static uint64_t due_left(void *arg)
{
    const struct hosts *h = arg;

    if (h->is_lost)
        return 0;
    for (uint32_t other = 0; other < h->n; other++)
        for (const struct item *item = team.hosts[other]->items; item; item = item->next)
            if (other == h->host || item->from == h->host)
                return NEVER;
    return all_close(h) ? 0 : NEVER;
}

/* What belongs to it stays: others still look at it. */
static void close_world(struct hosts *h)
{
    if (!h)
        return;
    if (h->phase == PHASE_RUNNING && !h->is_lost) {
        h->phase = PHASE_CLOSING;
        fiber_wait(due_left, h);
    }
    h->phase = PHASE_CLOSED;
    drop_all(h);
}

static unsigned grace_s_world(const struct hosts *h)
{
    (void)h;
    return 0;
}

const struct hosts_ops *__wrap_hosts_find(const char *name, struct error *err);

const struct hosts_ops *__wrap_hosts_find(const char *name, struct error *err)
{
    static const struct hosts_ops ops = {
        .name = "world",
        .open = open_world,
        .grace_s = grace_s_world,
        .start = start_world,
        .send = send_world,
        .send_slice = send_slice_world,
        .free_slot = free_slot_world,
        .expose = expose_world,
        .fetch = fetch_world,
        .next = next_world,
        .close = close_world,
    };

    (void)name, (void)err;
    return &ops;
}

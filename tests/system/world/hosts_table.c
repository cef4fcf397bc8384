/* The table of eps/hosts/hosts.h for simulated daemons.
 *
 * It uses all that the table allows: memory that it may write holds no number from the call on, and what it may read
 * for longer must not change meanwhile. */
#include "tests/system/world/hosts.h"

#include "eps/hosts/host_message.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { PIECES = 3 };

static int open_world(struct hosts **out, uint32_t *number, uint32_t *n, struct error *err)
{
    struct hosts *h = world_alloc(sizeof *h);

    (void)err;
    h->process = process_running;
    h->host = process_running->host;
    h->n = hosts_team.n;
    for (uint32_t other = 0; other < h->n; other++)
        h->links[other].window = hosts_team.window;
    assert(hosts_team.processes[h->host] == process_running);
    hosts_team.hosts[h->host] = h;
    *number = h->host;
    *n = h->n;
    *out = h;
    return 0;
}

static bool has_dead(void)
{
    for (uint32_t h = 0; h < hosts_team.n; h++)
        if (!hosts_team.processes[h]->alive)
            return true;
    return false;
}

static uint64_t due_started(void *arg)
{
    (void)arg;
    for (uint32_t h = 0; h < hosts_team.n; h++)
        if (!has_dead() && (!hosts_team.hosts[h] || hosts_team.hosts[h]->phase < PHASE_STARTING))
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
    fiber_start(hosts_carry, h, true);
    return 0;
}

static void say_message(const struct hosts *h, uint32_t to, const char *what, const void *message, size_t bytes)
{
    struct host_message word;

    if (!world_traces)
        return;
    host_message_decode(&word, message, bytes);
    world_say("=> %s: %s: word %d, step %" PRIu64 ", unit %u, visit %u, part %u, x %g", hosts_team.processes[to]->name,
              what, (int)word.kind, word.step, word.unit, word.visit, word.part, word.x);
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
    item = hosts_item_new(h, to, ITEM_MESSAGE);
    if (!item)
        return 0;
    set_message(item, HOSTS_MESSAGE, message, bytes);
    item->due = item->due > link->last_due ? item->due : link->last_due;
    link->last_due = item->due;
    hosts_put(hosts_team.hosts[to], item);
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
    item = hosts_item_new(h, to, ITEM_SLICE);
    if (!item)
        return 0;
    assert(hosts_team.hosts[to]->links[h->host].slots[slot] == SLOT_FREE);
    hosts_team.hosts[to]->links[h->host].slots[slot] = SLOT_COMING;
    memset(hosts_slot_of(hosts_team.hosts[to], h->host, slot), 0xFF, bytes);
    set_message(item, HOSTS_SLICE, message, message_bytes);
    item->event.slot = slot;
    item->event.bytes = bytes;
    item->data = data;
    item->hash = XXH3_64bits(data, bytes);
    item->due = item->due > h->links[to].last_due ? item->due : h->links[to].last_due; /* after earlier messages */
    hosts_put(hosts_team.hosts[to], item);
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
    item = hosts_item_new(h, from, ITEM_FREED);
    if (!item)
        return 0;
    item->event.kind = HOSTS_FREED;
    item->event.slot = slot;
    hosts_put(hosts_team.hosts[from], item);
    return 0;
}

/* Nobody may be reading what was exposed. */
static void expose_world(struct hosts *h, uint32_t region, const void *base, size_t bytes)
{
    for (uint32_t other = 0; other < h->n; other++)
        for (const struct item *item = hosts_team.hosts[other] ? hosts_team.hosts[other]->items : NULL; item;
             item = item->next)
            if (item->kind == ITEM_FETCH && item->from == h->host && item->region == region &&
                hosts_reach(h, hosts_team.hosts[other]))
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
    item = hosts_item_new(h, from, ITEM_FETCH);
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
    item->hash = XXH3_64bits(hosts_exposed(h, item), bytes);
    hosts_put(h, item);
    return 0;
}

static void credit(struct hosts *h, uint32_t from)
{
    struct link *link = &h->links[from];
    struct item *item;

    if (++link->n_taken < (hosts_team.window + 1) / 2)
        return;
    item = hosts_item_new(h, from, ITEM_CREDIT);
    if (item) {
        item->n_credits = link->n_taken;
        hosts_put(hosts_team.hosts[from], item);
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
        for (const struct item *item = hosts_team.hosts[other]->items; item; item = item->next)
            if (other == h->host || item->from == h->host)
                return NEVER;
    return hosts_all_close(h) ? 0 : NEVER;
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
    hosts_drop_all(h);
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

/* Hosts of the world that are joined by eps/hosts/hosts.h (hosts_table.c). What that leaves open is drawn: when
 * anything arrives, what overtakes what, at which moments the bytes of a fetch are read, who notices first that a host
 * is lost. */
#include "tests/system/world/hosts.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <xxhash.h>

enum { TICK_S = 5 };

struct team hosts_team;

void hosts_launch(struct process *const *processes, unsigned n)
{
    memset(&hosts_team, 0, sizeof hosts_team);
    memcpy(hosts_team.processes, processes, n * sizeof *processes);
    hosts_team.n = n;
    hosts_team.window = chance(2) ? HOSTS_WINDOW : 1 + (unsigned)chance(3);
}

static struct hosts *find(const struct process *p)
{
    for (uint32_t h = 0; h < hosts_team.n; h++)
        if (hosts_team.processes[h] == p)
            return hosts_team.hosts[h];
    return NULL;
}

/* ---- what is under way ------------------------------------------------------------------------------------------- */

static uint64_t draw_due(const struct hosts *a, const struct hosts *b)
{
    uint64_t due = world_now() + chance_time(10 * US, chance(8) ? 200 * US : 20 * MS);

    if (world_now() < a->process->slow_until)
        due += chance(a->process->slow_ns + 1);
    if (world_now() < b->process->slow_until)
        due += chance(b->process->slow_ns + 1);
    return due;
}

void hosts_put(struct hosts *to, struct item *item)
{
    struct item **at = &to->items;

    while (*at && (*at)->due <= item->due)
        at = &(*at)->next;
    item->next = *at;
    *at = item;
}

bool hosts_reach(const struct hosts *a, const struct hosts *b)
{
    return b && a->process->alive && b->process->alive && !a->is_cut && !b->is_cut && !a->is_lost && !b->is_lost &&
           a->phase < PHASE_CLOSED && b->phase < PHASE_CLOSED;
}

struct item *hosts_item_new(const struct hosts *from, uint32_t to, enum item_kind kind)
{
    struct item *item;

    if (!hosts_reach(from, hosts_team.hosts[to]))
        return NULL;
    item = world_alloc(sizeof *item);
    item->kind = kind;
    item->from = from->host;
    item->event.host = from->host;
    item->due = draw_due(from, hosts_team.hosts[to]);
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

void hosts_drop_all(struct hosts *h)
{
    for (uint32_t other = 0; other < hosts_team.n; other++) {
        drop_items(h, other, is_any, 0);
        if (hosts_team.hosts[other] && other != h->host)
            drop_items(hosts_team.hosts[other], h->host, reads_memory, 0);
    }
}

/* ---- events ------------------------------------------------------------------------------------------------------ */

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
        if (other != h->host && other != lost && (item = hosts_item_new(h, other, ITEM_LOST))) {
            item->lost = lost;
            hosts_put(hosts_team.hosts[other], item);
        }
    h->is_lost = true;
    hosts_drop_all(h);
    tell(h, &(struct hosts_event){.kind = HOSTS_LOST, .host = lost, .why = h->why});
}

const uint8_t *hosts_exposed(const struct hosts *h, const struct item *item)
{
    const struct hosts *of = hosts_team.hosts[item->from];

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
    const uint8_t *bytes = hosts_exposed(h, item);

    if (XXH3_64bits(bytes, item->event.bytes) != item->hash)
        world_fail("what host %u fetches of region %u of host %u changed meanwhile", h->host, item->region, item->from);
    memcpy(item->into + item->done, bytes + item->done, n);
    item->done += n;
    return item->n_pieces == 0;
}

void *hosts_slot_of(const struct hosts *h, uint32_t from, uint32_t slot)
{
    return (uint8_t *)h->options.inbox + ((size_t)from * h->options.n_slots + slot) * h->options.slot_bytes;
}

static void take_slice(struct hosts *h, const struct item *item)
{
    const struct hosts_event *e = &item->event;

    if (XXH3_64bits(item->data, e->bytes) != item->hash)
        world_fail("a slice of host %u for host %u changed on its way", item->from, h->host);
    memcpy(hosts_slot_of(h, e->host, e->slot), item->data, e->bytes);
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
            item->due = draw_due(h, hosts_team.hosts[item->from]);
            hosts_put(h, item);
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

/* ---- the thread -------------------------------------------------------------------------------------------------- */

/* A thread that is stalled sends none, as it would under MPI. */
static bool beats(const struct hosts *a, const struct hosts *b)
{
    return hosts_reach(a, b) && a->process->stopped_until <= world_now() &&
           (a->process->hung_until <= world_now() || a->process->hung_until == NEVER);
}

bool hosts_all_close(const struct hosts *h)
{
    for (uint32_t other = 0; other < h->n; other++)
        if (!hosts_team.hosts[other] || hosts_team.hosts[other]->phase < PHASE_CLOSING)
            return false;
    return true;
}

static void tick(struct hosts *h)
{
    const uint32_t before = (h->host + h->n - 1) % h->n;
    const uint64_t passed = world_now() - h->ticked_at;

    h->silent_ns = beats(hosts_team.hosts[before], h) || hosts_all_close(h)
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

void hosts_carry(void *arg)
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
    for (uint32_t to = 0; to < hosts_team.n; to++) {
        drop_items(h, to, is_any, 0);
        other = to == h->host ? NULL : hosts_team.hosts[to];
        if (!other || other->phase < PHASE_RUNNING)
            continue;
        drop_items(other, h->host, is_lost_with_it, written);
        if (!h->is_lost && !h->is_cut && !other->is_cut && !other->is_lost && chance(2)) {
            struct item *item = world_alloc(sizeof *item);
            *item = (struct item){.kind = ITEM_LOST,
                                  .from = h->host,
                                  .lost = h->host,
                                  .due = written + chance_time(1 * MS, 2 * SECOND)};
            hosts_put(other, item);
        }
    }
}

void hosts_cut(struct process *p)
{
    struct hosts *h = find(p);

    if (!h)
        return;
    h->is_cut = true;
    for (uint32_t other = 0; other < hosts_team.n; other++)
        if (hosts_team.hosts[other] && other != h->host) {
            drop_items(h, other, is_any, 0);
            drop_items(hosts_team.hosts[other], h->host, is_any, 0);
        }
}

bool hosts_has_lost(const struct process *p)
{
    const struct hosts *h = find(p);

    return h && h->was_told;
}

/* tests/system/world/hosts.h - simulated daemons of several hosts, and what is under way between them. */
#ifndef TESTS_SYSTEM_WORLD_HOSTS_H
#define TESTS_SYSTEM_WORLD_HOSTS_H

#include "eps/hosts/hosts.h"
#include "tests/system/world/world.h"

enum { MOST_SLOTS = 8 };

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

/* Who a launcher has started together. */
struct team {
    struct process *processes[WORLD_MOST_HOSTS];
    struct hosts *hosts[WORLD_MOST_HOSTS];
    uint32_t n;
    unsigned window;
};

extern struct team hosts_team;

/* Later than all that is due at that time, so what may not overtake does not. */
void hosts_put(struct hosts *to, struct item *item);
/* Both are alive and open, and neither is cut off. */
bool hosts_reach(const struct hosts *a, const struct hosts *b);
/* NULL: it will not arrive. */
struct item *hosts_item_new(const struct hosts *from, uint32_t to, enum item_kind kind);
/* All that is under way to it. */
void hosts_drop_all(struct hosts *h);
/* Where a fetch reads. */
const uint8_t *hosts_exposed(const struct hosts *h, const struct item *item);
void *hosts_slot_of(const struct hosts *h, uint32_t from, uint32_t slot);
/* All have said goodbye, so nobody is missed. */
bool hosts_all_close(const struct hosts *h);
/* The thread of a host's messages. */
void hosts_carry(void *arg);

#endif

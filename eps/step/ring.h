/* eps/step/ring.h - the ring: a few slots through which other hosts' units pass on their way to this host's workers.
 *
 * A state machine without I/O: pulls and reads go in, and ring_next says what is to be done. Once a pull is answered,
 * its weights stand at the unit's owner. They are fetched into a slot, unless they are in one, and lent to all workers
 * that want them until these have read them. A worker has RING_LENT units lent at most, in the order of its pulls, and
 * the ring has as many slots for each part, and one more (plan_ring_slots). So whoever has fewer lent finds a slot that
 * nobody reads, and no worker waits for what another one reads. A pull whose result nobody takes is void: else a worker
 * without a part could fill the ring.
 *
 * An owner may overwrite version t once every host has said that step t is covered. So a host says so when no fetch of
 * that version is under way (ring_is_fetching), and begins none afterwards (ring_step.lowest).
 *
 * The caller numbers workers and units. A *turn* counts how often a unit's weights have changed. Calls cost the
 * pulls. */
#ifndef EPS_STEP_RING_H
#define EPS_STEP_RING_H

#include "proto/wire/message.h"

enum {
    RING_LENT = 2,                          /* units that a worker has at a time */
    RING_WAITING = 16,                      /* pulls of a worker that are not lent yet */
    RING_SLOTS = 2 * MESSAGE_MAX_PARTS + 1, /* at most */
    RING_PULLS = MESSAGE_MAX_PARTS * (RING_WAITING + RING_LENT),
};

struct ring_slot {
    bool taken; /* it has, or is to have: */
    uint32_t unit;
    uint64_t turn;
    uint64_t version;   /* of that turn, when it was fetched */
    bool fetching;      /* it is not here yet */
    uint32_t n_readers; /* workers that it is lent to */
    uint64_t used;      /* when it was lent or fetched last: a count */
};

struct ring_pull {
    uint32_t worker, unit;
    uint64_t version;
    bool answered; /* its weights stand at their owner, with: */
    uint64_t turn;
    struct ring_slot *slot; /* lent; NULL: not yet */
};

struct ring {
    uint32_t n_slots;
    struct ring_slot slots[RING_SLOTS]; /* (n_slots) */
    struct ring_pull pulls[RING_PULLS]; /* (n_pulls) oldest first */
    size_t n_pulls;
    uint64_t n_used;
    uint32_t ahead; /* a unit to be fetched before it is pulled; UINT32_MAX: none */
};

/* What the ring asks of the step. */
struct ring_step {
    uint64_t lowest; /* version that still stands everywhere: owners may overwrite earlier ones */
    const void *context;
    /* Present version of the unit's weights with this turn: a skipped step advances the one and not the other.
     * UINT64_MAX: they never change. */
    uint64_t (*version)(const void *context, uint32_t unit, uint64_t turn);
    /* True if what the worker makes of its pull of this version is taken. */
    bool (*counts)(const void *context, uint32_t worker, uint64_t version);
    /* True if the unit may pass through the ring; *turn: that of its weights now. */
    bool (*find)(const void *context, uint32_t unit, uint64_t *turn);
    /* True if what else belongs to the unit in this version is here: the norms of gradients. */
    bool (*is_whole)(const void *context, uint32_t unit, uint64_t version);
};

struct ring_act {
    enum {
        RING_LEND,  /* worker, version, unit: are in slot, until the worker has read them */
        RING_VOID,  /* worker, version, unit: gets no weights. The pull is forgotten */
        RING_FETCH, /* unit, turn: into slot. ring_fetched follows */
    } kind;
    uint32_t worker, unit, slot;
    uint64_t version, turn;
};

/* Empty. n_slots: at most RING_SLOTS. */
void ring_init(struct ring *ring, uint32_t n_slots);
/* A worker pulls a unit. It has at most RING_WAITING pulls that are not lent. */
void ring_pull(struct ring *ring, uint32_t worker, uint64_t version, uint32_t unit);
/* The weights that it pulled stand at their owner. Pulls are answered in any order. */
void ring_answer(struct ring *ring, uint32_t worker, uint64_t version, uint32_t unit, uint64_t turn);
/* They come no more: the pull, which was not answered, is void. */
void ring_drop(struct ring *ring, uint32_t worker, uint64_t version, uint32_t unit);
/* The worker has read what it was lent; nothing happens if it was lent none such. */
void ring_read(struct ring *ring, uint32_t worker, uint64_t version, uint32_t unit);
/* The worker has gone, and reads nothing. */
void ring_forget(struct ring *ring, uint32_t worker);
/* A step opens: nobody whose share counts reads an earlier version any more. */
void ring_begin(struct ring *ring, uint64_t step);
void ring_fetched(struct ring *ring, uint32_t slot);
/* The next thing to be done; it counts as done. False: nothing is, before another call. */
bool ring_next(struct ring *ring, const struct ring_step *step, struct ring_act *out);
/* True if weights of this version, or an earlier one, are being fetched. */
bool ring_is_fetching(const struct ring *ring, uint64_t version);
/* True if the worker waits for the ring: its oldest pull that is not lent was answered, and it may have one more. */
bool ring_awaits(const struct ring *ring, uint32_t worker);

#endif

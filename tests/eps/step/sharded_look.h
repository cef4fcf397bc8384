/* tests/eps/step/sharded_look.h - what tests of whole daemons see of a job on several hosts, whose state is
 * eps/step's. */
#ifndef TESTS_EPS_STEP_SHARDED_LOOK_H
#define TESTS_EPS_STEP_SHARDED_LOOK_H

#include "eps/step/sharded.h"

/* Rare ones. */
enum {
    SHARDED_HOLDS_SLICE = 1, /* of a step that is not open here yet */
    SHARDED_HOLDS_LOSS = 2,
    SHARDED_USES_RESERVED = 4, /* slot */
    SHARDED_HAS_NO_ROOM = 8,   /* for a word */
    SHARDED_HAS_NEXT_JOB = 16, /* before the last one's end */
};

struct sharded_look {
    uint32_t host;
    bool is_shared, is_lost;
    unsigned states;       /* of those above */
    uint32_t n_slices;     /* of this host's workers: not sent yet, in a slot of their owner, or folded, which local has
                            * yet to hear */
    uint32_t n_slots;      /* of other hosts for this one, and here for others, that are in use */
    uint32_t n_fetches;    /* begun, or to be */
    bool has_request_text; /* of the job */
};

void sharded_look(struct sharded_look *out, const struct sharded *s);
/* During a job. */
bool sharded_look_owns(const struct sharded *s, uint32_t unit);
/* Where a slice came from that is not sent yet; NULL: there is none. */
const struct job_seat *sharded_look_seat(const struct sharded *s, uint32_t unit, uint32_t slice);
/* What does not hold of the ring; NULL: all does. */
const char *sharded_look_ring(const struct sharded *s);
/* The worker waits for another host. */
bool sharded_look_waits(const struct sharded *s, const struct peer *worker);

#endif

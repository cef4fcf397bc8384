/* tests/eps/step/spread_look.h - what tests of whole daemons see of a job on several hosts, whose state is eps/step's. */
#ifndef TESTS_EPS_STEP_SPREAD_LOOK_H
#define TESTS_EPS_STEP_SPREAD_LOOK_H

#include "eps/step/spread.h"

/* Rare ones. */
enum {
    SPREAD_HOLDS_SLICE = 1, /* of a step that is not open here yet */
    SPREAD_HOLDS_LOSS = 2,
    SPREAD_USES_RESERVED = 4, /* slot */
    SPREAD_HAS_NO_ROOM = 8,   /* for a word */
    SPREAD_HAS_NEXT_JOB = 16, /* before the last one's end */
};

struct spread_look {
    uint32_t host;
    bool is_shared, is_lost;
    unsigned states;       /* of those above */
    uint32_t n_slices;     /* of this host's workers: not sent yet, in a slot of their owner, or folded, which local has
                            * yet to hear */
    uint32_t n_slots;      /* of other hosts for this one, and here for others, that are in use */
    uint32_t n_fetches;    /* begun, or to be */
    bool has_request_text; /* of the job */
};

void spread_look(struct spread_look *out, const struct spread *s);
/* During a job. */
bool spread_look_owns(const struct spread *s, uint32_t unit);
/* Where a slice came from that is not sent yet; NULL: there is none. */
const struct job_seat *spread_look_seat(const struct spread *s, uint32_t unit, uint32_t slice);
/* What does not hold of the ring; NULL: all does. */
const char *spread_look_ring(const struct spread *s);
/* The worker waits for another host. */
bool spread_look_waits(const struct spread *s, const struct peer *worker);

#endif

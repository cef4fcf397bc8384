/* tests/kit/relay_world.h - what must hold whatever happens, watched from outside the relay.
 *
 * The world feeds events and judges every action by tables of its own, filled from nothing but the events and actions
 * it saw: what stands in which slot, what was folded, the version of each unit. A rule broken ends the test and prints
 * the last events. It also plays decent workers, the optimizer thread and the readers, to drive a step to its end. */
#ifndef TESTS_KIT_RELAY_WORLD_H
#define TESTS_KIT_RELAY_WORLD_H

#include "eps/relay/relay.h"

#include <stdio.h>

enum {
    WORLD_UNITS = 6,
    WORLD_VISITS = 8,
    WORLD_PARTS = 4,
    WORLD_SLICES = 3,
    WORLD_WORKERS = 6,
    WORLD_SLOTS = 4,
    WORLD_READERS = 3
};

struct world_name {
    bool full;
    uint32_t visit, part, slice;
};

struct world_job {
    bool flying;
    uint64_t step;
    struct world_name name;
};

struct world_reader {
    bool here;
    uint64_t version;
    bool to_come[WORLD_UNITS], captured[WORLD_UNITS];
};

struct world {
    struct relay *relay;
    struct relay_config config;
    /* relay_feed, or what a test puts around it. */
    int (*feed)(struct relay *relay, const struct relay_event *event, const struct relay_action **actions);
    uint64_t t; /* UINT64_MAX before the first step */
    bool covered, torn, skipped;
    uint64_t n_done;

    uint32_t visits[WORLD_VISITS], n_slices[WORLD_VISITS], n_visits; /* of the open step */
    bool in_step[WORLD_UNITS], frozen[WORLD_UNITS], updating[WORLD_UNITS];
    uint64_t version[WORLD_UNITS];
    bool folded[WORLD_VISITS][WORLD_PARTS][WORLD_SLICES];
    struct world_job jobs[WORLD_UNITS][WORLD_SLICES];
    uint32_t owner[WORLD_PARTS], attempt[WORLD_PARTS]; /* of the last share */
    bool loss[WORLD_PARTS];

    bool attached[WORLD_WORKERS], leaving[WORLD_WORKERS]; /* leaving: it was refused, so its session ends */
    struct world_name slots[WORLD_WORKERS][1 + WORLD_SLOTS];
    struct world_name granted[WORLD_WORKERS];
    uint32_t n_unanswered[WORLD_WORKERS]; /* pulls */
    struct world_reader readers[WORLD_READERS];
    uint64_t n_actions[RELAY_ABANDON + 1]; /* of each kind: shows that a test got there */

    FILE *log;
    char *log_text;
    size_t log_bytes;
};

/* Ends the test if the relay cannot be opened, or on the first rule that is broken. */
void world_open(struct world *w, const struct relay_config *config);
void world_close(struct world *w);
void world_feed(struct world *w, const struct relay_event *event);

/* Short for the events of decent peers. */
void world_attach(struct world *w, uint32_t worker);
void world_finish_job(struct world *w, uint32_t unit, uint32_t slice, bool ok);
void world_finish_update(struct world *w, uint32_t unit);
/* The part's owner sends its next contribution, if it has a slot for one. False if it has none, or nothing to send. */
bool world_contribute(struct world *w, uint32_t part);

/* Everyone does what is theirs until nothing is left to do; then the step must be done, unless the model is torn, and
 * nothing may be waiting, standing or flying. */
void world_settle(struct world *w);

#endif

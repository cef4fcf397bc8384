/* device/worker/link.h - the step's link (device/step/step.h) over messages to a daemon on this host.
 *
 * Weights are read from a segment that the daemon hands out for reading; contributions go into slots of this worker's
 * inbox, where slot 0 is the reserved one: it may hold only the contribution that the daemon grants it to by name.
 * Compute thread only. */
#ifndef DEVICE_WORKER_LINK_H
#define DEVICE_WORKER_LINK_H

#include "device/step/step.h"
#include "device/worker/mailbox.h"
#include "proto/plan/plan.h"
#include "proto/wire/segment.h"

enum { LINK_MAX_SLOTS = MAILBOX_MAX_SLOTS };

struct link {
    struct mailbox *box;
    const struct model *model;
    const struct segment *weights, *inbox;
    enum number_type precision; /* of weights */
    struct trace *trace;        /* what is waited for; NULL: not recorded */
    size_t slot_bytes;
    uint32_t n_slots; /* ordinary ones: 1..n_slots */
    bool takes_turns;
    uint64_t step;
    uint32_t attempts[MESSAGE_MAX_PARTS]; /* of each part of the share */
    struct {
        uint64_t version;
        uint32_t unit;
        bool ready;
    } pulls[PLAN_MAX_WEIGHT_BUFFERS]; /* oldest first */
    uint32_t n_pulls;
    bool slot_used[1 + LINK_MAX_SLOTS]; /* from when it is taken to when it is folded */
    bool granted;                       /* slot 0, for this name: */
    uint32_t granted_visit, granted_part, granted_slice;
    bool cancelled; /* RELEASE has come: the job is over */
    bool has_next;  /* what came for after this step: */
    struct mail next;
};

extern const struct device_link link_session;

/* Before each step or evaluation: nothing is pulled or granted. Slots of the step before may still be in use. */
void link_begin(struct link *link, uint64_t step);

#endif

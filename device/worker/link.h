/* device/worker/link.h - the step's link (proto/step/step.h) over messages to a daemon on this host.
 *
 * Weights are read from a segment that the daemon lends for reading. Contributions go into slots of this worker's
 * inbox. Slot 0 is reserved: it holds only the contribution that the daemon grants it to by name. Those before that
 * one are folded already: if no other slot is free, they are not sent. With row groups it holds any contribution to a
 * part up to the one that is named. Compute thread only. */
#ifndef DEVICE_WORKER_LINK_H
#define DEVICE_WORKER_LINK_H

#include "proto/step/step.h"
#include "device/worker/mailbox.h"
#include "proto/plan/memory/plan.h"
#include "proto/wire/segment.h"

enum { LINK_MAX_SLOTS = MAILBOX_MAX_SLOTS };

enum link_slot {
    LINK_SLOT_FREE,
    LINK_SLOT_FILLING, /* taken, but not contributed yet */
    LINK_SLOT_GIVEN,   /* contributed, but not folded yet */
    LINK_SLOT_OLD,     /* contributed before link_begin, but not folded yet */
};

struct link {
    struct mailbox *box;
    const struct model *model;
    const struct segment *weights, *inbox;
    enum number_type precision; /* type of weights */
    enum number_type grad;      /* type of contributions */
    struct trace *trace;        /* records waits; NULL: not traced */
    size_t slot_bytes;
    uint32_t n_slots;         /* ordinary slots: 1..n_slots */
    bool takes_turns, groups; /* the assignment's */
    uint64_t step;
    uint32_t attempts[MESSAGE_MAX_PARTS]; /* for each part of the share */
    uint32_t audited;                     /* contributions to this part, counted from 1, have digests; 0: none */
    uint64_t loss_digest;                 /* of the audited part's loss, which its slices' digests continue */
    struct link_pull {
        uint64_t version, at, frozen_at; /* at, frozen_at: once it is ready */
        uint32_t unit;
        bool ready, lent;
    } pulls[PLAN_MAX_WEIGHT_BUFFERS]; /* oldest first */
    uint32_t n_pulls;
    struct link_pull reading;          /* the pull that wait_weights answered last */
    uint8_t slots[1 + LINK_MAX_SLOTS]; /* enum link_slot */
    bool granted;                      /* slot 0 is granted to granted_name */
    struct contribution_name granted_name;
    bool cancelled;     /* RELEASE arrived: the job is over */
    struct error error; /* why -EPROTO: the daemon named weights that cannot be */
    bool superseded;    /* `next` replaces the step under way, or nobody takes it: its calls return -ESTALE */
    bool has_next;      /* `next`, a message for after this step, has arrived */
    struct mail next;
};

extern const struct device_link link_session;
/* The same for a part that is audited: digests of its slices are sent, and nothing else. Slots hold them meanwhile, and
 * are free again at once. */
extern const struct device_link link_audit;

/* Called before each step, or with MESSAGE_NO_STEP before an evaluation or a generation: no pull is pending, and no
 * transfer into a slot. Slots contributed before may still be in use. */
void link_begin(struct link *link, uint64_t step);
/* Called after a step or evaluation, however it ended: lent weights are not read any more, and no pull is waited
 * for. */
void link_end(struct link *link);
/* A message that came between two steps. */
void link_take_in(struct link *link, const struct mail *mail);

#endif

/* eps/relay/relay.h - the step protocol: who computes which part, what is folded when, which pull is answered.
 *
 * A state machine without I/O: one event in, actions out, in a fixed order. The daemon turns messages into events,
 * and actions into messages and tasks. Tests replay orders of events. The protocol's specification is executable and
 * was searched exhaustively. This code follows it rule by rule, so that traces of both can be compared line by line
 * (tests/eps/relay/).
 *
 * A part goes to a worker that has room for it, or waits until one has: it attaches, its room grows, or it has finished
 * a part of its own. A worker that is about to leave the job has room for none: it finishes those that it has.
 *
 * A step may be audited: one of its parts is computed by a second worker, too, its *auditor*, or once more by the same
 * one, before that worker computes parts of its own. It sends a digest of each slice. A slice of the audited part is
 * folded if its own digest is the same; once its auditor is lost, without one. If they differ, a third worker audits
 * the part, too; without one, the auditor does again, and then the owner computes it again.
 *
 * A slice that has changed in its slot is nobody's fault, and the same numbers come again: so its worker begins its
 * share anew.
 *
 * Terms: a *visit* is a unit's place in the computation, 0 at the bottom; a tied unit has two (of as many slices). A
 * step's open says which unit each has, in the step's own order. A contribution's *name* in its step is (visit, part,
 * slice). *Fold order* is visit downwards, then part, then slice upwards; with row groups, part upwards comes first.
 * The *mark* is the lowest name in fold order that is not folded.
 *
 * Each pull is answered once, with weights of the version that it names, or with none: if its step is over (covered,
 * skipped, past, torn), or that version is gone. A slow worker asks too late without being at fault.
 *
 * The caller numbers workers, units and readers. Unit numbers should be small, for they index a table. At most 64
 * readers may be attached at a time. The relay judges everything that a message can cause, and refuses what is
 * invalid. Only a mistake of the caller can cause an event about a task that was never given out; this is asserted. */
#ifndef EPS_RELAY_RELAY_H
#define EPS_RELAY_RELAY_H

#include "proto/model/contribution.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct relay_config {
    uint64_t first_step; /* first step that may be opened: updates done before */
    uint32_t n_parts;
    uint32_t n_slots;        /* slots of an inbox besides slot 0, the reserved one */
    uint32_t n_accumulators; /* units whose parts are being summed at a time: adamw with several parts */
    bool adamw;              /* parts are summed, as AdamW's are; else each is folded as it comes, as AdamA's are */
    bool fenced, folded;     /* the commit, not both; neither: eager */
    /* Not eager: a worker takes its parts in ascending order, in row groups of parts that follow each other, one group
     * after another through the whole model. */
    bool groups;
    bool deterministic; /* the contributions to one slice are folded in fold order */
    bool replay;        /* version t of every unit is kept until the step is covered */
};

enum relay_event_kind {
    RELAY_ATTACHED,     /* worker, room */
    RELAY_LOST,         /* worker; final */
    RELAY_ROOM,         /* worker, room: another number from now on */
    RELAY_OPEN,         /* step, visits, n_slices, frozen, owners, audits, audited, worker (the auditor) */
    RELAY_PULL,         /* worker, step (the version), unit */
    RELAY_LOSS,         /* worker, name (without visit and slice), ok */
    RELAY_CONTRIBUTION, /* worker, name, slot, digest (of an audited part) */
    RELAY_DIGEST,       /* worker, name (without attempt), digest: the auditor's */
    RELAY_UNAUDIT,      /* worker: it will be lost, and sends no digest any more */
    RELAY_FOLDED,       /* unit, name.slice, ok, damaged: from the optimizer thread; not ok: nothing was folded */
    RELAY_UPDATED,      /* unit */
    RELAY_SAVE,         /* reader attaches */
    RELAY_RELEASED,     /* reader has read unit */
};

struct relay_event {
    enum relay_event_kind kind;
    uint32_t worker, unit, slot, reader;
    uint32_t room; /* unfinished parts that the worker may have at a time; 0: it is given no more */
    uint64_t step;
    struct contribution_name name;
    bool ok;      /* RELAY_LOSS: finite. RELAY_FOLDED: folded */
    bool damaged; /* RELAY_FOLDED, not ok: it is not what its worker has sent any more; else it is not finite */
    uint64_t digest;
    bool audits;      /* RELAY_OPEN: `audited` is a part that `worker` audits */
    uint32_t audited; /* below n_parts */
    /* RELAY_OPEN alone; borrowed during the call. */
    const uint32_t *visits;   /* (n_visits) unit of each visit */
    const uint32_t *n_slices; /* (n_visits) slices of each visit's unit; 0 only if it is frozen */
    uint32_t n_visits;
    const uint32_t *frozen; /* (n_frozen) units to leave alone */
    uint32_t n_frozen;
    const uint32_t *owners; /* (n_owners) worker of each part, within its room; n_owners must be n_parts */
    uint32_t n_owners;
};

enum relay_action_kind {
    RELAY_AUDIT,  /* worker, step, name.part: audit this part, before any share of this step. third: to decide; its
                     unfinished parts, if any, are a share that follows, to be begun anew behind the audit */
    RELAY_SHARE,  /* worker, step, parts (n_parts): these are yours, in these attempts */
    RELAY_ANSWER, /* worker, unit, step, before: weights of that version, in the current or in the replay buffer; or
                     is_void: none, the pull came too late */
    RELAY_REFUSE, /* worker, or to_client, or to_reader and reader; why: to the event just fed. not_finite goes to the
                     worker at fault, perhaps another: it is lost here already, unless the step is given up with it */
    RELAY_AGAIN,  /* worker: begin the share that follows anew, as its result is compared once more */
    RELAY_REDO,   /* worker: begin the share that follows anew, as a slice that it has sent was damaged */
    RELAY_LIAR,   /* worker: two others, or it itself, have computed its slice otherwise; it is lost here already */
    RELAY_UNDECIDED, /* worker, other: owner and auditor differ, and no third result can decide: as RELAY_TORN */
    RELAY_FOLD,      /* unit, name, worker, slot, first: job; first decays (or clears the sum), then adds. With several
                     parts, each visit of a tied unit has a sum of its own */
    RELAY_UPDATE,    /* unit: job */
    RELAY_FREE,      /* worker, slot, name: may be written again */
    RELAY_GRANT,   /* worker, name: the reserved slot is for names up to that one; without row groups, all below it are
                     folded */
    RELAY_COVERED, /* step: all folded, step+1 may open */
    RELAY_SKIPPED, /* step: skipped; it changed nothing */
    RELAY_DONE,    /* step: all units at step+1 */
    RELAY_TORN,    /* step: begun, and can be neither finished nor redone */
    RELAY_CAPTURE, /* reader, unit, step: read the unit now; it stays at that version until released */
    RELAY_SAVED,   /* reader, step */
    RELAY_ABANDON, /* reader: its version will not come */
};

struct relay_part {
    uint32_t part, attempt;
};

struct relay_action {
    enum relay_action_kind kind;
    uint32_t worker, unit, slot, reader;
    uint32_t other; /* RELAY_UNDECIDED: the auditor */
    uint64_t step;
    struct contribution_name name;
    bool before;                    /* RELAY_ANSWER */
    bool is_void;                   /* RELAY_ANSWER: neither buffer may be read; before is false */
    bool first;                     /* RELAY_FOLD */
    bool to_client;                 /* RELAY_REFUSE of an open */
    bool to_reader;                 /* RELAY_REFUSE of a save: reader */
    bool not_finite;                /* RELAY_REFUSE, to a worker whose numbers are not finite */
    bool third;                     /* RELAY_AUDIT: at the step's open it is false */
    const char *why;                /* RELAY_REFUSE: a constant sentence */
    const struct relay_part *parts; /* RELAY_SHARE; valid until the next call */
    uint32_t n_parts;
};

struct relay;

/* -ENOMEM. Owned: relay_close. */
int relay_open(struct relay **out, const struct relay_config *config);
void relay_close(struct relay *relay);

/* Feeds one event. Returns the number of actions, which are in *actions until the next call, or -ENOMEM with the
 * state untouched. Takes memory only for something new (one worker more, a longer step), never for repeated events. */
int relay_feed(struct relay *relay, const struct relay_event *event, const struct relay_action **actions);

/* The version that a reader attached now would read. UINT64_MAX if the reader would be refused: once the model is
 * torn, and before the first step is opened here, when the caller may read any unit itself. */
uint64_t relay_cut(const struct relay *relay);

/* The worker that the open step waits for, if the optimizer thread has none of the step's folds: the worker's loss,
 * its contribution of the mark or its digest of that is missing, and it has all weights of this step that it has
 * pulled. UINT32_MAX: nobody. */
uint32_t relay_owes(struct relay *relay);

/* How many unfinished parts of the open step a worker has; 0 if the step is covered or there is none. A part is
 * unfinished until each of its contributions is folded or with the optimizer thread. */
uint32_t relay_load(const struct relay *relay, uint32_t worker);
/* The parts of which a worker still has to send contributions, in their attempts, ascending. Returns their number;
 * parts has room for n_parts. */
uint32_t relay_missing(const struct relay *relay, uint32_t worker, struct relay_part *parts);
/* The part that the worker still has to audit in the open step, or UINT32_MAX. */
uint32_t relay_audit_of(const struct relay *relay, uint32_t worker);
/* The part of the open step that is audited, or was until its auditor was lost; or UINT32_MAX. */
uint32_t relay_audited(const struct relay *relay);
/* True if the worker audits the open step. */
bool relay_is_auditor(const struct relay *relay, uint32_t worker);
/* True if all of the auditor's digests of the open step have come. */
bool relay_is_audited(const struct relay *relay);
/* True if the worker is attached here and was not lost. */
bool relay_has_worker(const struct relay *relay, uint32_t worker);
/* Parts of the open step without a worker: they wait for room. */
uint32_t relay_n_waiting(const struct relay *relay);
/* True if any part of the open step is the worker's, finished or not. */
bool relay_has_part(const struct relay *relay, uint32_t worker);
/* True if that part of the open step is the worker's, in this attempt. part < n_parts. */
bool relay_is_current(const struct relay *relay, uint32_t worker, uint32_t part, uint32_t attempt);
/* True if that part's loss in the open step is known, and finite. part < n_parts. */
bool relay_has_loss(const struct relay *relay, uint32_t part);
/* The worker is gone, and RELAY_LOST will be fed later; nothing happens if it is not attached here. Until then it is
 * given no part, and its contributions count: if units may be updated without them and there is no replay, only those
 * of parts that need no more, as a part that was begun could not be redone; and of these, if others are to be redone,
 * only those that were begun. */
void relay_expect_loss(struct relay *relay, uint32_t worker);
/* False if the worker's loss tears the model: a part that it has begun, and not sent whole, cannot be redone; or a part
 * that it has sent whole waits for accumulators, and these for another part of the worker's. */
bool relay_can_lose(const struct relay *relay, uint32_t worker);
/* False if another worker cannot redo all of its unfinished parts, those that it has sent whole included. */
bool relay_can_redo_all(const struct relay *relay, uint32_t worker);

/* True if all of the open step is folded, or it was skipped, or there is none. */
bool relay_is_covered(const struct relay *relay);
/* True if the open step needs only folds, and nothing more from workers: its losses are known, and each of its
 * contributions was folded or is in an inbox, and audited. When this is possible at all, the call costs the occupied
 * slots. */
bool relay_has_all(const struct relay *relay);

/* Version of a unit that has been in a step. */
uint64_t relay_version(const struct relay *relay, uint32_t unit);

/* For observers: the states of n units from `first` on. A unit that has not been in a step yet is at rest, at version
 * 0. Costs their slices and the occupied slots. */
enum relay_at { RELAY_AT_REST, RELAY_AT_INBOX, RELAY_AT_FOLD, RELAY_AT_UPDATE };
struct relay_view {
    uint64_t version;
    enum relay_at at;
};
void relay_observe(const struct relay *relay, uint32_t first, uint32_t n, struct relay_view *out);

#endif

/* eps/relay/relay_state.h - the relay's state. For eps/relay/ alone; everyone else includes eps/relay/relay.h.
 *
 * The specification asks about sets ("are all names of this unit folded?"). Here each set is a bit for each name and
 * a count for each question. So an event costs the occupied inbox slots, not names times slots: 0.5 us with 4,096
 * layers, 64 parts, 2 slices and 32 workers of 8 slots.
 *   a name     its place in fold order, a number below n_names; computed from (visit, part, slice) by relay_name_of
 *   standing   the occupied slots of the open step, in the order in which the pump reads them: by name, worker, slot
 *   sums       the units that need an accumulator, in backward order; the first sums_end of them may be folded */
#ifndef EPS_RELAY_RELAY_STATE_H
#define EPS_RELAY_RELAY_STATE_H

#include "eps/relay/relay.h"

#define RELAY_NOBODY    UINT32_MAX /* as owner of a part, or worker at fault */
#define RELAY_NO_SUM    UINT32_MAX /* index of a unit that is not in sums */
#define RELAY_ALL_PARTS UINT32_MAX
#define RELAY_NO_STEP   UINT64_MAX /* the step after it is 0 */

enum { RELAY_RESERVED = 0, RELAY_MAX_READERS = 64, RELAY_MAX_VISITS = 2 /* of a unit */ };

/* How often one event can move a part: its worker is lost for a slice that is not finite, or redoes a damaged one;
 * audits again; computes again; is named; a room is found. */
enum { RELAY_MOST_MOVES = 5 };

/* One contribution: it is in a slot, or was granted the reserved one. */
struct relay_tag {
    struct contribution_name name;
    uint32_t unit; /* follows from its step and visit */
};

struct relay_cell {
    bool full;
    struct relay_tag tag;
};

struct relay_worker {
    uint32_t id;
    uint32_t n_free;           /* ordinary slots */
    uint32_t load;             /* unfinished parts, while parts are being placed */
    uint32_t room;             /* unfinished parts that it may have */
    bool leaving;              /* its loss is expected */
    bool recruited;            /* it was a third worker in the open step, for an audit */
    struct relay_cell granted; /* the contribution granted last in this step */
    struct relay_cell *cells;  /* (1 + n_slots) */
};

struct relay_standing {
    uint32_t name, worker, slot;
    uint64_t digest;
    struct relay_tag tag;
};

struct relay_slice {
    bool flying; /* the optimizer thread has a fold of it, described by worker, slot and tag */
    uint32_t worker, slot;
    struct relay_tag tag;
    uint32_t n_folded[RELAY_MAX_VISITS]; /* names of the open step that are folded into each sum: relay_sum_of */
};

struct relay_unit {
    uint64_t version;
    struct relay_slice *slices; /* (cap_slices) */
    uint32_t cap_slices;
    uint32_t n_visits; /* visits in the open step; 0: it is not in it */
    uint32_t n_slices; /* slices of each visit */
    uint32_t n_names, n_folded;
    uint32_t sum_index; /* index in sums, or RELAY_NO_SUM */
    bool frozen, updating;
    bool known;                 /* it has been in a step */
    uint64_t to_come, captured; /* sets of readers' bits */
};

struct relay_visit {
    uint32_t unit, n_slices;
    /* The first of its n_parts * n_slices names; with row groups, of its n_slices names of part 0. None if it is
     * frozen. */
    uint32_t first_name;
    uint32_t rank; /* among the visits of its unit, 0 the topmost */
};

struct relay_part_state {
    uint32_t owner, attempt;
    uint32_t n_faults; /* attempts that sent numbers that were not finite */
    uint32_t n_sure;   /* its names that are folded or with the optimizer thread */
    uint32_t n_flying; /* its names that the optimizer thread has, from any attempt */
    bool loss;         /* its loss is known, and finite */
    bool moved;        /* it has a new owner, who must be told */
};

/* An auditor's result for one slice of the audited part. */
struct relay_digest {
    bool known;
    uint64_t value;
};

struct relay_audit {
    bool on, waits; /* a part of the open step is audited; digests are still waited for, as its auditor was not lost */
    uint32_t part, auditor;
    uint32_t n_digests; /* of the auditor's that are known */
    bool disputed; /* slice `name` of worker `first` had this digest, and the auditor's differs: a third one decides */
    uint32_t name, visit, slice, first;
    uint64_t digest;
    uint32_t referee;  /* who audits to decide; RELAY_NOBODY: the part's next attempt decides */
    uint32_t n_theirs; /* of its digests that are known */
};

struct relay_reader {
    uint32_t id;
    uint64_t bit, version;
    uint32_t n_to_come, n_captured;
};

struct relay_pull {
    uint32_t worker, unit;
    uint64_t step;
};

struct relay {
    struct relay_config config;
    uint64_t t; /* the open step, or RELAY_NO_STEP */
    bool covered, torn;
    bool has_tail; /* step `tail` is covered, but still has units to update */
    uint64_t tail;
    uint32_t n_past_tail; /* visits, from the bottom, whose units are known to have left the tail */

    struct relay_visit *visits; /* (n_visits) */
    uint32_t n_visits, cap_visits;
    uint32_t top, bottom; /* the highest and the lowest visit that are not frozen */
    uint64_t *folded;     /* one bit for each name */
    size_t cap_folded;
    uint32_t n_names, n_names_of_part, n_folded, n_flying;
    struct relay_tag mark; /* visit, part and slice of name number mark_name, the lowest not folded if below n_names */
    uint32_t mark_name;
    struct relay_part_state *parts; /* (n_parts) */
    uint32_t n_losses;              /* parts whose loss is known to be finite */
    struct relay_audit audit;
    struct relay_digest
        *digests; /* (2 * n_names_of_part) of the audited part: the auditor's, then the third worker's */
    size_t cap_digests;

    struct relay_unit *units; /* (n_units) by number */
    uint32_t n_units;
    uint32_t *sums; /* (n_sums) units */
    uint32_t n_sums, cap_sums;
    uint32_t sums_end, n_summing; /* sums before sums_end may be folded; n_summing of these are not updated yet */
    uint32_t touched;             /* the unit that the event being fed has folded into, or n_units */

    struct relay_worker *workers; /* (n_workers) by id; cells beyond stay allocated for workers that attach later */
    uint32_t n_workers, cap_workers;
    struct relay_standing *standing; /* (n_standing) */
    size_t n_standing, cap_standing;
    struct relay_pull *waiting; /* (n_waiting) oldest first */
    size_t n_waiting, cap_waiting;
    struct relay_reader readers[RELAY_MAX_READERS]; /* (n_readers) by id */
    uint32_t n_readers;

    struct relay_action *actions; /* (n_actions) caused by the event being fed */
    size_t n_actions, cap_actions;
    struct relay_part *shared; /* (n_shared), room for RELAY_MOST_MOVES * n_parts; the actions' parts point into this */
    uint32_t n_shared;
};

/* In memory.c. Makes room for everything that the event may cause, so that nothing after it can fail. -ENOMEM, with
 * nothing changed. opens: the event is an open that will be taken. */
int relay_reserve(struct relay *r, const struct relay_event *e, bool opens);
/* The next action, zeroed; its room was reserved. */
struct relay_action *relay_act(struct relay *r, enum relay_action_kind kind);
/* Fills the tables of a step from its open. */
void relay_begin_step(struct relay *r, const struct relay_event *e);
/* Moves the mark past folded names. False if no name is left. */
bool relay_find_mark(struct relay *r);
struct relay_reader *relay_find_reader(struct relay *r, uint32_t id); /* NULL: there is none */
struct relay_reader *relay_add_reader(struct relay *r, uint32_t id);

/* In slots.c. */
struct relay_worker *relay_find_worker(const struct relay *r, uint32_t id); /* NULL: not attached */
void relay_add_worker(struct relay *r, uint32_t id, uint32_t room);
void relay_drop_worker(struct relay *r, struct relay_worker *w);
bool relay_has_tag(const struct relay *r, const struct relay_worker *w, const struct relay_tag *tag);
void relay_put(struct relay *r, struct relay_worker *w, uint32_t slot, const struct relay_tag *tag, uint64_t digest);
/* The worker's contributions to a part, or to RELAY_ALL_PARTS, count no longer. */
void relay_drop_standing(struct relay *r, uint32_t worker, uint32_t part);
/* Says that a slot may be written again. */
void relay_free_slot(struct relay *r, uint32_t worker, uint32_t slot, const struct relay_tag *tag);
/* Empties a slot if it still holds this contribution. Its worker may have been lost since, and replaced. */
void relay_clear(struct relay *r, uint32_t worker, uint32_t slot, const struct relay_tag *tag);
/* Empties every slot that holds this name of the open step. The name was redone while it was being folded. */
void relay_clear_name(struct relay *r, uint32_t name);
/* Empties all slots except those the optimizer thread reads: they are freed when it has finished. */
void relay_clear_all(struct relay *r);
/* The same of one worker. */
void relay_clear_worker(struct relay *r, struct relay_worker *w);
/* Gives the optimizer thread every contribution that may be folded now. */
void relay_fold_all(struct relay *r);
/* Grants the reserved slot, if the mark needs it. */
void relay_grant(struct relay *r);
/* True if the reserved slot of the mark's worker is for this name, which is not folded. */
bool relay_may_reserve(struct relay *r, const struct relay_tag *tag);

/* In audit.c. The step has begun: its audit, if any. */
void relay_begin_audit(struct relay *r, const struct relay_event *e);
void relay_on_digest(struct relay *r, const struct relay_event *e);
/* The worker sends no digest any more. */
void relay_end_audit(struct relay *r, uint32_t worker);
/* True if what stands there may be folded as far as the audit is concerned. */
bool relay_is_agreed(const struct relay *r, const struct relay_standing *x);
/* Compares what stands of the audited part with the auditor's digests, and does what follows from a difference. */
void relay_judge(struct relay *r);

/* Who is to judge a slice that is not agreed. */
uint32_t relay_judge_of(const struct relay *r);
/* The worker is lost: what it had to say of an audit is not waited for. */
void relay_audit_lost(struct relay *r, uint32_t worker);

/* In feed.c. The worker begins its unfinished parts anew: nothing of its own is in its slots but what the thread
 * has. */
void relay_restart(struct relay *r, struct relay_worker *w);
/* The worker is lost: its parts are others'. */
void relay_lose(struct relay *r, uint32_t worker);
/* Nothing moves any more; the action that says so is the caller's. */
void relay_tear(struct relay *r);
void relay_refuse(struct relay *r, uint32_t worker, const char *why);

/* A reader begins, or is refused: units already at the cut are captured at once. */
void relay_on_save(struct relay *r, uint32_t id);
/* A reader needs a unit no longer. With the last one it has been saved. */
void relay_on_released(struct relay *r, uint32_t id, uint32_t unit);
/* Captures the unit for every reader whose version it has reached. */
void relay_capture(struct relay *r, uint32_t unit);
/* The job is torn: no version of the model will be whole again. */
void relay_abandon_readers(struct relay *r);
void relay_refuse_reader(struct relay *r, uint32_t reader, const char *why);

static inline uint32_t relay_name_of(const struct relay *r, const struct relay_tag *tag)
{
    const struct relay_visit *v = &r->visits[tag->name.visit];
    return v->first_name + tag->name.part * (r->config.groups ? r->n_names_of_part : v->n_slices) + tag->name.slice;
}

/* Units are updated once the whole step is folded; until then version t of each stands. */
static inline bool relay_updates_last(const struct relay *r)
{
    return r->config.fenced || r->config.folded;
}

/* Which of its unit's sums a contribution goes to. With several parts, each visit of a tied unit has one of its own, so
 * that it does not matter whether all parts come to one visit before one comes to the other, as they do without row
 * groups. */
static inline uint32_t relay_sum_of(const struct relay *r, const struct relay_tag *tag)
{
    return r->config.n_parts > 1 ? r->visits[tag->name.visit].rank : 0;
}

/* True if some of the part's names are neither folded nor with the optimizer thread. */
static inline bool relay_is_unfinished(const struct relay *r, uint32_t part)
{
    return !r->covered && r->parts[part].n_sure < r->n_names_of_part;
}

/* True if version t of every unit is still there: replay keeps it, or no unit can have been updated without the
 * part. */
static inline bool relay_can_redo(const struct relay *r, uint32_t part)
{
    return r->config.replay || relay_updates_last(r) || !r->parts[part].n_sure;
}

/* True if the optimizer thread has a contribution of this name of the open step, in any attempt. */
static inline bool relay_is_flying(const struct relay *r, const struct relay_tag *tag)
{
    const struct relay_slice *s = &r->units[tag->unit].slices[tag->name.slice];
    return s->flying && s->tag.name.step == r->t && s->tag.name.visit == tag->name.visit &&
           s->tag.name.part == tag->name.part;
}

static inline bool relay_is_folded(const struct relay *r, uint32_t name)
{
    return r->folded[name / 64] >> (name % 64) & 1;
}

#endif

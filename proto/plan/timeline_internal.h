/* proto/plan/timeline_internal.h - a step that is played, from inside: what weights and contributions go through
 * (proto/plan/timeline_link.c), and the order in which a step asks for them (proto/plan/timeline.c). Places count a step's visits
 * forward, then backward. */
#ifndef PROTO_PLAN_TIMELINE_INTERNAL_H
#define PROTO_PLAN_TIMELINE_INTERNAL_H

#include "proto/plan/timeline.h"
#include "proto/plan/work.h"

enum { TIMELINE_MOST_FLYING = 8 /* DEVICE_OFFERS */ };

struct timeline_unit {
    uint32_t updates; /* so far: the version */
    uint64_t left;    /* slices of a step that are not folded */
};

struct timeline_buffer {
    uint32_t unit, last; /* the last place that is known to want it */
    bool taken;
    uint64_t used; /* computed with, so far */
};

struct timeline_tiles {
    uint64_t used, saved; /* computed with; pushed */
};

struct timeline_offer {
    uint64_t contribution, arrived;
    uint32_t slice;
};

struct timeline_run {
    const struct plan_timeline_setting *s;
    const struct plan *plan;
    const struct model *model;
    struct plan_work work;
    struct plan_queues q;
    double slow;          /* workers that share the device */
    double contributions; /* of all workers, for each of this one's */
    uint32_t n_runs, n_microbatches, n, step;
    uint32_t end; /* place: where backward ends */

    struct timeline_unit *units;   /* (units) */
    uint64_t n_slices, not_folded; /* of a step, of all units */
    uint32_t n_free;               /* slots */

    struct {
        struct timeline_buffer buffers[PLAN_MAX_WEIGHT_BUFFERS];
        uint32_t pending[PLAN_MAX_WEIGHT_BUFFERS], n_pending; /* places asked for */
        uint32_t arranged;
        uint32_t coming;
        bool is_coming;
        double sent; /* bytes of it */
    } weights;

    struct timeline_tiles tiles[PLAN_MAX_SETS];
    uint32_t tile;
    uint64_t *stashed; /* (runs * microbatches): pushed */

    uint64_t forward; /* computed */
    bool told;        /* the losses */
    struct {
        uint64_t made, next;
        uint32_t slice;
        uint64_t ready[PLAN_MAX_SUMS], sent[PLAN_MAX_SUMS]; /* computed; pushed */
        struct timeline_offer flying[TIMELINE_MOST_FLYING];
        uint32_t n_flying;
        uint64_t n_landed;
    } offers;
};

static inline bool timeline_takes_turns(const struct timeline_run *r)
{
    return r->plan->setting.backend->takes_turns;
}

/* `queue` waits for what is given to another by now. */
static inline void timeline_follow(struct timeline_run *r, enum plan_queue queue, enum plan_queue other)
{
    plan_queues_follow(&r->q, queue, other, plan_queues_mark(&r->q, other));
}

static inline double timeline_number(const struct timeline_run *r)
{
    return (double)number_bytes(r->plan->setting.goal.precision);
}

static inline uint32_t timeline_visit_at(const struct timeline_run *r, uint32_t place)
{
    return place < r->n ? place : 2 * r->n - 1 - place;
}

static inline bool timeline_overlaps(const struct timeline_run *r)
{
    return r->plan->n_sets > 1;
}

/* Time passes until the queue has done what has this mark. */
void timeline_finish(struct timeline_run *r, enum plan_queue queue, uint64_t mark);
/* Work for a queue; its mark. A device that takes turns does it before anything else happens. */
uint64_t timeline_give(struct timeline_run *r, enum plan_queue queue, double seconds, double host_bytes);
void timeline_copy(struct timeline_run *r, enum plan_queue queue, double bytes);

/* Slices that are contributed to a unit in a step. */
uint64_t timeline_slices_of(const struct timeline_run *r, uint32_t unit);

/* device/step/weights.c: computing at this place waits for its weights; those of a later place go down meanwhile, up to a part
 * (0..1) of their bytes. */
void timeline_next_weights(struct timeline_run *r, uint32_t place);
void timeline_weights_ahead(struct timeline_run *r, uint32_t place, double part);

/* device/step/offers.c. Contributions that have a place of their own, apart from the sums: a whole head's. */
uint64_t timeline_count_apart(const struct timeline_run *r);
/* Computing waits for the sum that this contribution is made in. */
void timeline_begin_sum(struct timeline_run *r, uint64_t contribution);
/* It is rounded to bf16, where contributions are. */
void timeline_round_sum(struct timeline_run *r, uint64_t contribution);
/* The next contribution is computed. */
void timeline_offers_made(struct timeline_run *r);
/* Some of the slices that wait go up: all of them in `left` such calls. */
void timeline_offers_go_on(struct timeline_run *r, uint32_t left);
void timeline_finish_offers(struct timeline_run *r);
/* The losses go up, once a step. */
void timeline_tell_losses(struct timeline_run *r);

#endif

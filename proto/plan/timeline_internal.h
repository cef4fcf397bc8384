/* proto/plan/timeline_internal.h - the state of a simulated step: transfers of weights and contributions
 * (proto/plan/timeline_link.c), and the order in which a step needs them (proto/plan/timeline.c). Places number a
 * step's visits forward, then backward. Unless said otherwise, u64 times are marks of queues. */
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
    uint32_t unit, last; /* the last place known to need it */
    bool taken;
    uint64_t used; /* by computation, so far */
};

struct timeline_tiles {
    uint64_t used, saved; /* by computation; pushed */
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
    double contributions; /* of all workers, per contribution of this one */
    uint32_t n_runs, n_microbatches, n, step;
    uint32_t end; /* place: where backward ends */

    struct timeline_unit *units;   /* (units) */
    uint64_t n_slices, not_folded; /* of a step, of all units */
    uint32_t n_free;               /* slots */

    struct {
        struct timeline_buffer buffers[PLAN_MAX_WEIGHT_BUFFERS];
        uint32_t pending[PLAN_MAX_WEIGHT_BUFFERS], n_pending; /* places requested */
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

/* `queue` waits for everything given to `other` so far. */
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

/* Advances time until the queue has done this mark. */
void timeline_finish(struct timeline_run *r, enum plan_queue queue, uint64_t mark);
/* Gives work to a queue and returns its mark. A device that takes turns does it before anything else happens. */
uint64_t timeline_give(struct timeline_run *r, enum plan_queue queue, double seconds, double host_bytes);
void timeline_copy(struct timeline_run *r, enum plan_queue queue, double bytes);

/* Slices contributed to a unit in a step. */
uint64_t timeline_slices_of(const struct timeline_run *r, uint32_t unit);

/* As proto/step/weights.c: computation at this place waits for its weights; meanwhile those of a later place go down,
 * up to a fraction (0..1) of their bytes. */
void timeline_next_weights(struct timeline_run *r, uint32_t place);
void timeline_weights_ahead(struct timeline_run *r, uint32_t place, double part);

/* As proto/step/offers.c. The number of contributions that lie apart from the sums: a whole head's. */
uint64_t timeline_count_apart(const struct timeline_run *r);
/* Computation waits for the sum in which this contribution is computed. */
void timeline_begin_sum(struct timeline_run *r, uint64_t contribution);
/* Rounds it if contributions travel in bf16. */
void timeline_round_sum(struct timeline_run *r, uint64_t contribution);
/* The next contribution is computed. */
void timeline_offers_made(struct timeline_run *r);
/* Sends some of the waiting slices: all of them within `left` such calls. */
void timeline_offers_go_on(struct timeline_run *r, uint32_t left);
void timeline_finish_offers(struct timeline_run *r);
/* Sends the losses, once a step. */
void timeline_tell_losses(struct timeline_run *r);

#endif

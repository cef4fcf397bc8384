/* proto/step/weights.h - the place of a visit's weights.
 *
 * Weights are in one of a few buffers through which units pass; in a place of their own, if the unit is resident, where
 * what is frozen stays from step to step; or, for embedding lookups, in host memory. The visits of a step are known in advance, so units are pulled ahead: as far
 * as the plan has buffers that no earlier visit needs. This changes only the time of a pull, never what a visit reads.
 *
 * If the plan has segments (proto/plan/memory/segments.h), those of a step go down segment by segment: first upwards
 * over the layers that are computed again, then downwards.
 *
 * Among backward visits, those of the embedding, and of a head that computed everything in forward, need no weights.
 * Nor do those of a block that the step drops. */
#ifndef PROTO_STEP_WEIGHTS_H
#define PROTO_STEP_WEIGHTS_H

#include "proto/step/step.h"
#include "proto/plan/memory/plan.h"

/* A sequence of visits, numbered from 0 by their place: n_visits upwards; if `backward`, then the same downwards as far
 * as backward goes, with those that come again in between. A visit needs the unit of the layer that it runs
 * (proto/model/order.h). */
struct device_weights {
    const struct device_worker *worker;
    const struct device_link *link;
    void *context;
    uint64_t version;
    uint32_t n_visits;           /* the model's; or fewer, without the topmost ones, or those that are skipped */
    uint32_t skipped, n_skipped; /* visits skipped .. skipped+n_skipped-1 are left out; not with `backward` */
    bool backward;
    uint32_t end;                  /* if `backward`: the places of the sequence */
    const uint32_t *homes;         /* (the model's n_visits) as model_order_homes; NULL: the model's order */
    const struct model_drop *drop; /* blocks without weights in this step; NULL: none */
    struct device_weights_buffer {
        uint32_t unit;
        uint32_t last; /* place of the last visit known to need it */
        bool taken;
        uint64_t used; /* DEVICE_COMPUTE: everything queued with it is done */
    } buffers[PLAN_MAX_WEIGHT_BUFFERS];
    uint32_t pending[PLAN_MAX_WEIGHT_BUFFERS]; /* places of outstanding pulls, oldest first */
    uint32_t n_pending;
    struct {
        uint32_t place;
        struct device_link_weights from; /* NULL: nothing was received ahead */
        uint64_t sent;                   /* bytes queued */
    } coming;
    bool has_decoded; /* decoded pieces on the device are those of unit `decoded` */
    uint32_t decoded;
    uint32_t arranged; /* units for visits up to here were requested or are present */
};

/* Begins with all of the model's visits, upwards, and empty buffers. Their earlier users must be done, or DEVICE_PULL
 * must wait for them. Nothing to undo. */
void device_weights_init(struct device_weights *weights, const struct device_worker *worker,
                         const struct device_link *link, void *context);

/* For generation, before all visits: pulls resident units to the device, and the embedding's units to learn their place
 * in host memory. Blocks; errors of the link. */
int device_weights_load(struct device_weights *weights);

/* The visit at this place of the sequence. */
uint32_t device_weights_visit(const struct device_weights *weights, uint32_t place);

/* What the visit there does. */
enum device_direction {
    DEVICE_FORWARD,
    DEVICE_AGAIN,   /* inner values of a segment, once more (proto/plan/memory/segments.h) */
    DEVICE_DERIVED, /* values of a chain, once more (proto/plan/memory/chains.h): at no place of its own */
    DEVICE_BACKWARD
};
enum device_direction device_weights_direction(const struct device_weights *weights, uint32_t place);

/* Sets `end`: backward ends with the visit `lowest`, a layer's first. */
void device_weights_end(struct device_weights *weights, uint32_t lowest);

/* The home of the layer that it runs. */
uint32_t device_weights_home(const struct device_weights *weights, uint32_t place);

/* Where a visit finds its unit: as it is relayed, and its coded and sparse pieces decoded, in the device's type
 * (plan_decoded), if layers read those. Of the embedding's units, in host memory, rows are decoded as they are looked
 * up. */
struct device_weights_at {
    const void *relayed,
        *decoded; /* NULL: the visit needs none; the unit has no such pieces, or they are decoded singly */
};

/* *out: the weights of the visit at this place, which must follow the previous call's. They may be used by what is
 * queued until the next call. Pulls ahead as far as buffers allow, and decodes coded pieces unless the visit before had
 * them. Blocks until the host has them; errors of the link. */
int device_weights_next(struct device_weights *weights, uint32_t place, struct device_weights_at *out);

/* Called while the visit before this place is queued, when `done` (> 0) of its n pieces are: uploads the same share of
 * this place's unit, if it was requested. In pieces, so that tiles of a stash on the host fit in between. Blocks until
 * the host has it; errors of the link. */
int device_weights_ahead(struct device_weights *weights, uint32_t place, uint32_t done, uint32_t n);

/* Of a sparse piece of a unit that is at `relayed`: its rows and places, for a call that moves x to y. Zeros of a dense
 * one. */
struct device_sparse device_weights_sparse(const struct model_unit *unit, const struct model_piece *piece,
                                           const void *relayed, enum number_type precision, const void *x, void *y);

#endif

/* device/step/weights.h - where a visit finds its unit's weights.
 *
 * In one of a few buffers through which units pass; in a place of its own, if the plan lets it stay; or, what the
 * embedding looks up, where the host has it. The visits of a step are known beforehand, so pulls are asked for ahead: as
 * many as the plan has buffers, and as there are buffers that no earlier visit still needs. What a visit reads does not
 * depend on any of this, only when it was asked for.
 *
 * Of backward visits, the embedding's need no weights, nor do those of a head that computed all in forward. */
#ifndef DEVICE_STEP_WEIGHTS_H
#define DEVICE_STEP_WEIGHTS_H

#include "device/step/step.h"
#include "proto/plan/plan.h"

/* A sequence of visits, numbered from 0 by their place in it: n_visits upwards, and if `backward` the same downwards
 * after that. */
struct device_weights {
    const struct device_worker *worker;
    const struct device_link *link;
    void *context;
    uint64_t version;
    uint32_t n_visits; /* the model's, or fewer: the topmost are left out */
    bool backward;
    struct device_weights_buffer {
        uint32_t unit;
        uint32_t last; /* place of the last visit known to want it */
        bool taken;
        uint64_t used; /* DEVICE_COMPUTE: all that was queued of it is done */
    } buffers[PLAN_MAX_WEIGHT_BUFFERS];
    uint32_t pending[PLAN_MAX_WEIGHT_BUFFERS]; /* places whose pulls are unanswered, oldest first */
    uint32_t n_pending;
    struct {
        uint32_t place;
        const void *host; /* NULL: nothing has been received ahead */
        uint64_t sent;    /* bytes that are queued */
    } coming;
    uint32_t arranged; /* what visits up to here want has been asked for, or is there */
};

/* All of the model's visits, upwards. The buffers are empty, and whatever used them is done, or DEVICE_PULL waits until it
 * is; nothing to undo. */
void device_weights_init(struct device_weights *weights, const struct device_worker *worker,
                         const struct device_link *link, void *context);

/* To generate, before all visits: pulls the units that the plan keeps on the device to their place there, and those that
 * the embedding visits to learn where the host has them. Blocks; errors of the link. */
int device_weights_load(struct device_weights *weights);

/* The visit at this place of the sequence. */
uint32_t device_weights_visit(const struct device_weights *weights, uint32_t place);

/* *out (unit.n): the weights of the visit at this place, which must be the one after the last call's; NULL if it needs
 * none. What is queued until the next call may use them. Pulls what comes next, as far as buffers allow. Blocks until
 * the host has them; errors of the link. */
int device_weights_next(struct device_weights *weights, uint32_t place, const void **out);

/* While the visit before this place is being queued, done (> 0) of its n pieces are: queues the upload of as large a piece
 * of what this place wants, if that has been asked for. Piece by piece, so that tiles of a stash on the host find their
 * way between. Blocks until the host has it; errors of the link. */
int device_weights_ahead(struct device_weights *weights, uint32_t place, uint32_t done, uint32_t n);

#endif

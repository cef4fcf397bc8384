/* device/weights.h - a few buffers through which all units of the model pass.
 *
 * The visits of a step are known beforehand, so pulls are asked for ahead: as many as there are buffers that no earlier
 * visit still needs. What a visit reads does not depend on the number of buffers, only when it was asked for. */
#ifndef DEVICE_WEIGHTS_H
#define DEVICE_WEIGHTS_H

#include "plan/plan.h"
#include "device/step.h"

/* A sequence of visits, numbered from 0 by their place in it: those listed, or all of them upwards, and if `backward`
 * all of them downwards after that. Units that the plan keeps on the device are read where they are: nothing is pulled.
 */
struct device_weights {
    const struct device_worker *worker;
    const struct device_link *link;
    void *context;
    uint64_t version;
    bool backward;
    const uint32_t *listed; /* (n_listed) visits, or NULL */
    uint32_t n_listed;
    struct device_weights_buffer {
        uint64_t order; /* of its pull: the next to be answered is the lowest */
        uint32_t unit;
        uint32_t last; /* place of the last visit known to want it */
        bool taken, pending;
    } buffers[PLAN_MAX_WEIGHT_BUFFERS];
    uint32_t arranged; /* visits up to here have a buffer */
    uint64_t n_pulls;
};

/* The buffers are empty; nothing to undo. */
void device_weights_init(struct device_weights *weights, const struct device_worker *worker,
                         const struct device_link *link, void *context);

/* Pulls the units that the plan keeps on the device to their place there. Blocks; errors of the link. */
int device_weights_load_resident(struct device_weights *weights);

/* The visit at this place of the sequence. */
uint32_t device_weights_visit(const struct device_weights *weights, uint32_t place);

/* *out (unit.n) on the device: the weights of the visit at this place, which must be the one after the last call's.
 * They stay until the next call. Pulls what comes next, as far as buffers allow. Blocks; errors of the link. */
int device_weights_next(struct device_weights *weights, uint32_t place, const void **out);

#endif

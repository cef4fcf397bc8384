/* tests/kit/device/late.h - the CPU device as one that works beside the host: its three queues are queues.
 *
 * Calls are recorded and run later, whole and one at a time, in any order that marks allow: all on the CPU's kernels,
 * so whoever orders the queues rightly gets the CPU's bits whatever the order, and who forgets a mark does not in some.
 * One device at a time. */
#ifndef TESTS_KIT_DEVICE_LATE_H
#define TESTS_KIT_DEVICE_LATE_H

#include "proto/operation/device.h"

enum late_order {
    LATE_LAZY,    /* nothing runs before something that is waited for needs it */
    LATE_COPIES,  /* copies run as early as they may, computing as late */
    LATE_COMPUTE, /* the other way round */
    LATE_WAITS,   /* queues at random, while the host waits */
    LATE_RANDOM,  /* at any time, any number of calls */
    LATE_ORDERS,
};

struct late {
    enum late_order order;
    uint64_t seed;                   /* not 0 */
    unsigned n_syncs;                /* calls */
    unsigned n_finishes;             /* of DEVICE_COMPUTE */
    unsigned n_waits[DEVICE_QUEUES]; /* finish() of what had not run yet */
    unsigned n_starved;              /* those of DEVICE_PUSH which left nothing to compute; LATE_LAZY */
};

/* Fills device_late. Fresh figures, which it records from its next open on; borrowed until then. */
void late_begin(struct late *late, enum late_order order, uint64_t seed);

extern struct device_ops device_late;

#endif

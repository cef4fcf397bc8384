/* device/worker/claim.h - which device a worker owns, and how much of its memory. */
#ifndef DEVICE_WORKER_CLAIM_H
#define DEVICE_WORKER_CLAIM_H

#include "device/device.h"
#include "proto/plan/device_name.h"

struct device_claim {
    const struct device_ops *ops;
    unsigned index;
    char name[DEVICE_NAME_BYTES]; /* "cpu", "cuda:1" */
    struct device_facts facts;
    uint64_t budget; /* device_claim_budget's */
};

/* Loads the backend and looks at the device. auto is CUDA where this host has a device that can be used, else the CPU,
 * which the log explains if there is a driver; but -ENODEV where only the one of that number is missing: the CPU would
 * keep the others waiting. As device_find, and as probe. */
int device_claim_find(struct device_claim *out, const struct device_name *wanted, struct error *err);

/* asked: bytes of the device, all told; 0: plan_default_budget of what it has free, which is logged. -ENOMEM with
 * figures: it has not got as much as was asked for; where its memory is the host's, the daemon looks at that. */
int device_claim_budget(struct device_claim *claim, uint64_t asked, uint32_t n_sharers, struct error *err);

#endif

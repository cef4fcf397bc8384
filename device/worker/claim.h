/* device/worker/claim.h - chooses a worker's device and its memory budget. */
#ifndef DEVICE_WORKER_CLAIM_H
#define DEVICE_WORKER_CLAIM_H

#include "proto/operation/device.h"
#include "proto/operation/device_name.h"

struct device_claim {
    const struct device_ops *ops;
    unsigned index;
    char name[16]; /* "cpu", "cuda:1": by number, however it was asked for */
    struct device_facts facts;
    uint64_t budget; /* from device_claim_budget */
};

/* Loads the backend and probes the device. auto is CUDA if this host has a usable device, else the CPU; the log
 * explains the CPU if there is a driver. But auto with a number is -ENODEV if only that device is missing: a CPU worker
 * would slow the others down. -ENOSYS: this build lacks the backend. Else errors as probe. */
int device_claim_find(struct device_claim *out, const struct device_name *wanted, struct error *err);

/* Sets the budget. asked: bytes of the whole device; 0: plan_default_budget of its free memory, which is logged.
 * -ENOMEM with figures if the device has less than asked. If its memory is the host's, the daemon checks instead. */
int device_claim_budget(struct device_claim *claim, uint64_t asked, uint32_t n_sharers, struct error *err);

#endif

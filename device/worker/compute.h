/* device/worker/compute.h - the worker's compute thread: owns the device, one job after another. */
#ifndef DEVICE_WORKER_COMPUTE_H
#define DEVICE_WORKER_COMPUTE_H

#include "device/worker/claim.h"
#include "device/worker/mailbox.h"

struct compute_options {
    struct device_claim device;
    struct mailbox *box;
};

/* Takes ASSIGN, SHARE, EVALUATE, GENERATE and RELEASE from the mailbox for ever; the process ends by its main thread.
 * arg: a struct compute_options, borrowed. */
/* Of the thread of compute_run and its team, all told. */
unsigned compute_threads(const struct compute_options *options);

void *compute_run(void *arg);

#endif

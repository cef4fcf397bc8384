/* device/worker/compute.h - the worker's compute thread: owns the device and runs one job after another. */
#ifndef DEVICE_WORKER_COMPUTE_H
#define DEVICE_WORKER_COMPUTE_H

#include "device/worker/claim.h"
#include "device/worker/mailbox.h"

struct compute_options {
    struct device_claim device;
    struct mailbox *box;
};

/* Number of threads of compute_run, including its team. */
unsigned compute_threads(const struct compute_options *options);

/* Handles ASSIGN, SHARE, EVALUATE, GENERATE and RELEASE from the mailbox forever; the main thread ends the process.
 * arg: a struct compute_options, borrowed. */
void *compute_run(void *arg);

#endif

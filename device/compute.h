/* device/compute.h - the worker's compute thread: owns the device, one job after another. */
#ifndef DEVICE_COMPUTE_H
#define DEVICE_COMPUTE_H

#include "device/device.h"
#include "device/mailbox.h"

struct compute_options {
    const struct device_ops *ops;
    uint64_t budget; /* bytes of the device */
    struct mailbox *box;
};

/* Takes ASSIGN, SHARE, EVALUATE, GENERATE and RELEASE from the mailbox for ever; the process ends by its main thread.
 * arg: a struct compute_options, borrowed. */
void *compute_run(void *arg);

#endif

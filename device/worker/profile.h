/* device/worker/profile.h - measures the profile of proto/plan/time/profile.h on this device and host. */
#ifndef DEVICE_WORKER_PROFILE_H
#define DEVICE_WORKER_PROFILE_H

#include "proto/operation/device.h"
#include "proto/plan/time/profile.h"

/* Takes some seconds and 256 MiB of host memory, plus at most 192 MiB of it, or 1.3 GiB of a device's own memory. On
 * the host each figure is the best of several, as other load only makes it worse; on a GPU the median, after a second
 * of work, and copies take a second. Messages are timed between threads, if there may be three more
 * (profile_measure.h). clock: as below. -ENOMEM, -ENODEV, -EIO with a sentence. */
int device_profile(struct profile *out, const struct device_ops *ops, unsigned index, unsigned n_threads,
                   double (*clock)(void), struct error *err);

/* Finds the fastest algorithm that the device's library proposes for each class of products. They are timed after a
 * second of work, with random numbers, in the sizes that name the class, 4,096 wide. Within 1 % the library's own order
 * decides. *out is empty if there is no choice. Takes some seconds, and 260 MiB of device memory plus its libraries.
 * clock: in seconds, read while the device is idle; NULL: this machine's. -ENOMEM, -ENODEV, -EIO with a sentence. */
int device_profile_products(struct products *out, const struct device_ops *ops, unsigned index, double (*clock)(void),
                            struct error *err);

#endif

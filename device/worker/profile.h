/* device/worker/profile.h - measures what proto/plan/profile.h describes, on the device and the host at hand. */
#ifndef DEVICE_WORKER_PROFILE_H
#define DEVICE_WORKER_PROFILE_H

#include "device/device.h"
#include "proto/plan/profile.h"

/* Takes some seconds, 256 MiB of the host, and 192 MiB of it or 1.1 GiB of a device's own memory at most. Every figure is
 * the best of several, as neighbours only ever make it worse. -ENOMEM, -ENODEV, -EIO with a sentence. */
int device_profile(struct profile *out, const struct device_ops *ops, unsigned index, unsigned n_threads,
                   struct error *err);

/* The fastest of the algorithms that the device's library proposes for each class of products, timed on random numbers in
 * the sizes that the class is named by, 4,096 wide; ties, within a hundredth, go to the library's own order. *out is none
 * where there is nothing to choose from. Takes some seconds, and 260 MiB of the device's memory with its libraries beside
 * it. now: in seconds, read when the device is idle; NULL: this machine's clock. -ENOMEM, -ENODEV, -EIO with a sentence. */
int device_profile_products(struct products *out, const struct device_ops *ops, unsigned index, double (*now)(void),
                            struct error *err);

#endif

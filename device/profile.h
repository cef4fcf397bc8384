/* device/profile.h - measures what proto/profile.h describes, on the device and the host at hand. */
#ifndef DEVICE_PROFILE_H
#define DEVICE_PROFILE_H

#include "device/device.h"
#include "proto/profile.h"

/* Takes some seconds, 256 MiB of the host, and 192 MiB of it or 1.1 GiB of a device's own memory at most. Every figure is
 * the best of several, as neighbours only ever make it worse. -ENOMEM, -ENODEV, -EIO with a sentence. */
int device_profile(struct profile *out, const struct device_ops *ops, unsigned index, unsigned n_threads,
                   struct error *err);

#endif

/* device/find.h - backends by name.
 *
 * The CPU's is part of the program. CUDA's is a module (proto/base/module.h): eps-cuda.so, with device_module. */
#ifndef DEVICE_FIND_H
#define DEVICE_FIND_H

#include "proto/operation/device.h"
#include "proto/base/module.h"

extern const struct device_ops device_cpu, device_cuda; /* device_cuda is in the module */

/* "cpu"; or "cuda" from the module beside the running program, else in the installed library directory. NULL with a
 * sentence: there is no such backend or module, it does not load, or it belongs to another build. A loaded module stays
 * until the process ends. */
const struct device_ops *device_find(const char *name, struct error *err);

/* True if CUDA's module and a driver exist: otherwise loading it would waste a tenth of a second. */
bool device_find_cuda(void);

/* The module of this path. */
const struct device_ops *device_load(const char *path, struct error *err);

#endif

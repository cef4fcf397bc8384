/* device/find.h - backends by name.
 *
 * The CPU's is part of the program. CUDA's is a module, eps-cuda.so, loaded on demand: so the programs run without
 * CUDA, and start as fast. */
#ifndef DEVICE_FIND_H
#define DEVICE_FIND_H

#include "device/device.h"

/* What a module exports, by the name device_module. */
struct device_module {
    char version[16];
    size_t ops_bytes; /* of the table, as the module knows it */
    const struct device_ops *ops;
};

/* "cpu"; or "cuda" from the module beside the running program, else in the installed library directory. NULL with a
 * sentence: there is no such backend or module, it does not load, or it belongs to another build. A loaded module stays
 * until the process ends. */
const struct device_ops *device_find(const char *name, struct error *err);

/* True if CUDA's module and a driver exist: otherwise loading it would waste a tenth of a second. */
bool device_find_cuda(void);

/* The module of this path. */
const struct device_ops *device_load(const char *path, struct error *err);

#endif

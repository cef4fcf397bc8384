/* device/find.h - backends by name.
 *
 * The CPU's is part of the program. CUDA's is a module, eps-cuda.so, that is loaded when somebody asks for it: so the
 * programs run where no CUDA is, and start as fast. */
#ifndef DEVICE_FIND_H
#define DEVICE_FIND_H

#include "device/device.h"

/* What a module exports, by the name device_module. */
struct device_module {
    char version[16];
    size_t ops_bytes; /* of the table, as the module knows it */
    const struct device_ops *ops;
};

/* "cpu", or "cuda" from the module beside the running program, else in the library directory that it is installed with.
 * NULL with a sentence: there is no such backend or module, or it does not load, or is of another build. What was loaded
 * stays until the process ends. */
const struct device_ops *device_find(const char *name, struct error *err);

/* Whether it is worth while to load CUDA's module, which takes a tenth of a second: it is there, and so is a driver. */
bool device_find_cuda(void);

/* The module of this path. */
const struct device_ops *device_load(const char *path, struct error *err);

#endif

/* proto/operation/device_name.h - names of devices: the argument of --device, and a worker's name for its own.
 *
 *   auto      CUDA if this host has it, else the CPU: the worker finds out; auto:1 is the second worker's
 *   cpu
 *   cuda      cuda:0; with several workers the first ones
 *   cuda:1 */
#ifndef PROTO_OPERATION_DEVICE_NAME_H
#define PROTO_OPERATION_DEVICE_NAME_H

#include "proto/base/error.h"

#include <stdbool.h>

enum device_kind { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA };

enum {
    DEVICE_NAME_BYTES = 16,
    DEVICE_MAX_INDEX = 9999,
};

struct device_name {
    enum device_kind kind;
    unsigned index; /* 0 if none was named */
    bool indexed;
};

/* -EDOM with a sentence that begins with the option. */
int device_name_parse(struct device_name *out, const char *option, const char *text, struct error *err);

/* In the form that device_name_parse reads, "cuda:1". Returns out. */
const char *device_name_print(char out[DEVICE_NAME_BYTES], const struct device_name *name);

/* True if the device of this name ("cuda:1") is of this kind ("cuda"). */
bool device_name_is(const char *name, const char *kind);

#endif

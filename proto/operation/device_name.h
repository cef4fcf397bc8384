/* proto/operation/device_name.h - names of devices: the argument of --device, and a worker's name for its own.
 *
 *   auto      CUDA if this host has it, else the CPU: the worker finds out; auto:1 is the second worker's
 *   cpu
 *   cuda      cuda:0; with several workers the first ones
 *   cuda:1    the second of those that the runtime shows: CUDA_VISIBLE_DEVICES hides and orders them
 *   cuda:GPU-8f2c      the device whose UUID begins so, as nvidia-smi -L prints it
 *   cuda:0000:3b:00.0  the device in this place of the PCI bus; without a domain (3b:00.0) it is domain 0
 *
 * The last two mean the same device whatever the order; its worker finds its number. */
#ifndef PROTO_OPERATION_DEVICE_NAME_H
#define PROTO_OPERATION_DEVICE_NAME_H

#include "proto/base/error.h"

#include <stdbool.h>

enum device_kind { DEVICE_AUTO, DEVICE_CPU, DEVICE_CUDA };

enum {
    DEVICE_ID_BYTES = 41, /* "GPU-", a UUID's 36 characters, and the end */
    DEVICE_BUS_BYTES = 20,
    DEVICE_NAME_BYTES = 5 + DEVICE_ID_BYTES,
    DEVICE_MAX_INDEX = 9999,
};

struct device_name {
    enum device_kind kind;
    unsigned index;           /* 0 if none was named */
    bool indexed;             /* one device is named, by index or id */
    char id[DEVICE_ID_BYTES]; /* "GPU-..." or as device_name_bus writes it; else empty */
};

/* -EDOM with a sentence that begins with the option. */
int device_name_parse(struct device_name *out, const char *option, const char *text, struct error *err);

/* Rewrites a place of the PCI bus, "3B:00.0" or "00000000:3b:00.0", as Linux does: "0000:3b:00.0". False: it is
 * none. */
bool device_name_bus(char out[DEVICE_BUS_BYTES], const char *text);

/* In the form that device_name_parse reads, "cuda:1". Returns out. */
const char *device_name_print(char out[DEVICE_NAME_BYTES], const struct device_name *name);

/* True if the device of this name ("cuda:1") is of this kind ("cuda"). */
bool device_name_is(const char *name, const char *kind);

#endif

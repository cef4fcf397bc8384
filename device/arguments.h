/* device/arguments.h - the command line of eps-worker. */
#ifndef DEVICE_ARGUMENTS_H
#define DEVICE_ARGUMENTS_H

#include "proto/operation/device_name.h"

#include <stdbool.h>
#include <stdint.h>

struct device_arguments {
    const char *address, *key; /* NULL: unset */
    bool is_private, plain_bulk;
    long parent;        /* 0: unset */
    const char *answer; /* what --help or --version prints */
    struct device_name device;
    uint64_t budget; /* 0: unset */
    uint64_t n_sharers;
    const char *profile; /* file to write measurements to; NULL: none */
};

/* False if the command line is misused; a sentence has been printed. Texts are argv's. Sets the level of the log. */
bool device_arguments_parse(struct device_arguments *out, int argc, char **argv);

#endif

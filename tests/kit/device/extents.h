/* tests/kit/device/extents.h - the CPU device, with a record of every place in its arena that an operation is given.
 *
 * Counted from the arguments of the operations, by what proto/operation/device.h says of them: nothing of the plan. One
 * device at a time. */
#ifndef TESTS_KIT_DEVICE_EXTENTS_H
#define TESTS_KIT_DEVICE_EXTENTS_H

#include "proto/operation/device.h"

struct extents {
    const char *arena;
    size_t arena_bytes, high_water; /* high_water: the end of the highest place, from the arena's start */
    uint64_t copied;                /* bytes uploaded and downloaded */
    unsigned n_outside;             /* places that do not lie within the arena, of those that must */
    enum number_type type;
};

/* Fills device_extents. Fresh figures, which it records from its next open on; borrowed until then. */
void extents_begin(struct extents *extents);

extern struct device_ops device_extents;

#endif

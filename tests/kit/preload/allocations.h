/* tests/kit/preload/allocations.h - counts a process's heap, seen from outside.
 *
 * The library is preloaded into epsd and eps-worker; each writes its counters to a file of its own, NAME-PID in the
 * directory $ALLOCATIONS_DIR, which stays mapped, so that a test can read them at any moment. */
#ifndef TESTS_KIT_PRELOAD_ALLOCATIONS_H
#define TESTS_KIT_PRELOAD_ALLOCATIONS_H

#include <stdint.h>

struct allocations {
    uint64_t
        ours; /* calls of malloc, calloc, realloc and the aligned ones from the program itself, not from a library */
    uint64_t all;       /* from anywhere */
    int64_t live_bytes; /* usable bytes allocated and not freed, by anybody */
};

#endif

/* eps/store/team.h - splits a range of elements among all OpenMP threads.
 *
 * Ranges are cut at multiples of TEAM_BLOCK elements, one run per thread, always the same for the same n and
 * threads: so the thread that first touches memory later works on it. Without OpenMP the caller runs everything. */
#ifndef EPS_STORE_TEAM_H
#define EPS_STORE_TEAM_H

#include <stddef.h>

enum { TEAM_BLOCK = 1024 };

/* Calls fn for runs that cover 0 .. n-1 once, on the caller's OpenMP threads. Returns when all have finished. A range
 * under 32 blocks runs on the caller's thread alone. */
void team_run(size_t n, void (*fn)(void *data, size_t begin, size_t count), void *data);

/* The number of OpenMP threads of the caller. */
unsigned team_size(void);
/* Creates them now. Otherwise libgomp would at their first use. */
void team_start(void);

/* How many of n_threads to use on n_cores: as many as leave two cores to a device, and at least one. A device that
 * does not take turns with the optimizer stalls when its worker's thread, or a loop that passes its messages on,
 * waits for a core. */
unsigned team_beside_device(unsigned n_threads, unsigned n_cores);

#endif

/* eps/store/team.h - one range of elements, every thread.
 *
 * Ranges are cut at multiples of TEAM_BLOCK elements, one run per thread, always the same for the same n and
 * threads: memory is first touched by the thread that will work on it. Without OpenMP the caller does it all. */
#ifndef EPS_STORE_TEAM_H
#define EPS_STORE_TEAM_H

#include <stddef.h>

enum { TEAM_BLOCK = 1024 };

/* Calls fn for runs that cover 0 .. n-1 once, from the caller's OpenMP threads, and returns when all are done. A range
 * under 32 blocks is the caller's alone: waking a thread costs as much as doing it. */
void team_run(size_t n, void (*fn)(void *data, size_t begin, size_t count), void *data);

/* The number of the caller's threads. The call creates them; libgomp would do so only at their first use. */
unsigned team_size(void);
void team_start(void);

/* How many of n_threads to use on n_cores: as many as leave two cores to a device, and at least one. A device that
 * does not take turns with the optimizer stalls when its worker's thread, or a loop that passes its messages on,
 * waits for a core. */
unsigned team_beside_device(unsigned n_threads, unsigned n_cores);

#endif

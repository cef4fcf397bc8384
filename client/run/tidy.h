/* client/run/tidy.h - what is done aside when a checkpoint stands: old ones go, and metrics.jsonl gets to the disk.
 *
 * Neither may hold up the next step: to remove 4 GiB takes a second on a common disk. So a thread does both, one at a
 * time, which ends with the run. What it removes and who removes it is client/run/checkpoints.h's. */
#ifndef CLIENT_RUN_TIDY_H
#define CLIENT_RUN_TIDY_H

#include "client/run/checkpoints.h"

#include <pthread.h>
#include <stdatomic.h>

enum { CLIENT_TIDY_MOST = 16 }; /* checkpoints at once */

struct client_tidy {
    pthread_t thread;
    bool begun; /* the thread is still to be joined */
    atomic_bool done;
    int directory_fd, metrics_fd; /* borrowed until client_tidy_end */
    uint64_t steps[CLIENT_TIDY_MOST];
    size_t n_steps;
};

/* Begins, unless the last one is not through: then what has had its time is left to the next. tidy is zeroed at first
 * and stays where it is. */
void client_tidy_begin(struct client_tidy *tidy, struct client_checkpoints *checkpoints, uint32_t keep, int metrics_fd);

/* Waits for the thread. Safe if there is none. */
void client_tidy_end(struct client_tidy *tidy);

#endif

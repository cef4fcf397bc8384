/* client/run/tidy.h - background cleanup after a save: removes old checkpoints and flushes metrics.jsonl.
 *
 * Neither may delay the next step; removing 4 GiB takes a second on a common disk. One thread does both, one cleanup at
 * a time. client/run/checkpoints.h decides what is removed. */
#ifndef CLIENT_RUN_TIDY_H
#define CLIENT_RUN_TIDY_H

#include "client/run/checkpoints.h"

#include <pthread.h>
#include <stdatomic.h>

enum { CLIENT_TIDY_MOST = 16 }; /* checkpoints per cleanup */

struct client_tidy {
    pthread_t thread;
    bool begun; /* the thread must be joined */
    atomic_bool done;
    int directory_fd, metrics_fd; /* borrowed until client_tidy_end */
    uint64_t steps[CLIENT_TIDY_MOST];
    size_t n_steps;
};

/* Starts a cleanup. If the last one is still running, does nothing: the next save removes what is left. *tidy begins
 * zeroed and must not move. */
void client_tidy_begin(struct client_tidy *tidy, struct client_checkpoints *checkpoints, uint32_t keep, int metrics_fd);

/* Waits for the thread; safe if there is none. */
void client_tidy_end(struct client_tidy *tidy);

#endif

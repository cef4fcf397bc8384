/* client/run/best.h - tracks a run's best evaluation, its checkpoint, and the patience for early stopping.
 *
 * The checkpoint with the lowest held-out loss is `best` in the run directory, a link beside `latest`; --keep does not
 * remove it. The loss before the first step counts as a loss to beat, but has no checkpoint. */
#ifndef CLIENT_RUN_BEST_H
#define CLIENT_RUN_BEST_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct client_best {
    double loss; /* lowest so far; INFINITY: none */
    uint64_t step;
    uint32_t n_since; /* evaluations since then, none of them better */
};

void client_best_init(struct client_best *best);

/* Records an evaluation after `step` updates. True if it is the best; a loss that is not finite never is. */
bool client_best_add(struct client_best *best, uint64_t step, double loss);

/* Restores the state of a run that resumes after `step` updates from its `best` and metrics.jsonl; without them, begins
 * anew. */
void client_best_read(struct client_best *best, const char *directory, int directory_fd, uint64_t step);

/* Points `best` to step-N, atomically. -errno. */
int client_best_mark(int directory_fd, uint64_t step);

#endif

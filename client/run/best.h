/* client/run/best.h - which of a run's evaluations was the best, where its checkpoint is, and when there is no use in more.
 *
 * The checkpoint of the lowest held-out loss is `best` in the run directory, a link beside `latest`; --keep leaves it
 * alone. The loss before the first step counts as one to beat, and has no checkpoint. */
#ifndef CLIENT_RUN_BEST_H
#define CLIENT_RUN_BEST_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stdint.h>

struct client_best {
    double loss; /* the lowest so far; INFINITY: there is none */
    uint64_t step;
    uint32_t n_since; /* evaluations after it, none of them better */
};

void client_best_init(struct client_best *best);

/* An evaluation after `step` updates. True: it is the best. What is not finite is never. */
bool client_best_add(struct client_best *best, uint64_t step, double loss);

/* Of a run that goes on after `step` updates: as its `best` and its metrics.jsonl have it; as new, where they do not. */
void client_best_read(struct client_best *best, const char *directory, int directory_fd, uint64_t step);

/* Lets `best` name step-N, in one go. -errno. */
int client_best_mark(int directory_fd, uint64_t step);

#endif

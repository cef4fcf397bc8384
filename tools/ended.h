/* tools/ended.h - a run that no daemon of the caller's has: how far its metrics.jsonl says that it came.
 *
 * For eps status and eps top, which are asked about a directory: a run that has ended is no mistake of the user's. */
#ifndef TOOLS_ENDED_H
#define TOOLS_ENDED_H

#include "client/eps.h"

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

struct ended {
    char out[4096];
    uint64_t step, n_steps; /* done; of the whole run, as its last checkpoint says, 0: unknown */
    uint64_t saved;         /* the step that `latest` names; UINT64_MAX: none */
    double time, loss;      /* of the last step: seconds since 1970; NAN: unknown */
    double eval_loss;       /* the last one; NAN: there is none */
    uint64_t eval_step;
};

/* The step of the checkpoint to which the run's link points, `latest` or `best`. UINT64_MAX: there is no such link. */
uint64_t ended_linked(const char *run, const char *link);

/* False: address is no directory with steps of a run. rc: libeps's code for why no daemon answers; only where none is
 * there (-ENOENT, -ECONNREFUSED) has a run ended. */
bool ended_read(struct ended *out, const char *address, int rc);

/* Prints lines as eps status does. */
void ended_print(FILE *out, const struct ended *ended);

#endif

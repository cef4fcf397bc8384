/* client/run/restart.h - a run that goes on by itself after a daemon, one of its hosts, or a worker was lost: the options of
 * its next attempt. Each attempt is a run of its own: it resumes from the newest checkpoint, or begins anew in the same
 * directory if there is none. So the result is that of a run that lost nothing. */
#ifndef CLIENT_RUN_RESTART_H
#define CLIENT_RUN_RESTART_H

#include "client/run/run.h"

struct client_restart {
    struct eps_train_options options; /* of the next attempt; may point into this struct */
    char directory[PATH_MAX], address[PATH_MAX];
    uint32_t n;       /* restarts so far, of options.restarts */
    uint32_t n_early; /* workers that a private run lost before its first step; these are replaced without asking */
};

/* Refuses options that cannot be repeated: -EDOM. */
int client_restart_check(const struct eps_train_options *options, struct error *err);

/* After an attempt that made its directory. saved: the attempt, or the job that it took over, has saved a checkpoint there.
 * Otherwise its options are repeated, with what its workers decided. */
void client_restart_next(struct client_restart *restart, const struct client_run *run, bool saved);

#endif

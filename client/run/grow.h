/* client/run/grow.h - --grow: a run's checkpoint with more blocks, from which another run goes on.
 *
 * Progressive stacking (Gong et al., "Efficient Training of BERT by Progressively Stacking", ICML 2019): copies of the
 * topmost blocks are put above them, so a model of twice the blocks has them all twice, one stack on the other. Each
 * copied tensor has the moments and the number of updates of its source, or none. All else stays: step, rates, data. */
#ifndef CLIENT_RUN_GROW_H
#define CLIENT_RUN_GROW_H

#include "client/eps.h"
#include "proto/base/watch.h"

#include <limits.h>

/* Writes the grown checkpoint of in->resume as step-N of OUT/folder, OUT being in->out, a new run's directory; in place
 * of one that is there. folder NULL: of OUT itself. The run then resumes from that directory, whose path becomes
 * *grown. watch (may be NULL) can interrupt. -EDOM, -EEXIST, -EINVAL, -errno with a sentence; a checkpoint is there
 * whole or not at all. *note: as client_derive_say's. */
int client_grow(char grown[PATH_MAX], const char *folder, const struct eps_train_options *in,
                const struct client_watch *watch, struct error *note, struct error *err);

#endif

/* client/run/replace.h - --replace: a run's checkpoint with other blocks, or feed-forward layers of other widths, from
 * which another run goes on.
 *
 * Another block is what a config makes of it (proto/model/guests.h). Its weights are those of a fresh model, its
 * moments zeros; its tensors' updates are counted from zero.
 *
 * A wider layer has its units first, and new ones behind them, whose weights in are drawn as a fresh model's and whose
 * weights out are zeros. So the model computes what it did before: Gesmundo & Maile, arXiv:2308.06103, definition 3.1;
 * the idea is that of Net2Net, Chen, Goodfellow & Shlens, arXiv:1511.05641. A narrower layer keeps the units whose
 * weights out have the largest norms, in their order (by magnitude, as Han et al., arXiv:1506.02626, prune
 * connections).
 *
 * What is kept has its moments; those of new units are zeros. All tensors count on. With moments=zero the moments and
 * counts of these layers' tensors begin anew. All else stays: step, rates, data. */
#ifndef CLIENT_RUN_REPLACE_H
#define CLIENT_RUN_REPLACE_H

#include "client/eps.h"
#include "proto/base/watch.h"

#include <limits.h>

/* Writes the changed checkpoint of in->resume as step-N of OUT/folder, OUT being in->out, a new run's directory; in place
 * of one that is there. folder NULL: of OUT itself. The run then resumes from that directory, whose path becomes
 * *replaced. watch (may be NULL) can interrupt. -EDOM, -EEXIST, -EINVAL, -errno with a sentence; a checkpoint is there
 * whole or not at all. *note: as client_derive_say's. */
int client_replace(char replaced[PATH_MAX], const char *folder, const struct eps_train_options *in,
                   const struct client_watch *watch, struct error *note, struct error *err);

#endif

/* client/model/snapshot.h - the model that a live daemon trains, as it is at its next fence, in files of one's own.
 *
 * What eval, generate and export take when no --model is named. This process makes three empty files that have no name
 * (in $TMPDIR, else /var/tmp, else in memory) and sends them through the door; the daemon writes weights, config.json
 * and the job's side file into them, unit by unit, while training goes on. What results is used like any model. */
#ifndef CLIENT_MODEL_SNAPSHOT_H
#define CLIENT_MODEL_SNAPSHOT_H

#include "client/daemon/await.h"
#include "client/daemon/link.h"
#include "client/model/model.h"

#include <stdint.h>

/* Over a link to the daemon, open in any role but the worker's. Blocks until all is there. *step (may be NULL): updates
 * done. The daemon's own code where it refuses (it has no model, or no room for a copy); -EPROTO: what it wrote is no
 * side file; as client_model_from. Undo: client_model_close; on failure nothing is open. */
int client_snapshot_take(struct client_model *out, uint64_t *step, struct client_link *link, struct error *err);

/* The same over a link for this alone. address: a daemon's name or directory, NULL for the caller's only one. watch, of
 * which a copy is made, may be NULL. await: for the daemon and its run, if it is named; NULL: not at all. -ENOENT: no such
 * daemon. */
int client_snapshot_fetch(struct client_model *out, uint64_t *step, const char *address,
                          const struct client_watch *watch, const struct client_await *await, struct error *err);

#endif

/* client/model/snapshot.h - copies the model that a live daemon trains, at its next fence.
 *
 * eval, generate and export use a snapshot when no --model is named. This process makes three empty nameless files (in
 * $TMPDIR, else /var/tmp, else in memory) and sends them through the door. The daemon writes weights, config.json and
 * the job's side file into them, unit by unit, while training goes on. The result is used like any model. */
#ifndef CLIENT_MODEL_SNAPSHOT_H
#define CLIENT_MODEL_SNAPSHOT_H

#include "client/daemon/await.h"
#include "client/daemon/link.h"
#include "client/model/model.h"

#include <stdint.h>

/* Takes a snapshot over an open link to the daemon, in any role but the worker's. Blocks until it is complete. *step
 * (may be NULL): updates done. Returns the daemon's code if it refuses (no model, or no room for a copy); -EPROTO if it
 * wrote an invalid side file; otherwise errors as client_model_from. On failure nothing is open. Undo:
 * client_model_close. */
int client_snapshot_take(struct client_model *out, uint64_t *step, struct client_link *link, struct error *err);

/* The same over a link of its own. address: a daemon's name or directory; NULL: the caller's only daemon. watch
 * (copied) may be NULL. await waits for a named daemon and its run; NULL: no wait. -ENOENT: no such daemon. */
int client_snapshot_fetch(struct client_model *out, uint64_t *step, const char *address,
                          const struct client_watch *watch, const struct client_await *await, struct error *err);

#endif

/* client/snapshot.h - the model that a live daemon trains, as it is at its next fence, in files of one's own.
 *
 * What eval, generate and export take when no --model is named. This process makes three empty files that have no name
 * (in $TMPDIR, else /var/tmp, else in memory) and sends them through the door; the daemon writes weights, config.json
 * and the job's side file into them, unit by unit, while training goes on. What results is used like any model. */
#ifndef CLIENT_SNAPSHOT_H
#define CLIENT_SNAPSHOT_H

#include "client/link.h"
#include "client/model.h"

#include <jansson.h>
#include <stdint.h>

struct client_snapshot {
    struct client_model model; /* one file of weights; its name is what the daemon calls it */
    uint64_t step;             /* updates done */
    json_t *files;             /* {NAME: TEXT, ...}, owned: tokenizer.json and the like; NULL: none came along */
};

/* address: a daemon's name or directory, NULL for the caller's only one. Blocks until all is there; watch, which may be
 * NULL, can end that. -ENOENT: no such daemon; its own code where it refuses (no model there, no room); -EPROTO: what
 * it wrote is no model. On failure *out is zeroed. Undo: client_snapshot_free. */
int client_snapshot_take(struct client_snapshot *out, const char *address, const struct client_watch *watch,
                         struct error *err);

/* The text of a file that came along (NUL-terminated), or NULL. Borrowed. */
const char *client_snapshot_file(const struct client_snapshot *snapshot, const char *name);

/* Closes the model's files too; for one whose model was handed on, set model.config_fd to -1 and n_weights to 0. Safe on
 * one that take has zeroed. */
void client_snapshot_free(struct client_snapshot *snapshot);

#endif

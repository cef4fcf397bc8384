/* client/run/record.h - a run's options as its checkpoints keep them, and what of them may differ when it goes on.
 *
 * One JSON object, the "options" of training.json (proto/model/checkpoint.h). Keys are the options' names, with _ for -, and
 * values what they were resolved to: numbers exactly (a double has 17 digits), "betas" as two of them, choices by name,
 * a clip that there is none of null, paths absolute. Beside them "data_tokens" and "data_hash" (16 hex digits), and the same for eval_data, say what the
 * data held, so that it may lie elsewhere later. "device_mem" is 0, "workers" too and "device" absent where they were left
 * to choose or a daemon's: they are no part of what is computed. Checkpoints of before they were options lack the keys precision,
 * moments, grad_dtype, commit, clip_norm, clip_update and host_mem: all fp32, eager, no clip. */
#ifndef CLIENT_RUN_RECORD_H
#define CLIENT_RUN_RECORD_H

#include "client/eps.h"
#include "proto/base/error.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* What a stream of tokens held. */
struct client_content {
    uint64_t tokens, hash;
};

struct client_record {
    struct eps_train_options options; /* texts borrow from json */
    struct client_content data, eval_data;
    const char **data_paths; /* (options.n_data), owned */
    json_t *json;            /* owned */
};

/* options: resolved, model and data as they shall be found again, but device_mem as it was given. The paths are made
 * absolute where they are paths of something. NULL: no memory, or a name that is not UTF-8. Owned. */
json_t *client_record_write(const struct eps_train_options *options, const struct client_content *data,
                            const struct client_content *eval_data);

/* Takes a reference to json. -EINVAL with a sentence that names the key. Undo: client_record_free; on failure *out is
 * zeroed. */
int client_record_read(struct client_record *out, json_t *json, struct error *err);
void client_record_free(struct client_record *record); /* safe on a zeroed one */

/* The options of a run that goes on: what is given where it may differ (client/eps.h), else what was stored; out,
 * resume, connect and programs are the given ones; of those that `change` names too. Of data, the given paths are taken: whether they hold the same is to
 * be compared. -EDOM with the option's name and both values if another one differs. */
int client_record_merge(struct eps_train_options *out, const struct eps_train_options *given,
                        const struct client_record *record, struct error *err);

/* The "changes" of the record of such a run (client/run/change.h), whose options were resolved: those it had, and what is
 * different from step on. *out is owned; -ENOMEM. */
int client_record_changes(json_t **out, const struct client_record *record, const struct eps_train_options *options,
                          uint64_t step);

/* A job's side file, {"options": ..., "files": ...}, in memory; files may be NULL. Borrows both. *fd is owned. Blanks
 * follow up to `room` bytes. */
int client_record_side(int *fd, json_t *options, json_t *files, size_t room, struct error *err);

/* Room for that, with the files that come with the model and options for some 400 files of data; and with a tokenizer of
 * bytes, or the one that the preset (NULL: it is none) is about to learn, which it is planned without. 0: no memory. */
uint64_t client_record_side_bytes(json_t *files, const struct eps_preset *preset);

#endif

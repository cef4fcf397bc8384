/* client/record/record.h - a run's options as its checkpoints store them, and which may differ on resume.
 *
 * One JSON object, "options" in training.json (proto/model/file/checkpoint.h). Each key is an option's name with _ for
 * -, each value its resolved value: numbers exactly (a double in 17 digits), "betas" as two numbers, choices by name.
 * The table of options (client/eps_options.h) says which are stored, in which order, and what a missing key means.
 * Paths are absolute. "data_tokens" and "data_hash" (16 hex digits), and the same keys for eval_data, identify the
 * data, so that it may be moved. "device_mem" and "workers" are 0 and "device" is absent if they were left unset or are
 * a daemon's; the result does not depend on them. "source_dtype", the type of the weights that the run began from, is
 * absent if that is fp32; "passed", what the model has beside what is trained (client/model/passed.h), if that is
 * nothing; "began", the step of the other run's checkpoint that it began from, if there is none. */
#ifndef CLIENT_RECORD_RECORD_H
#define CLIENT_RECORD_RECORD_H

#include "client/eps.h"
#include "proto/base/error.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

#define CLIENT_RECORD_BEGAN       "began"
#define CLIENT_RECORD_EVAL_CHOSEN "eval_chosen" /* beside eval_every; absent: it was asked for */

/* Identifies a stream of tokens. */
struct client_content {
    uint64_t tokens, hash;
};

struct client_record {
    struct eps_train_options options; /* texts borrowed from json */
    struct client_content data, eval_data;
    const char **data_paths; /* (options.n_data), owned */
    json_t *json;            /* owned */
};

/* Writes resolved options, with device_mem as given. Existing paths are made absolute, so that model and data can be
 * found again. Owned; NULL: no memory, or a name that is not UTF-8. */
json_t *client_record_write(const struct eps_train_options *options, const struct client_content *data,
                            const struct client_content *eval_data);

/* Takes a reference to json. -EINVAL with a sentence that names the key; *out is then zeroed. Undo:
 * client_record_free. */
int client_record_read(struct client_record *out, json_t *json, struct error *err);
void client_record_free(struct client_record *record); /* safe on a zeroed struct */

/* Merges options for a resumed run, as each row's enum eps_resume says; for one that is attached to, no stored option
 * may differ. Options that are not stored take the given values. Data paths are the given ones; the caller compares
 * their content. -EDOM with the option's name and both values if another option differs. */
int client_record_merge(struct eps_train_options *out, const struct eps_train_options *given,
                        const struct client_record *record, struct error *err);

/* The "changes" list of a resumed run (client/record/change.h): the stored list plus what differs from `step` on.
 * options are resolved. *out is owned; -ENOMEM. */
int client_record_changes(json_t **out, const struct client_record *record, const struct eps_train_options *options,
                          uint64_t step);

#endif

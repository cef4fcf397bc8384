/* client/record/side_file.h - a job's side file: what its checkpoints hold beside weights and moments, {"options": ..., "files":
 * ...}, which the client hands to the daemon in memory. */
#ifndef CLIENT_RECORD_SIDE_FILE_H
#define CLIENT_RECORD_SIDE_FILE_H

#include "client/eps.h"
#include "proto/base/error.h"

#include <jansson.h>
#include <stddef.h>
#include <stdint.h>

/* Creates it in memory, padded with blanks to `room` bytes. options (client/record/record.h) and files may be NULL; both are
 * borrowed. *fd is owned. -ENOMEM; -EFBIG. */
int client_side_file_create(int *fd, json_t *options, json_t *files, size_t room, struct error *err);

/* Room for it: the model's side files, options for some 400 data files, and a tokenizer that is written later, of bytes
 * or learned by the preset (may be NULL). 0: no memory. */
uint64_t client_side_file_bytes(json_t *files, const struct eps_preset *preset);

/* Bytes of the model's side files and of the tokenizer in a checkpoint, at most. 0: no memory. */
uint64_t client_side_file_saved_bytes(json_t *files, const struct eps_preset *preset);

#endif

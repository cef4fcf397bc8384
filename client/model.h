/* client/model.h - the files of a model, opened by the client, for the daemon to read.
 *
 * The daemon opens no path that a client names: it is given descriptors. Which files those are is decided here: a
 * config.json alone (fresh weights), or a directory as Hugging Face writes it: config.json beside
 * model.safetensors.index.json and the files it names, or beside *.safetensors. */
#ifndef CLIENT_MODEL_H
#define CLIENT_MODEL_H

#include "proto/error.h"
#include "proto/model.h"
#include "proto/session.h"

#include <stdbool.h>

enum { CLIENT_MODEL_MAX_FILES = SESSION_MAX_FDS - 2 }; /* config and output directory go along */

struct client_model {
    char name[64]; /* of the directory, or of the config file without .json: for people */
    struct model_config config;
    int config_fd;
    int weight_fds[CLIENT_MODEL_MAX_FILES];
    unsigned n_weights; /* 0: fresh */
};

/* -errno or -EINVAL with a sentence that begins with the path. Undo: client_model_close; on failure nothing is open. */
int client_model_open(struct client_model *out, const char *path, struct error *err);
void client_model_close(struct client_model *model); /* once */

#endif

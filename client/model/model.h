/* client/model/model.h - the files of a model, opened by the client, for the daemon to read.
 *
 * The daemon opens no path that a client names: it is given descriptors. Which files those are is decided here: a
 * config.json alone (fresh weights), or a directory as Hugging Face writes it: config.json beside
 * model.safetensors.index.json and the files it names, or model.safetensors, or *.safetensors but for a checkpoint's
 * optimizer.safetensors. A run directory stands for its latest checkpoint. */
#ifndef CLIENT_MODEL_MODEL_H
#define CLIENT_MODEL_MODEL_H

#include "proto/base/error.h"
#include "proto/base/number.h"
#include "proto/model/model.h"
#include "proto/wire/session.h"

#include <jansson.h>
#include <limits.h>

enum { CLIENT_MODEL_MAX_FILES = SESSION_MAX_FDS - 4 }; /* config, output directory, side file, moments go along */

struct client_model {
    char name[64]; /* of the directory, or of the config file without .json: for people */
    struct model_config config;
    int config_fd;
    int weight_fds[CLIENT_MODEL_MAX_FILES];
    unsigned n_weights;         /* 0: fresh */
    enum number_type precision; /* in which it was trained, as far as its checkpoint says; else fp32 */
    json_t *side; /* what else came beside config.json, as client/model/side.h has it; NULL: nothing could */
    char directory[PATH_MAX]; /* that holds it, links resolved; empty: a config alone, or open files */
};

/* -errno or -EINVAL with a sentence that begins with the path. Undo: client_model_close; on failure nothing is open. */
int client_model_open(struct client_model *out, const char *path, struct error *err);

/* The same without its weights, which are not looked at. */
int client_model_open_fresh(struct client_model *out, const char *path, struct error *err);

/* Compares the model's files with the checksums of the checkpoint that they are part of, and takes its precision from
 * there; where there are none, it passes. on_bytes as checkpoint_check. -EINVAL with a sentence that names directory and file. */
int client_model_check(struct client_model *model, int (*on_bytes)(void *data, uint64_t bytes), void *data,
                       struct error *err);

/* Its config.json beside weights of this type (model_config_print), to be freed. NULL with a sentence. */
char *client_model_print_config(const struct client_model *model, enum number_type type, struct error *err);

/* The precision that a run's recorded options (client/run/record.h) name; fp32 where they do not. */
enum number_type client_model_precision(const json_t *options);

/* A model of files that are open already: a snapshot of a live one. config_fd, weights_fd (-1: fresh) and side (NULL:
 * nothing) are the model's from now on, after a failure too. As client_model_open, sentences begin with name. */
int client_model_from(struct client_model *out, const char *name, int config_fd, int weights_fd, json_t *side,
                      struct error *err);

/* Safe after a failure, twice, and on {.config_fd = -1}. */
void client_model_close(struct client_model *model);

#endif

/* client/run.h - what a training run needs before a daemon is asked: the model, the data, the options resolved. */
#ifndef CLIENT_RUN_H
#define CLIENT_RUN_H

#include "client/data.h"
#include "client/eps.h"
#include "client/model.h"
#include "proto/error.h"

#include <limits.h>

struct client_run {
    struct eps_train_options options; /* resolved */
    struct client_model model;
    const char *model_name;             /* options.model, or the preset chosen; borrowed from it, or static */
    char model_note[96];                /* options.model_note */
    struct client_data data, eval_data; /* eval_data has no files where data's end is held out */
    struct client_windows train, held_out;
    char directory[PATH_MAX]; /* options.out, once it is made */
    int directory_fd;
    bool made; /* it was not there before */
};

/* Opens the model's files and the data, and checks every token; watch (may be NULL) can end that. -EDOM, -EINVAL,
 * -errno with a sentence. Undo: client_run_close, also after a failure. */
int client_run_open(struct client_run *run, const struct eps_train_options *in, const struct client_watch *watch,
                    struct error *err);

/* Resolves the options and cuts the windows; n_workers are attached to the daemon of in->connect. As
 * client_options_resolve. */
int client_run_resolve(struct client_run *run, const struct eps_train_options *in, uint32_t n_workers,
                       struct error *err);
void client_run_close(struct client_run *run);

/* Makes the run directory, whose parents are made too; one that holds a run already is refused: -EEXIST. */
int client_run_make_directory(struct client_run *run, struct error *err);

/* Takes an empty directory that was made away again: the run never began. */
void client_run_forget_directory(struct client_run *run);

#endif

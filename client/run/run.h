/* client/run/run.h - what a training run needs before a daemon is asked: the model, the data, the options resolved. */
#ifndef CLIENT_RUN_RUN_H
#define CLIENT_RUN_RUN_H

#include "client/data/data.h"
#include "client/eps.h"
#include "client/model/model.h"
#include "client/run/resume.h"
#include "proto/base/error.h"

#include <jansson.h>
#include <limits.h>

struct client_run {
    struct client_resume resume;      /* zeroed, its descriptors -1, for a run that begins */
    struct eps_train_options asked;   /* as they came, or, of a run that goes on, with what was stored */
    struct eps_train_options options; /* resolved */
    uint64_t first_step;              /* updates done before */
    json_t *changes;                  /* owned; of a run that goes on (client/run/change.h), else NULL */
    struct client_model model;
    const struct eps_preset *preset;    /* the model, where it is one with fresh weights; else NULL */
    const char *model_name;             /* options.model, or the preset chosen; borrowed from it, or static */
    char model_note[96];                /* options.model_note */
    struct client_data data, eval_data; /* eval_data has no files where data's end is held out */
    struct client_windows train, held_out;
    char directory[PATH_MAX]; /* options.out, once it is made */
    int directory_fd;         /* locked; -1 until then */
    bool latest_mended;       /* `latest` did not name the checkpoint that the run goes on from, and does now */
    size_t made; /* bytes of `directory` that name the first directory of its path that was made; 0: all were there */
};

/* So that client_run_close can follow without client_run_open. */
void client_run_init(struct client_run *run);

/* Finds and checks the checkpoint of in->resume, opens the model's files and the data, and checks every token; watch
 * (may be NULL) can end that. -EDOM, -EINVAL, -errno with a sentence. */
int client_run_open(struct client_run *run, const struct eps_train_options *in, const struct client_watch *watch,
                    struct error *err);

/* Resolves the options and cuts the windows; n_workers are attached to the daemon of connect. As
 * client_options_resolve; -EINVAL if the run is complete already. */
int client_run_resolve(struct client_run *run, uint32_t n_workers, struct error *err);
void client_run_close(struct client_run *run);

/* Makes the run directory, whose parents are made too, and locks it. One that holds a run is refused (-EEXIST) unless
 * that run goes on, and so is one in use (-EBUSY). As client_resume_lock. */
int client_run_make_directory(struct client_run *run, const struct client_watch *watch, struct error *err);

/* Takes away again what was made and is empty: the run never began. */
void client_run_forget_directory(struct client_run *run);

/* Rows of the run before this step, from 0. */
uint64_t client_run_rows(const struct client_run *run, uint64_t step);

/* The run's options for its checkpoints; the microbatch is what the workers chose. Owned; NULL: no memory. */
json_t *client_run_record(const struct client_run *run, uint32_t microbatch);

#endif

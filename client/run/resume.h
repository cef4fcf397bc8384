/* client/run/resume.h - the checkpoint that a run goes on from: found, locked, read, compared with its checksums.
 *
 * A run directory stands for its newest checkpoint: a step-N bears that name only once it is whole. With --out a new
 * run begins from it, and the old directory is only read; without, the run goes on in its own directory, which must
 * then hold no later step. */
#ifndef CLIENT_RUN_RESUME_H
#define CLIENT_RUN_RESUME_H

#include "client/daemon/watch.h"
#include "client/run/record.h"
#include "proto/model/checkpoint.h"

#include <limits.h>
#include <stdbool.h>

struct client_resume {
    char directory[PATH_MAX]; /* of the run, as the user named it */
    char path[PATH_MAX];      /* of the checkpoint in it */
    int directory_fd;         /* -1 where the run goes on elsewhere; else it is locked */
    int moments_fd;           /* optimizer.safetensors */
    bool in_place;
    struct checkpoint checkpoint;
    struct client_record record;
};

/* watch is asked while files are read, and may be NULL. -errno with a sentence. Undo: client_resume_close, also after a
 * failure; safe on a zeroed one. */
int client_resume_open(struct client_resume *out, const struct eps_train_options *given,
                       const struct client_watch *watch, struct error *err);
void client_resume_close(struct client_resume *resume);

/* A run's directory is in use until the last of its processes has ended, which a killed client's daemon does a moment
 * later: waits up to 3 s for that, unless the watch, which may be NULL, ends it. -EBUSY, -errno. */
int client_resume_lock(int directory_fd, const char *path, const struct client_watch *watch, struct error *err);

#endif

/* client/run/mirror.h - --mirror DIR: each whole checkpoint of a run also in a second place, another disk or host's.
 *
 * Once a checkpoint is saved, a thread copies it beside its place there, flushes it, reads it back and compares it with
 * its checksums, and renames it; then metrics.jsonl and references.npy follow, and old checkpoints go as --keep says.
 * So the mirror is a run directory at any instant, which --resume takes. One checkpoint is copied at a time, the oldest
 * that the run still has; the run does not wait for the mirror, except at its end. What cannot be copied is a warning.
 * The run fails at its end if the last copy has failed.
 *
 * The file `mirror-of` names the run's directory: two runs cannot share a mirror, nor remove each other's
 * checkpoints. */
#ifndef CLIENT_RUN_MIRROR_H
#define CLIENT_RUN_MIRROR_H

#include "client/record/checkpoints.h"
#include "proto/base/watch.h"

#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

struct client_mirror {
    char path[PATH_MAX];
    int fd;                             /* locked; -1: there is no mirror */
    int run_fd;                         /* the run's directory; borrowed */
    uint32_t keep;                      /* --keep */
    struct client_checkpoints standing; /* there; the thread's while it runs */
    pthread_t thread;
    bool begun;                        /* the thread must be joined */
    bool copies;                       /* a checkpoint; else only what lies beside them */
    uint64_t step;                     /* this one */
    bool interim;                      /* client_checkpoints_add */
    struct client_checkpoints pending; /* to be copied then; */
    bool syncs;                        /* and at last what lies beside */
    atomic_bool done, cancelled;
    int outcome; /* of the last checkpoint, or of what lies beside, if that has failed since */
    int rc;      /* of the thread; if not 0, why: */
    struct error why;
};

struct client_mirror_options {
    const char *path;
    int run_fd;
    uint32_t keep;
    bool begins;    /* the run has no checkpoint yet, so the mirror must have none */
    uint64_t after; /* step from which the run goes on: later ones are moved aside; UINT64_MAX: none is later */
};

/* Makes the directory if it is not there, locks it, and removes what a killed run left half copied. *note: what was
 * moved aside, or empty. -EDOM (the run's own directory), -EBUSY (in use), -EEXIST (of another run), -errno; with a
 * sentence. Undo: client_mirror_close, also after a failure. */
int client_mirror_open(struct client_mirror *mirror, const struct client_mirror_options *options, struct error *note,
                       const struct client_watch *watch, struct error *err);

/* A checkpoint is saved. Nothing without a mirror, here and below. -ENOMEM: it will not be copied. */
int client_mirror_add(struct client_mirror *mirror, uint64_t step, bool interim);

/* The run is over: metrics.jsonl and `best` are as they stay. */
void client_mirror_sync(struct client_mirror *mirror);

/* Takes in a copy that has ended, and begins the next. True if one has failed: mirror->why says so, once. */
bool client_mirror_poll(struct client_mirror *mirror);

/* True while something is to be copied. */
bool client_mirror_is_busy(const struct client_mirror *mirror);

/* True while the checkpoint *step is being read, which must stay. */
bool client_mirror_reads(uint64_t *step, const struct client_mirror *mirror);

/* The copy under way ends as soon as its disk answers, and no other begins: -EINTR. */
void client_mirror_cancel(struct client_mirror *mirror);

/* Waits for the thread. Safe twice, and on one whose fd is -1. */
void client_mirror_close(struct client_mirror *mirror);

#endif

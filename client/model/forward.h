/* client/model/forward.h - a model that is asked and not trained: what evaluating and generating begin with.
 *
 * The model is a directory's, or the one that a daemon trains: then a copy of it as it is now, while its training goes
 * on. It runs on the workers of --connect, or on a private daemon and worker; the copy always on private ones, as the
 * daemon it came from has its hands full. */
#ifndef CLIENT_MODEL_FORWARD_H
#define CLIENT_MODEL_FORWARD_H

#include "client/daemon/link.h"
#include "client/daemon/spawn.h"
#include "client/model/model.h"
#include "proto/base/error.h"

#include <stdint.h>

struct client_forward_options {
    const char *model;   /* NULL: that of a live daemon */
    const char *connect; /* that daemon, or the one whose workers run the model; NULL: the caller's only one; private */
    const char *programs;                              /* as client_spawn_options */
    const char *device;                                /* of a private worker; NULL: auto */
    uint64_t device_mem;                               /* of it; 0: what it chooses */
    int (*should_stop)(void *user);                    /* may be NULL */
    void (*on_note)(void *user, const char *sentence); /* what it waits for; may be NULL */
    void *user;
};

struct client_forward {
    struct client_forward_options options;
    struct client_model model;
    struct client_link link;
    struct client_spawn spawn;
    int log_fd;
};

/* Opens the model, and compares a checkpoint's weights with their checksums. -EDOM, -EINTR, -EINVAL, -errno.
 * *forward must stay where it is. Undo: client_forward_close, after a failure too. */
int client_forward_open(struct client_forward *forward, const struct client_forward_options *options,
                        struct error *err);

/* Finds the workers: link is then a client's, ready for a job. */
int client_forward_start(struct client_forward *forward, struct error *err);

void client_forward_close(struct client_forward *forward);

#endif

/* client/ask/forward.h - a model for evaluation or generation, without training.
 *
 * The model is read from a directory, or copied from a daemon whose training goes on. It runs on the workers of
 * --connect, or on a private daemon and worker. A copy always runs on private ones, because its source's workers are
 * busy. */
#ifndef CLIENT_ASK_FORWARD_H
#define CLIENT_ASK_FORWARD_H

#include "client/daemon/link.h"
#include "client/daemon/observer.h"
#include "client/daemon/spawn.h"
#include "client/model/job.h"
#include "client/model/model.h"
#include "proto/base/error.h"

#include <stdint.h>

struct client_forward_options {
    const char *model;      /* NULL: the model of a live daemon */
    const char *base_model; /* of an adapter: as in eps_train_options */
    /* The daemon whose model is copied, or whose workers run `model`. NULL: the caller's daemon, or private workers. */
    const char *connect;
    double wait;                                       /* as in eps_train_options */
    const char *programs;                              /* as in client_spawn_options */
    const char *device;                                /* of a private worker; NULL: auto */
    uint64_t device_mem;                               /* of a private worker; 0: it chooses */
    int (*should_stop)(void *user);                    /* may be NULL */
    void (*on_note)(void *user, const char *sentence); /* reports what it waits for; may be NULL */
    void *user;
};

struct client_forward {
    struct client_forward_options options;
    struct client_model model;
    struct client_link link;
    struct client_await await;
    struct client_spawn spawn;
    int log_fd;
};

/* Opens the model and verifies a checkpoint's weights against their checksums. -EDOM, -EINTR, -EINVAL, -errno. *forward
 * must not move. Undo: client_forward_close, also after a failure. */
int client_forward_open(struct client_forward *forward, const struct client_forward_options *options,
                        struct error *err);

/* client_model_follow_training of the open model, and a note that names the template. */
void client_forward_follow_training(const struct client_forward *forward, const char **chat_template,
                                    enum eps_split *split);

/* Finds or starts the workers. link is then a client's session, ready for a job. */
int client_forward_start(struct client_forward *forward, struct error *err);

/* Opens the job on them, as client_job_open does; waits for another worker if none is left for it. */
int client_forward_open_job(struct client_forward *forward, struct client_job *job, struct message *request,
                            struct error *err);

void client_forward_close(struct client_forward *forward);

/* ---- Snapshots: copies of the model that a live daemon trains, at its next fence ----
 *
 * eval, generate and export use a snapshot when no --model is named. This process makes three empty nameless files
 * (client_data_nameless) and sends them over the connection. The daemon writes weights, config.json and the job's side
 * file into them, unit by unit, while training goes on. The result is used like any model. */

/* What is copied. All borrowed. */
struct client_snapshot {
    const char *address;              /* the daemon's name or directory; NULL: the caller's only daemon */
    const char *base_model;           /* of an adapter: as in eps_train_options */
    bool passes;                      /* as in struct client_model_name */
    const struct client_watch *watch; /* may be NULL */
    const struct client_await
        *await; /* for a named daemon and its run; hears if it waits for a worker; NULL: no wait */
};

/* Takes a snapshot. Blocks until it is complete. *step (may be NULL): updates done. Returns the daemon's code if it
 * refuses (no model, or no room for a copy); -EPROTO if it wrote an invalid side file; -ENOENT: no such daemon;
 * otherwise errors as client_model_from. On failure nothing is open. Undo: client_model_close. */
int client_snapshot_fetch(struct client_model *out, uint64_t *step, const struct client_snapshot *snapshot,
                          struct error *err);

#endif

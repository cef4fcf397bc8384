/* client/run/checkpoints.h - the checkpoints that stand in a run directory: which there are, and which have had their time.
 *
 * The daemon writes them (eps/save/save.c) and the client, which has the directory's lock, removes them. A removal is a
 * rename to step-N.partial first: a crash leaves a whole checkpoint, or something that nobody takes for one. As the
 * daemon does, it leaves alone a directory that holds anything but a checkpoint's files (.json, .txt, .safetensors). */
#ifndef CLIENT_RUN_CHECKPOINTS_H
#define CLIENT_RUN_CHECKPOINTS_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client_checkpoints {
    int directory_fd; /* borrowed */
    uint64_t *steps;  /* (n) rising, owned */
    size_t n, cap;
};

/* N of the name step-N, written as the daemon writes it. */
bool client_checkpoints_parse(uint64_t *step, const char *name);

/* The steps of all step-N in the directory that hold a training.json. -errno. Undo: client_checkpoints_free. */
int client_checkpoints_list(struct client_checkpoints *out, int directory_fd, struct error *err);

/* A step that stands from now on, or stands already. -ENOMEM. */
int client_checkpoints_add(struct client_checkpoints *checkpoints, uint64_t step);

/* The N of a link to step-N; false: it is none. */
bool client_checkpoints_link(uint64_t *step, int directory_fd, const char *name);

/* The step that `latest` names; UINT64_MAX: it is no link to a step-N. */
uint64_t client_checkpoints_latest(int directory_fd);

/* Takes the oldest out of the list, into out (cap), until `keep` are left (0: all stay), but never the newest, nor the
 * one that `latest` names; the one that `best` names stays beside those. Returns how many. */
size_t client_checkpoints_take_old(uint64_t *out, size_t cap, struct client_checkpoints *checkpoints, uint32_t keep);

/* Removes a step-N; from any thread. One that cannot be removed is not worth a run. */
void client_checkpoints_remove(int directory_fd, uint64_t step);

/* Removes the files of a directory in this one. False, and all stay, if any is not as a checkpoint's are named. */
bool client_checkpoints_empty(int directory_fd, const char *name);

/* Removes what a killed run left half written or half removed: step-N.partial, latest.partial, best.partial. */
void client_checkpoints_sweep(int directory_fd);

void client_checkpoints_free(struct client_checkpoints *checkpoints); /* safe on a zeroed one */

#endif

/* client/run/checkpoints.h - the complete checkpoints of a run directory, and the removal of old ones.
 *
 * The daemon writes checkpoints (eps/save/save.c); the client holds the directory's lock and removes them. A removal
 * first renames step-N to step-N.partial, so a crash never leaves a damaged step-N. Client and daemon both spare a
 * directory that holds other files than a checkpoint's (.json, .txt, .safetensors). */
#ifndef CLIENT_RUN_CHECKPOINTS_H
#define CLIENT_RUN_CHECKPOINTS_H

#include "proto/base/error.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client_checkpoints {
    int directory_fd; /* borrowed */
    uint64_t *steps;  /* (n) ascending, owned */
    size_t n, cap;
};

/* Parses step-N, written exactly as the daemon writes it; *step is N. */
bool client_checkpoints_parse(uint64_t *step, const char *name);

/* Lists the steps of all step-N in the directory that hold a training.json. -errno. Undo: client_checkpoints_free. */
int client_checkpoints_list(struct client_checkpoints *out, int directory_fd, struct error *err);

/* Adds a step; it may be in the list already. -ENOMEM. */
int client_checkpoints_add(struct client_checkpoints *checkpoints, uint64_t step);

/* Reads a link to step-N; *step is N. False if it is no such link. */
bool client_checkpoints_link(uint64_t *step, int directory_fd, const char *name);

/* The step that `latest` points to; UINT64_MAX if it is no link to a step-N. */
uint64_t client_checkpoints_latest(int directory_fd);

/* Moves the oldest steps into out (cap) until `keep` are left (0: keep all). Never takes the newest step, nor the one
 * that `latest` points to; the one that `best` points to is kept in addition. Returns the number taken. */
size_t client_checkpoints_take_old(uint64_t *out, size_t cap, struct client_checkpoints *checkpoints, uint32_t keep);

/* Removes a step-N; callable from any thread. Failures are ignored: they must not end a run. */
void client_checkpoints_remove(int directory_fd, uint64_t step);

/* Removes the files in a subdirectory. Removes none and returns false if any is not named like a checkpoint's. */
bool client_checkpoints_empty(int directory_fd, const char *name);

/* Removes what a killed run left half written or half removed: step-N.partial, latest.partial, best.partial. */
void client_checkpoints_sweep(int directory_fd);

void client_checkpoints_free(struct client_checkpoints *checkpoints); /* safe on a zeroed struct */

#endif

/* client/record/checkpoints.h - a run directory's complete checkpoints, the best one, the removal of old ones, and what
 * metrics.jsonl tells of the steps before.
 *
 * The daemon writes checkpoints (eps/save/save.c); the client holds the directory's lock and removes them. A removal
 * first renames step-N to step-N.partial, so a crash never leaves a damaged step-N. Client and daemon both spare a
 * directory that holds other files than a checkpoint's (proto/model/output.h). */
#ifndef CLIENT_RECORD_CHECKPOINTS_H
#define CLIENT_RECORD_CHECKPOINTS_H

#include "proto/base/error.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client_checkpoints {
    int directory_fd; /* borrowed */
    uint64_t *steps;  /* (n) ascending, owned */
    bool *interim;    /* (n) owned: goes when there is a newer one, and does not count among those kept */
    size_t n, cap;
    bool spares; /* this one is read, so it stays, in addition to those kept: */
    uint64_t spared;
};

/* Parses step-N, written exactly as the daemon writes it; *step is N. */
bool client_checkpoints_parse(uint64_t *step, const char *name);

/* Lists the steps of all step-N in the directory that hold a training.json. -errno. Undo: client_checkpoints_free. */
int client_checkpoints_list(struct client_checkpoints *out, int directory_fd, struct error *err);
/* Also those that hold files of a checkpoint, and no others, without a training.json. */
int client_checkpoints_list_torn_too(struct client_checkpoints *out, int directory_fd, struct error *err);

/* Adds a step; it may be in the list already, and is then interim only if both are. -ENOMEM. */
int client_checkpoints_add(struct client_checkpoints *checkpoints, uint64_t step, bool interim);

/* Reads a link to step-N; *step is N. False if it is no such link. */
bool client_checkpoints_link(uint64_t *step, int directory_fd, const char *name);

/* The step that `latest` points to; UINT64_MAX if it is no link to a step-N. */
uint64_t client_checkpoints_latest(int directory_fd);

/* Moves steps into out (cap): the interim ones, then the oldest until `keep` are left (0: keep all). Never takes the
 * newest step, nor the one that `latest` points to; the one that `best` points to, and an interim one that is the
 * newest, are kept in addition. Returns the number taken. */
size_t client_checkpoints_take_old(uint64_t *out, size_t cap, struct client_checkpoints *checkpoints, uint32_t keep);

/* Removes a step-N; callable from any thread. Failures are ignored: they must not end a run. */
void client_checkpoints_remove(int directory_fd, uint64_t step);

/* Removes the files in a subdirectory. Removes none and returns false if any is not named like a checkpoint's. */
bool client_checkpoints_empty(int directory_fd, const char *name);

/* Removes what a killed run left half written or half removed: step-N.partial, latest.partial, best.partial. */
void client_checkpoints_sweep(int directory_fd);

void client_checkpoints_free(struct client_checkpoints *checkpoints); /* safe on a zeroed struct */

/* ---- The best evaluation, its checkpoint, and the patience for early stopping ----
 *
 * The checkpoint with the lowest held-out loss is `best` in the run directory, a link beside `latest`; --keep does not
 * remove it. The loss before the first step counts as a loss to beat, but has no checkpoint. */

struct client_best {
    double loss; /* lowest so far; INFINITY: none */
    uint64_t step;
    uint32_t n_since; /* evaluations since then, none of them better */
};

void client_best_init(struct client_best *best);

/* Records an evaluation after `step` updates. True if it is the best; a loss that is not finite never is. */
bool client_best_add(struct client_best *best, uint64_t step, double loss);

/* Points `best` to step-N, atomically. -errno. */
int client_best_mark(int directory_fd, uint64_t step);

/* ---- A run's past: what metrics.jsonl tells of it ----
 *
 * A run that goes on (--resume in its own directory, --attach) decides by it as if it had never stopped. */

struct eps_train_options;

struct client_past {
    uint64_t last;                           /* step of the last line; 0: none */
    double eval_loss, step_ms, tokens_per_s; /* of that line; NAN where it has none */
    struct client_best best;                 /* of all evaluations */
    struct client_best kept;                 /* the one whose checkpoint `best` is, else that before the first step */
    unsigned n_skipped;                      /* steps skipped in a row, up to the last line */
};

/* Nothing is known. */
void client_past_init(struct client_past *past);

/* Reads the lines of the first `step` steps. Without the file: nothing is known. */
void client_past_read(struct client_past *out, const char *directory, uint64_t step);

/* True if an evaluation was due after `step` steps of a run with these options, and has no line: the run ended before
 * it or in it. */
bool client_past_lacks_evaluation(const struct client_past *past, const struct eps_train_options *options,
                                  uint64_t step);

/* ---- Background cleanup after a save: removes old checkpoints and flushes metrics.jsonl ----
 *
 * Neither may delay the next step; removing 4 GiB takes a second on a common disk. One thread does both, one cleanup at
 * a time. */

enum { CLIENT_TIDY_MOST = 16 }; /* checkpoints per cleanup */

struct client_tidy {
    pthread_t thread;
    bool begun; /* the thread must be joined */
    atomic_bool done;
    int directory_fd, metrics_fd; /* borrowed until client_tidy_end */
    uint64_t steps[CLIENT_TIDY_MOST];
    size_t n_steps;
};

/* Starts a cleanup. If the last one is still running, does nothing: the next save removes what is left. *tidy begins
 * zeroed and must not move. */
void client_tidy_begin(struct client_tidy *tidy, struct client_checkpoints *checkpoints, uint32_t keep, int metrics_fd);

/* Waits for the thread; safe if there is none. */
void client_tidy_end(struct client_tidy *tidy);

#endif

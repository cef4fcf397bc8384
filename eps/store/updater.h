/* eps/store/updater.h - the optimizer thread.
 *
 * One thread owns the OpenMP team and all memory that the team touches. It draws and loads weights, folds slices and
 * updates units, while the loop thread handles messages. It takes the ready task of the lowest unit first: the next
 * forward pass begins at the bottom and waits for nothing else. */
#ifndef EPS_STORE_UPDATER_H
#define EPS_STORE_UPDATER_H

#include "eps/store/store.h"
#include "proto/base/trace.h"

enum updater_task_kind { UPDATER_FOLD, UPDATER_UPDATE, UPDATER_CALL, UPDATER_CHECK };

struct updater_task {
    enum updater_task_kind kind;
    uint32_t unit, slice;
    struct store_contribution contribution; /* FOLD: to be folded. CHECK: g, type and sum alone */
    uint64_t n;                             /* CHECK: elements of g that must be finite */
    enum store_fold how;
    double *squares;            /* FOLD, the unit's last: gets the unit's sum of squares; or NULL */
    struct hyper hyper;         /* the step's */
    int (*call)(void *context); /* CALL: returns 0 or -errno */
    void *context;
    struct trace *trace; /* track that records the task, with these; or NULL. Borrowed until the task is done */
    uint64_t step;
    uint32_t visit;
    int result; /* CALL: what it returned. Else 0, or -EDOM: not finite, and nothing was folded, unless the held sum has
                * overflowed; or -EBADMSG: the contribution is not what was sent, and nothing was folded; or -ERANGE: a
                * weight is not finite afterwards */
};

/* Does one task at once, with the caller's OpenMP team. */
void updater_run_task(struct updater_task *task, struct store *store);

struct updater;

/* Starts the thread and its team. store is borrowed: tasks work on it. on_done is called on the optimizer thread after
 * each task, to wake the owner (uv_async_send). n_threads (> 0) of the OpenMP team. -ENOMEM, -EAGAIN. Undo:
 * updater_stop. */
int updater_start(struct updater **out, struct store *store, unsigned n_threads, void (*on_done)(void *context),
                  void *context);
/* Sets the team's threads (> 0) from the next task on. */
void updater_set_threads(struct updater *updater, unsigned n_threads);
/* Makes room for n tasks at a time; more is a mistake (assert in submit). Before the first step: -ENOMEM. */
int updater_reserve(struct updater *updater, size_t n);
void updater_submit(struct updater *updater, const struct updater_task *task);
/* Takes a finished task, oldest first; false if there is none. Makes an update's weights current: store_swap. Owner's
 * thread. */
bool updater_take(struct updater *updater, struct updater_task *task);
/* Tasks submitted and not taken back. Owner's thread. */
size_t updater_pending(const struct updater *updater);
/* Tasks taken back so far. Owner's thread. */
uint64_t updater_taken(const struct updater *updater);
/* Nanoseconds that the thread has spent on folds, updates and checks so far. Any thread. NULL is fine: 0. */
uint64_t updater_busy_ns(const struct updater *updater);
/* Finishes what is queued, joins the thread, frees. NULL is fine. */
void updater_stop(struct updater *updater);

#endif

/* eps/store/updater.h - the optimizer thread.
 *
 * One thread owns the OpenMP team and everything that team touches: it draws and loads weights, folds slices and
 * updates units, while the loop thread goes on talking. Of the jobs that are ready it takes the one of the lowest unit
 * first: the next forward pass begins at the bottom and waits for nothing else. */
#ifndef EPS_STORE_UPDATER_H
#define EPS_STORE_UPDATER_H

#include "eps/store/store.h"
#include "proto/base/trace.h"

enum eps_job_kind { EPS_JOB_FOLD, EPS_JOB_UPDATE, EPS_JOB_CALL };

struct eps_job {
    enum eps_job_kind kind;
    uint32_t unit, slice;
    struct eps_contribution contribution; /* of a fold */
    enum eps_store_fold how;
    double *squares; /* of a fold: NULL, or where the sum of squares of the unit's held sum goes, which is now whole */
    struct eps_hyper hyper;     /* of the step that the job belongs to */
    int (*call)(void *context); /* of a call: 0 or -errno */
    void *context;
    struct trace *trace; /* where it is recorded, with these; or NULL. Borrowed until it is done */
    uint64_t step;
    uint32_t visit;
    int result; /* of a call: what it returned; of a fold: 0, or -EDOM: not finite. Nothing was folded then, unless
                   it is the held sum that has overflowed. Of either: -ERANGE, a weight is not finite afterwards */
};

/* Does one job here and now, with the caller's OpenMP team. */
void eps_job_run(struct eps_job *job, struct eps_store *store);

struct eps_updater;

/* Starts the thread and its team. store is borrowed: jobs work on it. on_done is called on the optimizer thread after each job, to
 * wake the owner (uv_async_send). n_threads (> 0) of the OpenMP team. -ENOMEM, -EAGAIN. Undo: eps_updater_stop.
 */
int eps_updater_start(struct eps_updater **out, struct eps_store *store, unsigned n_threads,
                      void (*on_done)(void *context), void *context);
/* The team's threads (> 0) from the next job on. */
void eps_updater_set_threads(struct eps_updater *updater, unsigned n_threads);
/* Makes room for n jobs at a time; more is a mistake (assert in submit). Before the first step: -ENOMEM. */
int eps_updater_reserve(struct eps_updater *updater, size_t n);
void eps_updater_submit(struct eps_updater *updater, const struct eps_job *job);
/* Takes a finished job, oldest first; false if there is none. */
bool eps_updater_take(struct eps_updater *updater, struct eps_job *job);
/* Jobs submitted and not taken. Owner's thread. */
size_t eps_updater_pending(const struct eps_updater *updater);
/* Jobs taken so far. Owner's thread. */
uint64_t eps_updater_taken(const struct eps_updater *updater);
/* Finishes what is queued, joins the thread, frees. NULL is fine. */
void eps_updater_stop(struct eps_updater *updater);

#endif

/* eps/save/save.h - checkpoints and snapshots, while the job goes on training.
 *
 * save.c brings each to its end; save_request.c has who asks, and where it begins. */
#ifndef EPS_SAVE_SAVE_H
#define EPS_SAVE_SAVE_H

#include "eps/job/job.h"

struct save; /* save_state.h */

struct saves {
    struct job *job;
    struct save *first;   /* oldest first */
    uint8_t *units;       /* (PLAN_HOST_SAVES * n_units) flags for them; of a job that trains */
    struct save *writing; /* which of them the writer is at; NULL: none */
    uint32_t n_readers;   /* so far, of the relay's: the number of the last */
    uint64_t saved_step;  /* of the last checkpoint, or MESSAGE_NO_STEP */
    char trouble[256];    /* why the last save failed; empty if it did not */
};

/* A job has begun: takes the tables for it. -ENOMEM. Undo: save_free, which is safe after failure, and twice. */
int save_init(struct saves *saves, struct error *err);
void save_free(struct saves *saves);

/* These three answer by themselves; the job is open in the first. */
void save_on_client(struct saves *saves, const struct message *m);
void save_on_viewer(struct saves *saves, struct peer *viewer, const struct message *m);
void save_on_snapshot(struct saves *saves, struct peer *viewer, const int *fds, unsigned n_fds); /* takes fds */
/* The client has done what it was asked to with a checkpoint of its own. */
void save_on_output_done(struct saves *saves, const struct message *m, const int *fds, unsigned n_fds); /* takes fds */
/* The relay has just been told of the job's first step: readers that wait for it are announced. */
void save_on_first_step(struct saves *saves);
/* RELAY_CAPTURE: a unit stands still until it is released. */
void save_on_capture(struct saves *saves, const struct relay_action *a);
/* EVENT_WRITTEN. */
void save_on_written(struct saves *saves);

/* A unit that is written and still held: the relay's event that lets it go on. False: there is none. */
bool save_take_released(struct saves *saves, struct relay_event *event);
/* The job has ended and the optimizer thread is through: no unit will come any more. */
void save_on_job_over(struct saves *saves);
/* Once nothing else is to be done: frees what is over, and gives the writer its next task. */
void save_pump(struct saves *saves);

#endif

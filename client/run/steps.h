/* client/run/steps.h - the course of a run: data in, steps opened, checkpoints asked for, until the last step or a stop.
 *
 * A checkpoint of step N is asked for between the covering of the N-th step and the opening of the next, so that it is
 * the state after exactly N updates; the files are written while training goes on. One is under way at a time: the next
 * that is due waits, and the step after it. The last one of a run is worth waiting for: where a full disk does not take
 * it, it is tried again every 2 s for 10 minutes, unless the user ends that.
 *
 * An evaluation that is the best so far is worth a checkpoint of its step, which `best` then names (client/run/best.h). */
#ifndef CLIENT_RUN_STEPS_H
#define CLIENT_RUN_STEPS_H

#include "client/daemon/job.h"
#include "client/daemon/memory.h"
#include "client/run/best.h"
#include "client/run/checkpoints.h"
#include "client/run/metrics.h"
#include "client/run/output.h"
#include "client/run/run.h"
#include "client/run/tidy.h"
#include "proto/base/trace.h"

#include <stdbool.h>

struct client_steps {
    const struct eps_train_events *events; /* borrowed, as all pointers here */
    void *user;
    struct client_run *run;
    struct client_link *link;
    struct client_job *job;
    struct trace *trace; /* the client's track; NULL: none */
    uint64_t budget;     /* device memory of the worker that may take most */
    struct client_metrics metrics;
    struct client_memory memory;
    struct client_checkpoints checkpoints; /* that stand in the run directory */
    struct client_tidy tidy;
    struct client_best best;                 /* of the evaluations */
    double before;                           /* the held-out loss before the first step; NAN: not measured */
    uint64_t end;                            /* the run's last step: options.steps, or where patience has ended */
    struct client_output output;             /* of a daemon of another user's */
    uint64_t opened, arrived, covered, done; /* steps, counted from the model's beginning */
    uint64_t since_ns;       /* when what is being timed began: a step's opening, or the end of the last */
    bool begun;              /* a step was opened */
    int stop;                /* as should_stop */
    bool daemon_stops;       /* because the daemon said so */
    uint64_t asked;          /* step of the last checkpoint asked for; MESSAGE_NO_STEP: none */
    bool saving;             /* it is under way */
    int save_rc, metrics_rc; /* of the last that was tried; why, if not 0: */
    struct error save_error, metrics_error;
    uint64_t no_room_ns; /* since when the last one has been waiting for room; 0: it has not */
    bool trace_ended;    /* and it was said */
    bool latest_told;    /* that `latest` is no link to what is saved */
    unsigned n_skipped;  /* steps in a row (fenced commit) */
    bool diverged;       /* too many, and the run ends */
};

/* run, link and events must be set; the link hears what the daemon says at any time. Undo: client_steps_free. */
void client_steps_init(struct client_steps *steps);
void client_steps_free(struct client_steps *steps);

/* A watch: whether it is time to end, at once. Before the first step any stop is; later the first one is only if
 * nothing is to be saved. -EINTR. */
int client_steps_ask(void *steps, struct error *err);

/* The held-out loss, then every step from run->first_step on. Returns 0 after the last one, or after the one that was
 * open when it was to stop; then nothing is under way, and save_rc and metrics_rc say what was not written. -EINTR,
 * and as client_link_next. */
int client_steps_run(struct client_steps *steps, struct error *err);

/* Of the newest checkpoint that stands in the run directory; MESSAGE_NO_STEP: none. */
uint64_t client_steps_saved(const struct client_steps *steps);

#endif

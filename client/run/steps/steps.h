/* client/run/steps/steps.h - the course of a run: feeds data, opens steps, evaluates and requests checkpoints until its
 * end.
 *
 * Evaluations. Held-out loss is measured before the first step of a new run and after every eval_every steps, unless
 * that is 0; and always after the last step. The lowest loss is the best; `best` points to the checkpoint of the lowest
 * that has one (client/record/checkpoints.h). With eval_every or patience that is the best, for which one is requested
 * if none is due; where evaluations were left to choose, only if saving takes at most 3 % of the time since the last
 * save, and it is interim; and none is made after a skipped step. `patience` evaluations without a better one end the
 * run as if that step had been the last.
 *
 * Checkpoints. One is due after every save_every steps and after the last one; with save_every 0 or left to choose,
 * after the last one alone; with no_save none. A checkpoint of step N is requested after step N is covered and before
 * the next step opens. So it is the state after exactly N updates. Its files are written while training goes on. Only
 * one checkpoint is written at a time: the next one that is due waits for it, and so does the step after it. One that
 * fails does not end the run. If a full disk rejects the last checkpoint of a run, it is retried every 2 s for 10
 * minutes, unless the user interrupts.
 *
 * A checkpoint is also requested when the newest one has an age (save_minutes, or 32 times as long as it took, so that
 * saving takes at most 3 % of the time), so that a long step or a rare save costs a killed run little. It is interim:
 * removed once there is a newer one, so that the run leaves the same files, whatever its speed; unless its step proves
 * the best. When checkpoints are written changes no bit of the weights.
 *
 * A job may be over before the run is (--freeze-until): then it ends with a checkpoint, as after the last step, but for
 * the evaluation, and the caller goes on from there.
 *
 * Stops. The first stop finishes the open step and saves it. With --connect, a step that waits for a worker is given
 * up, and the one before it is saved. A second stop, or one with save_every 0, ends the run at once. */
#ifndef CLIENT_RUN_STEPS_STEPS_H
#define CLIENT_RUN_STEPS_STEPS_H

#include "client/model/job.h"
#include "client/daemon/memory.h"
#include "client/run/attach.h"
#include "client/record/checkpoints.h"
#include "client/record/metrics.h"
#include "client/record/tensorboard.h"
#include "client/record/output.h"
#include "client/run/blocks.h"
#include "client/run/given.h"
#include "client/run/mirror.h"
#include "client/run/run.h"
#include "client/run/weights.h"
#include "proto/base/trace.h"

#include <stdbool.h>

struct client_steps {
    const struct eps_train_events *events; /* borrowed, like all pointers here */
    void *user;
    struct client_run *run;
    struct client_link *link;
    struct client_job *job;
    struct trace *trace;           /* the client's track; NULL: none */
    uint64_t budget;               /* the largest among the workers' device memories */
    struct client_blocks blocks;   /* if a step may leave some out */
    struct client_weights weights; /* if on_weights has looked at them */
    uint64_t shown;                /* the step after which it did, or the run's first */
    struct client_metrics metrics;
    struct client_memory memory;
    struct client_checkpoints checkpoints; /* complete checkpoints in the run directory */
    struct client_tidy tidy;
    struct client_mirror mirror;             /* of --mirror */
    struct client_best best;                 /* of the evaluations */
    struct client_best kept;                 /* the lowest loss whose step has a checkpoint; or that before the first */
    struct client_best judged;               /* the last evaluation; its n_since is not used */
    struct client_minibatch prepared[2];     /* in the buffers */
    struct client_given given;               /* with on_rows: what came with the last rows */
    double before;                           /* the held-out loss before the first step; NAN: not measured */
    uint64_t end;                            /* last step of the run: options.steps, or where patience ended it */
    uint64_t job_end;                        /* last step of the job: client_run_job_end */
    struct client_output output;             /* for a daemon of another user */
    uint64_t opened, arrived, covered, done; /* steps, counted from the model's beginning */
    uint64_t since_ns; /* start of the current timing: a step's opening, or the end of the last step */
    bool catches_up;   /* on steps of a job without a client: their times are unknown */
    bool begun;        /* at least one step was opened */
    bool unevaluated;  /* a stop interrupted the evaluation after the last step that is done */
    int stop;          /* last value of should_stop */
    bool looks;        /* a stop was requested, and the daemon is asked whether the open step waits for a worker */
    bool cut_short;    /* the open step waits for a worker: the run ends without it */
    bool cut_asked;    /* the checkpoint of the step before was requested, or cannot be saved (waits_ms) */
    uint64_t cut_from; /* step of that checkpoint; if a worker comes first, a later one may be saved instead */
    /* Until when, by the link's awake_ms, the run waits for a worker that finishes the open step: the one before cannot
     * be saved, as part of the open one is in the model. 0: it does not. */
    uint64_t waits_ms;
    bool daemon_stops;                  /* the daemon requested the stop */
    bool job_stops;                     /* the daemon stops this job alone */
    uint64_t asked;                     /* step of the last requested checkpoint; MESSAGE_NO_STEP: none */
    bool saving;                        /* the requested checkpoint is being written */
    bool interim;                       /* the requested checkpoint is for its time alone */
    uint64_t asked_ns;                  /* when it was requested */
    uint64_t due_ns;                    /* when the next one is due by time; UINT64_MAX: never */
    uint64_t checkpoint_bytes;          /* of one, at most */
    uint64_t save_ns;                   /* how long the last one took, or will take by its bytes */
    uint64_t affordable_ns;             /* from when on another one would take little of the time */
    int save_rc, metrics_rc, mirror_rc; /* results of the last attempts; if not 0, why: */
    struct error save_error, metrics_error, mirror_error;
    uint64_t no_room_ns; /* start of the last checkpoint's wait for disk space; 0: no wait */
    bool trace_ended;    /* and this was reported */
    struct client_tensorboard tensorboard;
    const char *address;       /* the daemon's */
    struct error sample_error; /* why the last sample failed; empty: it did not */
    bool latest_told;          /* reported that `latest` does not point to the saved checkpoint */
    unsigned n_skipped;        /* skipped steps in a row (fenced commit) */
    bool diverged;             /* too many were skipped: the run ends */
};

/* run, link and events must be set. The link passes on messages that come at any time. Undo: client_steps_free. */
void client_steps_init(struct client_steps *steps);
void client_steps_free(struct client_steps *steps);

/* A watch: ends a wait at once with -EINTR. Before the first step any stop does so. Later the first stop does so only
 * if nothing is to be saved. */
int client_steps_ask(void *steps, struct error *err);

/* Measures the held-out loss before the first step, or makes up an evaluation that a stop interrupted; then runs every
 * step from run->first_step on. Returns 0 after the last step, or after the open step when a stop was requested.
 * Nothing is then pending; save_rc and metrics_rc tell what could not be written. -EINTR: stopped at once; -EIO: 20
 * steps in a row were skipped; -EPROTO; and errors as client_link_next. */
int client_steps_run(struct client_steps *steps, struct error *err);

/* Runs the steps of a job that attach describes, as client_steps_run: becomes its client, takes in the steps that ended
 * without one, and goes on. Errors also as client_attach_take. */
int client_steps_run_taken(struct client_steps *steps, const struct client_attach *attach, struct error *err);

/* True if client_steps_run has returned 0 after the job's last step, and the run goes on in another job. */
bool client_steps_go_on(const struct client_steps *steps);

/* Who ended the run before its time: "interrupted", "the daemon was stopped: the run ended". */
const char *client_steps_stopped_by(const struct client_steps *steps);

/* Step of the newest complete checkpoint in the run directory; MESSAGE_NO_STEP: none. */
uint64_t client_steps_saved(const struct client_steps *steps);
/* True if it is of a step after the run's first. */
bool client_steps_saved_here(const struct client_steps *steps);

#endif

/* client/run/train_state.h - what the files of eps_train share: one attempt at a run (train.c), what it reports before
 * its first step (train_report.c), the form of its gradients (train_form.c), how it ends (train_end.c), and whether
 * another one follows (restart.c). */
#ifndef CLIENT_RUN_TRAIN_STATE_H
#define CLIENT_RUN_TRAIN_STATE_H

#include "client/daemon/link.h"
#include "client/daemon/observer.h"
#include "client/daemon/spawn.h"
#include "client/eps.h"
#include "client/model/job.h"
#include "client/record/disk.h"
#include "client/run/attach.h"
#include "client/options/options.h"
#include "client/run/follow.h"
#include "client/run/run.h"
#include "client/run/steps/steps.h"
#include "proto/base/trace.h"

#include <limits.h>

struct client_train {
    struct client_run run;
    struct client_link link;
    struct client_await await; /* with --connect */
    struct client_spawn spawn; /* used without --connect */
    struct client_job job;
    struct client_attach attach; /* zeroed, unless it takes a job over */
    struct client_steps steps;
    char derived[PATH_MAX]; /* the directory of the checkpoint that --grow or --replace made */
    int log_fd, side_fd, trace_fd;
    bool log_made; /* created by this run */
    struct client_disk disk;
    struct trace trace;
    struct client_devices devices;
    uint32_t n_workers; /* that are attached; some may get no share */
    struct error form;  /* what --approximate any chose, in a sentence; empty: it was not asked */
    bool closed;        /* the daemon has closed the job */
    bool begins_anew;   /* the next attempt does, in this directory */
};

/* Tells the user a sentence. */
void client_train_note(const struct client_train *t, const char *sentence);
/* Says what adapters a mixture of experts gets, if it gets any. Errors of client_adapter_note. */
int client_train_note_adapted(const struct client_train *t, struct error *err);

/* ---- train_report.c ---- */

/* Reports the run's facts and its plan before the first step. Errors as client_memory_await. */
int client_train_report(struct client_train *t, struct error *err);

/* ---- train_form.c ---- */

/* Gives a run of --approximate any the form that eps_plan_forms chooses for its workers, or none if nothing fits, which
 * is refused when the job is opened; of a form by name, finds what it saves. Their devices are known. Errors as
 * eps_plan. */
int client_train_choose_form(struct client_train *t, struct error *err);

/* ---- train_end.c ---- */

/* True if somebody removed the run's directory, or is at it and has removed its checkpoints. */
bool client_train_is_removed(const struct client_train *t);

/* The result of an attempt that no other one follows: rc, or why the run was not complete or not everything was
 * written, with a sentence that says how it can continue. */
int client_train_conclude(const struct client_train *t, int rc, struct error *err);

/* ---- restart.c: a run that goes on by itself ----
 *
 * After a daemon, one of its hosts, or a worker was lost, another attempt follows. Each attempt is a run of its own: it
 * resumes from the newest checkpoint, or begins anew in the same directory if there is none. So the result is that of a
 * run that lost nothing. */

struct client_restart {
    struct eps_train_options options; /* of the next attempt; may point into this struct */
    struct client_follow follow;      /* what the first one's point into, if they are another run's */
    char directory[PATH_MAX], address[PATH_MAX];
    uint32_t n;       /* restarts so far, of options.restarts */
    bool thaws;       /* the next attempt follows a job that ended with --freeze-until */
    uint32_t n_early; /* workers that a private run lost before its first step; these are replaced without asking */
};

/* Refuses options that cannot be repeated: -EDOM. */
int client_restart_check(const struct eps_train_options *options, struct error *err);

/* Refuses options of a resolved run that cannot be repeated when --freeze-until ends its job: -EDOM. */
int client_restart_check_thaw(const struct client_run *run, struct error *err);

/* True if an attempt that ended with rc has done and saved all steps before --freeze-until; another one follows, which
 * goes on from there, and its options are made. */
bool client_restart_thaws(struct client_restart *restart, const struct client_train *t, int rc);

/* True if another attempt follows one that ended with rc and this error; tells the user, and makes its options: what
 * was saved is resumed; else the options are repeated, with what the workers decided. */
bool client_restart_follows(struct client_restart *restart, struct client_train *t, int rc, const struct error *why);

#endif

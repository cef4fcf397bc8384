/* client/run/attach.h - takes over the detached job of a shared daemon (eps/takeover.h), as if its client had not died.
 *
 * The daemon has the model, the run's options and its tokenizer. The run directory has metrics.jsonl and the
 * checkpoints. So nothing of the last client is needed, but the data's files.
 *
 * The job is described in a first session, and taken in a second one, once the data are read: that takes longer than a
 * session may be silent. */
#ifndef CLIENT_RUN_ATTACH_H
#define CLIENT_RUN_ATTACH_H

#include "client/daemon/observer.h"
#include "client/model/job.h"
#include "client/record/checkpoints.h"

#include <limits.h>
#include <stdbool.h>

struct client_run;

struct client_attach {
    struct message job;                         /* DESCRIPTION */
    int data_fd, config_fd, side_fd, output_fd; /* owned; -1: there is none, or it was given on */
    char address[PATH_MAX];                     /* the daemon's directory */
    bool foreign;                               /* the daemon is another user's */
};

/* No job: makes client_attach_close safe. */
void client_attach_init(struct client_attach *attach);

/* Asks the daemon in->attach for its detached job, over a session of its own. -EDOM: options that do not go with it;
 * -ENOENT, -ENOTUNIQ: no such job, or several; and as client_link_expect. Undo: client_attach_close, also after a
 * failure. */
int client_attach_find(struct client_attach *out, struct client_link *link, const struct eps_train_options *in,
                       struct error *err);
void client_attach_close(struct client_attach *attach); /* safe twice */

/* Fills in run->resume, run->model and run->asked: the run's directory, record and options. Errors as
 * client_resume_open and client_record_merge; -EDOM: a foreign daemon does not say which directory is the run's, so
 * in->out has to. Called by client_run_attach. */
int client_attach_open(struct client_run *run, struct client_attach *attach, const struct eps_train_options *in,
                       const struct client_watch *watch, struct error *err);

/* Makes the client's side of the job. */
int client_attach_job(struct client_job *job, struct client_link *link, struct client_attach *attach,
                      const struct client_run *run, struct error *err);

/* Becomes the job's client; waits while the daemon finishes an evaluation. From here on the job's messages come. */
int client_attach_take(struct message *taken, struct client_link *link, const struct client_attach *attach,
                       struct error *err);

#endif

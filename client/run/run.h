/* client/run/run.h - a training run's preparation, before it asks a daemon: model, data and resolved options. */
#ifndef CLIENT_RUN_RUN_H
#define CLIENT_RUN_RUN_H

#include "client/data/data.h"
#include "client/eps.h"
#include "client/model/model.h"
#include "client/task/source.h"
#include "client/run/resume.h"
#include "proto/base/error.h"
#include "proto/model/weights.h"

#include <jansson.h>
#include <limits.h>

struct client_attach;

struct client_run {
    struct eps_train_options asked;        /* as given; of a run that goes on, merged with the stored options */
    const struct eps_train_options *meant; /* of a new run: client_run_new; else NULL */
    struct eps_train_options options;      /* resolved */
    struct client_resume resume;           /* a new run's is empty: client_resume_init */
    bool continues;                        /* options are stored ones; those that differ are recorded as changes */
    uint64_t first_step;                   /* updates done before this run */
    bool attached;                         /* to a job, which says itself what it is: */
    bool thawed;                           /* --freeze-until has passed: nothing that --freeze names is frozen */
    /* first_step, if no checkpoint of it is due: it has one, or is 0. MESSAGE_NO_STEP: that of a job may need one. */
    uint64_t saved_step;
    json_t *changes; /* owned; changes of a resumed run (client/record/change.h), else NULL */
    struct client_model model;
    const struct eps_preset *preset;    /* preset with fresh weights, else NULL */
    const char *model_name;             /* options.model or the chosen preset's name; borrowed or static */
    char model_note[96];                /* becomes options.model_note */
    char drawn[WEIGHTS_MISSING_BYTES];  /* tensors that the model lacked: client_model_match_base */
    struct client_data data, eval_data; /* eval_data has no files if some of data are held out */
    struct client_source *source;       /* of the rows, from data and eval_data; owned */
    char directory[PATH_MAX];           /* options.out, once created */
    int directory_fd;                   /* locked; -1 until then */
    bool complete;                      /* a resumed run that was refused, as it has nothing left to do */
    bool latest_mended;                 /* `latest` pointed elsewhere and was corrected to the resumed checkpoint */
    size_t made; /* length of the first directory in the path that was created; 0 if all existed */
};

/* Makes client_run_close safe without a constructor. */
void client_run_init(struct client_run *run);

/* ---- Three constructors of one run ----
 *
 * Each opens the model's files and the data, and reads all rows; client_run_resolve comes next. watch (may be NULL) can
 * interrupt. -EDOM, -EINVAL, -errno with a sentence. Undo: client_run_close, also after a failure. */

/* Begins from in->model, or from a preset that is chosen. meant (borrowed): the options in it that are no other run's
 * (client/run/follow.h). */
int client_run_new(struct client_run *run, const struct eps_train_options *in, const struct eps_train_options *meant,
                   const struct client_watch *watch, struct error *err);

/* Goes on from the checkpoint of in->resume, after finding, locking and verifying it. Errors also as
 * client_resume_open. */
int client_run_resume(struct client_run *run, const struct eps_train_options *in, const struct client_watch *watch,
                      struct error *err);

/* Goes on with a daemon's job, which attach describes. Errors also as client_attach_open. */
int client_run_attach(struct client_run *run, struct client_attach *attach, const struct eps_train_options *in,
                      const struct client_watch *watch, struct error *err);

/* Resolves the options and divides the rows. n_workers: attached to the daemon of connect. Errors as
 * client_options_resolve and client_source_divide. */
int client_run_resolve(struct client_run *run, uint32_t n_workers, struct error *err);

/* Refuses a resolved run that has nothing left to do, and sets run->complete: -EINVAL. */
int client_run_check_left(struct client_run *run, struct error *err);

void client_run_close(struct client_run *run);

/* The resolved options of its job: of a run that is thawed, without --freeze. */
struct eps_train_options client_run_job_options(const struct client_run *run);
/* The resolved options of the job after which no other one follows. */
struct eps_train_options client_run_last_options(const struct client_run *run);

/* The step before which the run goes on in another job, in which all is trained; its last step if there is none. */
uint64_t client_run_job_end(const struct client_run *run);

/* Goal of the run's job; options are resolved. It has entries if that job, or the one that follows, remembers norms. */
struct plan_goal client_run_goal(const struct client_run *run);

/* The run's model under these options, remembering norms as the goal, which may be a later job's, has it. Errors as
 * client_options_model. Undo: model_free, also after a failure. */
int client_run_model(struct model *out, const struct client_run *run, const struct eps_train_options *options,
                     const struct plan_goal *goal, struct error *err);

/* Says what remembering norms costs a run whose gradients are sampled, or why none are. False: nothing to say. */
bool client_run_say_norms(struct error *sentence, const struct client_run *run);

/* Rows of the run before this step (from 0), if every minibatch is full. */
uint64_t client_run_rows(const struct client_run *run, uint64_t step);

/* Tokens of the run before this step (from 0), without padding. */
uint64_t client_run_tokens(const struct client_run *run, uint64_t step);

/* The step of another run's checkpoint that this run began from: it has done none before; 0: there is none. */
uint64_t client_run_began(const struct client_run *run);

/* The run's options for its checkpoints, with the microbatch that the workers chose. Owned; NULL: no memory. */
json_t *client_run_record(const struct client_run *run, uint32_t microbatch);

/* ---- The directory (client/run/directory.c) ---- */

/* Creates a directory and its parents. *made: length of the path up to the first that was created; 0 if none was.
 * -errno with a sentence about --out. */
int client_run_make_directories(const char *path, size_t *made, struct error *err);

/* Refuses a directory, of --out, that holds a run's metrics or checkpoints, complete or not: -EEXIST, -errno. */
int client_run_check_unused(int directory_fd, const char *directory, struct error *err);

/* Refuses one (NULL: none) that holds other files and no run, as a new run would mix its own with the user's:
 * -EEXIST. */
int client_run_check_empty(const char *directory, struct error *err);

/* Creates the run directory with its parents and locks it. A run that continues in its own directory, which is locked,
 * completes instead what a killed run left undone there. -EEXIST if it holds another run; -EBUSY if it is in use.
 * Otherwise errors as client_resume_lock. */
int client_run_make_directory(struct client_run *run, const struct client_watch *watch, struct error *err);

/* Continues in the resumed directory, and changes nothing there. */
void client_run_keep_directory(struct client_run *run);

/* Removes created directories that are still empty, for a run that never began. */
void client_run_forget_directory(struct client_run *run);

/* Completes what a run killed right after a save may have left undone in the resumed directory: `latest`, and
 * --keep. */
void client_run_mend_directory(struct client_run *run);

/* ---- Model and rows (client/run/choose.c) ---- */

/* Chooses model and tokens, either of which may depend on the other: a named model determines the tokens (a gpt2 preset
 * takes the bytes of a text); without a named model, the data determine the preset.
 *
 * Opens run's model, source, data and eval_data, reads all rows, and describes the choice in model_name and model_note.
 * Errors as client_run_new. */
int client_choose(struct client_run *run, const struct eps_train_options *in, const struct client_watch *watch,
                  struct error *err);

/* Chooses rows alone, as client_choose, for a model that is open, and called in->model. */
int client_choose_rows(struct client_run *run, const struct eps_train_options *in, const struct client_watch *watch,
                       struct error *err);

#endif

/* eps_train: from options to a run directory. The daemon holds the model. This file sets up and takes down an attempt
 * at a run; client/run/steps/steps.h runs the steps. */
#include "client/run/given.h"
#include "client/run/grow.h"
#include "client/run/replace.h"
#include "client/run/steps/samples.h"
#include "client/run/train_state.h"

#include "client/member.h"
#include "client/model/file.h"
#include "client/model/preset.h"
#include "client/options/options.h"
#include "client/record/change.h"
#include "client/record/disk.h"
#include "client/record/record.h"
#include "client/text/tokenizer.h"
#include "proto/model/family.h"
#include "proto/model/file/model_files.h"
#include "proto/model/output.h"
#include "proto/wire/training_text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

void client_train_note(const struct client_train *t, const char *sentence)
{
    client_tell(t->steps.events->on_note, t->steps.user, sentence);
}

static void train_on_queued(void *data, const struct message *m)
{
    struct error sentence;

    client_observer_say_queued(&sentence, m);
    client_train_note(data, sentence.text);
}

static void on_device(void *user, const struct eps_memory *side)
{
    struct client_train *t = user;
    struct client_devices *devices = &t->devices;

    if (side->worker == 0)
        return;
    t->n_workers++;
    devices->cpu |= device_name_is(side->device, "cpu");
    devices->cuda |= device_name_is(side->device, "cuda");
    if (devices->budget < side->budget)
        devices->budget = side->budget;
}

/* The log is new with the run, or its workers append to an older one. log_made: it may be removed with the run. */
static int start_workers(struct client_train *t, struct error *err)
{
    const struct eps_train_options *o = &t->run.options;
    const int flags = O_RDWR | O_CREAT | O_APPEND;
    t->log_fd = output_open(t->run.directory_fd, "log", flags | O_EXCL);
    t->log_made = t->log_fd >= 0;
    if (t->log_fd == -EEXIST)
        t->log_fd = output_open(t->run.directory_fd, "log", flags);
    if (t->log_fd < 0)
        return output_fail(err, t->log_fd, t->run.directory_fd, "log", "opened");
    struct client_spawn_options options = {.programs = o->programs,
                                           .n_workers = o->workers,
                                           .device_mem = o->device_mem,
                                           .log_fd = t->log_fd};
    const int rc = client_options_device(&options.device, o->device, o->workers, NULL, err);
    return rc ? rc : client_spawn_start(&t->spawn, &t->link, &options, err);
}

/* Starts a private daemon and workers, or uses those of --connect. Their devices settle the options left unset. */
static int find_workers(struct client_train *t, struct error *err)
{
    int rc = t->run.options.connect ? 0 : start_workers(t, err);

    if (!rc)
        rc = client_observer_memory(&t->link, false, on_device, t, err);
    if (rc)
        return rc;
    client_options_complete(&t->run.options, &t->devices);
    t->steps.budget = t->devices.budget;
    t->steps.address = t->run.options.connect ? t->run.options.connect : t->spawn.directory;
    return 0;
}

/* A model trained on bytes gets a byte tokenizer, so that other programs can use it. */
static int add_tokenizer(struct client_model *model, const struct client_data *data, struct error *err)
{
    size_t n;

    if (model->config.vocabulary != 256 || !data->has_text || model_files_find(model->side, "tokenizer.json", &n) ||
        model_files_find(model->side, "vocab.json", &n))
        return 0;
    if (!model->side)
        model->side = json_object();
    if (!model->side)
        return error_memory(err);
    return client_tokenizer_add_bytes(model->side, model->config.n_positions, err);
}

/* Why there is no record: a file's name that JSON cannot hold, or memory. */
static int side_refuse(const struct client_run *run, struct error *err)
{
    int rc = client_file_check_name(run->options.model, err);

    for (size_t i = 0; !rc && i < run->data.n_files; i++) {
        char *const name = client_data_name(&run->data.files[i]);
        rc = name ? client_file_check_name(name, err) : error_memory(err);
        free(name);
    }
    if (!rc && run->options.eval_data)
        rc = client_file_check_name(run->options.eval_data, err);
    return rc ? rc : error_memory(err);
}

/* Creates the side file, which every checkpoint repeats. The daemon fills in the chosen microbatch. */
static int make_side(struct client_train *t, struct error *err)
{
    const uint64_t room =
        training_text_room(t->run.model.side, client_preset_learned(t->run.preset)); /* as in eps plan */
    int rc = add_tokenizer(&t->run.model, &t->run.data, err);
    json_t *options = rc ? NULL : client_run_record(&t->run, t->run.options.microbatch);

    if (rc)
        return rc;
    rc = options ? training_text_seal(&t->side_fd, options, t->run.model.side, room, err) : side_refuse(&t->run, err);
    json_decref(options);
    return rc;
}

/* A daemon that has lost its last worker meanwhile refuses the job; it is asked again once another one has attached. */
static int train_open_job(struct client_train *t, struct error *err)
{
    const struct eps_train_options *o = &t->run.options;
    const bool thaws = client_run_job_end(&t->run) < o->steps, adam = o->optimizer != EPS_SGD;
    struct message request = {
        .kind = MESSAGE_JOB,
        .job = {.goal = client_run_goal(&t->run),
                .saves = o->save_every > 0,
                .deterministic = o->deterministic,
                .audit_every = o->audit,
                .step = t->run.first_step,
                .n_steps = o->steps,
                .seed = o->seed,
                .microbatch = o->microbatch,
                .require_pinned = o->require_pinned,
                .clip_norm = isnan(o->clip_norm) ? 0 : o->clip_norm,
                .clip_update = isnan(o->clip_update) ? 0 : o->clip_update,
                .host_mem = o->host_mem,
                .thaw = t->run.thawed ? MODEL_THAWED
                        : thaws       ? MODEL_THAW_LATER
                                      : MODEL_THAW_NEVER,
                .beta1 = adam ? o->beta1 : 0,
                .beta2 = adam ? o->beta2 : 0,
                .epsilon = adam ? o->epsilon : 0,
                .weight_decay = o->weight_decay},
    };
    int rc = make_side(t, err);

    if (rc)
        return rc;
    snprintf(request.job.freeze, sizeof request.job.freeze, "%s", o->freeze ? o->freeze : "");
    request.job.files = !o->no_save && client_files_are_needed(&t->link);
    if (request.job.files) {
        client_checkpoints_sweep(t->run.directory_fd);
        client_output_init(&t->steps.output, t->run.directory_fd, t->side_fd, t->run.first_step);
    }
    output_path(request.job.out, sizeof request.job.out, t->run.directory_fd);
    const struct client_job_files files = {.output = request.job.files || o->no_save ? -1 : t->run.directory_fd,
                                           .side = t->side_fd,
                                           .trace = t->trace_fd,
                                           .moments = t->run.resume.moments_fd};
    do {
        client_job_free(&t->job);
        rc = client_job_open(&t->job, &t->link, &request, &t->run.model, &files, err);
    } while (rc && (rc = client_await_another(rc, &t->link, o->connect, &t->await, err)) == 0);
    if (!rc)
        t->run.options.microbatch = t->job.microbatch;
    t->steps.output.files = t->job.files;
    return rc;
}

static int open_traced_job(struct client_train *t, struct error *err)
{
    const uint64_t since = trace_begin(t->steps.trace);
    int rc = train_open_job(t, err);

    if (t->steps.trace)
        trace_end(t->steps.trace, since, "open job", NULL, NULL);
    return rc;
}

/* The session is the job's from the first step on: client_steps_run_taken takes it. */
static int join_job(struct client_train *t, struct error *err)
{
    int rc = client_attach_job(&t->job, &t->link, &t->attach, &t->run, err);

    if (t->attach.job.description.files)
        client_output_init(&t->steps.output, t->run.directory_fd, t->attach.side_fd, t->run.first_step);
    if (!rc && t->attach.job.description.files)
        rc = client_files_open(&t->job.files, &t->link, -1, err);
    t->steps.output.files = t->job.files;
    t->run.options.microbatch = t->job.microbatch;
    return rc;
}

static int create_trace(struct client_train *t, struct error *err)
{
    const char *path = t->run.options.trace;
    int rc = path ? trace_create(&t->trace_fd, path, err) : 0;

    if (!path || rc)
        return rc;
    trace_open(&t->trace, t->trace_fd, "eps train", "client");
    t->steps.trace = &t->trace;
    return 0;
}

/* A run that the disk refuses: names memory instead if that is too little, too, which takes more than removing files.
 * The memory of a shared daemon is not known here. */
static int prefer_memory(const struct client_run *run, int rc, struct error *err)
{
    const struct eps_train_options options = client_run_job_options(run);
    struct eps_plan plan;

    if (options.connect || !options.model || eps_plan(&plan, &options, NULL) || plan.fits)
        return rc;
    return error_set(err, -ENOMEM, "%s", plan.why);
}

/* What a checkpoint takes, the last one: once all is trained, there are moments of all. */
static int measure_disk(struct client_train *t, struct error *err)
{
    const struct client_run *run = &t->run;
    const struct eps_train_options options = client_run_last_options(run);
    struct model model;
    struct stat st;
    const struct plan_goal goal = client_run_goal(run);
    int rc = client_run_model(&model, run, &options, &goal, err);

    if (!rc && fstat(run->model.config_fd, &st))
        rc = error_set(err, -errno, "config.json: %s", strerror(errno));
    if (!rc)
        rc = client_disk_of(&t->disk, &model, &goal,
                            (uint64_t)st.st_size +
                                training_text_saved_bytes(run->model.side, client_preset_learned(run->preset)),
                            err);
    t->steps.checkpoint_bytes = rc ? 0 : client_disk_bytes(&t->disk);
    model_free(&model);
    return rc;
}

/* Measures what a checkpoint takes, and checks that the run can save one, if it has a step to do. */
static int check_disk(struct client_train *t, struct error *err)
{
    const struct client_run *run = &t->run;
    int rc = run->options.no_save ? 0 : measure_disk(t, err);

    if (rc || run->options.no_save || run->first_step == run->options.steps)
        return rc;
    rc = client_disk_try(&t->disk, run->directory, run->directory_fd, run->first_step, err);
    return rc ? prefer_memory(run, rc, err) : 0;
}

/* Completes the trace file if no other process still writes to it: the job is closed, or the private processes have
 * ended. Otherwise the end marker is left out; readers accept that. served_rc: client_files_close's. */
static void finish_trace(struct client_train *t, int served_rc)
{
    const bool last = t->closed || !t->run.options.connect;
    struct error sentence;

    if (t->trace_fd < 0)
        return;
    const int ended = trace_close(&t->trace), finished = last ? trace_finish(t->trace_fd) : 0;
    const int rc = ended ? ended : finished ? finished : served_rc;
    close(t->trace_fd);
    if (!t->steps.begun)
        unlink(t->run.options.trace);
    error_set(&sentence, 0, "the trace %s ends early: %s", t->run.options.trace,
              rc == -ENODATA ? "what followed was not written whole" : strerror(-rc));
    if (rc && t->steps.begun && !t->steps.trace_ended)
        client_train_note(t, sentence.text);
}

/* Removes what a run created if it wrote nothing else. */
static void clean_up(struct client_train *t)
{
    const struct client_steps *s = &t->steps;

    if (t->run.directory_fd < 0)
        return;
    client_output_free(&t->steps.output);
    if (!t->run.options.connect)
        client_checkpoints_sweep(t->run.directory_fd); /* left by a daemon that ended during a save */
    if (!t->begins_anew && (t->run.resume.in_place || s->done > t->run.first_step || s->checkpoints.n > 0))
        return;
    if (s->metrics.fd >= 0)
        unlinkat(t->run.directory_fd, "metrics.jsonl", 0);
    if (t->log_made)
        unlinkat(t->run.directory_fd, "log", 0);
    client_run_forget_directory(&t->run);
}

/* The job goes first, as it uses the link. Private workers end before the trace is finished, as they write to it; and
 * the directory is cleaned up before its lock goes, with the run. */
static void take_down(struct client_train *t)
{
    const int served_rc = client_job_free(&t->job);

    t->steps.output.files = NULL;
    client_spawn_stop(&t->spawn);
    client_link_free(&t->link);
    finish_trace(t, served_rc);
    clean_up(t);
    if (t->log_fd >= 0)
        close(t->log_fd);
    if (t->side_fd >= 0)
        close(t->side_fd);
    client_steps_free(&t->steps);
    client_run_close(&t->run);
    client_attach_close(&t->attach);
}

/* Opens the session with the daemon of --connect, if given, and counts its workers. */
static int count_workers(struct client_train *t, uint32_t *n, struct error *err)
{
    const struct eps_train_options *o = &t->run.asked;
    int rc = client_await_init(&t->await, o->wait, o->connect, err);

    *n = 0;
    if (!o->connect || rc)
        return rc;
    rc = client_options_check_connect(o, err);
    if (!rc)
        rc = client_await_daemon(&t->link, o->connect, ROLE_CLIENT, &t->await, err);
    return rc ? rc : client_await_worker(n, &t->link, o->connect, &t->await, err);
}

/* The directory is in use, by a daemon that outlives its client for the last checkpoint (eps/takeover.h): worth waiting
 * for. The daemon itself limits how long that takes. */
static bool is_being_saved(const struct client_train *t, const char *directory, bool *is_said)
{
    struct error sentence;

    if (!directory[0] || !client_observer_is_ending(directory))
        return false;
    error_set(&sentence, 0,
              "%.300s: the run before this one is being saved, as its client is gone or was stopped: waiting",
              directory);
    if (!*is_said)
        client_train_note(t, sentence.text);
    *is_said = true;
    return true;
}

/* A run that begins from another's checkpoint takes the last one that is being written there. One that is live is read
 * as it is. */
static int await_source(const struct client_train *t, const struct eps_train_options *options, struct error *err)
{
    char directory[PATH_MAX];
    bool is_said = false;
    int rc;

    do
        rc = client_resume_await(directory, options, &t->link.watches[1], err);
    while (rc == -EBUSY && is_being_saved(t, directory, &is_said));
    return rc == -EBUSY ? 0 : rc;
}

/* A new or a resumed run. What an earlier attempt lost may still hold the run's directory until it has ended. */
static int train_open_run(struct client_train *t, const struct client_restart *restart, struct error *err)
{
    enum { TRIES = 20 }; /* each waits for some seconds: client_resume_lock */
    struct eps_train_options options = restart->options;
    const int n_tries = restart->n > 0 || restart->thaws ? TRIES : 1;
    struct error note = {""};
    bool is_said = false;
    int rc = -EBUSY;

    if (options.grow && options.replace)
        return error_set(err, -EDOM,
                         "--grow and --replace each begin another run: grow one run, then replace in the next");
    const int awaited = await_source(t, &options, err);
    if (awaited)
        return awaited;
    if (options.grow || options.replace) {
        const int failed =
            (options.grow ? client_grow : client_replace)(t->derived, options.grow ? "grown" : "replaced", &options,
                                                          &t->link.watches[1], &note, err);
        if (note.text[0])
            client_train_note(t, note.text);
        if (failed)
            return failed;
        options.resume = t->derived, options.grow = options.replace = NULL;
    }
    for (int i = 0; rc == -EBUSY && (i < n_tries || is_being_saved(t, t->run.resume.directory, &is_said)); i++) {
        client_run_close(&t->run);
        rc = options.resume ? client_run_resume(&t->run, &options, &t->link.watches[1], err)
                            : client_run_new(&t->run, &options, &restart->follow.meant, &t->link.watches[1], err);
    }
    if (t->run.resume.note.text[0])
        client_train_note(t, t->run.resume.note.text);
    if (t->run.resume.edited.text[0])
        client_train_note(t, t->run.resume.edited.text);
    client_model_tell(&t->run.model, t->steps.events->on_note, t->steps.user);
    if (rc == 0 && family_left_out(&t->run.model.config))
        client_train_note(t, family_left_out(&t->run.model.config));
    return rc ? rc : client_train_note_adapted(t, err);
}

static void note_fresh(const struct client_train *t, const struct eps_train_options *options)
{
    struct error sentence;

    if (client_preset_say_fresh(&sentence, options)) /* the first note of all */
        client_train_note(t, sentence.text);
}

/* The mirror of --mirror. A run that was restarted goes on without one that is not to be had any more, and says so. */
static int open_mirror(struct client_train *t, const struct client_restart *restart, struct error *err)
{
    const struct client_run *run = &t->run;
    const struct client_mirror_options options = {.path = run->options.mirror,
                                                  .run_fd = run->directory_fd,
                                                  .keep = run->options.keep,
                                                  .begins = !run->resume.in_place,
                                                  .after = run->attached ? UINT64_MAX : run->first_step};
    struct client_steps *s = &t->steps;
    struct error note;

    if (!options.path)
        return 0;
    const int rc = client_mirror_open(&s->mirror, &options, &note, &t->link.watches[1], err);
    if (rc && restart->n == 0)
        return rc;
    if (rc) {
        client_mirror_close(&s->mirror);
        s->mirror.outcome = rc;
        s->mirror_error = note = *err;
    }
    if (note.text[0])
        client_train_note(t, note.text);
    return 0;
}

/* Begins a job for a new or a resumed run, and runs its steps. */
static int train_begin(struct client_train *t, const struct client_restart *restart, struct error *err)
{
    uint32_t n_workers;
    int rc = train_open_run(t, restart, err); /* choosing may take long, and a session must not wait for it */

    if (!rc)
        rc = count_workers(t, &n_workers, err);
    if (!rc)
        rc = client_run_resolve(&t->run, n_workers, err);
    if (!rc)
        rc = client_given_check(&t->run, err);
    if (!rc)
        rc = client_samples_check(&t->run, err);
    if (!rc)
        rc = client_run_check_left(&t->run, err);
    if (!rc)
        rc = client_restart_check_thaw(&t->run, err);
    if (rc)
        return rc;
    note_fresh(t, &restart->options);
    rc = client_run_make_directory(&t->run, &t->link.watches[1], err);
    if (!rc)
        rc = open_mirror(t, restart, err);
    if (!rc)
        rc = check_disk(t, err);
    if (!rc)
        rc = create_trace(t, err);
    if (!rc && t->run.options.tensorboard)
        rc = client_tensorboard_open(&t->steps.tensorboard, t->run.options.tensorboard, t->run.first_step, err);
    if (!rc)
        rc = find_workers(t, err);
    if (!rc)
        rc = client_train_choose_form(t, err);
    if (!rc)
        rc = open_traced_job(t, err);
    if (!rc)
        rc = client_train_report(t, err);
    /* A worker that dies before the first step would die again. */
    t->spawn.replaces = rc == 0;
    return rc || t->run.options.dry_run ? rc : client_steps_run(&t->steps, err);
}

/* Joins the job of a daemon, and runs its steps. */
static int take_over(struct client_train *t, const struct client_restart *restart, struct error *err)
{
    const struct eps_train_options *options = &restart->options;
    const struct message *described = &t->attach.job;
    int rc = client_attach_find(&t->attach, &t->link, options, err);

    if (!rc)
        rc = client_run_attach(&t->run, &t->attach, options, &t->link.watches[1], err);
    if (!rc)
        rc = client_options_check_connect(&t->run.asked, err);
    if (!rc)
        rc = client_link_open(&t->link, t->attach.address, ROLE_CLIENT, err);
    if (!rc)
        rc = client_run_resolve(&t->run, described->description.n_workers, err);
    if (!rc)
        rc = client_restart_check_thaw(&t->run, err);
    if (rc)
        return rc;
    client_run_keep_directory(&t->run);
    if (!described->description.output) /* else its daemon may be writing one */
        client_checkpoints_sweep(t->run.directory_fd);
    rc = open_mirror(t, restart, err);
    if (!rc && !t->run.options.no_save)
        rc = measure_disk(t, err);
    if (!rc)
        rc = find_workers(t, err);
    if (!rc)
        rc = join_job(t, err);
    if (!rc)
        rc = client_train_report(t, err);
    return rc ? rc : client_steps_run_taken(&t->steps, &t->attach, err);
}

/* After the last step of the job. Memory is told once more at the end of the run, not between two of its jobs. */
static int train_finish(struct client_train *t, struct error *err)
{
    int rc = client_steps_go_on(&t->steps) || t->run.options.dry_run
                 ? 0
                 : client_observer_memory(&t->link, false, t->steps.events->on_memory, t->steps.user, err);

    if (!rc)
        rc = client_job_close(&t->job, err);
    t->closed = rc == 0;
    return rc;
}

/* One attempt. *again: another one follows, whose options are in *restart. */
static int attempt(struct client_train *t, struct client_restart *restart, bool *again, struct error *err)
{
    t->log_fd = t->side_fd = t->trace_fd = -1;
    t->await = (struct client_await){.on_note = t->steps.events->on_note, .user = t->steps.user};
    client_run_init(&t->run);
    client_attach_init(&t->attach);
    int rc = client_link_init(&t->link, err);
    client_steps_init(&t->steps);
    t->link.watches[1] = (struct client_watch){.ask = client_steps_ask, .data = &t->steps};
    t->link.on_queued = train_on_queued;
    t->link.queued_data = t;
    if (!rc)
        rc = restart->options.attach ? take_over(t, restart, err) : train_begin(t, restart, err);
    if (!rc)
        rc = train_finish(t, err);
    /* Workers that end from here on are not missed. */
    t->spawn.replaces = false;
    if (rc && t->run.complete && restart->n > 0) /* the last attempt lost its daemon after the last checkpoint */
        rc = 0;
    *again = client_restart_thaws(restart, t, rc) || client_restart_follows(restart, t, rc, err);
    return *again ? rc : client_train_conclude(t, rc, err);
}

int eps_train(const struct eps_train_options *options, const struct eps_train_events *events, void *user,
              struct eps_error *error)
{
    static const struct eps_train_events silent;
    struct client_restart *restart = calloc(1, sizeof *restart);
    struct client_train *t = malloc(sizeof *t);
    struct error err = {""};
    bool again = true;

    int rc = restart && t ? 0 : error_memory(&err);
    if (!rc) {
        restart->options = *options;
        rc = client_follow(&restart->follow, &restart->options, &err);
    }
    if (!rc)
        rc = client_restart_check(&restart->options, &err);
    if (!rc)
        rc = client_run_check_empty(restart->options.out, &err);
    /* All of an attempt is taken down before the next one begins, which reads from disk what the last one left. */
    while (!rc && again) {
        *t = (struct client_train){.steps = {.events = events ? events : &silent, .user = user}};
        t->steps.run = &t->run, t->steps.link = &t->link, t->steps.job = &t->job;
        rc = attempt(t, restart, &again, &err);
        take_down(t);
        rc = again ? 0 : rc;
    }
    if (restart)
        client_follow_close(&restart->follow);
    free(t);
    free(restart);
    return client_report(error, &err, rc);
}

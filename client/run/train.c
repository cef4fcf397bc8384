/* eps_train: from options to a run directory. The daemon holds the model. This file sets up and takes down a run and
 * reports its end; client/run/steps.h runs the steps. */
#include "client/daemon/observer.h"
#include "client/model/job.h"
#include "client/daemon/link.h"
#include "client/daemon/spawn.h"
#include "client/eps.h"
#include "client/member.h"
#include "client/model/preset.h"
#include "client/run/attach.h"
#include "client/record/change.h"
#include "client/record/disk.h"
#include "client/options/options.h"
#include "client/record/record.h"
#include "client/run/restart.h"
#include "client/run/run.h"
#include "client/run/steps.h"
#include "client/text/tokenizer.h"
#include "proto/model/model_files.h"
#include "proto/model/output.h"
#include "proto/wire/training_text.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <limits.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct train {
    struct client_run run;
    struct client_link link;
    struct client_await await; /* with --connect */
    struct client_spawn spawn; /* used without --connect */
    struct client_job job;
    struct client_attach attach; /* zeroed, unless it takes a job over */
    struct client_steps steps;
    int log_fd, side_fd, trace_fd;
    bool log_made; /* created by this run */
    struct client_disk disk;
    struct trace trace;
    struct client_devices devices;
    uint32_t n_workers; /* that are attached; some may get no share */
    bool closed;        /* the daemon has closed the job */
    bool begins_anew;   /* the next attempt does, in this directory */
};

static void on_device(void *user, const struct eps_memory *side)
{
    struct train *t = user;
    struct client_devices *devices = &t->devices;

    if (side->worker == 0)
        return;
    t->n_workers++;
    devices->cpu |= device_name_is(side->device, "cpu");
    devices->cuda |= device_name_is(side->device, "cuda");
    if (devices->budget < side->budget)
        devices->budget = side->budget;
}

static int start_workers(struct train *t, struct error *err)
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
static int find_workers(struct train *t, struct error *err)
{
    int rc = t->run.options.connect ? 0 : start_workers(t, err);

    if (!rc)
        rc = client_observer_memory(&t->link, false, on_device, t, err);
    if (rc)
        return rc;
    client_options_complete(&t->run.options, &t->devices);
    t->steps.budget = t->devices.budget;
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
        return error_set(err, -ENOMEM, "out of memory");
    return client_tokenizer_add_bytes(model->side, model->config.n_positions, err);
}

/* Creates the side file, which every checkpoint repeats. The daemon fills in the chosen microbatch. */
static int make_side(struct train *t, struct error *err)
{
    const uint64_t room =
        training_text_room(t->run.model.side, client_preset_learned(t->run.preset)); /* as in eps plan */
    int rc = add_tokenizer(&t->run.model, &t->run.data, err);
    json_t *options = rc ? NULL : client_run_record(&t->run, t->run.options.microbatch);

    if (rc)
        return rc;
    rc = options ? training_text_seal(&t->side_fd, options, t->run.model.side, room, err)
                 : error_set(err, -ENOMEM, "out of memory, or the name of a file is not UTF-8");

    json_decref(options);
    return rc;
}

static void note(const struct train *t, const char *sentence)
{
    client_tell(t->steps.events->on_note, t->steps.user, sentence);
}

static void on_queued(void *data, const struct message *m)
{
    struct error sentence;

    client_observer_say_queued(&sentence, m);
    note(data, sentence.text);
}

static int open_job(struct train *t, struct error *err)
{
    const struct eps_train_options *o = &t->run.options;
    struct message request = {
        .kind = MESSAGE_JOB,
        .job = {.goal = client_options_goal(o),
                .deterministic = o->deterministic,
                .step = t->run.first_step,
                .n_steps = o->steps,
                .seed = o->seed,
                .microbatch = o->microbatch,
                .require_pinned = o->require_pinned,
                .clip_norm = isnan(o->clip_norm) ? 0 : o->clip_norm,
                .clip_update = isnan(o->clip_update) ? 0 : o->clip_update,
                .host_mem = o->host_mem,
                .beta1 = o->beta1,
                .beta2 = o->beta2,
                .epsilon = o->epsilon,
                .weight_decay = o->weight_decay},
    };
    int rc = make_side(t, err);

    if (rc)
        return rc;
    snprintf(request.job.freeze, sizeof request.job.freeze, "%s", o->freeze ? o->freeze : "");
    request.job.files = client_files_are_needed(&t->link);
    if (request.job.files) {
        client_checkpoints_sweep(t->run.directory_fd);
        client_output_init(&t->steps.output, t->run.directory_fd, t->side_fd, t->run.first_step);
    }
    output_path(request.job.out, sizeof request.job.out, t->run.directory_fd);
    const struct client_job_files files = {.output = request.job.files ? -1 : t->run.directory_fd,
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

static int tell_plan(struct train *t, struct error *err)
{
    const struct client_steps *s = &t->steps;
    struct client_memory memory = {0};
    const struct eps_memory *sides;
    int rc = s->events->on_plan ? client_memory_await(&memory, &t->link, err) : 0;

    if (!rc && client_memory_take(&memory, &sides) == 2)
        s->events->on_plan(s->user, &t->job.choice, &sides[0], &sides[1]);
    return rc;
}

/* "1 of 3 workers has no share: the minibatch has 2 parts (--parts)". The daemon has told of those that are left out. */
static void note_idle(const struct train *t)
{
    const uint32_t n = t->n_workers - t->job.n_workers, parts = t->run.options.parts;
    struct error sentence;

    if (t->n_workers <= t->job.n_workers || t->job.n_workers < parts)
        return;
    error_set(&sentence, 0, "%u of %u workers %s no share: the minibatch has %u part%s (--parts)", n, t->n_workers,
              n > 1 ? "have" : "has", parts, parts > 1 ? "s" : "");
    note(t, sentence.text);
}

static void note_memory(const struct train *t)
{
    const struct client_run *run = &t->run;
    struct error sentence;
    struct model model;

    const int rc = client_options_model(&model, &run->model.config, run->options.freeze, NULL);

    if (!rc && client_options_say_fenced(&sentence, &run->asked, &run->options, model.n_trained))
        note(t, sentence.text);
    if (!rc && client_options_say_summed(&sentence, &run->asked, &run->options, &model))
        note(t, sentence.text);
    model_free(&model);
}

/* Reports present and earlier changes. */
static void say_changes(const struct train *t)
{
    const struct client_run *run = &t->run;
    const bool rebatched = run->options.batch != run->resume.record.options.batch;
    struct error sentence, change;
    uint64_t step;

    for (size_t i = 0; client_change_say(&change, &step, run->changes, i); i++) {
        error_set(&sentence, 0, "changed %.400s%s", change.text,
                  step == run->first_step ? "; the optimizer's moments are kept" : "");
        note(t, sentence.text);
    }
    if (!rebatched)
        return;
    error_set(&sentence, 0,
              "the batch changes, the data's order does not: %" PRIu64 " windows are done, and step %" PRIu64
              " begins with the next",
              client_run_rows(run, run->first_step), run->first_step + 1);
    note(t, sentence.text);
}

/* Reports the run's facts before the first step. */
static void report_start(struct train *t)
{
    const struct client_run *run = &t->run;
    const struct eps_train_options *stored = &run->resume.record.options;
    struct error sentence;

    if (t->steps.events->on_start)
        t->steps.events->on_start(t->steps.user, &run->options, t->job.n_parameters);
    if (t->steps.events->on_disk)
        t->steps.events->on_disk(t->steps.user, client_disk_bytes(&t->disk), client_disk_most(&run->options),
                                 client_disk_free(run->directory_fd));
    if (run->preset && client_options_say_recipe(&sentence, run->preset, &run->asked, &run->options))
        note(t, sentence.text);
    if (*run->drawn) {
        error_set(&sentence, 0, "drawn by the seed, as the model lacks them: %s", run->drawn);
        note(t, sentence.text);
    }
    note_memory(t);
    note_idle(t);
    if (run->data.n_passed > 0) {
        error_set(&sentence, 0, "%" PRIu64 " file%s in directories of --data passed over: not named %s",
                  run->data.n_passed, run->data.n_passed == 1 ? "" : "s", client_data_suffixes(&run->data));
        note(t, sentence.text);
    }
    if (run->data.n_folders > 0) {
        error_set(&sentence, 0, "%" PRIu64 " folder%s in directories of --data passed over: %.200s%s; name %s too",
                  run->data.n_folders, run->data.n_folders == 1 ? "" : "s", run->data.folder,
                  run->data.n_folders == 1 ? "" : " and others", run->data.n_folders == 1 ? "it" : "them");
        note(t, sentence.text);
    }
    if (!run->asked.resume)
        return;
    error_set(&sentence, 0, "continuing from %s after %" PRIu64 " steps", run->resume.path, run->first_step);
    note(t, sentence.text);
    if (run->latest_mended) {
        error_set(&sentence, 0, "%s/latest names step-%" PRIu64 " now: the run was ended before it could",
                  run->directory, run->first_step);
        note(t, sentence.text);
    }
    say_changes(t);
    if (run->options.steps != stored->steps) {
        error_set(&sentence, 0,
                  "the run's end moves from step %" PRIu64 " to %" PRIu64 ", and the learning-rate schedule with it",
                  stored->steps, run->options.steps);
        note(t, sentence.text);
    }
    if (stored->microbatch && run->options.microbatch != stored->microbatch) {
        error_set(&sentence, 0, "microbatches have %u rows, and the run had %u: results agree only to rounding",
                  run->options.microbatch, stored->microbatch);
        note(t, sentence.text);
    }
}

static int create_trace(struct train *t, struct error *err)
{
    const char *path = t->run.options.trace;
    int rc = path ? trace_create(&t->trace_fd, path, err) : 0;

    if (!path || rc)
        return rc;
    trace_open(&t->trace, t->trace_fd, "eps train", "client");
    t->steps.trace = &t->trace;
    return 0;
}

/* The session is the job's from the first step on: client_steps_run takes it. */
static int join_job(struct train *t, struct error *err)
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

static int open_traced_job(struct train *t, struct error *err)
{
    const uint64_t since = trace_begin(t->steps.trace);
    int rc = open_job(t, err);

    if (t->steps.trace)
        trace_end(t->steps.trace, since, "open job", NULL, NULL);
    return rc;
}

/* A run that the disk refuses: names memory instead if that is too little, too, which takes more than removing files. The
 * memory of a shared daemon is not known here. */
static int prefer_memory(const struct client_run *run, int rc, struct error *err)
{
    struct eps_plan plan;

    if (run->options.connect || !run->options.model || eps_plan(&plan, &run->options, NULL) || plan.fits)
        return rc;
    return error_set(err, -ENOMEM, "%s", plan.why);
}

/* What a checkpoint takes; and that the run can save one, if it has a step to do. */
static int check_disk(struct train *t, struct error *err)
{
    const struct client_run *run = &t->run;
    struct model model;
    struct stat st;
    int rc = client_options_model(&model, &run->model.config, run->options.freeze, err);

    if (!rc && fstat(run->model.config_fd, &st))
        rc = error_set(err, -errno, "config.json: %s", strerror(errno));
    if (!rc)
        rc = client_disk_of(&t->disk, &model,
                            (uint64_t)st.st_size +
                                training_text_saved_bytes(run->model.side, client_preset_learned(run->preset)),
                            err);
    model_free(&model);
    if (rc || run->attach || run->first_step == run->options.steps)
        return rc;
    rc = client_disk_try(&t->disk, run->directory, run->directory_fd, run->first_step, err);
    return rc ? prefer_memory(run, rc, err) : 0;
}

static int run(struct train *t, struct error *err)
{
    int rc = client_run_make_directory(&t->run, &t->link.watches[1], err);

    if (!rc)
        rc = check_disk(t, err);
    if (!rc)
        rc = create_trace(t, err);
    if (!rc)
        rc = find_workers(t, err);
    if (!rc)
        rc = t->run.attach ? join_job(t, err) : open_traced_job(t, err);
    if (rc)
        return rc;
    report_start(t);
    rc = tell_plan(t, err);
    t->spawn.replaces = true;
    if (!rc)
        rc = client_steps_run(&t->steps, err);
    if (!rc)
        rc = client_observer_memory(&t->link, false, t->steps.events->on_memory, t->steps.user, err);
    if (!rc)
        rc = client_job_close(&t->job, err);
    t->closed = rc == 0;
    t->spawn.replaces = false;
    return rc;
}

/* True if somebody removed the run's directory, or is at it and has removed its checkpoints. */
static bool is_removed(const struct train *t)
{
    const int fd = t->run.directory_fd;
    struct client_checkpoints left = {0};
    struct error none;
    struct stat st;

    if (fd < 0 || fstat(fd, &st))
        return false;
    if (st.st_nlink == 0 || client_steps_saved(&t->steps) == MESSAGE_NO_STEP)
        return st.st_nlink == 0;
    const bool removed = client_checkpoints_list(&left, fd, &none) == 0 && left.n == 0;
    client_checkpoints_free(&left);
    return removed;
}

/* Appends how the run can continue, if it can. */
static void add_remedy(const struct train *t, struct error *err)
{
    char quoted[PATH_MAX];
    const char *directory = eps_quote(quoted, sizeof quoted, t->run.directory); /* ready to paste into a shell */
    const uint64_t saved = client_steps_saved(&t->steps);

    if (is_removed(t))
        error_append(err, "; no checkpoint is left: %s was removed", t->run.directory);
    else if (saved != MESSAGE_NO_STEP &&
             (t->link.failed == -EDOM || t->steps.diverged)) /* a resumed run would diverge again */
        error_append(err, "; its weights before that are in %s/step-%" PRIu64, t->run.directory, saved);
    else if (saved != MESSAGE_NO_STEP)
        error_append(err, "; eps train --resume %s continues from step %" PRIu64, directory, saved);
    else if (t->steps.begun)
        error_append(err, "; no checkpoint was saved");
}

/* The loop ended without an error. Checks whether the run was complete, and everything written. */
static int conclude(const struct train *t, struct error *err)
{
    const struct client_steps *s = &t->steps;
    const bool cut = s->cut_short && s->covered < s->opened; /* else a worker has come, and the step was finished */
    char quoted[PATH_MAX];
    int rc = 0;

    if (s->stop) {
        rc = error_set(err, -EINTR, "%s after %" PRIu64 " steps", client_steps_stopped_by(s), s->done);
        const bool saved = !s->save_rc && client_steps_saved(s) == s->done;
        if (cut)
            error_append(err, "; step %" PRIu64 " waited for a worker and was given up%s", s->done + 1,
                         saved || s->save_rc ? "" : ", and without it the model cannot be saved");
        if (saved)
            error_append(err, "; saved in %s/step-%" PRIu64, t->run.directory, s->done);
        else if (cut && !s->save_rc)
            add_remedy(t, err);
        if (saved && (s->done < s->end || s->unevaluated))
            error_append(err, "; resume with: eps train --resume %s",
                         eps_quote(quoted, sizeof quoted, t->run.directory));
    }
    if (s->save_rc) {
        rc = error_set(err, s->save_rc, "%sthe last checkpoint, step-%" PRIu64 ", could not be written: %.200s",
                       s->stop && s->done < t->run.options.steps ? "interrupted, and " : "", s->asked,
                       s->save_error.text);
        add_remedy(t, err);
    }
    if (s->metrics_rc) {
        if (!rc)
            error_set(err, 0, "metrics.jsonl is incomplete: %s", s->metrics_error.text);
        else
            error_append(err, "; metrics.jsonl is incomplete: %.100s", s->metrics_error.text);
        if (!s->save_rc && is_removed(t)) /* the directory was removed after the last checkpoint */
            add_remedy(t, err);
        rc = s->metrics_rc;
    }
    return rc;
}

/* True if the user ended the wait for disk space. The run itself was complete, so that is no interrupt. */
static bool ended_wait_for_room(const struct train *t, int rc)
{
    return rc == -EINTR && t->steps.save_rc && t->steps.no_room_ns;
}

static int describe_failure(const struct train *t, int rc, struct error *err)
{
    const struct client_steps *s = &t->steps;
    const char *who = client_steps_stopped_by(s);

    if (rc == -EINTR && s->begun)
        error_set(err, rc, "%s after %" PRIu64 " steps", who, s->done);
    else if (rc == -EINTR)
        error_set(err, rc, "%s before the first step", who);
    if (s->begun)
        add_remedy(t, err);
    return rc;
}

/* Completes the trace file if no other process still writes to it: the job is closed, or the private processes have
 * ended. Otherwise the end marker is left out; readers accept that. */
static void finish_trace(struct train *t)
{
    const bool last = t->closed || !t->run.options.connect;
    struct error sentence;

    if (t->trace_fd < 0)
        return;
    const int ended = trace_close(&t->trace), finished = last ? trace_finish(t->trace_fd) : 0;
    const int rc = ended ? ended : finished;
    close(t->trace_fd);
    if (!t->steps.begun)
        unlink(t->run.options.trace);
    error_set(&sentence, 0, "the trace %s ends early: %s", t->run.options.trace,
              rc == -ENODATA ? "what followed was not written whole" : strerror(-rc));
    if (rc && t->steps.begun && !t->steps.trace_ended)
        note(t, sentence.text);
}

/* Removes what a run created if it wrote nothing else. */
static void clean_up(struct train *t)
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

static void take_down(struct train *t)
{
    client_job_free(&t->job);
    t->steps.output.files = NULL;
    client_spawn_stop(&t->spawn);
    client_link_free(&t->link);
    finish_trace(t);
    clean_up(t);
    if (t->log_fd >= 0)
        close(t->log_fd);
    if (t->side_fd >= 0)
        close(t->side_fd);
    client_steps_free(&t->steps);
    client_run_close(&t->run);
    client_attach_close(&t->attach);
}

/* Counts the workers of the daemon of --connect, if given; the link stays open. */
static int count_workers(struct train *t, uint32_t *n, struct error *err)
{
    const struct eps_train_options *o = &t->run.asked;
    int rc = client_await_init(&t->await, o->wait, o->connect, err);

    *n = 0;
    if (!o->connect || rc)
        return rc;
    rc = client_options_check_connect(o, err);

    if (t->run.attach) {
        *n = t->attach.job.description.n_workers;
        return rc ? rc : client_link_open(&t->link, t->attach.address, ROLE_CLIENT, err);
    }
    if (!rc)
        rc = client_await_daemon(&t->link, o->connect, ROLE_CLIENT, &t->await, err);
    return rc ? rc : client_await_worker(n, &t->link, o->connect, &t->await, err);
}

/* True if the job failed because something was lost, and not because somebody stopped it, or the daemon: -ECANCELED. */
static bool has_failed_by_loss(const struct train *t)
{
    const int code = t->link.failed;

    return !t->steps.diverged && (code == 0 || code == -EIO);
}

/* True if the attempt failed because a process was lost, and another one may do better. A run that was restarted waits for
 * its daemon. */
static bool was_lost(struct train *t, const struct client_restart *restart, int rc)
{
    const bool absent = rc == -ENOENT || rc == -ECONNREFUSED || rc == -ETIMEDOUT;
    const bool alone = !t->link.session && !t->spawn.ending;

    if (rc == -EIO && (t->steps.begun || alone))
        return has_failed_by_loss(t);
    return restart->n > 0 && !t->steps.begun && (absent || rc == -EIO);
}

/* Whether the run goes on by itself after an attempt; tells the user. */
static bool goes_on(struct train *t, struct client_restart *restart, int rc, const struct error *why)
{
    const struct eps_train_events *events = t->steps.events;
    const uint64_t saved = client_steps_saved(&t->steps);
    const bool stopped = t->steps.stop && (!t->steps.daemon_stops || t->steps.job_stops);
    struct error sentence;

    if (!rc || stopped || (events->should_stop && events->should_stop(t->steps.user)) || is_removed(t) ||
        (t->run.attach && saved == MESSAGE_NO_STEP))
        return false;
    if (rc == -EIO && !t->steps.begun && t->spawn.link && restart->n_early < CLIENT_SPAWN_AGAIN &&
        client_spawn_lost_worker(&t->spawn)) {
        restart->n_early++;
        error_set(&sentence, 0, "%.400s; daemon and workers are started anew", why->text);
    } else if (restart->n < restart->options.restarts && was_lost(t, restart, rc)) {
        restart->n++;
        error_set(&sentence, 0, "restart %u of %u: %.300s; ", restart->n, restart->options.restarts, why->text);
        if (saved == MESSAGE_NO_STEP)
            error_append(&sentence, "the run begins anew, as it has no checkpoint");
        else
            error_append(&sentence, "the run goes on from step %" PRIu64, saved);
    } else {
        return false;
    }
    note(t, sentence.text);
    return true;
}

/* As client_run_open. What an earlier attempt lost may still hold the run's directory until it has ended. */
static int open_run(struct train *t, const struct client_restart *restart, struct error *err)
{
    enum { TRIES = 20 }; /* each waits for some seconds: client_resume_lock */
    const int n_tries = restart->n > 0 ? TRIES : 1;
    int rc = -EBUSY;

    for (int i = 0; i < n_tries && rc == -EBUSY; i++) {
        client_run_close(&t->run);
        client_run_init(&t->run);
        rc = client_run_open(&t->run, &restart->options, &t->link.watches[1], err);
    }
    return rc;
}

/* One attempt. *again: another one follows, whose options are in *restart. */
static int attempt(struct train *t, struct client_restart *restart, bool *again, struct error *err)
{
    const struct eps_train_options *options = &restart->options;
    struct error sentence;
    uint32_t n_workers;

    t->log_fd = t->side_fd = t->trace_fd = -1;
    t->await = (struct client_await){.on_note = t->steps.events->on_note, .user = t->steps.user};
    client_run_init(&t->run);
    int rc = client_link_init(&t->link, err);
    client_steps_init(&t->steps);
    t->link.watches[1] = (struct client_watch){.ask = client_steps_ask, .data = &t->steps};
    t->link.on_queued = on_queued;
    t->link.queued_data = t;
    if (!rc && options->attach)
        rc = client_attach_find(&t->attach, &t->link, options, err);
    if (!rc && options->attach)
        rc = client_run_open_attached(&t->run, &t->attach, options, &t->link.watches[1], err);
    else if (!rc) /* choosing may take long, and a session must not wait for it */
        rc = open_run(t, restart, err);
    if (!rc)
        rc = count_workers(t, &n_workers, err);
    if (!rc)
        rc = client_run_resolve(&t->run, n_workers, err);
    if (!rc && client_preset_say_fresh(&sentence, options)) /* the first note of all */
        note(t, sentence.text);
    if (!rc)
        rc = run(t, err);
    if (rc && t->run.complete && restart->n > 0) /* the last attempt lost its daemon after the last checkpoint */
        rc = 0;
    *again = goes_on(t, restart, rc, err);
    if (*again) {
        t->begins_anew = client_steps_saved(&t->steps) == MESSAGE_NO_STEP && !t->run.resume.in_place;
        if (t->run.directory_fd >= 0)
            client_restart_next(restart, &t->run, client_steps_saved_here(&t->steps));
        return rc;
    }
    return rc && !ended_wait_for_room(t, rc) ? describe_failure(t, rc, err) : conclude(t, err);
}

int eps_train(const struct eps_train_options *options, const struct eps_train_events *events, void *user,
              struct eps_error *error)
{
    static const struct eps_train_events silent;
    struct client_restart *restart = calloc(1, sizeof *restart);
    struct train *t = malloc(sizeof *t);
    struct error err = {""};
    bool again = true;

    int rc = restart && t ? client_restart_check(options, &err) : error_set(&err, -ENOMEM, "out of memory");
    if (!rc)
        restart->options = *options;
    while (!rc && again) {
        *t = (struct train){.steps = {.events = events ? events : &silent, .user = user}};
        t->steps.run = &t->run, t->steps.link = &t->link, t->steps.job = &t->job;
        rc = attempt(t, restart, &again, &err);
        take_down(t);
        rc = again ? 0 : rc;
    }
    free(t);
    free(restart);
    return client_report(error, &err, rc);
}

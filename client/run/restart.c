/* But for --freeze-until, another attempt follows a loss and nothing else: no stop, no option that is refused, no
 * weights that have diverged. Options that workers have settled are fixed first (make_options), so an attempt that
 * begins anew trains the same. A checkpoint may be in place that its daemon died before telling of: so the directory is
 * read, not the run's list alone. */
#include "client/data/data.h"
#include "client/run/train_state.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static bool reads_input(const struct eps_train_options *o)
{
    bool reads = o->eval_data && strcmp(o->eval_data, CLIENT_DATA_INPUT) == 0;

    for (size_t i = 0; i < o->n_data; i++)
        reads |= strcmp(o->data[i], CLIENT_DATA_INPUT) == 0;
    return reads;
}

/* Of the options as they were given: a stored --save-every or --keep has no effect beside --no-save. */
static int check_no_save(const struct eps_train_options *o, struct error *err)
{
    const char *name = !o->no_save                   ? NULL
                       : o->save_every != UINT64_MAX ? "--save-every"
                       : !isnan(o->save_minutes)     ? "--save-minutes"
                       : o->keep != UINT32_MAX       ? "--keep"
                       : o->mirror                   ? "--mirror"
                       : o->grow                     ? "--grow"
                       : o->replace                  ? "--replace"
                                                     : NULL;

    if (!name)
        return 0;
    if (o->grow || o->replace)
        return error_set(err, -EDOM, "%s begins with a checkpoint that it writes: leave --no-save out", name);
    return error_set(err, -EDOM, "%s is about checkpoints, and --no-save writes none: leave one of them out", name);
}

int client_restart_check(const struct eps_train_options *o, struct error *err)
{
    const int rc = check_no_save(o, err);

    if (rc)
        return rc;
    if (o->restarts == 0)
        return 0;
    if (reads_input(o))
        return error_set(err, -EDOM, "--restarts %u: data from standard input can be read once: name a file",
                         o->restarts);
    if (o->trace)
        return error_set(err, -EDOM, "--restarts %u does not go with --trace, which times one attempt", o->restarts);
    return 0;
}

int client_restart_check_thaw(const struct client_run *run, struct error *err)
{
    const struct eps_train_options *o = &run->options;

    if (client_run_job_end(run) == o->steps)
        return 0;
    if (o->no_save)
        return error_set(err, -EDOM,
                         "--freeze-until %" PRIu64
                         " goes on from a checkpoint of that step: leave --no-save out, or end with that step",
                         o->freeze_until);
    if (reads_input(o))
        return error_set(err, -EDOM,
                         "--freeze-until %" PRIu64
                         ": the data is read again then, and standard input can be read once: "
                         "name a file",
                         o->freeze_until);
    if (o->trace)
        return error_set(err, -EDOM,
                         "--freeze-until %" PRIu64 " does not go with --trace, which times one job: trace a run that "
                         "has passed that step",
                         o->freeze_until);
    return 0;
}

/* The checkpoint has every option but those of the machine, callbacks, and what a run writes beside itself. */
static struct eps_train_options resume_of(const struct client_restart *r)
{
    const struct eps_train_options *last = &r->options;
    struct eps_train_options o = eps_train_defaults();

    o.resume = r->directory;
    o.data = last->data, o.n_data = last->n_data, o.eval_data = last->eval_data;
    o.connect = last->attach ? r->address : last->connect;
    o.wait = last->wait;
    o.programs = last->programs;
    o.on_blocks = last->on_blocks, o.blocks_user = last->blocks_user;
    o.on_rows = last->on_rows, o.rows_user = last->rows_user;
    o.tensorboard = last->tensorboard;
    o.verbose = last->verbose;
    o.mirror = last->mirror;
    o.sample_every = last->sample_every;
    o.sample_prompts = last->sample_prompts, o.n_sample_prompts = last->n_sample_prompts;
    o.on_weights = last->on_weights, o.weights_user = last->weights_user, o.weights_every = last->weights_every;
    o.device = last->device, o.device_mem = last->device_mem, o.host_mem = last->host_mem;
    o.workers = last->workers, o.audit = last->audit, o.require_pinned = last->require_pinned;
    o.check_memory = last->check_memory;
    o.restarts = last->restarts;
    return o;
}

/* After an attempt that made its directory. saved: the attempt, or the job that it took over, has saved a checkpoint
 * there. */
static void make_options(struct client_restart *r, const struct client_run *run, bool saved)
{
    const struct eps_train_options *resolved = &run->options;

    if (r->options.attach)
        snprintf(r->address, sizeof r->address, "%s", resolved->connect);
    snprintf(r->directory, sizeof r->directory, "%s", run->directory);
    if (saved) {
        r->options = resume_of(r);
        return;
    }
    r->options.out = r->directory;
    if (r->options.resume) /* the checkpoint has them */
        return;
    r->options.parts = resolved->parts, r->options.batch = resolved->batch;
    r->options.precision = resolved->precision;
    r->options.approximate = resolved->approximate; /* --approximate any: the form that was chosen */
}

/* True if the job failed because something was lost, or made room for others while nobody called this client (-EAGAIN);
 * and not because somebody stopped it, or the daemon: -ECANCELED. */
static bool has_failed_by_loss(const struct client_train *t)
{
    const int code = t->link.failed;

    return !t->steps.diverged && (code == 0 || code == -EIO || code == -EAGAIN);
}

/* True if the attempt failed because a process was lost, and another one may do better. A run that was restarted waits
 * for its daemon. */
static bool was_lost(struct client_train *t, const struct client_restart *restart, int rc)
{
    const bool absent = rc == -ENOENT || rc == -ECONNREFUSED || rc == -ETIMEDOUT;
    const bool alone = !t->link.session && !t->spawn.ending;

    if (rc == -EIO && (t->steps.begun || alone))
        return has_failed_by_loss(t);
    return restart->n > 0 && !t->steps.begun && (absent || rc == -EIO);
}

/* True if a checkpoint is in the run's directory, of which the client may not have heard: its daemon, or the job, ended
 * when it was in place and before that was told. */
static bool has_checkpoint(const struct client_train *t)
{
    const int fd = t->run.directory_fd >= 0 ? openat(t->run.directory_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC) : -1;
    DIR *const entries = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;
    bool any = false;

    while (entries && !any && (entry = readdir(entries)))
        any = strncmp(entry->d_name, "step-", 5) == 0 && entry->d_name[5] != '\0' &&
              strspn(entry->d_name + 5, "0123456789") == strlen(entry->d_name + 5);
    if (entries)
        closedir(entries);
    else if (fd >= 0)
        close(fd);
    return any;
}

/* Whether the run goes on by itself after an attempt; tells the user. */
static bool goes_on(struct client_train *t, struct client_restart *restart, int rc, const struct error *why)
{
    const struct eps_train_events *events = t->steps.events;
    const uint64_t saved = client_steps_saved(&t->steps);
    const bool stopped = t->steps.stop && (!t->steps.daemon_stops || t->steps.job_stops);
    struct error sentence;

    if (!rc || stopped || (events->should_stop && events->should_stop(t->steps.user)) || client_train_is_removed(t) ||
        (restart->options.attach && saved == MESSAGE_NO_STEP))
        return false;
    if (rc == -EIO && !t->steps.begun && t->spawn.link && restart->n_early < CLIENT_SPAWN_AGAIN &&
        client_spawn_lost_worker(&t->spawn)) {
        restart->n_early++;
        error_set(&sentence, 0, "%.400s; daemon and workers are started anew", why->text);
    } else if (restart->n < restart->options.restarts && was_lost(t, restart, rc)) {
        restart->n++;
        error_set(&sentence, 0, "restart %u of %u: %.300s; ", restart->n, restart->options.restarts, why->text);
        if (saved == MESSAGE_NO_STEP && has_checkpoint(t))
            error_append(&sentence, "the run goes on from its checkpoint");
        else if (saved == MESSAGE_NO_STEP)
            error_append(&sentence, "the run begins anew, as it has no checkpoint");
        else
            error_append(&sentence, "the run goes on from step %" PRIu64, saved);
    } else {
        return false;
    }
    client_train_note(t, sentence.text);
    return true;
}

bool client_restart_thaws(struct client_restart *restart, const struct client_train *t, int rc)
{
    restart->thaws = rc == 0 && client_steps_go_on(&t->steps);
    if (restart->thaws)
        make_options(restart, &t->run, true);
    return restart->thaws;
}

bool client_restart_follows(struct client_restart *restart, struct client_train *t, int rc, const struct error *why)
{
    if (!goes_on(t, restart, rc, why))
        return false;
    const bool unheard = client_steps_saved(&t->steps) == MESSAGE_NO_STEP && has_checkpoint(t);
    t->begins_anew = client_steps_saved(&t->steps) == MESSAGE_NO_STEP && !unheard && !t->run.resume.in_place;
    if (t->run.directory_fd >= 0)
        make_options(restart, &t->run, unheard || client_steps_saved_here(&t->steps));
    return true;
}

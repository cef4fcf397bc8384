/* The model is opened and verified before workers are waited for, or started: a wrong one costs no wait. A snapshot
 * comes over a link of its own, a viewer's, which is closed before the job's session, a client's, is opened. */
#include "client/ask/forward.h"

#include "client/daemon/observer.h"
#include "client/data/data.h"
#include "client/member.h"
#include "client/model/passed.h"
#include "client/model/preset.h"
#include "client/options/options.h"
#include "proto/model/file/checkpoint.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

static int forward_ask_stop(void *data, struct error *err)
{
    const struct client_forward_options *o = data;
    return o->should_stop(o->user) ? error_set(err, -EINTR, "interrupted") : 0;
}

static int forward_on_checked(void *data, uint64_t bytes)
{
    const struct client_forward_options *o = data;

    (void)bytes;
    return o->should_stop && o->should_stop(o->user) ? -EINTR : 0;
}

static int forward_open_model(struct client_forward *f, struct error *err)
{
    const char *path = f->options.model;
    int rc =
        client_model_open(&f->model, &(struct client_model_name){.path = path, .base = f->options.base_model}, err);

    const struct eps_preset *preset = rc == -ENOENT ? client_preset_find(path) : NULL;
    struct error sentence;

    if (!rc && *f->model.wrapper && f->options.on_note) {
        error_set(&sentence, 0, "%s: %s", path, f->model.wrapper);
        f->options.on_note(f->options.user, sentence.text);
    }
    /* For a published preset, the error says where to get the weights. */
    if (preset && !client_preset_is_published(preset))
        return error_set(err, -EINVAL,
                         "--model %s is a preset, which has no weights before it is trained: name a directory", path);
    if (!rc && f->model.n_weights == 0)
        return error_set(err, -EINVAL, "--model %s has no weights: name a directory that holds config.json and them",
                         path);
    if (!rc)
        rc = client_model_check(&f->model, forward_on_checked, &f->options, err);
    if (!rc)
        client_model_tell(&f->model, f->options.on_note, f->options.user);
    return rc;
}

void client_forward_follow_training(const struct client_forward *f, const char **chat_template, enum eps_split *split)
{
    struct error sentence;

    if (!client_model_follow_training(chat_template, split, &f->model))
        return;
    error_set(&sentence, 0, "the chat template is %.60s, as in the training of this model", *chat_template);
    client_tell(f->options.on_note, f->options.user, sentence.text);
}

static int copy_live_model(struct client_forward *f, struct error *err)
{
    const char *connect = f->options.connect;
    const struct client_snapshot snapshot = {connect, f->options.base_model, false, &f->link.watches[1], &f->await};
    int rc = client_snapshot_fetch(&f->model, NULL, &snapshot, err);

    if (rc == -ENOENT && !connect)
        return error_set(err, -EDOM, "--model is needed because no run of yours is live: name a directory");
    return rc;
}

int client_forward_open(struct client_forward *forward, const struct client_forward_options *options, struct error *err)
{
    struct device_name name;

    *forward = (struct client_forward){.options = *options, .log_fd = -1, .model.config_fd = -1};
    if (options->model && options->connect && options->device_mem)
        return error_set(err, -EDOM, "--device-mem does not go with --connect: give it to each eps-worker instead");
    forward->await = (struct client_await){.on_note = options->on_note, .user = options->user};
    int rc = client_options_device(&name, options->device, 1, options->model ? options->connect : NULL, err);
    if (!rc)
        rc = client_await_init(&forward->await, options->wait, options->connect, err);
    if (!rc)
        rc = client_link_init(&forward->link, err);
    if (rc)
        return rc;
    if (options->should_stop)
        forward->link.watches[1] = (struct client_watch){.ask = forward_ask_stop, .data = &forward->options};
    return options->model ? forward_open_model(forward, err) : copy_live_model(forward, err);
}

static void forward_on_queued(void *data, const struct message *m)
{
    const struct client_forward_options *o = data;
    struct error sentence;

    client_observer_say_queued(&sentence, m);
    client_tell(o->on_note, o->user, sentence.text);
}

/* Others of these messages come to runs alone. */
static void forward_on_aside(void *data, const struct message *m)
{
    const struct client_forward_options *o = data;
    struct error sentence;

    if (m->kind != MESSAGE_LOST || !o->on_note)
        return;
    client_observer_say_missing(&sentence, m);
    client_tell(o->on_note, o->user, sentence.text);
}

static int forward_join(struct client_forward *f, struct error *err)
{
    uint32_t n_workers;

    f->link.on_queued = forward_on_queued;
    f->link.queued_data = &f->options;
    int rc = client_await_daemon(&f->link, f->options.connect, ROLE_CLIENT, &f->await, err);

    return rc ? rc : client_await_worker(&n_workers, &f->link, f->options.connect, &f->await, err);
}

/* Without a daemon that was named, one is started for this question alone, with one worker. Their log needs no place on
 * disk: it is read only if they fail. */
int client_forward_start(struct client_forward *forward, struct error *err)
{
    const struct client_forward_options *o = &forward->options;

    forward->link.on_aside = forward_on_aside;
    forward->link.aside_data = &forward->options;
    if (o->model && o->connect)
        return forward_join(forward, err);
    forward->log_fd = memfd_create("eps-log", MFD_CLOEXEC);
    if (forward->log_fd < 0)
        return error_set(err, -errno, "no memory for a log: %s", strerror(errno));
    struct client_spawn_options spawn = {.programs = o->programs,
                                         .n_workers = 1,
                                         .device_mem = o->device_mem,
                                         .log_fd = forward->log_fd};
    const int rc = client_options_device(&spawn.device, o->device, 1, NULL, err);
    return rc ? rc : client_spawn_start(&forward->spawn, &forward->link, &spawn, err);
}

int client_forward_open_job(struct client_forward *forward, struct client_job *job, struct message *request,
                            struct error *err)
{
    const struct client_forward_options *o = &forward->options;
    const char *address = o->model ? o->connect : NULL;
    int rc;

    do {
        client_job_free(job);
        rc = client_job_open(job, &forward->link, request, &forward->model, NULL, err);
    } while (rc && (rc = client_await_another(rc, &forward->link, address, &forward->await, err)) == 0);
    return rc;
}

void client_forward_close(struct client_forward *forward)
{
    client_spawn_stop(&forward->spawn);
    client_link_free(&forward->link);
    if (forward->log_fd >= 0)
        close(forward->log_fd);
    client_model_close(&forward->model);
    forward->log_fd = -1;
}

/* ---- Snapshots ---- */

enum { WEIGHTS, CONFIG, SIDE, N_FILES };
enum { RETRY_MS = 100 };

/* Reads the side file; NULL if it is empty because the job had none. */
static int forward_read_side(json_t **side, int fd, struct error *err)
{
    json_error_t why;
    struct stat st;

    *side = NULL;
    if (fstat(fd, &st) != 0)
        return error_set(err, -errno, "the daemon's side file: %s", strerror(errno));
    if (st.st_size == 0)
        return 0;
    if (st.st_size > CHECKPOINT_MAX_TEXT)
        return error_set(err, -EPROTO, "the daemon's side file has %jd bytes, more than %d", (intmax_t)st.st_size,
                         CHECKPOINT_MAX_TEXT);
    *side = json_loadfd(fd, JSON_REJECT_DUPLICATES, &why);
    return *side ? 0 : error_set(err, -EPROTO, "the daemon's side file: line %d: %s", why.line, why.text);
}

/* Asks the daemon for its model; name is what it calls the model. */
static int forward_ask(char name[64], uint64_t *step, struct client_link *link, struct client_saved_wait *wait,
                       const int *fds, struct error *err)
{
    const bool serves = client_files_are_needed(link);
    struct client_files *files = NULL;
    struct message m;
    uint32_t first;
    int rc = client_observer_status(link, &m, err);

    if (rc != 0)
        return rc;
    snprintf(name, 64, "%s", m.status_reply.model);
    if (serves)
        rc = client_files_open(&files, link, -1, err);
    if (rc == 0 && serves)
        rc = client_files_add(&first, files, fds, N_FILES, err);
    if (rc == 0)
        client_link_send_fds(link, &(struct message){.kind = MESSAGE_SNAPSHOT}, fds, serves ? 0 : N_FILES);
    if (rc == 0)
        rc = client_observer_await_saved(&m, link, wait, err);
    if (rc == 0 && step)
        *step = m.saved.step;
    client_files_close(files);
    return rc;
}

/* client_model_from takes the descriptors of config and weights even if it fails, so they are forgotten here. */
static int forward_take(struct client_model *out, uint64_t *step, struct client_link *link,
                        struct client_saved_wait *wait, const struct client_snapshot *snapshot, struct error *err)
{
    static const char *const names[N_FILES] = {"weights", "config.json", "a tokenizer"};
    int fds[N_FILES] = {-1, -1, -1}, rc = 0;
    json_t *side = NULL;
    char name[64];

    *out = (struct client_model){.config_fd = -1};
    for (int i = 0; rc == 0 && i < N_FILES; i++) {
        fds[i] = client_data_nameless(names[i], err);
        rc = fds[i] < 0 ? fds[i] : 0;
    }
    if (rc == 0)
        rc = forward_ask(name, step, link, wait, fds, err);
    /* The descriptors share their position with the daemon, which may have moved it. */
    for (int i = 0; rc == 0 && i < N_FILES; i++)
        if (lseek(fds[i], 0, SEEK_SET) != 0)
            rc = error_set(err, -errno, "a temporary file: %s", strerror(errno));
    if (rc == 0)
        rc = forward_read_side(&side, fds[SIDE], err);
    if (rc == 0) {
        json_t *options = json_object_get(side, "options");
        const struct client_model_name named = {name, snapshot->base_model, snapshot->passes, NULL};
        rc =
            client_model_from(out, &named, fds[CONFIG], fds[WEIGHTS], json_incref(json_object_get(side, "files")), err);
        out->precision = client_model_precision(options);
        out->trained = rc ? NULL : json_incref(options);
        out->passed = rc ? NULL : json_incref(json_object_get(options, CLIENT_PASSED_KEY));
        out->dtype = client_model_dtype(options);
        fds[CONFIG] = fds[WEIGHTS] = -1;
    }
    json_decref(side);
    for (int i = 0; i < N_FILES; i++)
        if (fds[i] >= 0)
            close(fds[i]);
    return rc;
}

/* Takes a snapshot of a named daemon once its run has begun. */
static int take_begun(struct client_model *out, uint64_t *step, struct client_link *link,
                      const struct client_snapshot *snapshot, struct error *err)
{
    const struct client_await *await = snapshot->await;
    const char *address = snapshot->address;
    char directory[PATH_MAX];
    struct client_saved_wait wait = {directory, await ? await->on_note : NULL, await ? await->user : NULL, 0};
    struct error sentence;
    int rc = client_observer_find(directory, sizeof directory, address, err);

    if (!rc)
        rc = forward_take(out, step, link, &wait, snapshot, err);
    if ((rc != -EAGAIN && rc != -ENOENT) || !await || !address || !*address)
        return rc;
    error_set(&sentence, 0, "waiting for a run of the daemon %.200s to begin", address);
    if (await->ms > 0)
        client_tell(await->on_note, await->user, sentence.text);
    while ((rc == -EAGAIN || rc == -ENOENT) && link->awake_ms < await->ms) {
        const int stopped = client_link_pause(link, RETRY_MS, err);
        rc = stopped ? stopped : forward_take(out, step, link, &wait, snapshot, err);
    }
    return rc;
}

int client_snapshot_fetch(struct client_model *out, uint64_t *step, const struct client_snapshot *snapshot,
                          struct error *err)
{
    struct client_link link;
    int rc = client_link_init(&link, err);

    *out = (struct client_model){.config_fd = -1};
    if (rc != 0)
        return rc;
    if (snapshot->watch)
        link.watches[1] = *snapshot->watch;
    rc = client_await_daemon(&link, snapshot->address, ROLE_VIEWER, snapshot->await, err);
    if (rc == 0)
        rc = take_begun(out, step, &link, snapshot, err);
    client_link_free(&link);
    return rc;
}

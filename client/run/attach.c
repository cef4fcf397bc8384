/* All that can fail is done before TAKE: from then on the job is this client's, and ends if it leaves. Data that are
 * not the run's, or a metrics.jsonl that cannot be opened, leave the job detached, for another client. */
#include "client/run/attach.h"

#include "client/data/data.h"
#include "client/options/options.h"
#include "client/record/metrics.h"
#include "client/record/record.h"
#include "client/run/run.h"
#include "proto/model/file/checkpoint.h"
#include "proto/model/output.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { RETRY_MS = 100 };

/* ---- the job ----------------------------------------------------------------------------------------------------- */

static int attach_check_options(const struct eps_train_options *in, struct error *err)
{
    const char *name = in->resume           ? "--resume"
                       : in->grow           ? "--grow"
                       : in->replace        ? "--replace"
                       : in->connect        ? "--connect"
                       : !isnan(in->wait)   ? "--wait"
                       : in->change         ? "--change"
                       : in->trace          ? "--trace"
                       : in->tensorboard    ? "--tensorboard"
                       : in->sample_every   ? "--sample-every"
                       : in->sample_prompts ? "--sample-prompt"
                       : in->task           ? "--task"
                       : in->columns        ? "--columns"
                       : in->base_model     ? "--base-model"
                       : in->require_pinned ? "--require-pinned"
                       : in->check_memory   ? "--check-memory"
                       : !isnan(in->epochs) ? "--epochs"
                                            : NULL;

    if (!name)
        return 0;
    return error_set(err, -EDOM, "%s does not go with --attach: a job that is taken over keeps its options", name);
}

static int find_daemon(char *out, size_t cap, const char *address, struct error *err)
{
    if (*address && strcmp(address, "-") != 0)
        return client_observer_find(out, cap, address, err);
    return client_observer_find_detached(out, cap, err);
}

void client_attach_init(struct client_attach *attach)
{
    *attach = (struct client_attach){.data_fd = -1, .config_fd = -1, .side_fd = -1, .output_fd = -1};
}

int client_attach_find(struct client_attach *out, struct client_link *link, const struct eps_train_options *in,
                       struct error *err)
{
    int fds[CLIENT_MAIL_FDS], rc = attach_check_options(in, err);
    unsigned n_fds = 0;

    client_attach_init(out);
    if (!rc)
        rc = find_daemon(out->address, sizeof out->address, in->attach, err);
    if (!rc)
        rc = client_link_open(link, out->address, ROLE_CLIENT, err);
    if (rc)
        return rc;
    out->foreign = client_files_are_needed(link);
    client_link_send(link, &(struct message){.kind = MESSAGE_DESCRIBE});
    rc = client_link_expect_fds(link, MESSAGE_DESCRIPTION, &out->job, fds, &n_fds, err);
    client_link_close(link);
    if (rc)
        return rc;
    int *const slots[] = {&out->data_fd, &out->config_fd, &out->side_fd, &out->output_fd};
    for (unsigned i = 0; i < n_fds; i++)
        *slots[i] = fds[i];
    return n_fds == 3u + out->job.description.output
               ? 0
               : error_set(err, -EPROTO, "the daemon described its job with %u descriptors", n_fds);
}

static void close_one(int *fd)
{
    if (*fd >= 0)
        close(*fd);
    *fd = -1;
}

void client_attach_close(struct client_attach *attach)
{
    close_one(&attach->data_fd);
    close_one(&attach->config_fd);
    close_one(&attach->side_fd);
    close_one(&attach->output_fd);
}

/* ---- the run ----------------------------------------------------------------------------------------------------- */

/* n bytes of a descriptor, whose position stays; owned, ended by a 0. NULL with a sentence. */
static char *attach_read_bytes(int fd, size_t n, const char *what, struct error *err)
{
    char *text = malloc(n + 1);
    const ssize_t got = text ? pread(fd, text, n, 0) : -1;

    if (got == (ssize_t)n) {
        text[n] = 0;
        return text;
    }
    error_set(err, 0, "the daemon's %s could not be read: %s", what, got < 0 ? strerror(errno) : "it is too short");
    free(text);
    return NULL;
}

/* {"options": ..., "files": ...}. Owned: json_decref. */
static json_t *attach_read_side(int fd, struct error *err)
{
    struct stat st;
    json_error_t why;

    if (fstat(fd, &st) || st.st_size < 0 || st.st_size > CHECKPOINT_MAX_TEXT) {
        error_set(err, 0, "the daemon's side file is no file of at most %d MiB", CHECKPOINT_MAX_TEXT >> 20);
        return NULL;
    }
    char *text = attach_read_bytes(fd, (size_t)st.st_size, "side file", err);
    json_t *side = text ? json_loadb(text, (size_t)st.st_size, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &why) : NULL;

    if (text && !side)
        error_set(err, 0, "the daemon's side file: line %d: %s", why.line, why.text);
    free(text);
    return side;
}

static int attach_open_model(struct client_run *run, const struct client_attach *attach, json_t *side,
                             struct error *err)
{
    const struct client_model_name name = {.path = run->resume.record.options.model};
    const size_t n = attach->job.description.config_bytes;
    char *text = attach_read_bytes(attach->config_fd, n, "config.json", err);
    int rc = text ? 0 : -EPROTO, fd = -1;

    if (!rc) {
        fd = client_data_nameless("config.json", err);
        rc = fd < 0 ? fd : 0;
    }
    if (!rc && pwrite(fd, text, n, 0) != (ssize_t)n) {
        rc = error_set(err, -ENOSPC, "no room for the model's config.json");
        close(fd);
    }
    if (!rc)
        rc = client_model_from(&run->model, &name, fd, -1, json_incref(json_object_get(side, "files")), err);
    free(text);
    return rc;
}

static bool attach_is_directory(const char *path, int fd)
{
    struct stat named, open;

    return stat(path, &named) == 0 && fstat(fd, &open) == 0 && named.st_dev == open.st_dev &&
           named.st_ino == open.st_ino;
}

/* The daemon holds the directory's lock with its descriptor. Without checkpoints there, it has none: then the lock was
 * the last client's. So it is with a daemon of another user, which moreover may name any directory of the caller's, of
 * which metrics would be cut back and checkpoints removed. */
static int attach_open_directory(struct client_resume *r, struct client_attach *attach, const char *out,
                                 const struct client_watch *watch, struct error *err)
{
    const char *path = attach->job.description.out;

    r->in_place = true;
    if (attach->foreign && !out)
        return error_set(err, -EDOM,
                         "the daemon %.200s is another user's: name the run's directory with --out; it says %s",
                         client_observer_name(attach->address), path);
    if (attach->output_fd >= 0) {
        if (out && !attach->foreign)
            return error_set(err, -EDOM, "--out does not go with --attach: the daemon knows the run's directory");
        if (out && !attach_is_directory(out, attach->output_fd))
            return error_set(err, -EINVAL, "--out %.200s is not the directory that the daemon has", out);
        output_path(r->directory, sizeof r->directory, attach->output_fd);
        r->directory_fd = attach->output_fd;
        attach->output_fd = -1;
        return 0;
    }
    if (out || strncmp(path, "...", 3) != 0)
        snprintf(r->directory, sizeof r->directory, "%s", out ? out : path);
    else
        return error_set(err, -EDOM, "the daemon knows only the end of the run's directory, %s: name it with --out",
                         path);
    r->directory_fd = open(r->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (r->directory_fd < 0)
        return error_set(err, -errno, "%s: %s", r->directory, strerror(errno));
    return client_resume_lock(r->directory_fd, r->directory, watch, err);
}

int client_attach_open(struct client_run *run, struct client_attach *attach, const struct eps_train_options *in,
                       const struct client_watch *watch, struct error *err)
{
    struct eps_train_options given = *in;
    json_t *side = attach_read_side(attach->side_fd, err);
    int rc = side ? client_record_read(&run->resume.record, json_object_get(side, "options"), err) : -EPROTO;

    given.connect = attach->address;
    if (!rc)
        rc = client_record_merge(&run->asked, &given, &run->resume.record, err);
    if (!rc)
        rc = attach_open_directory(&run->resume, attach, in->out, watch, err);
    if (!rc) { /* now: a client that took the job and then failed would end it */
        rc = client_metrics_check(run->resume.directory_fd, err);
        if (rc)
            error_prefix(err, run->resume.directory);
    }
    if (!rc)
        rc = attach_open_model(run, attach, side, err);
    snprintf(run->resume.path, sizeof run->resume.path, "%s", run->resume.directory);
    json_decref(side);
    return rc;
}

int client_attach_job(struct client_job *job, struct client_link *link, struct client_attach *attach,
                      const struct client_run *run, struct error *err)
{
    struct message opened = {.kind = MESSAGE_JOB_OPENED};

    opened.job_opened.n_parameters = attach->job.description.n_parameters;
    opened.job_opened.n_workers = attach->job.description.n_workers;
    opened.job_opened.data_bytes = attach->job.description.data_bytes;
    opened.job_opened.choice = attach->job.description.choice;
    opened.job_opened.replay = attach->job.description.replay;
    opened.job_opened.entries = attach->job.description.entries;
    const struct plan_goal goal = client_run_goal(run);
    const int fd = attach->data_fd;
    if (attach->job.description.weighted != goal.weighted)
        return error_set(err, -EINVAL,
                         "the job's rows come from %s: only a program that does the same may go on with it",
                         goal.weighted ? "its data, not from on_rows" : "on_rows of a program (client/eps_options.h)");
    attach->data_fd = -1;
    return client_job_join(job, link, &goal, &run->model, &opened, fd, err);
}

int client_attach_take(struct message *taken, struct client_link *link, const struct client_attach *attach,
                       struct error *err)
{
    const struct message take = {.kind = MESSAGE_TAKE, .take.job = attach->job.description.job};
    int rc = -EAGAIN;

    while (rc == -EAGAIN) {
        client_link_send(link, &take);
        rc = client_link_expect(link, MESSAGE_TAKEN, taken, NULL, err);
        const int paused = rc == -EAGAIN ? client_link_pause(link, RETRY_MS, err) : 0;
        rc = paused ? paused : rc;
    }
    return rc;
}

#include "client/run/resume.h"

#include "client/record/checkpoints.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WAIT_MS = 3000, RETRY_MS = 20 };

int client_resume_lock(int directory_fd, const char *path, const struct client_watch *watch, struct error *err)
{
    int waited = 0;

    while (flock(directory_fd, LOCK_EX | LOCK_NB)) {
        if (errno != EWOULDBLOCK && errno != EINTR)
            return error_set(err, -errno, "%s cannot be locked: %s", path, strerror(errno));
        int rc = client_watch_ask(watch, err);
        if (rc)
            return rc;
        if (waited >= WAIT_MS)
            return error_set(err, -EBUSY, "%s is in use by another run: wait for its end, or choose another --out",
                             path);
        poll(NULL, 0, RETRY_MS);
        waited += RETRY_MS;
    }
    return 0;
}

static int join(char out[PATH_MAX], const char *directory, const char *name, struct error *err)
{
    return snprintf(out, PATH_MAX, "%s/%s", directory, name) < PATH_MAX
               ? 0
               : error_set(err, -ENAMETOOLONG, "--resume %.200s: name too long", directory);
}

static bool is_there(const char *directory, const char *name)
{
    char path[PATH_MAX];

    return join(path, directory, name, NULL) == 0 && access(path, F_OK) == 0;
}

/* Splits --resume RUN, RUN/step-N or RUN/latest. *newest: the newest checkpoint must be found. */
static int split(struct client_resume *r, const char *given, bool *newest, struct error *err)
{
    struct stat st;
    char real[PATH_MAX];
    uint64_t step;

    if (stat(given, &st) || !realpath(given, real))
        return error_set(err, -errno, "--resume %s: %s", given, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return error_set(err, -ENOTDIR, "--resume %s: not a directory: name a run's directory, or a step-N in it",
                         given);
    *newest = !is_there(given, CHECKPOINT_TRAINING);
    if (*newest && strlen(given) + 32 < sizeof r->directory) {
        snprintf(r->directory, sizeof r->directory, "%s", given);
        return 0;
    }
    snprintf(r->path, sizeof r->path, "%s", real);
    if (*newest)
        return error_set(err, -ENAMETOOLONG, "--resume %.200s: name too long", given);
    if (!client_checkpoints_parse(&step, basename(real)))
        return error_set(err, -EINVAL, "--resume %s: a checkpoint is a directory step-N, as the run named it", given);
    snprintf(r->directory, sizeof r->directory, "%s", dirname(real));
    return 0;
}

/* True if the run continues in its own directory: --out names no other. */
static bool is_in_place(const struct client_resume *r, const char *out)
{
    struct stat run, other;

    return !out || (stat(r->directory, &run) == 0 && stat(out, &other) == 0 && run.st_dev == other.st_dev &&
                    run.st_ino == other.st_ino);
}

static int no_checkpoint(const char *directory, struct error *err)
{
    if (is_there(directory, "metrics.jsonl"))
        return error_set(err, -ENOENT,
                         "--resume %s: its run ended before its first checkpoint, so there is nothing to resume from: "
                         "start anew with another --out, or remove that directory",
                         directory);
    return error_set(err, -ENOENT,
                     "--resume %s: no checkpoint (step-N) is in it: name a run directory or a step-N of one",
                     directory);
}

static int find_checkpoint(struct client_resume *r, bool newest, int directory_fd, struct error *err)
{
    struct client_checkpoints standing;
    char name[40];
    int rc = client_checkpoints_list(&standing, directory_fd, err);

    if (rc) {
        error_prefix(err, r->directory);
        return rc;
    }
    if (standing.n == 0) {
        rc = no_checkpoint(r->directory, err);
    } else if (newest) {
        snprintf(name, sizeof name, "step-%" PRIu64, standing.steps[standing.n - 1]);
        rc = join(r->path, r->directory, name, err);
    } else if (r->in_place) {
        uint64_t step = 0;
        client_checkpoints_parse(&step, strrchr(r->path, '/') + 1);
        if (standing.steps[standing.n - 1] > step)
            rc = error_set(err, -EEXIST,
                           "--resume %s: the run has a later checkpoint, step-%" PRIu64
                           ": give --out to begin another run, or remove the later checkpoints",
                           r->path, standing.steps[standing.n - 1]);
    }
    client_checkpoints_free(&standing);
    return rc;
}

struct checking {
    const struct client_watch *watch;
    struct error *err;
};

static int on_bytes(void *data, uint64_t bytes)
{
    const struct checking *c = data;

    (void)bytes;
    return client_watch_ask(c->watch, c->err);
}

static int read_checkpoint(struct client_resume *r, const struct client_watch *watch, struct error *err)
{
    int fd = open(r->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    struct checking checking = {watch, err};

    if (fd < 0)
        return error_set(err, -errno, "--resume %s: %s", r->path, strerror(errno));
    int rc = checkpoint_read(&r->checkpoint, fd, err);
    bool damaged = rc == -EINVAL;
    if (!rc)
        rc = client_record_read(&r->record, r->checkpoint.options, err);
    if (!rc) {
        rc = checkpoint_check(&r->checkpoint, fd, NULL, on_bytes, &checking, err);
        damaged = rc && rc != -EINTR;
    }
    if (!rc) {
        r->moments_fd = openat(fd, CHECKPOINT_MOMENTS, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (r->moments_fd < 0)
            rc = error_set(err, -errno, "%s: %s", CHECKPOINT_MOMENTS, strerror(errno));
    }
    close(fd);
    if (rc && rc != -EINTR)
        error_prefix(err, r->path);
    if (damaged)
        error_append(err, "; eps verify %s tells which checkpoints are whole", r->directory);
    return rc;
}

void client_resume_init(struct client_resume *r)
{
    *r = (struct client_resume){.directory_fd = -1, .moments_fd = -1};
    client_past_init(&r->past);
}

int client_resume_open(struct client_resume *r, const struct eps_train_options *given, const struct client_watch *watch,
                       struct error *err)
{
    bool newest;

    client_resume_init(r);
    int rc = split(r, given->resume, &newest, err);
    if (rc)
        return rc;
    int fd = open(r->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return error_set(err, -errno, "%s: %s", r->directory, strerror(errno));
    r->in_place = is_in_place(r, given->out);
    if (r->in_place) {
        r->directory_fd = fd;
        rc = client_resume_lock(fd, r->directory, watch, err);
    }
    if (!rc)
        rc = find_checkpoint(r, newest, fd, err);
    if (!r->in_place)
        close(fd);
    if (!rc)
        rc = read_checkpoint(r, watch, err);
    if (!rc && r->in_place) {
        client_past_read(&r->past, r->directory, r->checkpoint.step);
        r->lacks_evaluation = client_past_lacks_evaluation(&r->past, &r->record.options, r->checkpoint.step);
    }
    return rc;
}

void client_resume_close(struct client_resume *r)
{
    if (r->directory_fd > 0)
        close(r->directory_fd);
    if (r->moments_fd > 0)
        close(r->moments_fd);
    checkpoint_free(&r->checkpoint);
    client_record_free(&r->record);
    client_resume_init(r);
}

/* A run in place is locked before its checkpoints are listed, as the daemon of a killed client may still be writing the
 * newest. Nothing is moved aside before a whole one is found below it: a search that fails, or is interrupted, changes
 * nothing. -EINVAL of client_whole_read alone is damage; any other error ends the search. */
#include "client/run/resume.h"

#include "client/record/checkpoints.h"
#include "client/record/whole.h"
#include "proto/model/output.h"

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

static int resume_join(char out[PATH_MAX], const char *directory, const char *name, struct error *err)
{
    return snprintf(out, PATH_MAX, "%s/%s", directory, name) < PATH_MAX
               ? 0
               : error_set(err, -ENAMETOOLONG, "--resume %.200s: name too long", directory);
}

static bool is_there(const char *directory, const char *name)
{
    char path[PATH_MAX];

    return resume_join(path, directory, name, NULL) == 0 && access(path, F_OK) == 0;
}

/* A step-N without its training.json, and not a run that has such a name. */
static bool resume_is_torn(const char *path)
{
    uint64_t step;

    return client_checkpoints_parse(&step, strrchr(path, '/') + 1) && !is_there(path, "metrics.jsonl");
}

/* RUN/latest means the run's newest checkpoint, as RUN does: the link may point to a damaged one, or to none. */
static bool split_latest(char directory[PATH_MAX], const char *given)
{
    char path[PATH_MAX];
    struct stat st;

    snprintf(path, sizeof path, "%s", given);
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = 0;
    char *const slash = strrchr(path, '/');
    if (strcmp(slash ? slash + 1 : path, "latest") != 0 || lstat(path, &st) || !S_ISLNK(st.st_mode))
        return false;
    if (slash)
        *slash = 0;
    snprintf(directory, PATH_MAX, "%s", !slash ? "." : slash == path ? "/" : path);
    return true;
}

/* Splits --resume RUN, RUN/step-N or RUN/latest. *newest: the newest whole checkpoint must be found. */
static int resume_split(struct client_resume *r, const char *given, bool *newest, struct error *err)
{
    struct stat st;
    char real[PATH_MAX];
    uint64_t step;

    if (strlen(given) + 32 >= sizeof r->directory)
        return error_set(err, -ENAMETOOLONG, "--resume %.200s: name too long", given);
    *newest = split_latest(r->directory, given);
    if (stat(*newest ? r->directory : given, &st) || !realpath(given, real))
        return *newest && errno == ENOENT ? 0 : error_set(err, -errno, "--resume %s: %s", given, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return error_set(err, -ENOTDIR, "--resume %s: not a directory: name a run's directory, or a step-N in it",
                         given);
    if (*newest)
        return 0;
    *newest = !is_there(given, CHECKPOINT_TRAINING) && !resume_is_torn(real);
    if (*newest) {
        snprintf(r->directory, sizeof r->directory, "%s", given);
        return 0;
    }
    snprintf(r->path, sizeof r->path, "%s", real);
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

/* Reads and checks the checkpoint at r->path. *damaged: its content is not what was written. */
static int resume_read_checkpoint(struct client_resume *r, bool *damaged, const struct client_watch *watch,
                                  struct error *err)
{
    int fd = open(r->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

    *damaged = false;
    if (fd < 0)
        return error_set(err, -errno, "--resume %s: %s", r->path, strerror(errno));
    int rc = client_whole_read(&r->checkpoint, &r->edited, fd, strrchr(r->path, '/') + 1, watch, err);
    *damaged = rc == -EINVAL;
    if (!rc)
        rc = client_record_read(&r->record, r->checkpoint.options, err);
    if (!rc) {
        r->moments_fd = openat(fd, CHECKPOINT_MOMENTS, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
        if (r->moments_fd < 0)
            rc = error_set(err, -errno, "%s: %s", CHECKPOINT_MOMENTS, strerror(errno));
    }
    close(fd);
    if (r->edited.text[0]) {
        error_prefix(&r->edited, r->path);
        error_append(&r->edited, "; the run goes on with it as it is");
    }
    if (rc && rc != -EINTR)
        error_prefix(err, r->path);
    return rc;
}

/* Of the run's checkpoints from the newest down: whole, the first that is, or n; those above it are damaged. */
struct search {
    struct client_checkpoints standing;
    size_t whole;
    struct error reason; /* of the newest that is damaged */
};

static int resume_name_step(struct client_resume *r, uint64_t step, struct error *err)
{
    char name[40];

    snprintf(name, sizeof name, "step-%" PRIu64, step);
    return resume_join(r->path, r->directory, name, err);
}

/* The disk did not give what it holds. */
static bool is_unread(int rc)
{
    return rc && rc != -EINVAL && rc != -EINTR && rc != -ENOMEM && rc != -EPROTONOSUPPORT;
}

/* Reads from the newest down to the first whole one, or to the one at `least`. A disk's error says nothing of damage,
 * and ends the search. */
static int find_whole(struct search *s, struct client_resume *r, size_t least, const struct client_watch *watch,
                      struct error *err)
{
    const struct client_checkpoints *c = &s->standing;
    bool damaged = true;
    int rc = -EINVAL;

    s->whole = c->n;
    for (size_t i = c->n; damaged && i-- > least;) {
        rc = resume_name_step(r, c->steps[i], err);
        if (rc)
            return rc;
        rc = resume_read_checkpoint(r, &damaged, watch, err);
        s->whole = rc ? s->whole : i;
        if (damaged && i + 1 == c->n)
            s->reason = *err;
        if (is_unread(rc) && i > 0)
            error_append(err, "; whether it is whole is not known: move it away to go on from an older one");
    }
    return damaged ? 0 : rc;
}

/* The newest whole one. */
static int take_newest(struct search *s, struct client_resume *r, const struct client_watch *watch, struct error *err)
{
    const int rc = find_whole(s, r, 0, watch, err);

    if (rc || s->whole < s->standing.n)
        return rc;
    *err = s->reason;
    return error_set(err, -EINVAL, "%.400s; no %scheckpoint of the run is whole, so there is nothing to resume from",
                     s->reason.text, s->standing.n > 1 ? "older " : "");
}

/* The one at r->path, which is in use by nobody else if all later ones are damaged. */
static int take_named(struct search *s, struct client_resume *r, const struct client_watch *watch, struct error *err)
{
    char path[PATH_MAX];
    uint64_t step = 0;
    size_t at = 0;
    bool damaged;
    int rc = 0;

    client_checkpoints_parse(&step, strrchr(r->path, '/') + 1);
    while (at < s->standing.n && s->standing.steps[at] < step)
        at++;
    memcpy(path, r->path, sizeof path);
    s->whole = s->standing.n;
    if (r->in_place)
        rc = find_whole(s, r, at + 1, watch, err);
    if (!rc && s->whole < s->standing.n)
        rc = error_set(err, -EEXIST,
                       "--resume %s: the run has a later checkpoint, step-%" PRIu64
                       ": give --out to begin another run, or remove the later checkpoints",
                       path, s->standing.steps[s->whole]);
    if (rc)
        return rc;
    memcpy(r->path, path, sizeof path);
    rc = resume_read_checkpoint(r, &damaged, watch, err);
    if (damaged)
        error_append(err, "; eps train --resume %s takes the newest checkpoint that is whole", r->directory);
    s->whole = at;
    return rc;
}

/* The run goes on below damaged checkpoints: they keep their files under other names. In a run that is only read, they
 * stay. */
static int pass_damaged(struct client_resume *r, const struct search *s, struct error *err)
{
    const size_t n = s->standing.n - 1 - s->whole;
    char name[NAME_MAX + 1] = "";
    struct error ignored; /* the next checkpoint reports it */
    int rc = 0;

    for (size_t i = s->whole + 1; r->in_place && !rc && i < s->standing.n; i++)
        rc = client_whole_put_aside(name, r->directory_fd, s->standing.steps[i], "damaged", err);
    if (rc)
        return rc;
    if (r->in_place)
        output_point_latest(r->directory_fd, r->checkpoint.step, &ignored);
    error_set(&r->note, 0, "not whole: %.300s", s->reason.text);
    if (n > 1)
        error_append(&r->note, ", and %zu before it", n - 1);
    if (r->in_place)
        error_append(&r->note, "; moved aside, to %s%s", n > 1 ? "names that end in .damaged, the newest to " : "",
                     name);
    error_append(&r->note, "; the run goes on from step-%" PRIu64, r->checkpoint.step);
    return 0;
}

static int resume_find_checkpoint(struct client_resume *r, bool newest, int directory_fd,
                                  const struct client_watch *watch, struct error *err)
{
    struct search search = {.whole = 0};
    int rc = client_checkpoints_list_torn_too(&search.standing, directory_fd, err);

    if (rc) {
        error_prefix(err, r->directory);
        return rc;
    }
    if (search.standing.n == 0)
        rc = no_checkpoint(r->directory, err);
    else
        rc = newest ? take_newest(&search, r, watch, err) : take_named(&search, r, watch, err);
    if (!rc && (newest || r->in_place) && search.whole + 1 < search.standing.n)
        rc = pass_damaged(r, &search, err);
    client_checkpoints_free(&search.standing);
    return rc;
}

int client_resume_await(char directory[PATH_MAX], const struct eps_train_options *given,
                        const struct client_watch *watch, struct error *err)
{
    struct client_resume r;
    struct error ignored;
    bool newest;
    int fd = -1, rc = 0;

    client_resume_init(&r);
    *directory = 0;
    if (given->resume && given->out && resume_split(&r, given->resume, &newest, &ignored) == 0 &&
        !is_in_place(&r, given->out))
        fd = open(r.directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd >= 0) {
        memcpy(directory, r.directory, sizeof r.directory);
        if (flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK) /* a file system may have no locks for readers */
            rc = client_resume_lock(fd, directory, watch, err);
        close(fd); /* whoever resumes there must find it unlocked */
    }
    client_resume_close(&r);
    return rc;
}

void client_resume_init(struct client_resume *r)
{
    *r = (struct client_resume){.directory_fd = -1, .moments_fd = -1};
    client_past_init(&r->past);
}

/* A run that is only read is not locked: nothing in it changes, and whoever runs it goes on. */
int client_resume_open(struct client_resume *r, const struct eps_train_options *given, const struct client_watch *watch,
                       struct error *err)
{
    bool newest;

    client_resume_init(r);
    int rc = resume_split(r, given->resume, &newest, err);
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
        rc = resume_find_checkpoint(r, newest, fd, watch, err);
    if (!r->in_place)
        close(fd);
    if (!rc && r->in_place) {
        client_past_read(&r->past, r->directory, r->checkpoint.step);
        r->lacks_evaluation = client_past_lacks_evaluation(&r->past, &r->record.options, r->checkpoint.step);
    }
    return rc;
}

void client_resume_close(struct client_resume *r)
{
    if (r->directory_fd >= 0)
        close(r->directory_fd);
    if (r->moments_fd >= 0)
        close(r->moments_fd);
    checkpoint_free(&r->checkpoint);
    client_record_free(&r->record);
    client_resume_init(r);
}

/* The mirror of a run's checkpoints. The order of a copy keeps every instant whole: all files beside, flushed, read
 * back, renamed together, then `latest`; only then are older ones removed, and each of these is renamed first. */
#include "client/run/mirror.h"

#include "client/record/references.h"
#include "client/record/whole.h"
#include "client/run/resume.h"
#include "client/run/run.h"
#include "proto/base/file.h"
#include "proto/base/thread.h"
#include "proto/model/output.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { BLOCK_BYTES = 1 << 20, MOST_OLD = 16 };

static const char of_file[] = "mirror-of";

/* ---- opening ---- */

/* By the file itself, as two names may lead to one directory. */
static bool mirror_is_same(int a, int b)
{
    struct stat one, other;

    return fstat(a, &one) == 0 && fstat(b, &other) == 0 && one.st_dev == other.st_dev && one.st_ino == other.st_ino;
}

static bool has_step(const struct client_checkpoints *c, uint64_t step)
{
    bool has = false;

    for (size_t i = 0; i < c->n; i++)
        has |= c->steps[i] == step;
    return has;
}

/* The directory that is mirrored there, ended by a 0; empty if none is named. */
static void mirror_read_of(char of[PATH_MAX], int fd)
{
    const int file = openat(fd, of_file, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    const ssize_t n = file >= 0 ? read(file, of, PATH_MAX - 1) : 0;

    of[n > 0 ? n : 0] = 0;
    of[strcspn(of, "\n")] = 0;
    if (file >= 0)
        close(file);
}

/* The mirror is this run's, or becomes it. */
static int claim_mirror(const struct client_mirror *m, bool begins, struct error *err)
{
    char run[PATH_MAX + 2], of[PATH_MAX];

    output_path(run, PATH_MAX, m->run_fd);
    mirror_read_of(of, m->fd);
    if (!*of && faccessat(m->fd, "metrics.jsonl", F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        return error_set(err, -EEXIST, "--mirror %.200s is the directory of a run, and no mirror: name another one",
                         m->path);
    if (begins && m->standing.n > 0)
        return error_set(err, -EEXIST,
                         "--mirror %.200s holds checkpoints, the newest step-%" PRIu64 ": name an empty directory",
                         m->path, m->standing.steps[m->standing.n - 1]);
    if (strcmp(of, run) == 0)
        return 0;
    if (m->standing.n > 0)
        return error_set(err, -EEXIST,
                         "--mirror %.150s holds checkpoints of another run%s%.150s: name another directory; or, if the "
                         "run has moved, write its new path into the file %s there",
                         m->path, *of ? ", " : "", of, of_file);
    strcat(run, "\n");
    unlinkat(m->fd, of_file, 0);
    return output_write(m->fd, of_file, run, strlen(run), err);
}

/* The run goes on below them, so they are no longer its future. */
static int pass_later(struct client_mirror *m, uint64_t after, struct error *note, struct error *err)
{
    struct client_checkpoints *c = &m->standing;
    char name[NAME_MAX + 1];
    int rc = 0;

    for (; !rc && c->n > 0 && c->steps[c->n - 1] > after; c->n -= rc == 0) {
        rc = client_whole_put_aside(name, m->fd, c->steps[c->n - 1], "later", err);
        if (!rc)
            error_set(note, 0,
                      "the mirror has step-%" PRIu64 ", and the run goes on from step-%" PRIu64 ": moved aside, to "
                      "%.200s/%s",
                      c->steps[c->n - 1], after, m->path, name);
    }
    return rc;
}

/* The run has saved without its mirror: before it had one, or by its daemon, after its client had died. */
static int mirror_catch_up(struct client_mirror *m, struct error *err)
{
    const uint64_t newest = client_checkpoints_latest(m->run_fd),
                   mirrored = m->standing.n > 0 ? m->standing.steps[m->standing.n - 1] : newest;
    struct client_checkpoints own = {0};
    int rc = newest == UINT64_MAX ? 0 : client_checkpoints_list(&own, m->run_fd, err);

    for (size_t i = 0; !rc && i < own.n; i++) {
        const uint64_t step = own.steps[i];
        if ((step > mirrored && step < newest) || (step == newest && !has_step(&m->standing, step)))
            rc = client_mirror_add(m, step, false) ? error_memory(err) : 0;
    }
    client_checkpoints_free(&own);
    return rc;
}

int client_mirror_open(struct client_mirror *m, const struct client_mirror_options *o, struct error *note,
                       const struct client_watch *watch, struct error *err)
{
    size_t made;

    note->text[0] = 0;
    *m = (struct client_mirror){.fd = -1, .run_fd = o->run_fd, .keep = o->keep};
    if (!*o->path || strlen(o->path) >= sizeof m->path - 40)
        return error_set(err, -EDOM, "--mirror %.200s: no name of a directory", o->path);
    snprintf(m->path, sizeof m->path, "%s", o->path);
    int rc = client_run_make_directories(m->path, &made, err);
    if (rc) {
        error_prefix(err, "--mirror");
        return rc;
    }
    m->fd = open(m->path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (m->fd < 0)
        return error_set(err, -errno, "--mirror %.200s: %s", m->path, strerror(errno));
    if (mirror_is_same(m->fd, m->run_fd))
        return error_set(err, -EDOM, "--mirror %.200s is the run's own directory: name another one", m->path);
    rc = client_resume_lock(m->fd, m->path, watch, err);
    if (!rc)
        rc = client_checkpoints_list_torn_too(&m->standing, m->fd, err);
    if (!rc)
        rc = claim_mirror(m, o->begins, err);
    if (!rc)
        rc = pass_later(m, o->after, note, err);
    if (rc)
        return rc;
    client_checkpoints_sweep(m->fd);
    return mirror_catch_up(m, err);
}

/* ---- copying, on the thread ---- */

/* Asked on the mirror's thread, with every block. */
static int on_bytes(void *data, uint64_t bytes)
{
    const struct client_mirror *m = data;

    (void)bytes;
    return atomic_load(&m->cancelled) ? -EINTR : 0;
}

static int copy_bytes(struct client_mirror *m, int from, const struct file *to, char *block, struct error *err)
{
    uint64_t at = 0;
    ssize_t n;
    int rc = 0;

    while (!rc && (n = pread(from, block, BLOCK_BYTES, (off_t)at)) != 0) {
        if (n < 0 && errno == EINTR)
            continue;
        rc = n < 0 ? error_set(err, -errno, "the run's own: %s", strerror(errno)) : on_bytes(m, 0);
        if (rc == -EINTR)
            error_set(err, rc, "interrupted");
        if (!rc)
            rc = file_write(to, block, (size_t)n, at, err);
        at += n > 0 ? (uint64_t)n : 0;
    }
    return rc ? rc : file_flush(to, err);
}

static int copy_file(struct client_mirror *m, int from_directory, const char *name, int to_directory,
                     const char *to_name, struct error *err)
{
    char *block = malloc(BLOCK_BYTES);
    const int from = openat(from_directory, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
    int rc = !block ? -ENOMEM : from < 0 ? -errno : 0;
    struct file to = file_own(rc ? -1 : output_open(to_directory, to_name, O_RDWR | O_CREAT | O_EXCL));

    if (rc)
        error_set(err, rc, "the run's own: %s", strerror(-rc));
    else if (to.fd < 0)
        rc = error_set(err, to.fd, "cannot be made: %s", strerror(-to.fd));
    if (!rc)
        rc = copy_bytes(m, from, &to, block, err);
    if (rc)
        error_prefix(err, name);
    if (to.fd >= 0)
        close(to.fd);
    if (from >= 0)
        close(from);
    free(block);
    return rc;
}

/* Every byte there, past the system's cache: file_flush has let it forget. Texts may have been edited before they were
 * copied. */
static int mirror_check_copy(struct client_mirror *m, const struct checkpoint *checkpoint, int directory,
                             struct error *err)
{
    struct checkpoint copy;
    struct error edited;
    int rc =
        checkpoint_check_files(&edited, checkpoint, directory, &(struct checkpoint_reading){false, on_bytes, m}, err);

    if (!rc && (rc = checkpoint_read(&copy, directory, err)) == 0)
        checkpoint_free(&copy);
    if (rc == -EINVAL) {
        error_append(err, ": the disk has lost what it took");
        rc = -EIO;
    }
    return rc;
}

static int fill_partial(struct client_mirror *m, int from, int to, struct error *err)
{
    struct checkpoint checkpoint;
    int rc = checkpoint_read(&checkpoint, from, err);

    if (rc)
        return rc;
    for (size_t i = 0; !rc && i < checkpoint.n_files; i++)
        rc = copy_file(m, from, checkpoint.files[i].name, to, checkpoint.files[i].name, err);
    if (!rc)
        rc = copy_file(m, from, CHECKPOINT_TRAINING, to, CHECKPOINT_TRAINING, err);
    if (!rc)
        rc = mirror_check_copy(m, &checkpoint, to, err);
    checkpoint_free(&checkpoint);
    return rc;
}

/* A checkpoint that the run removes meanwhile makes the copy fail as a whole. */
static int copy_checkpoint(struct client_mirror *m, struct error *err)
{
    char name[40];
    int to = -1, rc;

    snprintf(name, sizeof name, "step-%" PRIu64, m->step);
    const int from = openat(m->run_fd, name, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (from < 0)
        return error_set(err, -errno, "the run's own: %s", strerror(errno));
    rc = output_begin(&to, m->fd, m->step, err);
    if (!rc)
        rc = fill_partial(m, from, to, err);
    if (!rc)
        rc = output_place(m->fd, to, m->step, err);
    close(from);
    if (to >= 0)
        close(to);
    if (rc)
        output_remove_partial(m->fd, m->step);
    return rc;
}

/* A file beside the checkpoints, without which --resume would know less of the run. */
static int copy_beside(struct client_mirror *m, const char *name, struct error *err)
{
    char beside[64];

    if (faccessat(m->run_fd, name, F_OK, 0))
        return 0;
    snprintf(beside, sizeof beside, ".%s", name);
    unlinkat(m->fd, beside, 0); /* of a process that was killed */
    const int rc = copy_file(m, m->run_fd, name, m->fd, beside, err);
    if (!rc && renameat(m->fd, beside, m->fd, name))
        return error_set(err, -errno, "%s: %s", name, strerror(errno));
    return rc;
}

static void remove_old(struct client_mirror *m)
{
    uint64_t old[MOST_OLD], best;
    size_t n;

    if (client_checkpoints_link(&best, m->run_fd, "best") && has_step(&m->standing, best))
        client_best_mark(m->fd, best);
    do {
        n = client_checkpoints_take_old(old, MOST_OLD, &m->standing, m->keep);
        for (size_t i = 0; i < n; i++)
            client_checkpoints_remove(m->fd, old[i]);
    } while (n == MOST_OLD);
}

/* From begin_copy to `done` this thread alone uses standing, step, rc and why. */
static void *copy_next(void *data)
{
    struct client_mirror *m = data;

    m->rc = m->copies ? copy_checkpoint(m, &m->why) : 0;
    if (!m->rc && m->copies && (m->rc = client_checkpoints_add(&m->standing, m->step, m->interim)) != 0)
        error_memory(&m->why);
    if (!m->rc)
        m->rc = copy_beside(m, "metrics.jsonl", &m->why);
    if (!m->rc)
        m->rc = copy_beside(m, CLIENT_REFERENCES, &m->why);
    if (!m->rc)
        remove_old(m);
    atomic_store(&m->done, true);
    return NULL;
}

/* ---- the client's thread ---- */

static bool is_in_run(const struct client_mirror *m, uint64_t step)
{
    char name[40];

    snprintf(name, sizeof name, "step-%" PRIu64, step);
    return faccessat(m->run_fd, name, F_OK, 0) == 0;
}

/* The oldest that the run has not removed meanwhile; the newest in any case. */
static void mirror_take_next(struct client_mirror *m)
{
    struct client_checkpoints *c = &m->pending;
    size_t at = 0;

    while (at + 1 < c->n && !is_in_run(m, c->steps[at]))
        at++;
    m->copies = c->n > 0;
    m->syncs = m->syncs && m->copies;
    if (!m->copies)
        return;
    m->step = c->steps[at], m->interim = c->interim[at];
    c->n -= at + 1;
    memmove(c->steps, c->steps + at + 1, c->n * sizeof *c->steps);
    memmove(c->interim, c->interim + at + 1, c->n * sizeof *c->interim);
}

/* Without a thread the copy is made here, and `done` is set all the same. */
static void begin_copy(struct client_mirror *m)
{
    mirror_take_next(m);
    m->standing.directory_fd = m->fd;
    m->why.text[0] = 0;
    atomic_store(&m->done, false);
    m->begun = thread_begin(&m->thread, copy_next, m) == 0;
    if (!m->begun)
        copy_next(m);
}

int client_mirror_add(struct client_mirror *m, uint64_t step, bool interim)
{
    const bool takes = m->fd >= 0 && !atomic_load(&m->cancelled);

    return takes ? client_checkpoints_add(&m->pending, step, interim) : 0;
}

void client_mirror_sync(struct client_mirror *m)
{
    m->syncs = m->fd >= 0 && !atomic_load(&m->cancelled);
}

/* Joins the thread. True if its copy has failed. */
static bool end_copy(struct client_mirror *m)
{
    const struct error why = m->why;

    if (m->begun)
        pthread_join(m->thread, NULL);
    m->begun = false;
    atomic_store(&m->done, false);
    if (m->rc || m->copies)
        m->outcome = m->rc;
    if (m->rc && m->copies)
        error_set(&m->why, m->rc, "step-%" PRIu64 " is not in the mirror %.150s: %.280s", m->step, m->path, why.text);
    else if (m->rc)
        error_set(&m->why, m->rc, "the mirror %.150s is not up to date: %.280s", m->path, why.text);
    return m->rc != 0;
}

bool client_mirror_poll(struct client_mirror *m)
{
    const bool failed = atomic_load(&m->done) && end_copy(m);

    if (!m->begun && !failed && client_mirror_is_busy(m))
        begin_copy(m);
    return failed;
}

bool client_mirror_is_busy(const struct client_mirror *m)
{
    return m->begun || atomic_load(&m->done) || m->pending.n > 0 || m->syncs;
}

bool client_mirror_reads(uint64_t *step, const struct client_mirror *m)
{
    *step = m->step;
    return m->begun && m->copies;
}

/* What waits is begun, and ends at once: so it counts as a copy that has failed. */
void client_mirror_cancel(struct client_mirror *m)
{
    struct client_checkpoints *c = &m->pending;

    atomic_store(&m->cancelled, true);
    m->syncs = false;
    if (c->n > 1) {
        c->steps[0] = c->steps[c->n - 1];
        c->n = 1;
    }
}

void client_mirror_close(struct client_mirror *m)
{
    if (m->begun)
        pthread_join(m->thread, NULL);
    m->begun = false;
    if (m->fd >= 0)
        close(m->fd);
    m->fd = -1;
    client_checkpoints_free(&m->standing);
    client_checkpoints_free(&m->pending);
}

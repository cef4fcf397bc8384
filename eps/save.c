/* Weights out: step-N/ is written beside as step-N.partial/, flushed and renamed, then `latest` points to it. A crash
 * at any instant leaves what was there. */
#include "eps/daemon.h"
#include "eps/store_files.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int fail(struct error *err, const char *what, const char *name)
{
    const int code = -errno;

    return error_set(err, code, "%s in the output directory could not be %s: %s", name, what, strerror(-code));
}

static int write_config(const struct job *job, int dir, struct error *err)
{
    int fd = openat(dir, "config.json", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    int rc = 0;

    if (fd < 0)
        return fail(err, "made", "config.json");
    ssize_t n = write(fd, job->config_text, job->config_bytes);
    if (n >= 0 && (size_t)n != job->config_bytes)
        errno = ENOSPC;
    if (n != (ssize_t)job->config_bytes || fsync(fd))
        rc = fail(err, "written", "config.json");
    close(fd);
    return rc;
}

static int write_weights(const struct job *job, int dir, struct error *err)
{
    int fd = openat(dir, "model.safetensors", O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    struct eps_store_files files;
    int rc;

    if (fd < 0)
        return fail(err, "made", "model.safetensors");
    rc = eps_store_files_init(&files, &job->store, err);
    if (!rc)
        rc = eps_store_files_begin(&files, fd, -1, NULL, err);
    for (uint32_t u = 0; !rc && u < job->model.n_units; u++)
        rc = eps_store_files_write(&files, u, err);
    if (!rc)
        rc = eps_store_files_end(&files, err);
    if (!rc && fsync(fd))
        rc = fail(err, "flushed", "model.safetensors");
    eps_store_files_free(&files);
    close(fd);
    return rc;
}

/* A directory of ours that a killed run left behind. */
static void remove_partial(int output, const char *name)
{
    int dir = openat(output, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);

    if (dir < 0)
        return;
    unlinkat(dir, "config.json", 0);
    unlinkat(dir, "model.safetensors", 0);
    close(dir);
    unlinkat(output, name, AT_REMOVEDIR);
}

static int point_latest(int output, const char *name, struct error *err)
{
    unlinkat(output, "latest.partial", 0);
    if (symlinkat(name, output, "latest.partial") || renameat(output, "latest.partial", output, "latest") ||
        fsync(output))
        return fail(err, "made", "latest");
    return 0;
}

static int save(struct job *job)
{
    struct error *err = &job->save_error;
    char name[40], partial[48];
    int dir, rc;

    snprintf(name, sizeof name, "step-%" PRIu64, job->save_step);
    snprintf(partial, sizeof partial, "%s.partial", name);
    if (faccessat(job->output, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
        return error_set(err, -EEXIST, "%s stands in the output directory already; choose another --out", name);
    remove_partial(job->output, partial);
    if (mkdirat(job->output, partial, 0777))
        return fail(err, "made", partial);
    dir = openat(job->output, partial, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (dir < 0)
        return fail(err, "opened", partial);
    rc = write_config(job, dir, err);
    if (!rc)
        rc = write_weights(job, dir, err);
    if (!rc && fsync(dir))
        rc = fail(err, "flushed", partial);
    close(dir);
    if (!rc && renameat(job->output, partial, job->output, name))
        rc = fail(err, "renamed", partial);
    if (!rc)
        return point_latest(job->output, name, err);
    remove_partial(job->output, partial);
    return rc;
}

static void save_work(uv_work_t *work)
{
    struct daemon *d = work->data;

    d->job.save_result = save(&d->job);
}

static void on_saved(uv_work_t *work, int status)
{
    struct daemon *d = work->data;
    struct job *job = &d->job;
    struct message m = {.kind = MESSAGE_SAVED};

    (void)status; /* the work is never cancelled */
    job->saving = false;
    if (job->state == JOB_SAVING) {
        job->state = JOB_RESTING;
        m.saved.step = job->save_step;
        if (job->save_result) {
            m.kind = MESSAGE_REFUSED;
            m.refused.code = job->save_result;
            m.refused.error = job->save_error;
            log_line("step %" PRIu64 " not saved: %s", job->save_step, job->save_error.text);
        } else
            log_line("step %" PRIu64 " saved", job->save_step);
        session_send(job->client->session, &m);
    }
    job_finish(d);
}

/* The job rests, so the weights stand still. The writer is a thread of libuv's pool: the loop goes on talking. */
void save_start(struct daemon *d, uint64_t step)
{
    struct job *job = &d->job;

    job->state = JOB_SAVING;
    job->saving = true;
    job->save_step = step;
    job->save_work.data = d;
    if (uv_queue_work(d->loop, &job->save_work, save_work, on_saved)) {
        job->saving = false;
        job_end(d, -ENOMEM, "out of memory");
    }
}

/* A run's directory is looked at twice before it is taken: its last owner may have begun a run between the first look
 * and the lock. What was made for a run that came to no step is removed again, the directories above it included. */
#include "client/run/run.h"

#include "client/record/checkpoints.h"
#include "client/record/references.h"
#include "proto/model/output.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

void client_run_mend_directory(struct client_run *run)
{
    const int fd = run->resume.directory_fd;
    struct client_checkpoints standing;
    struct error ignored; /* the next checkpoint reports it */
    uint64_t old[16];
    size_t n;

    if (client_checkpoints_latest(fd) != run->first_step)
        run->latest_mended = output_point_latest(fd, run->first_step, &ignored) == 0;
    if (client_checkpoints_list(&standing, fd, NULL))
        return;
    do {
        n = client_checkpoints_take_old(old, sizeof old / sizeof *old, &standing, run->options.keep);
        for (size_t i = 0; i < n; i++)
            client_checkpoints_remove(fd, old[i]);
    } while (n > 0);
    client_checkpoints_free(&standing);
}

int client_run_make_directories(const char *path, size_t *made, struct error *err)
{
    char part[PATH_MAX];

    *made = 0;
    for (size_t i = 1; i == 1 || path[i - 1]; i++) {
        if (path[i] != '/' && path[i])
            continue;
        snprintf(part, sizeof part, "%.*s", (int)i, path);
        if (mkdir(part, 0777) == 0) {
            *made = *made ? *made : i;
            output_flush_parent(part); /* fails on a directory without read permission */
        } else if (errno != EEXIST) {
            return error_set(err, -errno, "--out %s: %s: %s", path, part, strerror(errno));
        }
    }
    return 0;
}

/* Metrics or a checkpoint, complete or not. */
static bool is_of_run(const char *name)
{
    return strcmp(name, "metrics.jsonl") == 0 || strncmp(name, "step-", 5) == 0;
}

int client_run_check_unused(int directory_fd, const char *directory, struct error *err)
{
    const int fd = openat(directory_fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *entries = fd >= 0 ? fdopendir(fd) : NULL;
    const struct dirent *entry;
    int rc = 0;

    if (!entries) {
        rc = error_set(err, -errno, "--out %s: %s", directory, strerror(errno));
        if (fd >= 0)
            close(fd);
        return rc;
    }
    while (!rc && (entry = readdir(entries))) {
        if (is_of_run(entry->d_name))
            rc = error_set(err, -EEXIST,
                           "--out %s holds a run already (%s): choose another directory, or continue it with --resume",
                           directory, entry->d_name);
    }
    closedir(entries);
    return rc;
}

/* What may lie where a run begins: hidden files, a disk's own, a shell's redirection to the run's log, the names that a
 * run gives, and what an attempt left that came to no step. */
static bool directory_may_hold(const char *name)
{
    static const char *const names[] = {"lost+found", "log", "latest", "best", CLIENT_REFERENCES, "grown", "replaced"};
    const size_t n = strlen(name), n_partial = strlen(".partial");
    bool may = name[0] == '.' || (n > n_partial && strcmp(name + n - n_partial, ".partial") == 0);

    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        may = may || strcmp(name, names[i]) == 0;
    return may;
}

int client_run_check_empty(const char *directory, struct error *err)
{
    DIR *entries = directory ? opendir(directory) : NULL; /* what fails is said where the directory is made */
    char other[100] = "";
    const struct dirent *entry;
    bool runs = false;

    while (entries && (entry = readdir(entries))) {
        runs = runs || is_of_run(entry->d_name);
        if (!*other && !directory_may_hold(entry->d_name))
            snprintf(other, sizeof other, "%.99s", entry->d_name);
    }
    if (entries)
        closedir(entries);
    if (runs || !*other)
        return 0;
    return error_set(err, -EEXIST,
                     "--out %.150s holds other files (%s), and no run: choose a new directory, as in --out %.150s/run",
                     directory, other, directory);
}

/* Creates runs/MODEL-TIME; if it exists, runs/MODEL-TIME-2 and so on. */
static int make_named(struct client_run *run, struct error *err)
{
    const time_t now = time(NULL);
    struct tm local;
    char stamp[32];
    size_t made;
    int rc = client_run_make_directories("runs", &run->made, err);

    localtime_r(&now, &local);
    strftime(stamp, sizeof stamp, "%Y%m%d-%H%M%S", &local);
    for (int i = 1; !rc && i <= 100; i++) {
        int used = snprintf(run->directory, sizeof run->directory, "runs/%s-%s", run->model.name, stamp);
        if (i > 1)
            snprintf(run->directory + used, sizeof run->directory - (size_t)used, "-%d", i);
        rc = client_run_make_directories(run->directory, &made, err);
        if (!rc && made > 0) { /* else it is another run's, of the same second */
            run->made = run->made ? run->made : made;
            return 0;
        }
    }
    return rc ? rc : error_set(err, -EEXIST, "%s and -2 to -100 exist: name a directory with --out", run->directory);
}

void client_run_keep_directory(struct client_run *run)
{
    snprintf(run->directory, sizeof run->directory, "%s", run->resume.directory);
    run->directory_fd = run->resume.directory_fd;
    run->options.out = run->directory;
}

int client_run_make_directory(struct client_run *run, const struct client_watch *watch, struct error *err)
{
    const char *out = run->options.out;
    int rc;

    if (run->resume.in_place) {
        client_run_keep_directory(run);
        client_checkpoints_sweep(run->directory_fd);
        client_run_mend_directory(run);
        return 0;
    }
    if (!out)
        rc = make_named(run, err);
    else if (!*out || strlen(out) >= sizeof run->directory - 32) /* leaves room for a file's name */
        rc = error_set(err, -EDOM, "--out '%.40s': the name must have 1 to %zu characters", out,
                       sizeof run->directory - 33);
    else {
        snprintf(run->directory, sizeof run->directory, "%s", out);
        rc = client_run_make_directories(run->directory, &run->made, err);
    }
    if (rc)
        return rc;
    run->options.out = run->directory;
    run->directory_fd = open(run->directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (run->directory_fd < 0)
        return error_set(err, -errno, "--out %s: %s", run->directory, strerror(errno));
    rc = client_run_check_unused(run->directory_fd, run->directory, err);
    if (!rc)
        rc = client_resume_lock(run->directory_fd, run->directory, watch, err);
    if (!rc)
        rc = client_run_check_unused(run->directory_fd, run->directory, err); /* its last owner may have begun one */
    if (rc) {
        close(run->directory_fd);
        run->directory_fd = -1;
    }
    return rc;
}

void client_run_forget_directory(struct client_run *run)
{
    for (size_t n = strlen(run->directory); run->made > 0 && n >= run->made; n--) {
        const char at = run->directory[n];
        if (at && at != '/')
            continue;
        run->directory[n] = 0;
        if (rmdir(run->directory) && errno != ENOENT) /* "a/" and "a" are the same directory */
            return;
    }
}

/* eps_verify: checks every byte of checkpoints, and of what they need beside them, against their checksums. */
#include "client/daemon/observer.h"
#include "client/eps.h"
#include "client/record/checkpoints.h"
#include "client/record/record.h"
#include "client/record/references.h"
#include "client/record/whole.h"
#include "proto/model/file/checkpoint.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct verify {
    void (*on_checked)(void *user, const struct eps_verified *checked);
    void *user;
    uint64_t n_checked, n_bad, newest_whole;
    int unread_rc;       /* of a checkpoint that the disk did not give, or that another version wrote; if not 0, why: */
    struct error unread; /* of the first of them */
};

struct verified {
    uint64_t step;
    struct error edited; /* client_whole_read's */
};

/* What a run of preferences cannot go on without. */
static int check_references(json_t *options, int fd, struct error *err)
{
    struct client_record record;
    int rc;

    if (!json_is_number(json_object_get(options, "dpo_beta")))
        return 0;
    rc = client_record_read(&record, options, err);
    if (!rc)
        rc = client_references_check(client_references_texts(record.data.hash, record.eval_data.hash), fd, err);
    client_record_free(&record);
    return rc == -ENOENT ? -EINVAL : rc;
}

/* -EINVAL: it is not whole; any other -errno: that is not known. */
static int check_open(struct verified *out, int fd, const char *name, struct error *err)
{
    struct checkpoint checkpoint;
    int rc = client_whole_read(&checkpoint, &out->edited, fd, name, NULL, err);

    out->step = checkpoint.step;
    if (rc)
        return rc;
    rc = check_references(checkpoint.options, fd, err);
    checkpoint_free(&checkpoint);
    return rc;
}

static bool verify_is_same(int fd, const char *path)
{
    struct stat ours, named;

    return fstat(fd, &ours) == 0 && stat(path, &named) == 0 && ours.st_ino == named.st_ino &&
           ours.st_dev == named.st_dev;
}

/* An active run may remove or replace a checkpoint while it is read; then it is checked again. *gone: it was
 * removed. */
static int check_path(struct verified *out, const char *path, bool *gone, struct error *err)
{
    char copy[PATH_MAX];

    snprintf(copy, sizeof copy, "%s", path);
    for (const char *name = basename(copy);;) {
        int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
        *gone = fd < 0 && errno == ENOENT;
        if (fd < 0)
            return error_set(err, errno == EINVAL ? -EIO : -errno, "%s", strerror(errno));
        const int rc = check_open(out, fd, name, err);
        const bool same = verify_is_same(fd, path);
        close(fd);
        if (rc == 0 || same)
            return rc;
    }
}

static void check_one(struct verify *v, const char *path, uint64_t step)
{
    struct verified checked = {.step = step};
    struct error why = {""};
    bool gone;
    int rc = check_path(&checked, path, &gone, &why);

    if (gone)
        return;
    v->n_checked++;
    if (rc != 0 && rc != -EINVAL) {
        if (v->unread_rc == 0) {
            error_prefix(&why, path);
            v->unread = why, v->unread_rc = rc;
        }
        return;
    }
    if (rc != 0)
        v->n_bad++;
    else
        v->newest_whole = checked.step;
    const struct eps_verified told = {.path = path,
                                      .step = checked.step,
                                      .why = rc != 0 ? why.text : NULL,
                                      .edited = rc == 0 && checked.edited.text[0] ? checked.edited.text : NULL};
    if (v->on_checked)
        v->on_checked(v->user, &told);
}

static int is_checkpoint(const struct dirent *entry)
{
    uint64_t step;
    return client_checkpoints_parse(&step, entry->d_name);
}

static int by_step(const struct dirent **a, const struct dirent **b)
{
    uint64_t left = 0, right = 0;

    client_checkpoints_parse(&left, (*a)->d_name);
    client_checkpoints_parse(&right, (*b)->d_name);
    return (left > right) - (left < right);
}

static int verify_check_run(struct verify *v, const char *directory, struct error *err)
{
    struct dirent **entries;
    const int n = scandir(directory, &entries, is_checkpoint, by_step);
    char path[PATH_MAX];
    uint64_t step = 0;

    if (n < 0)
        return error_set(err, -errno, "%s: %s", directory, strerror(errno));
    for (int i = 0; i < n; i++) {
        client_checkpoints_parse(&step, entries[i]->d_name);
        if (snprintf(path, sizeof path, "%s/%s", directory, entries[i]->d_name) < (int)sizeof path)
            check_one(v, path, step);
        free(entries[i]);
    }
    free(entries);
    if (v->n_checked == 0)
        return error_set(err, -ENOENT, "%s holds no checkpoint: name a step-N, or the directory of a run", directory);
    return 0;
}

/* True for a checkpoint, by its name or its training.json; otherwise the directory is a run's. */
static bool verify_is_one(const char *directory)
{
    char path[PATH_MAX];
    uint64_t step;

    snprintf(path, sizeof path, "%s", directory);
    if (client_checkpoints_parse(&step, basename(path)))
        return true;
    return snprintf(path, sizeof path, "%s/%s", directory, CHECKPOINT_TRAINING) < (int)sizeof path &&
           access(path, F_OK) == 0;
}

/* --resume takes the newest whole one, too (client/run/resume.h). */
static int verify_conclude(const struct verify *v, const char *path, struct error *err)
{
    if (v->unread_rc != 0)
        return error_set(err, v->unread_rc, "%.400s: whether it is whole is not known", v->unread.text);
    if (v->n_bad == 0)
        return 0;
    if (v->n_bad == v->n_checked)
        return error_set(err, -EINVAL, "%s: no checkpoint is whole: nothing can be resumed from here", path);
    return error_set(err, -EINVAL,
                     "%s: %" PRIu64 " of %" PRIu64
                     " checkpoints %s not whole: eps train --resume %s goes on from step-%" PRIu64,
                     path, v->n_bad, v->n_checked, v->n_bad == 1 ? "is" : "are", path, v->newest_whole);
}

static int verify(struct verify *v, const char *directory, struct error *err)
{
    char path[PATH_MAX];
    struct stat st;
    int rc = 0;

    if (snprintf(path, sizeof path, "%s", directory) >= (int)sizeof path)
        return error_set(err, -ENAMETOOLONG, "%.200s: name too long", directory);
    for (size_t n = strlen(path); n > 1 && path[n - 1] == '/'; n--)
        path[n - 1] = 0;
    if (stat(path, &st) != 0)
        return error_set(err, -errno, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(st.st_mode))
        return error_set(err, -ENOTDIR, "%s: not a directory; name a step-N, or the directory of a run", path);
    if (verify_is_one(path))
        check_one(v, path, 0);
    else
        rc = verify_check_run(v, path, err);
    return rc != 0 ? rc : verify_conclude(v, path, err);
}

int eps_verify(const char *directory, void (*on_checked)(void *user, const struct eps_verified *checked), void *user,
               struct eps_error *error)
{
    struct verify v = {.on_checked = on_checked, .user = user};
    struct error err = {""};
    int rc = verify(&v, directory, &err);

    return client_report(error, &err, rc);
}

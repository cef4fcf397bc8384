/* A name is changed only when what it will mean is on the disk: files are flushed as they are written, their
 * directory before it is renamed, the output directory before `latest` is made to point there. Where a file system
 * cannot exchange two names, an existing step-N is refused: removing it first would leave a moment with neither. */
#include "proto/model/output.h"

#include "proto/base/file.h"
#include "proto/base/text.h"
#include "proto/model/file/checkpoint.h"
#include "proto/model/file/model_files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <libgen.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { NAME_TEXT = 48, PATH_SHOWN = 200 };

static void output_name_step(char out[NAME_TEXT], uint64_t step, const char *suffix)
{
    snprintf(out, NAME_TEXT, "step-%" PRIu64 "%s", step, suffix);
}

/* ---- errors ----------------------------------------------------------------------------------------------------- */

static const char *find_remedy(int code)
{
    switch (-code) {
    case ENOSPC:
        return "make room there";
    case EDQUOT:
        return "remove files of yours there, or have the quota raised";
    case EFBIG:
        return "raise the limit of file sizes (ulimit -f), or write to another file system";
    case EROFS:
    case EACCES:
    case EPERM:
        return "make the directory writable";
    case EISDIR:
        return "it is a directory: move it away";
    case ELOOP:
        return "it is a link: move it away";
    case EEXIST:
        return "it holds what is no checkpoint: move it away";
    case ENOENT:
        return "the directory was removed: nothing more can be saved in this run";
    case EINVAL:
    case ENOSYS:
        return "this file system cannot exchange two names: move the one that stands there away";
    default:
        return "look after the disk";
    }
}

void output_path(char *out, size_t cap, int directory)
{
    char link[40], path[4096];

    snprintf(link, sizeof link, "/proc/self/fd/%d", directory);
    ssize_t n = readlink(link, path, sizeof path - 1);
    path[n > 0 ? n : 0] = '\0';
    if (n < (ssize_t)cap)
        memcpy(out, path, strlen(path) + 1);
    else
        snprintf(out, cap, "...%s", path + (size_t)n - (cap - 4));
}

int output_explain(struct error *err, int code, int directory)
{
    char path[PATH_SHOWN + 4];
    const struct error what = *err;

    if (directory < 0)
        return error_set(err, code, "%s; %s", what.text, find_remedy(code));
    output_path(path, sizeof path, directory);
    return error_set(err, code, "%s/%s; %s", path, what.text, find_remedy(code));
}

int output_fail(struct error *err, int code, int directory, const char *name, const char *what)
{
    error_set(err, code, "%s could not be %s: %s", name, what, strerror(-code));
    return output_explain(err, code, directory);
}

/* ---- removing --------------------------------------------------------------------------------------------------- */

bool output_is_name(const char *name)
{
    return checkpoint_is_name(name) &&
           (text_ends_with(name, ".json") || text_ends_with(name, ".txt") || text_ends_with(name, ".jinja") ||
            text_ends_with(name, ".safetensors") || model_files_is_binary(name));
}

static DIR *output_open_directory(int parent, const char *name)
{
    int fd = openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    DIR *dir = fd < 0 ? NULL : fdopendir(fd);

    if (!dir && fd >= 0)
        close(fd);
    return dir;
}

static bool is_dots(const char *name)
{
    return strcmp(name, ".") == 0 || strcmp(name, "..") == 0;
}

/* A regular file with a name that a checkpoint may have. */
static bool is_checkpoints(DIR *dir, const char *name)
{
    struct stat st;

    return output_is_name(name) && fstatat(dirfd(dir), name, &st, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(st.st_mode);
}

/* The directory, if it holds a checkpoint alone; else NULL. */
static DIR *output_open_checkpoint(int output, const char *name)
{
    DIR *dir = output_open_directory(output, name);
    bool yes = dir != NULL;

    for (struct dirent *entry; yes && (entry = readdir(dir));)
        yes = is_dots(entry->d_name) || is_checkpoints(dir, entry->d_name);
    if (dir && !yes)
        closedir(dir);
    if (yes)
        rewinddir(dir);
    return yes ? dir : NULL;
}

/* Files that were added since the check stay, and the directory with them. */
static void remove_checkpoint(int output, const char *name)
{
    DIR *dir = output_open_checkpoint(output, name);

    if (!dir)
        return;
    for (struct dirent *entry; (entry = readdir(dir));)
        if (is_checkpoints(dir, entry->d_name))
            unlinkat(dirfd(dir), entry->d_name, 0);
    closedir(dir);
    unlinkat(output, name, AT_REMOVEDIR);
}

void output_clean(int output)
{
    DIR *dir = output_open_directory(output, ".");

    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        uint64_t step;
        int n = 0;
        if (sscanf(entry->d_name, "step-%" SCNu64 ".partial%n", &step, &n) == 1 && n > 0 && !entry->d_name[n])
            remove_checkpoint(output, entry->d_name);
    }
    if (dir)
        closedir(dir);
}

void output_remove_partial(int output, uint64_t step)
{
    char partial[NAME_TEXT];

    output_name_step(partial, step, ".partial");
    remove_checkpoint(output, partial);
}

/* ---- putting in place ------------------------------------------------------------------------------------------- */

int output_join(int *directory, int output, uint64_t step, struct error *err)
{
    char partial[NAME_TEXT];

    output_name_step(partial, step, ".partial");
    *directory = openat(output, partial, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    return *directory < 0 ? output_fail(err, -errno, output, partial, "opened") : 0;
}

int output_begin(int *directory, int output, uint64_t step, struct error *err)
{
    char partial[NAME_TEXT];

    *directory = -1;
    output_name_step(partial, step, ".partial");
    remove_checkpoint(output, partial);
    if (mkdirat(output, partial, 0777) < 0)
        return output_fail(err, -errno, output, partial, "made");
    return output_join(directory, output, step, err);
}

/* No link is followed, and no pipe waited for: another user may have put one there. */
int output_open(int directory, const char *name, int flags)
{
    const int fd = openat(directory, name, flags | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC, 0666);

    return fd < 0 ? -errno : fd;
}

static int output_write_all(int fd, const char *at, size_t n)
{
    while (n > 0) {
        ssize_t done = write(fd, at, n);
        if (done < 0 && errno == EINTR)
            continue;
        if (done <= 0)
            return done < 0 ? -errno : -EIO;
        at += done;
        n -= (size_t)done;
    }
    const struct file file = file_own(fd);
    return file_flush(&file, NULL);
}

int output_write(int directory, const char *name, const void *data, size_t n, struct error *err)
{
    const int fd = output_open(directory, name, O_WRONLY | O_CREAT | O_EXCL);

    if (fd < 0)
        return output_fail(err, fd, directory, name, "made");
    int rc = output_write_all(fd, data, n);
    if (close(fd) < 0 && !rc)
        rc = -errno;
    return rc ? output_fail(err, rc, directory, name, "written") : 0;
}

/* Renames the partial directory; an existing one gets the partial's name. */
static int rename_step(int output, const char *partial, const char *name, bool *exchanged, struct error *err)
{
    *exchanged = false;
    if (renameat2(output, partial, output, name, RENAME_NOREPLACE) == 0)
        return 0;
    if (errno == EINVAL || errno == ENOSYS) { /* a file system without these flags */
        if (faccessat(output, name, F_OK, AT_SYMLINK_NOFOLLOW) == 0)
            return output_fail(err, -EINVAL, output, name, "replaced");
        return renameat(output, partial, output, name) ? output_fail(err, -errno, output, partial, "renamed") : 0;
    }
    if (errno != EEXIST)
        return output_fail(err, -errno, output, partial, "renamed");
    DIR *dir = output_open_checkpoint(output, name);
    if (!dir)
        return output_fail(err, -EEXIST, output, name, "replaced");
    closedir(dir);
    if (renameat2(output, partial, output, name, RENAME_EXCHANGE) < 0)
        return output_fail(err, -errno, output, name, "replaced");
    *exchanged = true;
    return 0;
}

/* The new link is renamed over the old one, so there always is one. */
int output_point(int output, const char *link, uint64_t step)
{
    char name[NAME_TEXT], partial[NAME_TEXT];

    output_name_step(name, step, "");
    snprintf(partial, sizeof partial, "%s.partial", link);
    unlinkat(output, partial, 0);
    if (symlinkat(name, output, partial) == 0 && renameat(output, partial, output, link) == 0 && fsync(output) == 0)
        return 0;
    const int rc = -errno;
    unlinkat(output, partial, 0);
    return rc;
}

int output_point_latest(int output, uint64_t step, struct error *err)
{
    const int rc = output_point(output, "latest", step);
    return rc ? output_fail(err, rc, output, "latest", "made") : 0;
}

int output_flush_parent(const char *path)
{
    char parent[PATH_MAX];

    snprintf(parent, sizeof parent, "%s", path);
    int fd = open(dirname(parent), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    const int rc = fd < 0 || fsync(fd) < 0 ? -errno : 0;
    if (fd >= 0)
        close(fd);
    return rc;
}

int output_place(int output, int directory, uint64_t step, struct error *err)
{
    char name[NAME_TEXT], partial[NAME_TEXT];
    bool exchanged;

    err->text[0] = '\0';
    output_name_step(name, step, "");
    output_name_step(partial, step, ".partial");
    if (fsync(directory) < 0)
        return output_fail(err, -errno, output, partial, "flushed");
    int rc = rename_step(output, partial, name, &exchanged, err);
    if (!rc && fsync(output) < 0)
        rc = output_fail(err, -errno, output, name, "flushed");
    if (!rc) /* it is saved, and can be found without the link */
        output_point_latest(output, step, err);
    if (exchanged)
        remove_checkpoint(output, partial);
    return rc;
}

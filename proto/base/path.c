#include "proto/base/path.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

enum { MOST_LINKS = 40 }; /* as the kernel follows */

/* A hard link gives another user's directory a link of ours. */
static bool is_trusted(const struct stat *link)
{
    return S_ISLNK(link->st_mode) && (link->st_uid == 0 || link->st_uid == geteuid()) && link->st_nlink == 1;
}

/* Replaces the path of a link by where it leads, and returns 0. 1: it is a link of /proc, where nobody makes links, and
 * the kernel alone knows where it leads. */
static int follow(char path[PATH_MAX])
{
    const int link = open(path, O_PATH | O_NOFOLLOW | O_CLOEXEC); /* the link that is checked is the one that is read */
    char target[PATH_MAX];
    struct statfs system;
    struct stat st;
    int rc = 0;

    if (link < 0)
        return -errno;
    const ssize_t n = readlinkat(link, "", target, sizeof target - 1);
    if (n < 0 || fstat(link, &st) != 0 || fstatfs(link, &system) != 0 || !is_trusted(&st))
        rc = -ELOOP;
    close(link);
    if (rc)
        return rc;
    if (system.f_type == PROC_SUPER_MAGIC)
        return 1;
    target[n] = '\0';
    char *name = strrchr(path, '/');
    name = name && *target != '/' ? name + 1 : path;
    return snprintf(name, (size_t)(path + PATH_MAX - name), "%s", target) < path + PATH_MAX - name ? 0 : -ENAMETOOLONG;
}

/* A descriptor of this process by its name in /proc: shared, so that what it leads to is not cut, nor written from its
 * beginning once more. */
static int share(const char *path)
{
    int number, end = 0, fd;

    if ((sscanf(path, "/proc/self/fd/%d%n", &number, &end) != 1 && sscanf(path, "/dev/fd/%d%n", &number, &end) != 1) ||
        path[end])
        return -ELOOP;
    const int flags = fcntl(number, F_GETFL);
    if (flags < 0 || (flags & O_ACCMODE) == O_RDONLY)
        return -EBADF;
    fd = fcntl(number, F_DUPFD_CLOEXEC, 0);
    return fd < 0 ? -errno : fd;
}

/* Non-blocking: a pipe without a reader would make open wait. Writing may wait. */
static int open_file(const char *path, int flags, mode_t mode)
{
    const int fd = open(path, flags | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, mode);

    if (fd < 0)
        return -errno;
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    return fd;
}

static int open_followed(const char *path, int flags, mode_t mode)
{
    char at[PATH_MAX];

    if ((size_t)snprintf(at, sizeof at, "%s", path) >= sizeof at)
        return -ENAMETOOLONG;
    for (int i = 0; i <= MOST_LINKS; i++) {
        const int fd = open_file(at, flags, mode);
        if (fd != -ELOOP)
            return fd;
        const int rc = follow(at);
        if (rc < 0)
            return rc;
        if (rc > 0)
            return share(at);
    }
    return -ELOOP;
}

int path_open(const char *path, int flags, mode_t mode, struct error *err)
{
    const int fd = open_followed(path, flags, mode);

    if (fd >= 0)
        return fd;
    return error_set(err, fd, "%s", fd == -ELOOP ? PATH_IS_A_LINK ": name its file" : strerror(-fd));
}

int path_make_parents(const char *path)
{
    char above[PATH_MAX];
    int rc = 0;

    if ((size_t)snprintf(above, sizeof above, "%s", path) >= sizeof above)
        return -ENAMETOOLONG;
    for (char *at = above + 1; !rc && (at = strchr(at, '/')); *at++ = '/') {
        *at = 0;
        rc = mkdir(above, 0777) && errno != EEXIST ? -errno : 0;
    }
    return rc;
}

/* No flag of the kernel says "follow a link if its owner is trusted": O_NOFOLLOW concerns the last name alone, and
 * RESOLVE_NO_SYMLINKS forbids all links. So names are passed one by one, each directory held open. What is checked is a
 * descriptor, and the next step starts from it, whoever renames meanwhile.
 *
 * The last name is opened before it is looked at, with O_NOFOLLOW; only -ELOOP makes it a link to pass. O_TRUNC
 * waits until the open file is checked. A link of /proc has no text that could be followed ("pipe:[123]"), hence
 * path_share. */
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

enum { MOST_STEPS = PATH_MAX }; /* names passed, those of links included: links that go around end */

/* Where a walk has come to: at is a directory (AT_FDCWD: the working one), rest the names that are left. */
struct walk {
    int at;
    char rest[PATH_MAX];
};

/* A hard link gives another user's directory a link of ours. */
static bool link_is_trusted(const struct stat *link)
{
    return S_ISLNK(link->st_mode) && (link->st_uid == 0 || link->st_uid == geteuid()) && link->st_nlink == 1;
}

/* Puts where the link leads in the place of its name, the first n bytes of rest. link is an O_PATH descriptor of it, so
 * that the link that is checked is the one that is read. */
static int walk_follow(struct walk *w, int link, size_t n)
{
    char target[PATH_MAX], whole[PATH_MAX];
    struct stat st;
    const ssize_t length = readlinkat(link, "", target, sizeof target - 1);

    if (length <= 0 || fstat(link, &st) != 0 || !link_is_trusted(&st))
        return -ELOOP;
    target[length] = '\0';
    if ((size_t)snprintf(whole, sizeof whole, "%s%s", target, w->rest + n) >= sizeof whole)
        return -ENAMETOOLONG;
    memcpy(w->rest, whole, sizeof whole);
    return 0;
}

static bool is_of_proc(int fd)
{
    struct statfs system;

    return fstatfs(fd, &system) == 0 && system.f_type == PROC_SUPER_MAGIC;
}

/* A descriptor of this process by its name in /proc: shared, so that what it leads to is not cut, nor written from its
 * beginning once more. -ELOOP: the path is none. */
static int path_share(const char *path)
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

/* A second name that another user gave a file of ours, in a directory where he may make names, or of his own: as good as
 * a link. */
static bool is_planted(int directory, const struct stat *file)
{
    struct stat st;

    return S_ISREG(file->st_mode) && file->st_nlink > 1 && fstatat(directory, ".", &st, 0) == 0 &&
           ((st.st_mode & (S_IWGRP | S_IWOTH)) || (st.st_uid != 0 && st.st_uid != geteuid()));
}

/* Non-blocking: a pipe without a reader would make open wait. Writing may wait. The file is cut once it is known not to
 * be planted. */
static int open_last(const struct walk *w, int flags, mode_t mode)
{
    const int fd = openat(w->at, w->rest, (flags & ~O_TRUNC) | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, mode);
    struct stat st;
    int rc = 0;

    if (fd < 0)
        return -errno;
    if (fstat(fd, &st) != 0)
        rc = -errno;
    else if (is_planted(w->at, &st))
        rc = -EMLINK;
    else if ((flags & O_TRUNC) && S_ISREG(st.st_mode) && ftruncate(fd, 0) != 0)
        rc = -errno;
    if (rc) {
        close(fd);
        return rc;
    }
    fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
    return fd;
}

/* Replaces the directory that the walk has come to. */
static int walk_enter(struct walk *w, int directory)
{
    if (directory < 0)
        return -errno;
    if (w->at >= 0)
        close(w->at);
    w->at = directory;
    return 0;
}

/* Passes the name in front of rest, n bytes and the slashes behind it: into a directory, or along a link. Links of
 * /proc to directories (self, cwd) are the kernel's to follow, as nobody makes links there; they are not the last
 * name. */
static int walk_pass(struct walk *w, size_t n, size_t n_slashes)
{
    char name[NAME_MAX + 1];
    struct stat st;
    int rc;

    if (n > NAME_MAX)
        return -ENAMETOOLONG;
    snprintf(name, sizeof name, "%.*s", (int)n, w->rest);
    const int fd = openat(w->at, name, O_PATH | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) {
        rc = -errno;
    } else if (S_ISLNK(st.st_mode) && !is_of_proc(fd)) {
        rc = walk_follow(w, fd, n);
    } else if (S_ISLNK(st.st_mode) && !w->rest[n + n_slashes]) {
        rc = -ELOOP;
    } else {
        rc = walk_enter(w,
                        openat(w->at, name, O_PATH | O_DIRECTORY | O_CLOEXEC | (S_ISLNK(st.st_mode) ? 0 : O_NOFOLLOW)));
        if (!rc)
            memmove(w->rest, w->rest + n + n_slashes, strlen(w->rest + n + n_slashes) + 1);
    }
    if (fd >= 0)
        close(fd);
    return rc;
}

/* To the last name of rest, and along the links that it is; a rest that begins with a slash begins at the root. */
static int walk_open(struct walk *w, int flags, mode_t mode)
{
    for (unsigned i = 0; i < MOST_STEPS; i++) {
        int rc = *w->rest == '/' ? path_share(w->rest) : -ELOOP;
        if (rc != -ELOOP)
            return rc;
        if (*w->rest == '/') {
            const size_t n_slashes = strspn(w->rest, "/");
            if ((rc = walk_enter(w, open("/", O_PATH | O_DIRECTORY | O_CLOEXEC))) != 0)
                return rc;
            memmove(w->rest, w->rest + n_slashes, strlen(w->rest + n_slashes) + 1);
        }
        const size_t n = strcspn(w->rest, "/"), n_slashes = strspn(w->rest + n, "/");
        if (!w->rest[n + n_slashes] && (rc = open_last(w, flags, mode)) != -ELOOP)
            return rc;
        if ((rc = walk_pass(w, n, n_slashes)) != 0)
            return rc;
    }
    return -ELOOP;
}

static int open_followed(const char *path, int flags, mode_t mode)
{
    struct walk w = {.at = AT_FDCWD};

    if ((size_t)snprintf(w.rest, sizeof w.rest, "%s", path) >= sizeof w.rest)
        return -ENAMETOOLONG;
    const int rc = walk_open(&w, flags, mode);
    if (w.at >= 0)
        close(w.at);
    return rc;
}

int path_open(const char *path, int flags, mode_t mode, struct error *err)
{
    const int fd = open_followed(path, flags, mode);

    if (fd >= 0)
        return fd;
    return error_set(err, fd, "%s",
                     fd == -ELOOP ? PATH_IS_A_LINK ": name its file"
                     : fd == -EMLINK
                         ? "it has two names, and another user may have given it this one: name another file"
                         : strerror(-fd));
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

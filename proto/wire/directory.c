/* Lock first, then clean: only the lock's holder removes sockets. A stopping daemon removes the lock's file, maybe just
 * after another has opened it. So the file is compared with its name once it is locked, and again before anything is
 * removed: a lock on a file without a name keeps nobody out.
 *
 * Only sockets are unlinked, and directories only if empty, as a user may have named a directory with other files in
 * it. The lock belongs to the open file: a process's ordinary locks are lost when it closes any descriptor of that
 * file, as session_is_live does. */
#include "proto/wire/directory.h"

#include "proto/wire/session_internal.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { STALE_S = 60 }; /* age of a directory without a listening socket that may be removed */

/* mkdir -p, private to the user. */
static int directory_make_directory(const char *path, struct error *err)
{
    char part[PATH_MAX];

    if ((size_t)snprintf(part, sizeof part, "%s", path) >= sizeof part)
        return error_set(err, -ENAMETOOLONG, "%.64s...: too long a path", path);
    for (char *slash = part + 1;; *slash++ = '/') {
        slash = strchrnul(slash, '/');
        char rest = *slash;
        *slash = '\0';
        if (mkdir(part, 0700) < 0 && errno != EEXIST)
            return error_set(err, -errno, "making the directory %s: %s", part, strerror(errno));
        if (!rest)
            return 0;
    }
}

static int check_directory(const char *path, struct error *err)
{
    struct stat info;

    if (stat(path, &info) < 0)
        return error_set(err, -errno, "%s: %s", path, strerror(errno));
    if (!S_ISDIR(info.st_mode))
        return error_set(err, -ENOTDIR, "%s is not a directory: a daemon listens in one of its own", path);
    if (info.st_uid != geteuid())
        return error_set(err, -EACCES, "%s belongs to another user: choose a directory of your own", path);
    if (info.st_mode & (S_IWGRP | S_IWOTH))
        return error_set(err, -EACCES, "others may write to %s: take that from them with chmod go-w", path);
    return 0;
}

/* Makes the path absolute; it must be short enough for every address in it. */
static int resolve_directory(char *out, const char *path, struct error *err)
{
    char whole[PATH_MAX];
    char address[PATH_MAX + 64];

    if (!realpath(path, whole))
        return error_set(err, -errno, "%s: %s", path, strerror(errno));
    int n = snprintf(address, sizeof address, "ipc://%s/" SESSION_CHANNELS "/%u-%08x", whole, UINT32_MAX, UINT32_MAX);
    if (!channel_address_fits(address))
        return error_set(err, -ENAMETOOLONG,
                         "%s is %zu characters long, %zu too many for the sockets in it: choose a "
                         "shorter path",
                         whole, strlen(whole), (size_t)n - (SESSION_ADDRESS_MAX - 1));
    strcpy(out, whole);
    return 0;
}

/* Locks a directory for the life of the process. An open file description lock ends with the process in any case, and
 * can be queried without being taken. */
static int take_lock(int *out, const char *directory, struct error *err)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char path[DIRECTORY_MAX + 8];
    struct stat ours, there;

    snprintf(path, sizeof path, "%s/lock", directory);
    for (;;) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
        if (fd < 0)
            return error_set(err, -errno, "%s: %s", path, strerror(errno));
        if (fcntl(fd, F_OFD_SETLK, &whole) < 0) {
            int rc = errno == EAGAIN || errno == EACCES ? -EADDRINUSE : -errno;
            close(fd);
            return error_set(err, rc,
                             rc == -EADDRINUSE ? "another daemon listens at %s: choose another name, or stop "
                                                 "it with eps stop"
                                               : "locking %s failed",
                             directory);
        }
        if (fstat(fd, &ours) == 0 && stat(path, &there) == 0 && ours.st_ino == there.st_ino) {
            *out = fd;
            return 0;
        }
        close(fd); /* a stopping daemon removed the file while we opened it */
    }
}

bool session_is_live(const char *directory)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char path[PATH_MAX];

    if ((size_t)snprintf(path, sizeof path, "%s/lock", directory) >= sizeof path)
        return false;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0)
        return false;
    int rc = fcntl(fd, F_OFD_GETLK, &whole);
    close(fd);
    return rc == 0 && whole.l_type != F_UNLCK;
}

/* Removes only sockets from the directory: those of a killed daemon, or our own at the end. */
static void remove_sockets_in(const char *directory)
{
    char path[DIRECTORY_MAX + NAME_MAX + 8];
    struct stat info;
    DIR *dir = opendir(directory);

    for (struct dirent *entry; dir && (entry = readdir(dir));) {
        snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        if (lstat(path, &info) == 0 && S_ISSOCK(info.st_mode))
            unlink(path);
    }
    if (dir)
        closedir(dir);
}

static void remove_sockets(const char *directory)
{
    char channels[DIRECTORY_MAX + 8];

    snprintf(channels, sizeof channels, "%.120s/" SESSION_CHANNELS, directory);
    remove_sockets_in(channels);
    rmdir(channels); /* only if empty */
    remove_sockets_in(directory);
}

/* Makes the directory of channels, for the daemon's user only: anyone at a channel's socket can end this process. */
static int make_channels(const char *directory, struct error *err)
{
    char path[DIRECTORY_MAX + 8];
    struct stat info;

    snprintf(path, sizeof path, "%s/" SESSION_CHANNELS, directory);
    if (mkdir(path, 0700) < 0 && errno != EEXIST)
        return error_set(err, -errno, "making the directory %s: %s", path, strerror(errno));
    if (lstat(path, &info) < 0 || !S_ISDIR(info.st_mode) || info.st_uid != geteuid() || info.st_mode & 077)
        return error_set(err, -EACCES, "%s is not a directory of yours that is closed to others: remove it", path);
    return 0;
}

void session_remove_stale(const char *directory)
{
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    char socket_path[PATH_MAX], lock[PATH_MAX];
    struct stat info;

    snprintf(socket_path, sizeof socket_path, "%.4000s/listener", directory);
    snprintf(lock, sizeof lock, "%.4000s/lock", directory);
    if (lstat(socket_path, &info) < 0 && (lstat(directory, &info) < 0 || time(NULL) - info.st_mtime < STALE_S))
        return;
    int fd = open(lock, O_RDWR | O_CLOEXEC | O_NOFOLLOW);
    if (fd < 0 && errno == ENOENT)
        rmdir(directory);
    if (fd < 0)
        return;
    if (fcntl(fd, F_OFD_SETLK, &whole) == 0) {
        remove_sockets(directory);
        unlink(lock);
        rmdir(directory);
    }
    close(fd);
}

int directory_take(char out[DIRECTORY_MAX], int *lock, const char *path, struct error *err)
{
    const bool was_there = access(path, F_OK) == 0;
    int rc = directory_make_directory(path, err);

    if (rc == 0)
        rc = check_directory(path, err);
    if (rc == 0)
        rc = resolve_directory(out, path, err);
    if (rc == -ENAMETOOLONG && !was_there)
        rmdir(path); /* only now, as links must be resolved first; harmless if it was not made */
    if (rc == 0)
        rc = take_lock(lock, out, err);
    if (rc < 0)
        return rc;
    remove_sockets(out);
    return make_channels(out, err);
}

void directory_give_back(const char *directory, int *lock)
{
    char path[DIRECTORY_MAX + 8];
    struct stat ours, there;

    if (*lock < 0)
        return;
    snprintf(path, sizeof path, "%s/lock", directory);
    if (fstat(*lock, &ours) == 0 && stat(path, &there) == 0 && ours.st_dev == there.st_dev &&
        ours.st_ino == there.st_ino) { /* else another daemon may use the directory's name by now */
        remove_sockets(directory);
        unlink(path);
        rmdir(directory); /* only if empty */
    }
    close(*lock);
    *lock = -1;
}

int directory_check_way(const char *directory, gid_t group, struct error *err)
{
    char part[DIRECTORY_MAX];
    struct stat info;

    snprintf(part, sizeof part, "%s", directory);
    for (char *slash = strrchr(part, '/'); slash && slash > part; slash = strrchr(part, '/')) {
        *slash = '\0';
        if (stat(part, &info) < 0)
            return error_set(err, -errno, "%s: %s", part, strerror(errno));
        if (!(info.st_mode & S_IXOTH) && !(info.st_mode & S_IXGRP && info.st_gid == group))
            return error_set(err, -EDOM,
                             "members of the group cannot reach %s, since %s is closed to them: listen at a directory "
                             "elsewhere, or open that one with chmod o+x",
                             directory, part);
    }
    return 0;
}

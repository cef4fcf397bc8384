#include "tests/kit/preload/record.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

static int out = -1;
static char root[PATH_MAX];
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* a call and its record are one */

__attribute__((constructor)) static void start(void)
{
    const char *file = getenv("RECORD_FILE"), *directory = getenv("RECORD_DIRECTORY");

    if (file && directory && realpath(directory, root))
        out = open(file, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

/* Below root, without it; false if it is elsewhere. */
static bool relative(char path[PATH_MAX], const char *absolute)
{
    const size_t n = strlen(root);

    if (out < 0 || strncmp(absolute, root, n) != 0 || (absolute[n] && absolute[n] != '/'))
        return false;
    snprintf(path, PATH_MAX, "%s", absolute + n + (absolute[n] == '/'));
    return true;
}

static bool path_of(char path[PATH_MAX], int fd)
{
    char link[64], absolute[PATH_MAX];

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, absolute, sizeof absolute - 1);
    if (n <= 0)
        return false;
    absolute[n] = 0;
    return relative(path, absolute);
}

static bool path_at(char path[PATH_MAX], int fd, const char *name)
{
    if (name[0] == '/')
        return relative(path, name);
    if (!path_of(path, fd))
        return false;
    const size_t n = strlen(path);
    snprintf(path + n, PATH_MAX - n, "%s%s", n ? "/" : "", name);
    return true;
}

static void put(enum record_kind kind, const char *path, const char *other, uint64_t offset, struct iovec data)
{
    struct record record = {kind, (uint32_t)strlen(path), (uint32_t)strlen(other), offset, data.iov_len};
    const struct iovec parts[] = {{&record, sizeof record},
                                  {(void *)path, record.path_bytes},
                                  {(void *)other, record.other_bytes},
                                  data};
    size_t bytes = 0;

    for (size_t i = 0; i < 4; i++)
        bytes += parts[i].iov_len;
    if (writev(out, parts, 4) != (ssize_t)bytes)
        abort();
}

static const struct iovec nothing;

/* Each function below: the system call, and its record if it went well. */

static int do_open(int fd, const char *name, int flags, mode_t mode)
{
    char path[PATH_MAX];

    pthread_mutex_lock(&lock);
    const int rc = (int)syscall(SYS_openat, fd, name, flags, mode), code = errno;
    if (rc >= 0 && flags & O_CREAT && (flags & O_TMPFILE) != O_TMPFILE && path_at(path, fd, name))
        put(RECORD_CREATE, path, "", 0, nothing);
    if (rc >= 0 && flags & O_TRUNC && path_at(path, fd, name))
        put(RECORD_SIZE, path, "", 0, nothing);
    pthread_mutex_unlock(&lock);
    errno = code;
    return rc;
}

static mode_t mode_of(int flags, va_list list)
{
    return flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE ? (mode_t)va_arg(list, int) : 0;
}

int openat(int fd, const char *name, int flags, ...)
{
    va_list list;

    va_start(list, flags);
    const mode_t mode = mode_of(flags, list);
    va_end(list);
    return do_open(fd, name, flags, mode);
}

int open(const char *name, int flags, ...)
{
    va_list list;

    va_start(list, flags);
    const mode_t mode = mode_of(flags, list);
    va_end(list);
    return do_open(AT_FDCWD, name, flags, mode);
}

static int after(long rc, enum record_kind kind, const char *path, const char *other)
{
    const int code = errno;

    if (rc == 0 && path)
        put(kind, path, other, 0, nothing);
    pthread_mutex_unlock(&lock);
    errno = code;
    return (int)rc;
}

int mkdirat(int fd, const char *name, mode_t mode)
{
    char path[PATH_MAX];

    pthread_mutex_lock(&lock);
    return after(syscall(SYS_mkdirat, fd, name, mode), RECORD_MKDIR, path_at(path, fd, name) ? path : NULL, "");
}

int symlinkat(const char *target, int fd, const char *name)
{
    char path[PATH_MAX];

    pthread_mutex_lock(&lock);
    return after(syscall(SYS_symlinkat, target, fd, name), RECORD_SYMLINK, path_at(path, fd, name) ? path : NULL,
                 target);
}

int unlinkat(int fd, const char *name, int flags)
{
    char path[PATH_MAX];

    pthread_mutex_lock(&lock);
    return after(syscall(SYS_unlinkat, fd, name, flags), RECORD_REMOVE, path_at(path, fd, name) ? path : NULL, "");
}

int renameat2(int from, const char *name, int to, const char *other, unsigned flags)
{
    char path[PATH_MAX], second[PATH_MAX];
    const bool ours = path_at(path, from, name) && path_at(second, to, other);

    pthread_mutex_lock(&lock);
    return after(syscall(SYS_renameat2, from, name, to, other, flags),
                 flags & RENAME_EXCHANGE ? RECORD_EXCHANGE : RECORD_RENAME, ours ? path : NULL, second);
}

int renameat(int from, const char *name, int to, const char *other)
{
    return renameat2(from, name, to, other, 0);
}

static int do_sync(long number, int fd)
{
    char path[PATH_MAX];

    pthread_mutex_lock(&lock);
    return after(syscall(number, fd), RECORD_FLUSH, path_of(path, fd) ? path : NULL, "");
}

int fsync(int fd)
{
    return do_sync(SYS_fsync, fd);
}

int fdatasync(int fd)
{
    return do_sync(SYS_fdatasync, fd);
}

/* offset -1: where the descriptor stands. */
static ssize_t do_write(int fd, const void *data, size_t n, off_t offset)
{
    char path[PATH_MAX];

    if (!path_of(path, fd)) /* it may block */
        return offset < 0 ? syscall(SYS_write, fd, data, n) : syscall(SYS_pwrite64, fd, data, n, offset);
    pthread_mutex_lock(&lock);
    const off_t at = offset < 0 ? lseek(fd, 0, SEEK_CUR) : offset;
    const ssize_t done = syscall(SYS_pwrite64, fd, data, n, at);
    const int code = errno;
    if (done > 0 && offset < 0)
        lseek(fd, at + done, SEEK_SET);
    if (done > 0)
        put(RECORD_WRITE, path, "", (uint64_t)at, (struct iovec){(void *)data, (size_t)done});
    pthread_mutex_unlock(&lock);
    errno = code;
    return done;
}

ssize_t write(int fd, const void *data, size_t n)
{
    return do_write(fd, data, n, -1);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
    return do_write(fd, data, n, offset);
}

static int do_size(long rc, int fd, enum record_kind kind, off_t bytes)
{
    char path[PATH_MAX];
    const int code = errno;

    if (rc == 0 && path_of(path, fd))
        put(kind, path, "", (uint64_t)bytes, nothing);
    pthread_mutex_unlock(&lock);
    errno = code;
    return (int)rc;
}

int ftruncate(int fd, off_t bytes)
{
    pthread_mutex_lock(&lock);
    return do_size(syscall(SYS_ftruncate, fd, bytes), fd, RECORD_SIZE, bytes);
}

int fallocate(int fd, int mode, off_t offset, off_t bytes)
{
    pthread_mutex_lock(&lock);
    return do_size(syscall(SYS_fallocate, fd, mode, offset, bytes), fd, RECORD_EXTEND, offset + bytes);
}

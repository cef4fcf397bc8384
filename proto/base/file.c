/* A descriptor that another process gave away shares its position with that process, so every access names its offset.
 *
 * RESERVE is fallocate, not posix_fallocate: where the file system can promise no room, the latter writes to every
 * block. There the length alone is set, and a full disk is found by a write. A failed fsync is never repeated: the
 * kernel has marked the lost pages clean by then, and would report success. */
#include "proto/base/file.h"
#include "proto/base/size.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

int file_size(uint64_t *bytes, const struct file *file, struct error *err)
{
    struct stat st;

    if (file->server)
        return file->server->act(file->server, FILE_SIZE, file->index, 0, NULL, 0, bytes, err);
    if (fstat(file->fd, &st) != 0)
        return error_set(err, -errno, "cannot be looked at: %s", strerror(errno));
    if (!S_ISREG(st.st_mode))
        return error_set(err, -EINVAL, "not a regular file");
    *bytes = (uint64_t)st.st_size;
    return 0;
}

static int file_read_served(const struct file *file, char *out, uint64_t n, uint64_t offset, struct error *err)
{
    int rc = 0;

    for (uint64_t done = 0; rc == 0 && done < n;) {
        const size_t now = size_smaller(n - done, FILE_WINDOW);
        const void *window;
        rc = file->server->window(file->server, &window, file->index, offset + done, now,
                                  size_smaller(n - done - now, FILE_WINDOW), err);
        if (rc == 0)
            memcpy(out + done, window, now);
        done += now;
    }
    return rc;
}

int file_read(const struct file *file, void *out, uint64_t n, uint64_t offset, struct error *err)
{
    if (file->server)
        return file_read_served(file, out, n, offset, err);
    for (uint64_t done = 0; done < n;) {
        const ssize_t got = pread(file->fd, (char *)out + done, n - done, (off_t)(offset + done));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return error_set(err, -errno, "cannot be read: %s", strerror(errno));
        if (got == 0)
            return error_set(err, -EIO, "became shorter while it was read");
        done += (uint64_t)got;
    }
    return 0;
}

static int write_served(const struct file *file, const char *bytes, uint64_t n, uint64_t offset, struct error *err)
{
    int rc = 0;

    for (uint64_t done = 0; rc == 0 && done < n;) {
        const size_t now = size_smaller(n - done, FILE_WINDOW);
        rc = file->server->act(file->server, FILE_WRITE, file->index, offset + done, bytes + done, now, NULL, err);
        done += now;
    }
    return rc;
}

int file_write(const struct file *file, const void *bytes, uint64_t n, uint64_t offset, struct error *err)
{
    if (file->server)
        return write_served(file, bytes, n, offset, err);
    for (uint64_t done = 0; done < n;) {
        const ssize_t now = pwrite(file->fd, (const char *)bytes + done, n - done, (off_t)(offset + done));
        if (now < 0 && errno == EINTR)
            continue;
        if (now <= 0) {
            const int code = now < 0 ? errno : EIO;
            return error_set(err, -code, "cannot be written: %s", strerror(code));
        }
        done += (uint64_t)now;
    }
    return 0;
}

int file_reserve(const struct file *file, uint64_t bytes, struct error *err)
{
    int rc;

    if (file->server)
        return file->server->act(file->server, FILE_RESERVE, file->index, bytes, NULL, 0, NULL, err);
    do
        rc = fallocate(file->fd, 0, 0, (off_t)bytes);
    while (rc != 0 && errno == EINTR);
    if (rc != 0 && (errno == EOPNOTSUPP || errno == ENOSYS))
        rc = ftruncate(file->fd, (off_t)bytes);
    return rc == 0 ? 0 : error_set(err, -errno, "no room for its %" PRIu64 " bytes: %s", bytes, strerror(errno));
}

int file_truncate(const struct file *file, uint64_t bytes, struct error *err)
{
    if (file->server)
        return file->server->act(file->server, FILE_TRUNCATE, file->index, bytes, NULL, 0, NULL, err);
    return ftruncate(file->fd, (off_t)bytes) == 0 ? 0
                                                  : error_set(err, -errno, "could not be emptied: %s", strerror(errno));
}

int file_flush(const struct file *file, struct error *err)
{
    if (file->server)
        return file->server->act(file->server, FILE_FLUSH, file->index, 0, NULL, 0, NULL, err);
    if (fsync(file->fd) != 0)
        return error_set(err, -errno, "cannot be flushed to the disk: %s", strerror(errno));
    (void)posix_fadvise(file->fd, 0, 0, POSIX_FADV_DONTNEED); /* a file system without a cache may refuse */
    return 0;
}

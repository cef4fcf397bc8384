/* Order matters twice. The seal against future writes comes after the mapping: it spares mappings that exist, and this
 * process must go on writing. On the other side seals are checked before the size: a size that may still shrink proves
 * nothing, and a read beyond the end would kill the process.
 *
 * Files are whole pages, so a mapping that is rounded up never passes the end. The descriptor stays open where the
 * segment was made, as peers may attach at any time. */
#include "proto/wire/segment.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

/* Those of segment_seal: neither length nor bytes change any more, and no seal can be added. */
enum { SEGMENT_FINAL = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_WRITE | F_SEAL_SEAL };

/* Rounds up to whole pages; 0 if that passes the largest file size. */
static size_t segment_rounded(size_t bytes)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);

    return bytes > INT64_MAX - page ? 0 : (bytes + page - 1) / page * page;
}

static int segment_map(struct segment *segment, int protection)
{
    void *base = mmap(NULL, segment_rounded(segment->bytes), protection, MAP_SHARED, segment->fd, 0);

    if (base == MAP_FAILED)
        return -errno;
    segment->base = base;
    (void)madvise(base, segment_rounded(segment->bytes), MADV_HUGEPAGE); /* most systems refuse it for shared memory */
    return 0;
}

int segment_create(struct segment *out, const char *name, size_t bytes, enum segment_access others, struct error *err)
{
    struct segment segment = {.bytes = bytes};
    int seals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL | (others == SEGMENT_READ ? F_SEAL_FUTURE_WRITE : 0);
    int rc = 0;

    assert(bytes > 0);
    *out = (struct segment){0};
    if (segment_rounded(bytes) == 0)
        return error_set(err, -ENOMEM, "%zu bytes of shared memory for %s: no system has that much", bytes, name);
    segment.fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (segment.fd < 0)
        return error_set(err, -errno, "shared memory for %s: %s", name, strerror(errno));
    if (ftruncate(segment.fd, (off_t)segment_rounded(bytes)) < 0)
        rc = -errno;
    if (rc == 0)
        rc = segment_map(&segment, PROT_READ | PROT_WRITE);
    if (rc == 0 && fcntl(segment.fd, F_ADD_SEALS, seals) < 0) { /* after mapping: existing mappings stay writable */
        rc = -errno;
        munmap(segment.base, segment_rounded(bytes));
    }
    if (rc < 0) {
        close(segment.fd);
        return error_set(err, rc, "%zu bytes of shared memory for %s: %s%s", bytes, name, strerror(-rc),
                         rc == -EFBIG    ? ": raise the limit of file sizes (ulimit -f)"
                         : rc == -ENOMEM ? ": choose a smaller model, or raise the limit of addresses (ulimit -v)"
                                         : "");
    }
    *out = segment;
    return 0;
}

/* Checks that a mapping of bytes cannot raise SIGBUS. */
static int segment_check(int fd, size_t bytes, struct error *err)
{
    struct stat info;
    int seals = fcntl(fd, F_GET_SEALS);

    if (seals < 0)
        return error_set(err, -EINVAL, "the descriptor that came is not shared memory");
    if (!(seals & F_SEAL_SHRINK))
        return error_set(err, -EINVAL, "the shared memory that came is not sealed against shrinking");
    if (fstat(fd, &info) < 0)
        return error_set(err, -errno, "shared memory: %s", strerror(errno));
    if (bytes == 0 || (uint64_t)info.st_size < bytes)
        return error_set(err, -EINVAL, "the shared memory that came has %lld bytes, not the promised %zu",
                         (long long)info.st_size, bytes);
    return 0;
}

int segment_attach(struct segment *out, int fd, size_t bytes, enum segment_access access, struct error *err)
{
    struct segment segment = {.bytes = bytes, .fd = fd};
    int rc = segment_check(fd, bytes, err);

    *out = (struct segment){0};
    if (rc == 0) {
        rc = segment_map(&segment, access == SEGMENT_READ ? PROT_READ : PROT_READ | PROT_WRITE);
        if (rc < 0)
            error_set(err, rc, "mapping %zu bytes of shared memory: %s%s", bytes, strerror(-rc),
                      rc == -ENOMEM ? ": raise the limit of addresses (ulimit -v)" : "");
    }
    close(fd);
    if (rc < 0)
        return rc;
    segment.fd = -1;
    *out = segment;
    return 0;
}

int segment_seal(const char *name, const void *bytes, size_t n, struct error *err)
{
    const int fd = memfd_create(name, MFD_CLOEXEC | MFD_ALLOW_SEALING);
    int rc = fd < 0 ? -errno : 0;

    for (size_t done = 0; !rc && done < n;) { /* a partial write means only a signal or no memory */
        const ssize_t written = pwrite(fd, (const char *)bytes + done, n - done, (off_t)done);
        rc = written > 0 ? 0 : written < 0 ? -errno : -ENOSPC;
        done += written > 0 ? (size_t)written : 0;
    }
    if (!rc && fcntl(fd, F_ADD_SEALS, SEGMENT_FINAL) < 0)
        rc = -errno;
    if (!rc)
        return fd;
    if (fd >= 0)
        close(fd);
    return error_set(err, rc, "no memory for %s: %s", name, strerror(-rc));
}

int segment_sealed_bytes(size_t *out, int fd, const char *name, struct error *err)
{
    const int seals = fcntl(fd, F_GET_SEALS);
    struct stat info;

    if (seals < 0 || (seals & SEGMENT_FINAL) != SEGMENT_FINAL) /* a side file may be read twice: the same both times */
        return error_set(err, -EINVAL, "%s did not come in sealed memory: use programs of one build", name);
    if (fstat(fd, &info) < 0)
        return error_set(err, -errno, "%s: %s", name, strerror(errno));
    *out = (size_t)info.st_size;
    return 0;
}

void segment_close(struct segment *segment)
{
    if (!segment->base)
        return;
    munmap(segment->base, segment_rounded(segment->bytes));
    if (segment->fd >= 0)
        close(segment->fd);
    *segment = (struct segment){0};
}

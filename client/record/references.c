/* Reading makes the header anew from the numbers that were read, and compares bytes: so version, type, count and
 * checksum are checked at once. client_references_check alone, which does not know the count, parses it, and believes
 * it if the file is as long. */
#include "client/record/references.h"

#include "proto/model/output.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

enum { HEADER_BYTES = 128 };

/* https://numpy.org/doc/stable/reference/generated/numpy.lib.format.html, version 1.0: padded to a multiple of 64. */
static void make_header(char header[HEADER_BYTES + 1], const float *references, size_t n, uint64_t texts)
{
    const int room = HEADER_BYTES - 10 - 1;
    char shape[104];

    snprintf(shape, sizeof shape, "{'descr': '<f4', 'fortran_order': False, 'shape': (%zu,), } # xxh3 %016" PRIx64, n,
             (uint64_t)XXH3_64bits_withSeed(references, n * sizeof *references, texts));
    memcpy(header, "\x93NUMPY\1\0", 8);
    header[8] = (char)(room + 1), header[9] = 0;
    snprintf(header + 10, (size_t)room + 2, "%-*s\n", room, shape);
}

/* Times 3: equal checksums do not cancel out, and exchanged ones differ. */
uint64_t client_references_texts(uint64_t data_hash, uint64_t eval_data_hash)
{
    return data_hash ^ 3 * eval_data_hash;
}

int client_references_write(int directory_fd, const float *references, size_t n, uint64_t texts, struct error *err)
{
    static const char beside[] = "." CLIENT_REFERENCES;
    const size_t bytes = n * sizeof *references;
    char *file = malloc(HEADER_BYTES + 1 + bytes);
    int rc = file ? 0 : error_memory(err);

    if (!rc) {
        make_header(file, references, n, texts);
        memcpy(file + HEADER_BYTES, references, bytes);
        unlinkat(directory_fd, beside, 0); /* of a process that was killed */
        rc = output_write(directory_fd, beside, file, HEADER_BYTES + bytes, err);
    }
    if (!rc && renameat(directory_fd, beside, directory_fd, CLIENT_REFERENCES))
        rc = output_fail(err, -errno, directory_fd, CLIENT_REFERENCES, "written");
    free(file);
    return rc;
}

/* -EINVAL: the file ends before; else the disk's error, never that. */
static int references_read_all(int fd, void *to, size_t bytes)
{
    char *at = to;

    while (bytes > 0) {
        const ssize_t n = read(fd, at, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return n == 0 ? -EINVAL : errno == EINVAL ? -EIO : -errno;
        at += n, bytes -= (size_t)n;
    }
    return 0;
}

static int references_refuse(int rc, struct error *err)
{
    if (rc != -EINVAL)
        return error_set(err, rc, "%s: %s", CLIENT_REFERENCES, strerror(-rc));
    return error_set(err, -EINVAL,
                     "%s is damaged, or of other texts: copy it again from the run's directory, or start a new run",
                     CLIENT_REFERENCES);
}

static int open_beside(int directory_fd, struct error *err)
{
    int fd = openat(directory_fd, CLIENT_REFERENCES, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    struct stat info;

    if (fd < 0 && errno == ENOENT)
        fd = openat(directory_fd, "../" CLIENT_REFERENCES, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return error_set(
            err, -errno,
            "%s: %s: it has log p of each text by the model that the run began from, and lies in the run's "
            "directory: copy it from there",
            CLIENT_REFERENCES, strerror(errno));
    if (fstat(fd, &info) == 0 && S_ISREG(info.st_mode))
        return fd;
    close(fd);
    return references_refuse(-EINVAL, err);
}

static int references_read_whole(float *references, size_t n, uint64_t texts, int fd, struct error *err)
{
    char header[HEADER_BYTES + 1], want[HEADER_BYTES + 1], more;
    int rc = references_read_all(fd, header, HEADER_BYTES);

    if (!rc)
        rc = references_read_all(fd, references, n * sizeof *references);
    if (!rc)
        rc = read(fd, &more, 1) == 0 ? 0 : -EINVAL;
    if (rc)
        return references_refuse(rc, err);
    make_header(want, references, n, texts);
    return memcmp(header, want, HEADER_BYTES) == 0 ? 0 : references_refuse(-EINVAL, err);
}

int client_references_read(float *references, size_t n, uint64_t texts, int directory_fd, struct error *err)
{
    const int fd = open_beside(directory_fd, err);
    const int rc = fd < 0 ? fd : references_read_whole(references, n, texts, fd, err);

    if (fd >= 0)
        close(fd);
    return rc;
}

/* How many numbers the file has by its header, if it is as long as that says. Errors as references_read_all. */
static int references_count(size_t *n, int fd)
{
    static const char shape[] = "'shape': (";
    char header[HEADER_BYTES];
    struct stat info;
    const char *at;
    int rc = references_read_all(fd, header, HEADER_BYTES);

    if (rc)
        return rc;
    if (!(at = memmem(header, HEADER_BYTES - 1, shape, sizeof shape - 1)))
        return -EINVAL;
    header[HEADER_BYTES - 1] = 0;
    *n = strtoull(at + sizeof shape - 1, NULL, 10);
    return fstat(fd, &info) == 0 && lseek(fd, 0, SEEK_SET) == 0 &&
                   (uint64_t)info.st_size == HEADER_BYTES + (uint64_t)*n * sizeof(float)
               ? 0
               : -EINVAL;
}

int client_references_check(uint64_t texts, int directory_fd, struct error *err)
{
    const int fd = open_beside(directory_fd, err);
    float *references = NULL;
    size_t n = 0;
    int rc = fd < 0 ? fd : references_count(&n, fd);

    if (rc && fd >= 0)
        references_refuse(rc, err);
    if (!rc && !(references = malloc(n * sizeof *references + 1)))
        rc = error_memory(err);
    if (!rc)
        rc = references_read_whole(references, n, texts, fd, err);
    free(references);
    if (fd >= 0)
        close(fd);
    return rc;
}

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

int client_references_write(int directory_fd, const float *references, size_t n, uint64_t texts, struct error *err)
{
    static const char beside[] = "." CLIENT_REFERENCES;
    const size_t bytes = n * sizeof *references;
    char *file = malloc(HEADER_BYTES + 1 + bytes);
    int rc = file ? 0 : error_set(err, -ENOMEM, "out of memory");

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

/* False: the file ends before. */
static bool read_all(int fd, void *to, size_t bytes)
{
    char *at = to;

    while (bytes > 0) {
        const ssize_t n = read(fd, at, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        at += n, bytes -= (size_t)n;
    }
    return true;
}

int client_references_read(float *references, size_t n, uint64_t texts, int directory_fd, struct error *err)
{
    char header[HEADER_BYTES + 1], want[HEADER_BYTES + 1], more;
    int fd = openat(directory_fd, CLIENT_REFERENCES, O_RDONLY | O_CLOEXEC);

    if (fd < 0 && errno == ENOENT)
        fd = openat(directory_fd, "../" CLIENT_REFERENCES, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return error_set(
            err, -errno,
            "%s: %s: it has log p of each text by the model that the run began from, and lies in the run's "
            "directory: copy it from there",
            CLIENT_REFERENCES, strerror(errno));
    bool ok = read_all(fd, header, HEADER_BYTES) && read_all(fd, references, n * sizeof *references) &&
              read(fd, &more, 1) == 0;
    close(fd);
    make_header(want, references, n, texts);
    ok = ok && memcmp(header, want, HEADER_BYTES) == 0;
    return ok ? 0
              : error_set(
                    err, -EINVAL,
                    "%s is damaged, or of other texts: copy it again from the run's directory, or start a new run",
                    CLIENT_REFERENCES);
}

#include "tests/fuzz/fuzz.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

void fuzz_demand(bool promise)
{
    if (!promise)
        abort();
}

bool fuzz_took(int rc, const struct error *err)
{
    fuzz_demand(rc <= 0);
    if (rc == 0)
        return true;
    fuzz_demand(err->text[0] && memchr(err->text, 0, sizeof err->text));
    for (const char *c = err->text; *c; c++)
        fuzz_demand((unsigned char)*c >= ' ' && *c != 0x7F);
    return false;
}

const char *fuzz_directory(void)
{
    static char directory[PATH_MAX];
    const char *base = getenv("TMPDIR");

    if (!*directory) {
        snprintf(directory, sizeof directory, "%s/eps-fuzz-XXXXXX", base ? base : "/tmp");
        fuzz_demand(mkdtemp(directory) != NULL);
        setenv("TMPDIR", directory, 1);
        setenv("OMP_NUM_THREADS", "1", 1); /* an input is tokenised by one thread */
    }
    return directory;
}

static void write_all(int fd, const void *bytes, size_t n)
{
    fuzz_demand(fd >= 0 && ftruncate(fd, 0) == 0);
    fuzz_demand(pwrite(fd, bytes, n, 0) == (ssize_t)n && lseek(fd, 0, SEEK_SET) == 0);
}

const char *fuzz_write(const char *name, const void *bytes, size_t n)
{
    static char path[PATH_MAX + 256];

    snprintf(path, sizeof path, "%s/%s", fuzz_directory(), name);
    const int fd = open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600);
    write_all(fd, bytes, n);
    close(fd);
    return path;
}

int fuzz_file(const void *bytes, size_t n)
{
    static int fd = -1;

    if (fd < 0)
        fd = memfd_create("fuzz", MFD_CLOEXEC);
    write_all(fd, bytes, n);
    return fd;
}

bool fuzz_part(char **part, size_t *n_part, const uint8_t **bytes, size_t *n)
{
    const uint8_t *end = *n ? memchr(*bytes, 0, *n) : NULL;
    const size_t used = end ? (size_t)(end - *bytes) : *n;

    *part = NULL;
    if (*n == 0)
        return false;
    *part = strndup((const char *)*bytes, used);
    fuzz_demand(*part != NULL);
    *n_part = used;
    *n -= used + (end != NULL);
    *bytes += used + (end != NULL);
    return true;
}

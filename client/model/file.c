/* O_NONBLOCK is for opening alone: a FIFO in a model's place is then refused at once instead of waiting for a writer.
 * Of a regular file it changes nothing. A file that shrinks while it is read is an error, one that grows is read up to
 * its size at the beginning. */
#include "client/model/file.h"

#include "client/text/utf8.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

enum { MAX_JSON_BYTES = 64 << 20 }; /* an index lists every tensor; a config is short */

int client_file_open(const char *path, struct error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK), rc = 0;
    struct stat st;

    if (fd < 0)
        return error_set(err, -errno, "%s: %s", path, strerror(errno));
    if (fstat(fd, &st))
        rc = error_set(err, -errno, "%s: %s", path, strerror(errno));
    else if (!S_ISREG(st.st_mode))
        rc = error_set(err, -EINVAL, "%s: not a regular file", path);
    if (!rc)
        return fd;
    close(fd);
    return rc;
}

int client_file_read(char **out, size_t *n, int fd, const char *path, struct error *err)
{
    struct stat st;
    size_t used = 0;

    *out = NULL;
    if (fstat(fd, &st))
        return error_set(err, -errno, "%s: %s", path, strerror(errno));
    if (st.st_size > MAX_JSON_BYTES)
        return error_set(err, -EFBIG, "%s: %lld bytes are too large for a JSON file of a model", path,
                         (long long)st.st_size);
    *out = malloc((size_t)st.st_size + 1);
    if (!*out)
        return error_set(err, -ENOMEM, "%s: out of memory", path);
    while (used < (size_t)st.st_size) {
        ssize_t got = pread(fd, *out + used, (size_t)st.st_size - used, (off_t)used);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0) {
            free(*out);
            *out = NULL;
            return error_set(err, -EIO, "%s: %s", path, got < 0 ? strerror(errno) : "became shorter while it was read");
        }
        used += (size_t)got;
    }
    *n = used;
    return 0;
}

int client_file_join(char out[PATH_MAX], const char *directory, const char *name, struct error *err)
{
    if (snprintf(out, PATH_MAX, "%s/%s", directory, name) < PATH_MAX)
        return 0;
    return error_set(err, -ENAMETOOLONG, "%.200s: name too long", directory);
}

int client_file_check_name(const char *path, struct error *err)
{
    char *const real = realpath(path, NULL);
    const char *const name = real ? real : path;
    const bool is_text = client_utf8_whole((const uint8_t *)name, strlen(name)) == strlen(name);

    if (!is_text)
        error_set(err, -EINVAL, "%s: its name is not UTF-8, so a checkpoint cannot hold it: rename it", path);
    free(real);
    return is_text ? 0 : -EINVAL;
}

bool client_file_is_in(const char *directory, const char *name)
{
    char path[PATH_MAX];

    return client_file_join(path, directory, name, NULL) == 0 && access(path, F_OK) == 0;
}

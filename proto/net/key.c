/* What is checked is the open descriptor, not the name, which may be another file's a moment later. O_NONBLOCK: a pipe
 * in the file's place must not stop a daemon's start. A line has one length, so a file of any other is refused unread.
 *
 * All copies on the stack are wiped, on every way out. A file that could not be written is removed: half a key would be
 * in the way of the next attempt, as a key is never overwritten. */
#include "proto/net/key.h"

#include <errno.h>
#include <fcntl.h>
#include <sodium.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define PREFIX "eps-key-1 "

enum { PREFIX_BYTES = sizeof PREFIX - 1, DIGITS = 2 * KEY_BYTES, LINE_BYTES = PREFIX_BYTES + DIGITS + 1 };

static int write_key(int fd, struct error *err, const char *path)
{
    uint8_t key[KEY_BYTES];
    char line[LINE_BYTES + 1] = PREFIX;

    randombytes_buf(key, sizeof key);
    sodium_bin2hex(line + PREFIX_BYTES, DIGITS + 1, key, sizeof key);
    line[LINE_BYTES - 1] = '\n';
    ssize_t n = write(fd, line, LINE_BYTES);
    int rc = n == LINE_BYTES ? 0 : n < 0 ? -errno : -ENOSPC;
    if (!rc && fsync(fd) < 0)
        rc = -errno;
    sodium_memzero(key, sizeof key);
    sodium_memzero(line, sizeof line);
    return rc ? error_set(err, rc, "writing the key file %s: %s", path, strerror(-rc)) : 0;
}

int key_make(const char *path, struct error *err)
{
    int fd, rc;

    if (sodium_init() < 0)
        return error_set(err, -ENOSYS, "libsodium cannot be used on this system: it has no random bytes");
    fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (fd < 0 && errno == EEXIST)
        return error_set(err, -EEXIST, "%s exists: a key is never overwritten; choose another name, or remove it",
                         path);
    if (fd < 0)
        return error_set(err, -errno, "making the key file %s: %s", path, strerror(errno));
    rc = fchmod(fd, 0600) < 0 ? error_set(err, -errno, "%s: %s", path, strerror(errno)) : write_key(fd, err, path);
    close(fd);
    if (rc)
        unlink(path);
    return rc;
}

static int key_check_file(int fd, const char *path, struct error *err)
{
    struct stat info;

    if (fstat(fd, &info) < 0)
        return error_set(err, -errno, "%s: %s", path, strerror(errno));
    if (!S_ISREG(info.st_mode))
        return error_set(err, -EBADMSG, "the key file %s is not a regular file", path);
    if (info.st_uid != geteuid() && info.st_uid != 0)
        return error_set(err, -EACCES, "the key file %s belongs to user %u: use a file of your own", path,
                         (unsigned)info.st_uid);
    if (info.st_mode & 077)
        return error_set(err, -EACCES,
                         "the key file %s has mode %04o: others may have it; chmod 600 it, or make a new key", path,
                         (unsigned)info.st_mode & 07777);
    if (info.st_size != LINE_BYTES)
        return error_set(err, -EBADMSG, "%s has %lld bytes, a key file has %d: make one with epsd --make-key", path,
                         (long long)info.st_size, LINE_BYTES);
    return 0;
}

static bool key_parse(uint8_t *out, const char line[LINE_BYTES])
{
    size_t n = 0;

    return memcmp(line, PREFIX, PREFIX_BYTES) == 0 && line[LINE_BYTES - 1] == '\n' &&
           sodium_hex2bin(out, KEY_BYTES, line + PREFIX_BYTES, DIGITS, NULL, &n, NULL) == 0 && n == KEY_BYTES;
}

int key_read(uint8_t **out, const char *path, struct error *err)
{
    char line[LINE_BYTES];
    int rc, fd;

    *out = NULL;
    if (sodium_init() < 0)
        return error_set(err, -ENOSYS, "libsodium cannot be used on this system: it has no random bytes");
    fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0)
        return error_set(err, -errno, "the key file %s: %s%s", path, strerror(errno),
                         errno == ENOENT   ? ": make one with epsd --make-key, or copy the daemon's"
                         : errno == EACCES ? ": use a file of your own"
                                           : "");
    rc = key_check_file(fd, path, err);
    if (!rc && !(*out = sodium_malloc(KEY_BYTES)))
        rc = error_set(err, -ENOMEM, "there is no memory for the key of %s", path);
    if (!rc && (pread(fd, line, sizeof line, 0) != LINE_BYTES || !key_parse(*out, line)))
        rc = error_set(err, -EBADMSG, "%s is no key file: its line is not \"" PREFIX "\" and %d hexadecimal digits",
                       path, DIGITS);
    close(fd);
    sodium_memzero(line, sizeof line);
    if (rc) {
        key_free(*out);
        *out = NULL;
    }
    return rc;
}

void key_free(uint8_t *key)
{
    sodium_free(key);
}

/* A disk as slow as a test wants: a pwrite of the preloaded program waits as long as the file $SLOW_DISK is there, an
 * fsync as long as $SLOW_FLUSH is, and a pread of a file of weights, unless a save reads it back, as long as
 * $SLOW_READ is, beside which it makes $SLOW_READ.met. */
#include <fcntl.h>
#include <poll.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static void wait_while_held(const char *variable)
{
    const char *held = getenv(variable);

    while (held && access(held, F_OK) == 0)
        poll(NULL, 0, 1);
}

static void note_met(const char *variable)
{
    const char *held = getenv(variable);
    char path[500];

    if (!held || access(held, F_OK) != 0)
        return;
    snprintf(path, sizeof path, "%s.met", held);
    close(open(path, O_WRONLY | O_CREAT | O_CLOEXEC, 0600));
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
    wait_while_held("SLOW_DISK");
    return syscall(SYS_pwrite64, fd, data, n, offset);
}

static bool is_loaded(int fd)
{
    static const char end[] = ".safetensors";
    char link[40], path[500] = "";

    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    const ssize_t n = readlink(link, path, sizeof path - 1);
    return n >= (ssize_t)sizeof end && strcmp(path + n - sizeof end + 1, end) == 0 && !strstr(path, ".partial/");
}

ssize_t pread(int fd, void *data, size_t n, off_t offset)
{
    if (is_loaded(fd)) {
        note_met("SLOW_READ");
        wait_while_held("SLOW_READ");
    }
    return syscall(SYS_pread64, fd, data, n, offset);
}

int fsync(int fd)
{
    wait_while_held("SLOW_FLUSH");
    return (int)syscall(SYS_fsync, fd);
}

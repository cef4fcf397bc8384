/* A disk as slow as a test wants: a pwrite of the preloaded program waits as long as the file $SLOW_DISK is there, an
 * fsync as long as $SLOW_FLUSH is. */
#include <poll.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

static void wait_while_held(const char *variable)
{
    const char *held = getenv(variable);

    while (held && access(held, F_OK) == 0)
        poll(NULL, 0, 1);
}

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
    wait_while_held("SLOW_DISK");
    return syscall(SYS_pwrite64, fd, data, n, offset);
}

int fsync(int fd)
{
    wait_while_held("SLOW_FLUSH");
    return (int)syscall(SYS_fsync, fd);
}

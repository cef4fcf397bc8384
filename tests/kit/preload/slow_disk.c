/* A disk as slow as a test wants: a pwrite of the preloaded program waits as long as the file $SLOW_DISK is there. */
#include <poll.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/types.h>
#include <unistd.h>

ssize_t pwrite(int fd, const void *data, size_t n, off_t offset)
{
    const char *held = getenv("SLOW_DISK");

    while (held && access(held, F_OK) == 0)
        poll(NULL, 0, 1);
    return syscall(SYS_pwrite64, fd, data, n, offset);
}

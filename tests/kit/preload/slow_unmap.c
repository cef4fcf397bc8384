/* Memory that takes as long to give back as a test wants: a munmap of the preloaded program of 256 KiB or more waits as
 * long as the file $SLOW_UNMAP is there. */
#include <poll.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int munmap(void *base, size_t n)
{
    const char *held = getenv("SLOW_UNMAP");

    while (n >= 256 << 10 && held && access(held, F_OK) == 0)
        poll(NULL, 0, 1);
    return (int)syscall(SYS_munmap, base, n);
}

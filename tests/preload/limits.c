/* A host that allows less: to a preloaded program mlock2 fails with the error of number $LIMITS_LOCK, and its memory
 * limits are those of the directory $LIMITS_ROOT, which has /proc/self/cgroup and /sys/fs/cgroup of its own. */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

int mlock2(const void *base, size_t bytes, unsigned flags)
{
    const char *error = getenv("LIMITS_LOCK");

    if (!error)
        return (int)syscall(SYS_mlock2, base, bytes, flags);
    errno = atoi(error);
    return -1;
}

FILE *fopen(const char *path, const char *mode)
{
    FILE *(*const real)(const char *, const char *) = dlsym(RTLD_NEXT, "fopen");
    const char *root = getenv("LIMITS_ROOT");
    char other[PATH_MAX];

    if (!root || !(strcmp(path, "/proc/self/cgroup") == 0 || strncmp(path, "/sys/fs/cgroup", 14) == 0))
        return real(path, mode);
    snprintf(other, sizeof other, "%s%s", root, path);
    return real(other, mode);
}

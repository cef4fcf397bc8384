/* A host that allows less: to a preloaded program mlock2 fails with the error of number $LIMITS_LOCK, no more than
 * $LIMITS_THREADS threads can be made beside the first, at a time, and none after $LIMITS_THREADS_EVER, and its memory
 * limits are those of the directory $LIMITS_ROOT, which has /proc/self/cgroup and /sys/fs/cgroup of its own. */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
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

struct beginning {
    void *(*routine)(void *arg);
    void *arg;
};

static atomic_int n_threads, n_ever;

static void on_end(void *arg)
{
    (void)arg;
    n_threads--;
}

static void *begin(void *arg)
{
    const struct beginning beginning = *(struct beginning *)arg;
    void *result;

    free(arg);
    pthread_cleanup_push(on_end, NULL);
    result = beginning.routine(beginning.arg);
    pthread_cleanup_pop(1);
    return result;
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attributes, void *(*routine)(void *), void *arg)
{
    int (*const real)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *) =
        dlsym(RTLD_NEXT, "pthread_create");
    const char *most = getenv("LIMITS_THREADS"), *ever = getenv("LIMITS_THREADS_EVER");
    struct beginning *beginning = malloc(sizeof *beginning);

    if (!beginning || (n_threads++ >= (most ? atoi(most) : INT_MAX)) || (ever && n_ever++ >= atoi(ever))) {
        n_threads--;
        free(beginning);
        return EAGAIN;
    }
    *beginning = (struct beginning){routine, arg};
    const int rc = real(thread, attributes, begin, beginning);
    if (rc) {
        n_threads--;
        free(beginning);
    }
    return rc;
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

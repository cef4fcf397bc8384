/* Time that a test does not wait for. A machine that slept: once the file $JUMP_CLOCK is there, the preloaded program's
 * clocks are an hour later. And waits that are over at once: when the file $SKIP_WAITS is there, what its first thread
 * waits for in vain in epoll_wait takes no time, but its clocks go on as if it had; of that, SKIPPED_MS in all. */
#include <stdatomic.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* A session gives its daemon up after 60 s without a word, and the words may come too slowly for this. */
enum { SKIPPED_MS = 52000 };

static _Atomic long skipped_ms;

static int is_there(const char *variable)
{
    const char *path = getenv(variable);

    return path && access(path, F_OK) == 0;
}

int clock_gettime(clockid_t clock, struct timespec *now)
{
    const int rc = (int)syscall(SYS_clock_gettime, clock, now);
    const long skipped = skipped_ms;

    if (rc == 0 && is_there("JUMP_CLOCK"))
        now->tv_sec += 3600;
    if (rc == 0 && skipped > 0) {
        const long ns = now->tv_nsec + skipped % 1000 * 1000000;
        now->tv_sec += skipped / 1000 + ns / 1000000000;
        now->tv_nsec = ns % 1000000000;
    }
    return rc;
}

static int wait_for(int fd, struct epoll_event *events, int most, int ms, const sigset_t *set)
{
    const int skips = ms > 0 && skipped_ms + ms <= SKIPPED_MS && gettid() == getpid() && is_there("SKIP_WAITS");
    const int n = (int)syscall(SYS_epoll_pwait, fd, events, most, skips ? 0 : ms, set, sizeof(long));

    if (n == 0 && skips)
        skipped_ms += ms;
    return n;
}

int epoll_pwait(int fd, struct epoll_event *events, int most, int ms, const sigset_t *set)
{
    return wait_for(fd, events, most, ms, set);
}

int epoll_wait(int fd, struct epoll_event *events, int most, int ms)
{
    return wait_for(fd, events, most, ms, NULL);
}

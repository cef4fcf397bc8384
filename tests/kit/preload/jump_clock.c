/* A machine that slept: once the file $JUMP_CLOCK is there, the preloaded program's clocks are an hour later. */
#include <stdlib.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

int clock_gettime(clockid_t clock, struct timespec *now)
{
    const int rc = (int)syscall(SYS_clock_gettime, clock, now);
    const char *jump = getenv("JUMP_CLOCK");

    if (rc == 0 && jump && access(jump, F_OK) == 0)
        now->tv_sec += 3600;
    return rc;
}

#include "tools/interrupt.h"

#include <signal.h>

void interrupt_hold(void)
{
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    sigaddset(&set, SIGTERM);
    sigprocmask(SIG_BLOCK, &set, NULL);
}

int interrupt_pending(void)
{
    sigset_t pending;

    if (sigpending(&pending))
        return 0;
    if (sigismember(&pending, SIGINT) == 1)
        return SIGINT;
    return sigismember(&pending, SIGTERM) == 1 ? SIGTERM : 0;
}

int interrupt_should_stop(void *user)
{
    (void)user;
    return interrupt_pending() != 0;
}

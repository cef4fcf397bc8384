#include "tools/stopping.h"

#include <stddef.h>
#include <time.h>

void stopping_init(struct stopping *stopping)
{
    static const int numbers[] = {SIGINT, SIGTERM, SIGHUP, SIGPIPE};
    struct sigaction action;

    *stopping = (struct stopping){0};
    sigemptyset(&stopping->signals);
    for (size_t i = 0; i < sizeof numbers / sizeof *numbers; i++) {
        if (sigaction(numbers[i], NULL, &action) == 0 && action.sa_handler != SIG_IGN)
            sigaddset(&stopping->signals, numbers[i]);
    }
    sigprocmask(SIG_BLOCK, &stopping->signals, NULL);
}

int stopping_look(struct stopping *stopping)
{
    const struct timespec at_once = {0};
    int number;

    while ((number = sigtimedwait(&stopping->signals, NULL, &at_once)) > 0) {
        if (!stopping->first)
            stopping->first = number;
        if (number == SIGINT || number == SIGTERM)
            stopping->level = stopping->level < 2 ? stopping->level + 1 : 2;
        else if (stopping->level == 0)
            stopping->level = 1;
    }
    return stopping->level;
}

int stopping_should_stop(void *user)
{
    return stopping_look(user);
}

int stopping_status(struct stopping *stopping, int status)
{
    stopping_look(stopping);
    return stopping->first ? 128 + stopping->first : status;
}

#include "tests/kit/test.h"

#include "proto/base/thread.h"

static void *open_signals(void *arg)
{
    sigset_t mask;
    int *const n = arg;

    *n = 0;
    pthread_sigmask(SIG_SETMASK, NULL, &mask);
    for (int i = 1; i < 32; i++)
        *n += i != SIGKILL && i != SIGSTOP && !sigismember(&mask, i);
    return NULL;
}

TEST(a_thread_takes_no_signal_from_its_caller_who_takes_what_it_took)
{
    sigset_t before, after;
    pthread_t thread;
    int n = -1;

    sigemptyset(&before);
    sigaddset(&before, SIGUSR1);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    ck_assert_int_eq(thread_begin(&thread, open_signals, &n), 0);
    pthread_join(thread, NULL);
    ck_assert_int_eq(n, 0);
    pthread_sigmask(SIG_SETMASK, NULL, &after);
    for (int i = 1; i < 32; i++)
        ck_assert_int_eq(sigismember(&after, i), i == SIGUSR1);
}

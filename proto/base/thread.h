/* proto/base/thread.h - threads that leave signals to those who had them before. */
#ifndef PROTO_BASE_THREAD_H
#define PROTO_BASE_THREAD_H

#include <pthread.h>
#include <signal.h>

/* Begins run(arg) on a thread that has every signal blocked: the caller's threads, of libeps a program's own, handle
 * them. The caller's mask stays. 0, or -errno of pthread_create, with nothing begun. */
static inline int thread_begin(pthread_t *out, void *(*run)(void *arg), void *arg)
{
    sigset_t all, before;

    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int rc = -pthread_create(out, NULL, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return rc;
}

#endif

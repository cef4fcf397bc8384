#include "client/run/tidy.h"

#include <signal.h>
#include <unistd.h>

static void *work(void *data)
{
    struct client_tidy *t = data;

    fdatasync(t->metrics_fd); /* metrics are not part of the checkpoint: a failing disk must not end the run */
    for (size_t i = 0; i < t->n_steps; i++)
        client_checkpoints_remove(t->directory_fd, t->steps[i]);
    atomic_store(&t->done, true);
    return NULL;
}

void client_tidy_begin(struct client_tidy *t, struct client_checkpoints *checkpoints, uint32_t keep, int metrics_fd)
{
    sigset_t all, before;

    if (t->begun && !atomic_load(&t->done))
        return;
    client_tidy_end(t);
    t->done = false;
    t->directory_fd = checkpoints->directory_fd;
    t->metrics_fd = metrics_fd;
    t->n_steps = client_checkpoints_take_old(t->steps, CLIENT_TIDY_MOST, checkpoints, keep);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* the caller's threads handle signals */
    t->begun = pthread_create(&t->thread, NULL, work, t) == 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!t->begun)
        work(t);
}

void client_tidy_end(struct client_tidy *t)
{
    if (t->begun)
        pthread_join(t->thread, NULL);
    t->begun = false;
}

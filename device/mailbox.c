#include "device/mailbox.h"

#include <assert.h>
#include <string.h>

void mailbox_init(struct mailbox *box, void (*on_out)(void *context), void *context)
{
    memset(box, 0, sizeof *box);
    pthread_mutex_init(&box->mutex, NULL);
    pthread_cond_init(&box->changed, NULL);
    box->on_out = on_out;
    box->context = context;
}

static void move_on(struct mailbox *box)
{
    __atomic_fetch_add(&box->progress, 1, __ATOMIC_RELAXED);
}

static struct mail *ring_push(struct mailbox_ring *ring)
{
    return &ring->entries[(ring->first + ring->n++) % MAILBOX_ENTRIES];
}

static const struct mail *ring_pop(struct mailbox_ring *ring)
{
    const struct mail *mail = &ring->entries[ring->first];

    ring->first = (ring->first + 1) % MAILBOX_ENTRIES;
    ring->n--;
    return mail;
}

bool mailbox_deliver(struct mailbox *box, const struct message *m, const int *fds, unsigned n_fds)
{
    assert(n_fds <= MAILBOX_FDS);
    pthread_mutex_lock(&box->mutex);
    const bool room = box->in.n < MAILBOX_ENTRIES;
    if (room) {
        struct mail *mail = ring_push(&box->in);
        mail->message = *m;
        mail->n_fds = n_fds;
        for (unsigned i = 0; i < n_fds; i++)
            mail->fds[i] = fds[i];
        pthread_cond_broadcast(&box->changed);
    }
    pthread_mutex_unlock(&box->mutex);
    return room;
}

bool mailbox_collect(struct mailbox *box, struct message *m)
{
    pthread_mutex_lock(&box->mutex);
    const bool any = box->out.n > 0;
    if (any) {
        *m = ring_pop(&box->out)->message;
        pthread_cond_broadcast(&box->changed);
    }
    pthread_mutex_unlock(&box->mutex);
    return any;
}

void mailbox_wait(struct mailbox *box, struct mail *mail)
{
    pthread_mutex_lock(&box->mutex);
    while (!box->in.n)
        pthread_cond_wait(&box->changed, &box->mutex);
    *mail = *ring_pop(&box->in);
    pthread_mutex_unlock(&box->mutex);
    move_on(box);
}

bool mailbox_poll(struct mailbox *box, struct mail *mail)
{
    pthread_mutex_lock(&box->mutex);
    const bool any = box->in.n > 0;
    if (any)
        *mail = *ring_pop(&box->in);
    pthread_mutex_unlock(&box->mutex);
    return any;
}

void mailbox_post(struct mailbox *box, const struct message *m)
{
    pthread_mutex_lock(&box->mutex);
    while (box->out.n == MAILBOX_ENTRIES)
        pthread_cond_wait(&box->changed, &box->mutex);
    ring_push(&box->out)->message = *m;
    pthread_mutex_unlock(&box->mutex);
    move_on(box);
    box->on_out(box->context);
}

/* A slot is freed in its turn among the messages: n_come says how many were put in before it, so it is taken once these
 * are, though it lies elsewhere. If it overtook one, a slot would be free while a message that came earlier still names
 * it. The loop is woken after the mutex is released, as it will take that at once. */
#include "device/worker/mailbox.h"

#include <assert.h>
#include <string.h>

enum mail_kind mail_kind(const struct message *m)
{
    static const enum mail_kind kinds[MESSAGE_KINDS] = {
        [MESSAGE_ASSIGN] = MAIL_ASSIGN,     [MESSAGE_RELEASE] = MAIL_RELEASE,   [MESSAGE_SHARE] = MAIL_SHARE,
        [MESSAGE_EVALUATE] = MAIL_EVALUATE, [MESSAGE_GENERATE] = MAIL_GENERATE, [MESSAGE_WEIGHTS] = MAIL_WEIGHTS,
        [MESSAGE_VOID] = MAIL_VOID,         [MESSAGE_FREE] = MAIL_FREE,         [MESSAGE_GRANT] = MAIL_GRANT};

    return kinds[m->kind];
}

void mailbox_init(struct mailbox *box, void (*on_out)(void *context), void *context)
{
    memset(box, 0, sizeof *box);
    pthread_mutex_init(&box->mutex, NULL);
    pthread_cond_init(&box->changed, NULL);
    box->on_out = on_out;
    box->context = context;
}

static void mailbox_move_on(struct mailbox *box)
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

static bool keep_freed(struct mailbox *box, uint32_t slot)
{
    const size_t most = sizeof box->freed.entries / sizeof *box->freed.entries;
    const size_t at = (box->freed.first + box->freed.n) % most;

    if (box->freed.n == most)
        return false;
    box->freed.entries[at].slot = slot;
    box->freed.entries[at].before = box->n_come;
    box->freed.n++;
    return true;
}

static bool has_any(const struct mailbox *box)
{
    return box->in.n > 0 || box->freed.n > 0;
}

/* Takes the oldest message; there must be one. A slot is freed in its turn: once all that came before was taken. */
static struct mail mailbox_take(struct mailbox *box)
{
    const size_t most = sizeof box->freed.entries / sizeof *box->freed.entries, at = box->freed.first;
    const uint32_t n_taken = box->n_come - (uint32_t)box->in.n;

    if (box->freed.n == 0 || box->freed.entries[at].before != n_taken)
        return *ring_pop(&box->in);
    box->freed.first = (at + 1) % most;
    box->freed.n--;
    return (struct mail){.message = {.kind = MESSAGE_FREE, .free = {.slot = box->freed.entries[at].slot}}};
}

static bool mailbox_keep(struct mailbox *box, const struct message *m, const int *fds, unsigned n_fds)
{
    if (box->in.n == MAILBOX_ENTRIES)
        return false;
    struct mail *mail = ring_push(&box->in);
    box->n_come++;
    mail->message = *m;
    mail->n_fds = n_fds;
    for (unsigned i = 0; i < n_fds; i++)
        mail->fds[i] = fds[i];
    return true;
}

bool mailbox_deliver(struct mailbox *box, const struct message *m, const int *fds, unsigned n_fds)
{
    assert(n_fds <= MAILBOX_FDS);
    pthread_mutex_lock(&box->mutex);
    const bool room = m->kind == MESSAGE_FREE ? keep_freed(box, m->free.slot) : mailbox_keep(box, m, fds, n_fds);
    if (room)
        pthread_cond_broadcast(&box->changed);
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
    while (!has_any(box))
        pthread_cond_wait(&box->changed, &box->mutex);
    *mail = mailbox_take(box);
    pthread_mutex_unlock(&box->mutex);
    mailbox_move_on(box);
}

bool mailbox_poll(struct mailbox *box, struct mail *mail)
{
    pthread_mutex_lock(&box->mutex);
    const bool any = has_any(box);
    if (any)
        *mail = mailbox_take(box);
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
    mailbox_move_on(box);
    box->on_out(box->context);
}

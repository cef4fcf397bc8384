/* device/worker/mailbox.h - messages between the worker's two threads.
 *
 * The main thread runs the event loop, so it answers pings and notices the daemon's death while a layer computes. The
 * compute thread owns the device and waits here for work. Both directions are rings of fixed size: messages need no
 * allocation. A daemon can send only a bounded number of messages before the worker must answer; one that sends more is
 * at fault. While the compute thread is busy, any number of slots may be freed; these are recorded separately, in a few
 * bytes each. */
#ifndef DEVICE_WORKER_MAILBOX_H
#define DEVICE_WORKER_MAILBOX_H

#include "proto/plan/memory/host.h"
#include "proto/wire/message.h"

#include <pthread.h>
#include <stdbool.h>

enum { MAILBOX_ENTRIES = 128, MAILBOX_FDS = 6, MAILBOX_MAX_SLOTS = PLAN_HOST_MAX_SLOTS };

/* Messages from a daemon to a worker. */
enum mail_kind {
    MAIL_NONE,     /* no message for a worker: ignored */
    MAIL_ASSIGN,   /* a job begins */
    MAIL_RELEASE,  /* the job is over */
    MAIL_SHARE,    /* a share of a step; this and the next two are work */
    MAIL_EVALUATE, /* an evaluation */
    MAIL_GENERATE,
    MAIL_WEIGHTS, /* answers a pull */
    MAIL_VOID,    /* answers a stale one */
    MAIL_FREE,    /* frees a slot */
    MAIL_GRANT,   /* grants the reserved slot */
};
enum mail_kind mail_kind(const struct message *m);

struct mail {
    struct message message;
    int fds[MAILBOX_FDS]; /* ASSIGN's; the receiver closes them */
    unsigned n_fds;
};

struct mailbox {
    pthread_mutex_t mutex;
    pthread_cond_t changed;
    struct mailbox_ring {
        struct mail entries[MAILBOX_ENTRIES];
        size_t first, n;
    } in, out;
    struct {
        struct {
            uint32_t slot, before; /* before: n_come when the slot was freed */
        } entries[1 + MAILBOX_MAX_SLOTS];
        size_t first, n;
    } freed;
    uint32_t n_come;   /* messages put into `in` so far */
    uint64_t progress; /* raised by the compute thread for each message and device operation; accessed by __atomic */
    void (*on_out)(void *context); /* wakes the loop; called on the compute thread */
    void *context;
};

void mailbox_init(struct mailbox *box, void (*on_out)(void *context), void *context);

/* Main thread: puts a message in; only the slot of a FREE is stored. False if the ring is full, or if more slots are
 * freed than can be in use. */
bool mailbox_deliver(struct mailbox *box, const struct message *m, const int *fds, unsigned n_fds);
/* Main thread: takes the oldest message to send; false if there is none. */
bool mailbox_collect(struct mailbox *box, struct message *m);
/* Compute thread: waits for the next message. */
void mailbox_wait(struct mailbox *box, struct mail *mail);
/* Compute thread: takes the next message if there is one; false otherwise. */
bool mailbox_poll(struct mailbox *box, struct mail *mail);
/* Compute thread: queues a message to send; waits if the ring is full. */
void mailbox_post(struct mailbox *box, const struct message *m);

#endif

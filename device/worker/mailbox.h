/* device/worker/mailbox.h - messages between the worker's two threads.
 *
 * The main thread talks: it runs the event loop, so that pings are answered and the daemon's death is noticed while a
 * layer computes. The compute thread owns the device and waits here for what to do. Both directions are rings of fixed
 * size: nothing is allocated per message. The daemon has only so many things to say before the worker must answer; one
 * that says more is at fault. Slots are freed while the compute thread is busy elsewhere, any number of them: that is
 * kept apart, a few bytes for each. */
#ifndef DEVICE_WORKER_MAILBOX_H
#define DEVICE_WORKER_MAILBOX_H

#include "proto/plan/host.h"
#include "proto/wire/message.h"

#include <pthread.h>
#include <stdbool.h>

enum { MAILBOX_ENTRIES = 128, MAILBOX_FDS = 6, MAILBOX_MAX_SLOTS = PLAN_HOST_MAX_SLOTS };

/* What a daemon says to a worker. */
enum mail_kind {
    MAIL_ASSIGN,   /* a job begins */
    MAIL_RELEASE,  /* it is over */
    MAIL_SHARE,    /* of a step; this, and the next two, are work */
    MAIL_EVALUATE, /* of an evaluation */
    MAIL_GENERATE,
    MAIL_WEIGHTS, /* a pull is answered */
    MAIL_FREE,    /* a slot is */
    MAIL_GRANT,   /* the reserved slot is */
    MAIL_NONE,    /* nothing that a worker is told: passed over */
};
enum mail_kind mail_kind(const struct message *m);

struct mail {
    struct message message;
    int fds[MAILBOX_FDS]; /* of ASSIGN: the taker's to close */
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
            uint32_t slot, before; /* before: messages that had come by then, as n_come counts */
        } entries[1 + MAILBOX_MAX_SLOTS];
        size_t first, n;
    } freed;
    uint32_t n_come;   /* into `in`, ever */
    uint64_t progress; /* the compute thread's: messages and operations of the device; raised and read by __atomic */
    void (*on_out)(void *context); /* wakes the loop: called on the compute thread */
    void *context;
};

void mailbox_init(struct mailbox *box, void (*on_out)(void *context), void *context);

/* Main thread: hands a message in; false if the ring is full, or no more slots can be in use. Of FREE the slot alone is
 * kept. */
bool mailbox_deliver(struct mailbox *box, const struct message *m, const int *fds, unsigned n_fds);
/* Main thread: takes the oldest message that is to be sent; false if there is none. */
bool mailbox_collect(struct mailbox *box, struct message *m);
/* Compute thread: waits for the next message. */
void mailbox_wait(struct mailbox *box, struct mail *mail);
/* Compute thread: takes the next message if there is one; false otherwise. */
bool mailbox_poll(struct mailbox *box, struct mail *mail);
/* Compute thread: leaves a message to be sent; waits if the ring is full. */
void mailbox_post(struct mailbox *box, const struct message *m);

#endif

/* eps/settle.h - the daemon's parts, and the order of things among them. For eps/dispatch.c, where messages come in, and
 * eps/daemon.c, which starts and stops it all. */
#ifndef EPS_SETTLE_H
#define EPS_SETTLE_H

#include "eps/step/steps.h"
#include "eps/job/watch.h"
#include "eps/observe/look.h"

struct daemon {
    struct hub hub;
    struct job job;
    struct saves saves;
    struct steps steps;
    struct look look;
    struct watch watch;
    struct session_listener *listener;
    uv_signal_t sigterm, sigint, sighup;
    uv_timer_t lonely;    /* a private daemon's patience until its client comes */
    uv_timer_t tick;      /* each second */
    int messages_held;    /* session_hold_thread's */
    uv_work_t first_work; /* none: libuv makes its threads for it */
    struct {              /* a request that came while the last job's memory was being given back */
        struct peer *client;
        struct message request;
        int fds[SESSION_MAX_FDS];
        unsigned n_fds;
    } waiting;
    uint32_t first_client; /* its id; 0: none has come */
    const char *asked;     /* to stop, and how; NULL: not */
    unsigned n_ticks;      /* since then: the client, which was asked to stop, has so many at most */
    bool stopping;
    int exit_code;
};

/* eps/dispatch.c, for session_listen, whose data is the daemon. A message that is malformed, out of place or not its role's
 * costs its sender the session, and nobody else anything. */
extern const struct session_events dispatch_events;

/* Brings to rest what a callback of the loop has changed: each of them ends with it. */
void settle(struct daemon *d);

/* A client's request: begun, refused, or kept while the last job's memory is given back. Takes fds. */
void settle_open_job(struct daemon *d, struct peer *client, const struct message *m, const int *fds, unsigned n_fds);
/* It has gone: a request of its that was kept is forgotten. */
void settle_forget(struct daemon *d, const struct peer *client);

/* Stops the daemon; first a client in training is asked to end its run, and waited for, unless that was done before.
 * why: "by ...", a constant. */
void settle_ask_to_stop(struct daemon *d, const char *why);
void settle_stop(struct daemon *d, const char *why); /* at once */
/* A second has passed. */
void settle_tick(struct daemon *d);

#endif

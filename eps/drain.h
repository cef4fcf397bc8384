/* eps/drain.h - the daemon's parts, and the order in which they run. For eps/dispatch.c, which takes messages in,
 * and eps/daemon.c, which starts and stops all parts. */
#ifndef EPS_DRAIN_H
#define EPS_DRAIN_H

#include "eps/step/sharded.h"
#include "eps/job/queue.h"
#include "eps/job/watch.h"
#include "eps/observe/observe.h"
#include "proto/net/port.h"

enum { PATIENCE_TICKS = 60 }; /* for a client that was asked to save; ticks, as a suspended machine has none */

struct daemon {
    struct peers peers;
    struct job *job;      /* the present one, or JOB_NONE; owned */
    struct aside *asides; /* jobs that were set aside (eps/aside.h) */
    bool stuck;           /* the present job hangs and cannot be set aside, so no other begins */
    struct saves saves;
    struct steps steps;
    struct sharded *sharded; /* the other daemons that a launcher started with this one; NULL: it is alone */
    struct observer observer;
    struct watch watch;
    struct notify *notify; /* daemon_run's */
    struct session_listener *listener;
    struct port *port; /* the tcp port; NULL: none */
    uv_signal_t sigterm, sigint, sighup, sigusr1;
    uv_timer_t judge;      /* several hosts: how long the others may take to say that the launcher has told them, too */
    struct error launcher; /* what the launcher did, once that is judged; empty before */
    bool told;             /* the launcher has told a host to stop */
    bool answered;         /* all hosts have said whether the launcher told them */
    bool by_loss;          /* the daemon stops because another host is lost, or may be: nobody asked for it */
    uv_timer_t tick;       /* each second */
    int messages_held;     /* session_hold_thread's */
    uv_work_t first_work;  /* needs no handle: libuv makes its threads for it */
    struct queue queue;    /* jobs that wait for the present one's end */
    uint32_t n_jobs;       /* jobs numbered so far */
    uint32_t first_client; /* id of the first client that asked for anything; 0: none has */
    const char *asked;     /* why the daemon is stopping; NULL: it is not */
    bool signalled;        /* a signal asked it to stop */
    bool told_by_up;       /* eps up asked it to stop */
    unsigned n_ticks;      /* ticks since it was asked to stop */
    unsigned patience;     /* ticks that the client may take then */
    unsigned most_away;    /* ticks that others wait for a client which asks for nothing */
    long parent;           /* a private one: the process that started it, which is its client's */
    unsigned end_ticks;    /* a private one: ticks since it is stopping, and that process has ended */
    bool stopping;
    int exit_code;
    struct error why; /* the sentence of exit_code */
};

/* In eps/dispatch.c; for session_listen, whose data is the daemon. A message that is malformed, out of place or
 * wrong for its sender's role ends the sender's session, and affects nobody else. */
extern const struct session_events dispatch_events;

/* Brings everything that a callback changed to rest. Each of the loop's callbacks ends with this call. */
void drain_events(struct daemon *d);

/* Makes `job`, an empty one, the present job, and tells every part. Takes it. */
void daemon_use_job(struct daemon *d, struct job *job);
/* Has the loop call drain_events. Any thread; context: the daemon. */
void daemon_wake(void *context);

/* Begins a client's job, queues it, or refuses it. Takes fds. */
void daemon_open_job(struct daemon *d, struct peer *client, const struct message *m, const int *fds, unsigned n_fds);

/* Stops the daemon. A client in training is first asked, once, to end its run, and the daemon waits for it. Further
 * callers wait with the first; one who asks `again` does not, and the daemon stops at once. why: "by ...", a
 * constant. */
void daemon_ask_to_stop(struct daemon *d, const char *why, bool again);
/* The launcher has told this host, one of several, to stop, and kills soon after. Either the launcher itself was
 * stopped, and tells all hosts, or it ends those that are left after a loss: the hosts tell each other. Without time to
 * save, the daemon stops then. */
void daemon_on_launcher(struct daemon *d);
void daemon_judge(struct daemon *d); /* the other hosts' answers are known, or are waited for no longer */
void daemon_stop(struct daemon *d, const char *why); /* stops at once */
/* The client of a private daemon is gone. Stops; a job that is detached is saved first, for which it has 60 s, and 1 s
 * more for each 64 MiB of its memory. */
void daemon_lose_client(struct daemon *d);
/* One second has passed. */
void daemon_tick(struct daemon *d);

#endif

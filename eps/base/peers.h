/* eps/base/peers.h - shared by all parts of the daemon: the attached peers, and the events that parts post to each other.
 *
 * One thread, libuv's loop, runs all parts. A second thread, the optimizer's (eps/store/updater.h), computes. Parts
 * call downwards only: dispatch and watch, steps and evaluate, save, job, peers. A part posts an event to reach a part
 * above it. One function takes the events, oldest first, each to its end: drain_events, in eps/drain.c. It runs before
 * the loop calls anything else or sleeps. */
#ifndef EPS_BASE_PEERS_H
#define EPS_BASE_PEERS_H

#include "eps/base/throughput.h"
#include "eps/base/progress.h"
#include "eps/store/updater.h"
#include "proto/plan/memory/host.h"
#include "proto/plan/memory/plan.h"
#include "proto/wire/files.h"
#include "proto/wire/session.h"

#include <uv.h>

/* What a worker is doing with the job's memory. */
enum peer_state {
    PEER_IDLE,      /* until a job assigns it */
    PEER_JOINING,   /* chosen by a job under way; until its memory there is ready */
    PEER_ASSIGNING, /* ASSIGN sent; until ASSIGNED or REFUSED arrives */
    PEER_ASSIGNED,  /* until the job ends, or takes its seat back */
    PEER_RELEASING, /* RELEASE sent; until its answer arrives. Only then does it use the job's memory no longer */
};

struct peer {
    struct peer *next;
    struct session *session;
    enum message_role role;
    uint32_t id;
    bool refused; /* it is at fault, and its session is ending */
    /* What a viewer asked (eps/observe/observe.h): */
    unsigned n_asked;   /* answers to MEMORY that wait for figures from the system */
    uint32_t n_awaited; /* its status request waits until this many workers are attached; 0: no request waits */
    /* What it has asked to end; asked again, that ends at once (eps/dispatch.c): */
    bool stops_daemon;
    uint32_t stops_job; /* 0: none */
    /* Files that a client or viewer serves, for a job or a snapshot that it is about to ask for; or NULL. */
    struct files *files;
    /* Of a worker, to the end of the struct: */
    char device[32], model[64], host[64];
    const struct plan_backend *backend; /* NULL: the planner does not know such devices */
    uint64_t budget, library_bytes;
    enum plan_attention attention; /* what its device supports */
    struct profile profile;        /* as the worker sent it, or its device's default */
    enum peer_state state;
    bool suspect; /* its gradient of the open step was not finite; another attempt at it decides whose fault that is */
    bool leaves;  /* its session ends once its share is done */
    uint32_t n_parts;     /* parts to plan it for, once its share is done; 0: it stays as it is planned */
    struct plan plan;     /* the job's plan for its device; all zero while it has none of a job's memory */
    struct ledger ledger; /* as it last reported */
    struct progress progress;
    struct silence silence;
    struct deadline deadline;
    uint32_t n_pulls;             /* pulls not answered yet */
    bool awaits;                  /* one of them waits for weights that another host has */
    struct throughput throughput; /* how fast it has been in the present job */
    bool unfit;                   /* it is left out of the present job: */
    struct error why_unfit;
    bool announced_unfit; /* the job's client knows */
};

/* Appends a peer to a list ordered by id. NULL: -ENOMEM. Owned: peer_remove. */
struct peer *peer_add(struct peer **peers, struct session *s, const struct message *hello);
void peer_remove(struct peer **peers, struct peer *peer);
struct peer *peer_find(struct peer *peers, uint32_t id); /* NULL: the peer has gone */
unsigned peer_count_workers(const struct peer *peers);

/* No worker has memory in a job. */
void peer_forget_plans(struct peer *peers);

/* Logs the reason and ends the peer's session. The loop reports later that the session has closed. */
void peer_refuse(struct peer *peer, const char *reason);
/* Sends REFUSED: the request cannot be met. The peer stays attached. */
void peer_decline(struct peer *peer, int code, const struct error *err);

enum {
    PEERS_MAX_WORKERS = MESSAGE_MAX_PARTS,
    EVENT_MAX = PLAN_HOST_SAVES + 1, /* each save announces itself once, and one is with the writer */
};

enum event_kind {
    EVENT_ANNOUNCED, /* reader: a save has its version; the relay must hear of its reader before any other event */
    EVENT_WRITTEN,   /* the writer has finished what it was given */
};

struct event {
    enum event_kind kind;
    uint32_t reader;
};

struct peers {
    uv_loop_t *loop;
    struct updater *updater;
    struct peer *first;     /* in order of id */
    struct ledger ledger;   /* of this process */
    uint64_t host_mem;      /* limit for jobs, in bytes; 0: free memory */
    uint64_t aside_bytes;   /* of jobs that were set aside (eps/aside.h), in the ledger, too */
    bool shares_workers;    /* everybody's workers compute everybody's jobs: eps/base/rights.h */
    bool is_private;        /* the daemon ends with its first client and serves no other */
    uint32_t host, n_hosts; /* of the daemons that a launcher started together; n_hosts 0: this one is alone */
    uint32_t n_elsewhere;   /* workers of the other hosts, as they told host 0 */
    uint32_t lacks;         /* the first of these hosts that has none; 0: there is none */
    uint32_t host_slots;    /* for another host's contributions */
    /* Bytes of a job's tables: for each host, unit and slice. */
    uint32_t host_bytes, host_unit_bytes, host_slice_bytes;
    unsigned said;   /* MEMORY_...: refusals of the system that are logged already */
    uv_async_t wake; /* wakes the loop: something was posted, or the optimizer thread has finished a task */
    struct event events[EVENT_MAX]; /* (n_events) a ring that begins at first_event */
    unsigned first_event, n_events;
};

/* On the loop's thread only. */
void event_post(struct peers *peers, const struct event *event);
bool event_take(struct peers *peers, struct event *event); /* takes the oldest; false: there is none */

#endif

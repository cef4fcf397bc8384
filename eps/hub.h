/* eps/hub.h - what the parts of the daemon share: who is attached, and what they post to each other.
 *
 * One thread, libuv's loop, runs them all; a second one, the optimizer's (eps/store/updater.h), computes. Parts call
 * downwards only: dispatch and watch, steps and evaluate, save, job, hub. Whoever has something for a part above posts an
 * event. Events are taken one at a time, oldest first, each to its end, by the one function that knows the order of
 * things (settle, in eps/settle.c), before the loop calls anything else or sleeps. */
#ifndef EPS_HUB_H
#define EPS_HUB_H

#include "eps/progress.h"
#include "eps/store/updater.h"
#include "proto/plan/host.h"
#include "proto/plan/plan.h"
#include "proto/wire/session.h"

#include <uv.h>

/* What a worker is doing with the job's memory. */
enum peer_state {
    PEER_IDLE,      /* until it is assigned */
    PEER_ASSIGNING, /* ASSIGN sent; until ASSIGNED or REFUSED */
    PEER_ASSIGNED,  /* until the job ends */
    PEER_RELEASING, /* RELEASE sent; until it comes back. Only then is nothing of the old job under way */
};

struct peer {
    struct peer *next;
    struct session *session;
    enum message_role role;
    uint32_t id;
    bool refused; /* its session is ending, by its fault */
    /* What it asked (eps/observe/look.h): */
    unsigned n_asked;   /* answers to MEMORY that wait for what the system says */
    uint32_t n_awaited; /* workers for which its question for the status waits; 0: none does */
    /* Of a worker; all below too: */
    char device[32], model[64];
    const struct plan_backend *backend; /* NULL: nothing is known of such devices */
    uint64_t budget, library_bytes;
    enum plan_attention attention; /* that its device can */
    struct profile profile;        /* as it said, or its device's default */
    enum peer_state state;
    bool not_finite;             /* the last job with it ended by its gradient */
    struct plan plan;            /* the job's of its device; all zero between jobs */
    const struct segment *inbox; /* the job's; NULL between jobs */
    struct ledger ledger;        /* as it last said */
    struct progress progress;
    struct silence silence;
    uint32_t n_pulls; /* not answered */
    bool evaluating;
    double evaluated; /* its part of the evaluation under way */
};

/* The newest of a list that is in order of id. -ENOMEM: NULL. Owned: peer_remove. */
struct peer *peer_add(struct peer **peers, struct session *s, const struct message *hello);
void peer_remove(struct peer **peers, struct peer *peer);
struct peer *peer_find(struct peer *peers, uint32_t id); /* NULL: it has gone */
unsigned peer_count_workers(const struct peer *peers);

/* Says so in the log, and ends its session: that it has closed comes from the loop. */
void peer_refuse(struct peer *peer, const char *reason);
/* REFUSED: what it asked for cannot be had. It stays. */
void peer_decline(struct peer *peer, int code, const struct error *err);

enum {
    HUB_MAX_WORKERS = MESSAGE_MAX_PARTS,
    HUB_MAX_EVENTS = PLAN_HOST_SAVES + 1, /* each save announces itself once, and one is with the writer */
};

enum event_kind {
    EVENT_ANNOUNCED, /* reader: a save has its version; the relay is to know its reader before anything moves on */
    EVENT_WRITTEN,   /* the writer is through with what it was given */
};

struct event {
    enum event_kind kind;
    uint32_t reader;
};

struct hub {
    uv_loop_t *loop;
    struct updater *updater;
    struct peer *peers;   /* in order of id */
    struct ledger ledger; /* of this process */
    uint64_t host_mem;    /* bytes that a job may take; 0: what is free */
    bool is_private;      /* ends with its first client, and serves no other */
    unsigned said;        /* MEMORY_...: what the log says already of what the system does not allow */
    uv_async_t wake;      /* the loop: something was posted, or the optimizer thread has finished something */
    struct event events[HUB_MAX_EVENTS]; /* (n_events) from first_event on, around */
    unsigned first_event, n_events;
};

/* From the loop's thread. */
void hub_post(struct hub *hub, const struct event *event);
bool hub_take(struct hub *hub, struct event *event); /* the oldest; false: there is none */

#endif

/* eps/base/peer.h - one attached process: a client, a worker or a viewer, and what the daemon knows of it. */
#ifndef EPS_BASE_PEER_H
#define EPS_BASE_PEER_H

#include "eps/base/progress.h"
#include "eps/base/throughput.h"
#include "proto/plan/memory/plan.h"
#include "proto/wire/message.h"

struct files;
struct session;

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
    uint32_t id;      /* of a worker counted from 1, of others the session's: unique among workers, and among others */
    bool refused;     /* its fault has been logged, and its session is ending */
    unsigned n_asked; /* viewer: answers to MEMORY that wait for figures from the system (eps/observe/observe.h) */
    uint32_t n_awaited; /* viewer: its status request waits until this many workers are attached; 0: no request waits */
    bool stops_daemon;  /* it has requested the daemon's end; a second request ends it at once (eps/dispatch.c) */
    uint32_t stops_job; /* the job whose end it has requested, likewise; 0: none */
    struct files *files; /* what a client or viewer serves for the job or snapshot it will ask for next; or NULL */
    /* ---- a worker's, to the end of the struct ---- */
    char device[32], model[64], host[64];
    char bus[DEVICE_BUS_BYTES]; /* its device's place on this host's PCI bus; "": not known, or on another host */
    const struct plan_backend *backend; /* NULL: the planner does not know such devices */
    uint64_t budget, library_bytes;
    enum plan_attention attention; /* the best way that its device supports */
    uint32_t convolution;          /* its library of convolutions (device_facts); 0: none */
    struct profile profile;        /* as the worker sent it, or its device's default */
    bool measured;                 /* the worker sent it */
    enum peer_state state;
    bool suspect;     /* its gradient of the open step was not finite; another attempt decides whose fault that is */
    bool leaves;      /* its session ends once its share is done */
    uint32_t n_parts; /* parts to plan it for, once its share is done; 0: it stays as it is planned */
    uint64_t accused; /* step, from 1, whose audit found it wrong: memory is looked through first; 0: none */
    struct plan plan; /* the job's plan for its device; all zero while it has none of a job's memory */
    struct ledger ledger; /* as it last reported */
    struct progress progress;
    struct silence silence;
    struct deadline deadline;
    uint32_t n_pulls;             /* pulls not answered yet */
    bool awaits;                  /* a pull of it waits for weights that another host has */
    struct throughput throughput; /* how fast it has been in the present job */
    bool unfit;                   /* it is left out of the present job, for the reason in why_unfit */
    struct error why_unfit;
    bool announced_unfit; /* the job's client knows */
    uint32_t retry_ticks; /* until it is asked again, as memory was short; 0: it is not, in this job */
    uint32_t retry_pause; /* the last such pause, ticks; 0: there was none */
};

/* Appends a peer. Ids of workers rise along the list, and so do those of others. NULL: -ENOMEM. Owned: peer_remove. */
struct peer *peer_add(struct peer **peers, struct session *s, const struct message *hello, uint32_t id);
void peer_remove(struct peer **peers, struct peer *peer);
struct peer *peer_find(struct peer *peers, uint32_t id);        /* a client or a viewer; NULL: it has gone */
struct peer *peer_find_worker(struct peer *peers, uint32_t id); /* NULL: it has gone */
/* Workers that are not refused: those that anybody is told of. */
const struct peer *peer_first_worker(const struct peer *peers); /* of this rest of the list; NULL: there is none */
unsigned peer_count_workers(const struct peer *peers);

/* No worker has memory in a job. */
void peer_forget_plans(struct peer *peers);

/* Logs the reason and ends the peer's session. The loop reports later that the session has closed. */
void peer_refuse(struct peer *peer, const char *reason);
/* Sends REFUSED: the request cannot be met. The peer stays attached. */
void peer_decline(struct peer *peer, int code, const struct error *err);

#endif

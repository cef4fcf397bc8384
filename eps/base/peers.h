/* eps/base/peers.h - shared by all parts of the daemon: its state, and the events that parts post to each other.
 *
 * One thread, libuv's loop, runs all parts. A second thread, the optimizer's (eps/store/updater.h), computes. Parts
 * call downwards only: dispatch and watch, steps and evaluate, save, job, peers. A part posts an event to reach a part
 * above it. One function takes the events, oldest first, each to its end: drain_events, in eps/drain.c. It runs before
 * the loop calls anything else or sleeps. */
#ifndef EPS_BASE_PEERS_H
#define EPS_BASE_PEERS_H

#include "proto/wire/message.h"

#include <uv.h>

struct peer;
struct updater;

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
    struct peer *first;     /* eps/base/peer.h */
    uint32_t n_attached;    /* workers, those that have gone included: the last one's id */
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

/* eps/job/queue.h - requests for jobs that wait for their turn. A daemon takes jobs one after another, oldest first.
 *
 * A client has at most one job, running or waiting. It hears its place (QUEUED) when it is queued and whenever that
 * changes. Descriptors that came with a request are held meanwhile; the session's limits bound their number
 * (proto/wire/session.h).
 *
 * Users other than the daemon's own and root may have a quarter of the places each, and at least one. The owner has a
 * place beyond those, so that members who fill the queue do not keep the owner out. */
#ifndef EPS_JOB_QUEUE_H
#define EPS_JOB_QUEUE_H

#include "eps/base/peer.h"
#include "proto/wire/session.h"

enum { QUEUE_DEFAULT = 16, QUEUE_MOST = 256 };

struct queue_entry {
    struct queue_entry *next;
    struct peer *client;
    uint32_t job;  /* its number */
    uint32_t told; /* the place that its client knows; 0: none */
    struct message request;
    int fds[SESSION_MAX_FDS];
    unsigned n_fds;
};

struct queue {
    struct queue_entry *first;
    uint32_t n, most;
};

/* Appends a request and takes fds. -ENOBUFS if there is no place for this user, -ENOMEM, with a sentence: fds stay the
 * caller's. */
int queue_add(struct queue *queue, struct peer *client, uint32_t job, const struct message *request, const int *fds,
              unsigned n_fds, struct error *err);
struct queue_entry *queue_find(const struct queue *queue, uint32_t job);                   /* NULL: it does not wait */
struct queue_entry *queue_find_client(const struct queue *queue, const struct peer *peer); /* NULL: none of its jobs */
/* Removes the oldest request; NULL: none waits. Its fds are then the caller's. Owned: free. */
struct queue_entry *queue_take(struct queue *queue);
/* Drops a request and closes its fds. */
void queue_drop(struct queue *queue, struct queue_entry *entry);
/* Drops all requests, and tells each client why. */
void queue_refuse(struct queue *queue, int code, const char *why);
/* Tells clients their places. soon: the first one's turn comes at once, so it is told nothing. */
void queue_announce(struct queue *queue, bool soon);

#endif

/* A list, walked each time: it has 256 entries at most, and is asked only when a job comes, goes or is asked for. Whose
 * an entry is comes from the session and not from the request, which a client may write as it likes. Owners count as
 * one user, since root and the daemon's own are the same person's. */
#include "eps/job/queue.h"

#include "eps/base/rights.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Places that this user has, or that the owners, who count as one, have. */
static uint32_t count_of(const struct queue *queue, uid_t uid)
{
    uint32_t n = 0;

    for (const struct queue_entry *entry = queue->first; entry; entry = entry->next) {
        const uid_t theirs = session_peer_uid(entry->client->session);
        n += rights_is_owner(uid) ? rights_is_owner(theirs) : theirs == uid;
    }
    return n;
}

static int check_place(const struct queue *queue, uid_t uid, struct error *err)
{
    const uint32_t n = count_of(queue, uid), share = queue->most < 8 ? 1 : queue->most / 4;

    if (rights_is_owner(uid) ? queue->n < queue->most || (queue->most > 0 && n == 0)
                             : queue->n < queue->most && n < share)
        return 0;
    if (queue->n < queue->most)
        return error_set(
            err, -ENOBUFS,
            "the daemon is busy, and %u job%s of yours already, as many as one user's may: try again later", n,
            n == 1 ? " waits" : "s wait");
    return error_set(err, -ENOBUFS,
                     "the daemon is busy, and %u job%s already (epsd --queue): try again later, or start a daemon of "
                     "your own",
                     queue->n, queue->n == 1 ? " waits" : "s wait");
}

int queue_add(struct queue *queue, struct peer *client, uint32_t job, const struct message *request, const int *fds,
              unsigned n_fds, struct error *err)
{
    struct queue_entry **end = &queue->first;
    const int rc = check_place(queue, session_peer_uid(client->session), err);

    if (rc)
        return rc;
    struct queue_entry *entry = calloc(1, sizeof *entry);
    if (!entry)
        return error_memory(err);
    entry->client = client;
    entry->job = job;
    entry->request = *request;
    for (unsigned i = 0; i < n_fds; i++)
        entry->fds[i] = fds[i];
    entry->n_fds = n_fds;
    while (*end)
        end = &(*end)->next;
    *end = entry;
    queue->n++;
    return 0;
}

struct queue_entry *queue_find(const struct queue *queue, uint32_t job)
{
    struct queue_entry *entry = queue->first;

    while (entry && entry->job != job)
        entry = entry->next;
    return entry;
}

struct queue_entry *queue_find_client(const struct queue *queue, const struct peer *peer)
{
    struct queue_entry *entry = queue->first;

    while (entry && entry->client != peer)
        entry = entry->next;
    return entry;
}

struct queue_entry *queue_take(struct queue *queue)
{
    struct queue_entry *entry = queue->first;

    if (!entry)
        return NULL;
    queue->first = entry->next;
    queue->n--;
    return entry;
}

void queue_drop(struct queue *queue, struct queue_entry *entry)
{
    struct queue_entry **at = &queue->first;

    while (*at != entry)
        at = &(*at)->next;
    *at = entry->next;
    queue->n--;
    for (unsigned i = 0; i < entry->n_fds; i++)
        close(entry->fds[i]);
    free(entry);
}

void queue_refuse(struct queue *queue, int code, const char *why)
{
    struct error err;

    error_set(&err, code, "%s", why);
    while (queue->first) {
        peer_decline(queue->first->client, code, &err);
        queue_drop(queue, queue->first);
    }
}

void queue_announce(struct queue *queue, bool soon)
{
    uint32_t place = 1;

    for (struct queue_entry *entry = queue->first; entry; entry = entry->next, place++) {
        const struct message m = {.kind = MESSAGE_QUEUED, .queued = {.job = entry->job, .place = place}};
        if (entry->told == place || (soon && place == 1))
            continue;
        entry->told = place;
        session_send_fds(entry->client->session, &m, NULL,
                         0); /* over the connection, as JOB_OPENED, which it must precede */
    }
}

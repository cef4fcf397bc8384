/* client/daemon/await.h - what was started a moment ago: a daemon that has not opened its door yet, workers that have not
 * attached. Each wait has an end, and who waits is told for what. */
#ifndef CLIENT_DAEMON_AWAIT_H
#define CLIENT_DAEMON_AWAIT_H

#include "client/daemon/link.h"
#include "proto/base/error.h"

#include <stdint.h>

enum { CLIENT_AWAIT_MS = 10000 }; /* for what somebody else starts */

struct client_await {
    void (*on_note)(void *user, const char *sentence); /* before it waits; NULL: nobody is told */
    void *user;
};

/* As client_look_open, once the daemon at address has opened its door. A daemon that is not named is there or not;
 * without await (NULL) so is any. */
int client_await_daemon(struct client_link *link, const char *address, enum message_role role,
                        const struct client_await *await, struct error *err);

/* The workers of the daemon that link is attached to, one at least. -ETIMEDOUT. */
int client_await_worker(uint32_t *n_workers, struct client_link *link, const char *address,
                        const struct client_await *await, struct error *err);

/* Until n_workers are attached, or ms milliseconds have passed: -ETIMEDOUT, without a sentence. *attached: how many. */
int client_await_workers(uint32_t *attached, struct client_link *link, uint32_t n_workers, uint64_t ms,
                         struct error *err);

#endif

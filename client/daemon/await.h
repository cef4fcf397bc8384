/* client/daemon/await.h - bounded waits for a daemon that has not opened its door yet, and for workers that have not
 * attached. The caller is told what each wait is for. */
#ifndef CLIENT_DAEMON_AWAIT_H
#define CLIENT_DAEMON_AWAIT_H

#include "client/daemon/link.h"
#include "proto/base/error.h"

#include <stdint.h>

enum { CLIENT_AWAIT_MS = 10000 }; /* limit for what another process starts */

struct client_await {
    void (*on_note)(void *user, const char *sentence); /* called before a wait; may be NULL */
    void *user;
};

/* As client_look_open, but retries until the daemon at address has opened its door. Without an address, or without
 * await (NULL), it does not wait. */
int client_await_daemon(struct client_link *link, const char *address, enum message_role role,
                        const struct client_await *await, struct error *err);

/* Waits until the link's daemon has at least one worker. -ETIMEDOUT. */
int client_await_worker(uint32_t *n_workers, struct client_link *link, const char *address,
                        const struct client_await *await, struct error *err);

/* Waits until n_workers are attached. -ETIMEDOUT after ms milliseconds, without a sentence. *attached: how many are. */
int client_await_workers(uint32_t *attached, struct client_link *link, uint32_t n_workers, uint64_t ms,
                         struct error *err);

#endif

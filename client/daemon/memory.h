/* client/daemon/memory.h - memory by category while a run goes on.
 *
 * Asked of the daemon about once a second, when a step opens; heard between its other messages; told with the step that
 * is done next. */
#ifndef CLIENT_DAEMON_MEMORY_H
#define CLIENT_DAEMON_MEMORY_H

#include "client/daemon/link.h"
#include "client/eps.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client_memory {
    bool asked;                 /* and not answered in full */
    bool news;                  /* answered, and not told */
    uint64_t asked_ns;          /* when, the last time; 0: never */
    struct message host;        /* MEMORY_REPLY */
    struct message device;      /* of the worker that has most; its worker is 0 where there is none */
    struct eps_memory sides[2]; /* as told */
    struct eps_memory_row rows[2][LEDGER_CATEGORIES];
    char name[32]; /* of the device */
};

/* Asks, unless it has within the last second, or an answer is under way. at_once: within the last second too. */
void client_memory_ask(struct client_memory *memory, struct client_link *link, bool at_once);
/* Asks, and waits for the answer, which is told next. What a wait of client/daemon/link.h can end with. */
int client_memory_await(struct client_memory *memory, struct client_link *link, struct error *err);
/* A MEMORY_REPLY; one that was not asked for here is passed over. */
void client_memory_hear(struct client_memory *memory, const struct message *m);
/* Sides, the host first: each answer once, else 0. *out is borrowed until the next call. */
size_t client_memory_take(struct client_memory *memory, const struct eps_memory **out);

#endif

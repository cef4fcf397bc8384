/* client/daemon/memory.h - memory by category during a run.
 *
 * The daemon is asked about once a second, when a step opens. Its answer arrives between other messages and is reported
 * with the next completed step. */
#ifndef CLIENT_DAEMON_MEMORY_H
#define CLIENT_DAEMON_MEMORY_H

#include "client/daemon/link.h"
#include "client/eps.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct client_memory {
    bool asked;                 /* an answer is pending */
    bool news;                  /* answered, but not reported */
    uint64_t asked_ns;          /* time of the last question; 0: never */
    struct message host;        /* MEMORY_REPLY for the host */
    struct message device;      /* MEMORY_REPLY for the worker with the most memory; worker 0: there is none */
    struct eps_memory sides[2]; /* host and device, as reported */
    struct eps_memory_row rows[2][LEDGER_CATEGORIES];
    char name[32]; /* the device's */
};

/* Asks, unless an answer is pending or it asked within the last second. at_once ignores the second condition. */
void client_memory_ask(struct client_memory *memory, struct client_link *link, bool at_once);
/* Asks and waits for the answer, to be reported next. Errors as waits in client/daemon/link.h. */
int client_memory_await(struct client_memory *memory, struct client_link *link, struct error *err);
/* Takes a MEMORY_REPLY; ignores one that was not asked for. */
void client_memory_hear(struct client_memory *memory, const struct message *m);
/* Reports each answer once: returns the number of sides, the host first; 0 if there is no new answer. *out is borrowed
 * until the next call. */
size_t client_memory_take(struct client_memory *memory, const struct eps_memory **out);

#endif

/* client/daemon/look.h - which daemon an address means, and questions that it answers at any moment, over a link that is
 * open. */
#ifndef CLIENT_DAEMON_LOOK_H
#define CLIENT_DAEMON_LOOK_H

#include "client/daemon/link.h"
#include "client/eps.h"

/* The directory of the daemon that an address means, as eps_status has it: session_directory's, or else, where address
 * is some directory, that of the daemon whose job writes there. */
int client_look_find(char *out, size_t cap, const char *address, struct error *err);

/* Attaches to it. */
int client_look_open(struct client_link *link, const char *address, enum message_role role, struct error *err);

int client_look_status(struct client_link *link, struct message *reply, struct error *err);

/* on_memory for the host, then for each worker. What it is given is gone when it returns. */
int client_look_memory(struct client_link *link, bool pages,
                       void (*on_memory)(void *user, const struct eps_memory *side), void *user, struct error *err);

/* A MEMORY_REPLY as the public calls tell it: out points into rows and m. */
void client_look_side(struct eps_memory *out, struct eps_memory_row rows[LEDGER_CATEGORIES], const struct message *m);

/* What the public calls do with their sentence. */
int client_report(struct eps_error *error, const struct error *err, int rc);

#endif

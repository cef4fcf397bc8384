/* client/daemon/look.h - resolves a daemon's address, and asks a daemon questions that it answers at any time. */
#ifndef CLIENT_DAEMON_LOOK_H
#define CLIENT_DAEMON_LOOK_H

#include "client/daemon/link.h"
#include "client/eps.h"

/* Finds the directory of the daemon at address, as eps_status does: first session_directory; else, if address is some
 * other directory, the daemon whose job writes there. */
int client_look_find(char *out, size_t cap, const char *address, struct error *err);

/* Resolves the address and attaches. */
int client_look_open(struct client_link *link, const char *address, enum message_role role, struct error *err);

int client_look_status(struct client_link *link, struct message *reply, struct error *err);

/* Calls on_memory for the host, then for each worker. Its argument is valid during the call only. */
int client_look_memory(struct client_link *link, bool pages,
                       void (*on_memory)(void *user, const struct eps_memory *side), void *user, struct error *err);

/* Converts a MEMORY_REPLY for the public interface. out borrows from rows and m. */
void client_look_side(struct eps_memory *out, struct eps_memory_row rows[LEDGER_CATEGORIES], const struct message *m);

/* Fills in a public call's error (may be NULL) from err. Returns rc. */
int client_report(struct eps_error *error, const struct error *err, int rc);

#endif

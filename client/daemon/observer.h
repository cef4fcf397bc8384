/* client/daemon/observer.h - resolves a daemon's address, asks a daemon questions that it answers at any time, and
 * waits for a daemon that has not opened its listener yet or whose workers have not attached. */
#ifndef CLIENT_DAEMON_OBSERVER_H
#define CLIENT_DAEMON_OBSERVER_H

#include "client/daemon/link.h"
#include "client/eps.h"
#include "proto/base/error.h"

#include <stdint.h>

/* Finds the directory of the daemon at address, as eps_status does: first session_directory; else, if address is some
 * other directory, the daemon whose job writes there, if that job is the caller's: -ENOENT if there is none. A daemon
 * that hangs is passed over after 3 s. Else the errors of session_directory; 0 does not say that somebody listens. */
int client_observer_find(char *out, size_t cap, const char *address, struct error *err);

/* True if a daemon that writes a run of the caller's in this directory is saving its last checkpoint and ends. A daemon
 * that hangs is passed over after 3 s. */
bool client_observer_is_ending(const char *run);

/* Finds the caller's only daemon whose job is detached; one that hangs is passed over after 3 s. -ENOENT; -ENOTUNIQ:
 * there are several, which the sentence names. */
int client_observer_find_detached(char *out, size_t cap, struct error *err);

/* The shortest address of the daemon at this directory: its name, if that is enough, else the directory. */
const char *client_observer_name(const char *directory);

/* Resolves the address and attaches. */
int client_observer_open(struct client_link *link, const char *address, enum message_role role, struct error *err);

int client_observer_status(struct client_link *link, struct message *reply, struct error *err);

/* Calls on_memory for the host, then for each worker. Its argument is valid during the call only. */
int client_observer_memory(struct client_link *link, bool pages,
                           void (*on_memory)(void *user, const struct eps_memory *side), void *user, struct error *err);

/* Converts a MEMORY_REPLY for the public interface. out borrows from rows and m. */
void client_observer_side(struct eps_memory *out, struct eps_memory_row rows[LEDGER_CATEGORIES],
                          const struct message *m);

/* Fills in a public call's error (may be NULL) from err. Returns rc. */
int client_report(struct eps_error *error, const struct error *err, int rc);
/* The same with error_memory's. */
int client_report_memory(struct eps_error *error);

/* "job 3 waits for its turn at the daemon: 2nd in the queue", of a QUEUED. */
void client_observer_say_queued(struct error *sentence, const struct message *m);

/* "worker 3 (cpu on big-2) is left out: ...", of a LOST about a worker that has done nothing for the job. */
void client_observer_say_missing(struct error *sentence, const struct message *m);

/* ---- Waits for a version of the model that the daemon saves, or copies for a snapshot ---- */

struct client_saved_wait {
    const char *directory; /* the daemon's; borrowed */
    /* Hears "step 12 waits for a worker: attach one with ..."; may be NULL. */
    void (*on_note)(void *user, const char *sentence);
    void *user;
    uint64_t noted; /* the last step that on_note was told of, from 1; 0: none */
};

/* Tells on_note, once for each step, if a STATUS_REPLY says that the step waits. */
void client_observer_note_wait(struct client_saved_wait *wait, const struct message *m);

/* Waits for SAVED, and asks for the status meanwhile, one question at a time. Errors as client_link_next. */
int client_observer_await_saved(struct message *m, struct client_link *link, struct client_saved_wait *wait,
                                struct error *err);

/* ---- Bounded waits. The caller is told what each wait is for. ---- */

struct client_await {
    uint64_t ms; /* limit, by the link's awake_ms; client_await_another has its own */
    void (*on_note)(void *user, const char *sentence); /* called before a wait; may be NULL */
    void *user;
    uint32_t n_workers, n_lost; /* when the job was last asked for: workers that were attached; the link's n_lost */
};

/* Sets the limit of a link that has waited for nothing yet. wait: as in eps_train_options. -EDOM. */
int client_await_init(struct client_await *await, double wait, const char *connect, struct error *err);

/* As client_observer_open, but retries as long as that returns -ENOENT or -ECONNREFUSED: until the daemon at address
 * has opened its listener, or until a run begins to write there. A watch ends the wait. Without an address ("" is
 * none), or without await (NULL), it does not wait. */
int client_await_daemon(struct client_link *link, const char *address, enum message_role role,
                        const struct client_await *await, struct error *err);

/* Waits until each of the daemon's hosts has at least one worker. *n_workers: those of all, which await keeps for
 * client_await_another. -ETIMEDOUT with a sentence that names the daemon that has none. */
int client_await_worker(uint32_t *n_workers, struct client_link *link, const char *address, struct client_await *await,
                        struct error *err);

/* Waits until n_workers are attached. -ETIMEDOUT after ms milliseconds (at least 1), of which the caller makes the
 * sentence; the daemon then owes no answer. *attached: how many are, of all its hosts; 0 after another error. */
int client_await_workers(uint32_t *attached, struct client_link *link, uint32_t n_workers, uint64_t ms,
                         struct error *err);

/* A job was refused, with rc and err. Of -EAGAIN, no worker was left for it: waits until another one attaches, or has
 * since client_await_worker or the last call, and returns 0, for the job to be asked for again. Else returns rc.
 * address NULL: nobody else attaches to this daemon. */
int client_await_another(int rc, struct client_link *link, const char *address, struct client_await *await,
                         struct error *err);

#endif

/* client/daemon/files.h - serves files of this process to a daemon of another user (proto/wire/files.h).
 *
 * The daemon gets no descriptor. A thread does what the daemon asks with the files that were added, and nothing else:
 * what was opened for reading is only read. It appends to the trace what the daemon and the workers send. */
#ifndef CLIENT_DAEMON_FILES_H
#define CLIENT_DAEMON_FILES_H

#include "client/daemon/link.h"

struct client_files;

/* True if the daemon belongs to another user. The session must be open. */
bool client_files_are_needed(const struct client_link *link);

/* Asks the daemon for its sockets and its memory, and starts the thread. trace_fd: a file for events, borrowed, or -1.
 * Errors as client_link_expect; -EPROTO, -EAGAIN, -ENOMEM. Undo: client_files_close. */
int client_files_open(struct client_files **out, struct client_link *link, int trace_fd, struct error *err);
/* Starts the thread with the descriptors that the daemon sent (proto/wire/files.h), which it takes; theirs[FILES_SENT]
 * only with a trace. */
int client_files_start(struct client_files **out, const int *theirs, int trace_fd, struct error *err);
/* Waits until the thread has finished its present request, and has written the events that were sent. Returns 0, or why
 * events are missing from the trace: -errno, as of a full disk. NULL: nothing. */
int client_files_close(struct client_files *files);

/* Serves these files, which are borrowed, until client_files_remove; *first is the first one's number, the others
 * follow. -E2BIG: too many are served. */
int client_files_add(uint32_t *first, struct client_files *files, const int *fds, uint32_t n, struct error *err);
/* Once it returns, the thread does not use them. Numbers that are not served are passed over. */
void client_files_remove(struct client_files *files, uint32_t first, uint32_t n);

/* Puts config.json, n bytes, where the daemon finds it. n is at most MESSAGE_MAX_CONFIG_BYTES (asserted). */
void client_files_put_config(struct client_files *files, const void *text, size_t n);

#endif

/* proto/wire/files.h - files of another user's client, which reads and writes them for the daemon (proto/base/file.h).
 *
 * The daemon makes a pair of sockets and a shared memory of two windows, and sends one socket and the memory to the
 * client, which asked by FILES. From then on the daemon sends requests (FILE) by its socket, and the client, in a
 * thread of its own (client/daemon/files.h), answers each (FILE_DONE), in their order. What is read or written is in a
 * window. Before the job begins, the memory has its config.json.
 *
 * The daemon waits for an answer, for the socket's end, or until it gives the client up: so a client whose disk does
 * not answer, or that is stopped, costs its own job and holds no thread of the daemon. Nothing that comes is
 * trusted. */
#ifndef PROTO_WIRE_FILES_H
#define PROTO_WIRE_FILES_H

#include "proto/base/file.h"
#include "proto/wire/message.h"
#include "proto/wire/segment.h"

#include <assert.h>

enum { FILES_WINDOWS = 2, FILES_BYTES = FILES_WINDOWS * FILE_WINDOW };
static_assert((int)FILES_BYTES >= (int)MESSAGE_MAX_CONFIG_BYTES, "it has config.json");

struct files; /* the daemon's side */

/* theirs: the descriptors for the client, which are the caller's: socket, memory, and with a trace the socket that its
 * events come from. -EMFILE, -ENOMEM with a sentence. The caller holds it. */
enum { FILES_SENT = 2 };
int files_open(struct files **out, int theirs[FILES_SENT + 1], bool trace, struct error *err);
/* The socket for events (proto/base/trace.h), which becomes the caller's; -1: there is none. */
int files_take_trace(struct files *files);
/* Counts its holders: files_release by the last one frees it. One thread. */
struct files *files_hold(struct files *files);
void files_release(struct files *files); /* NULL: nothing */
/* Gives the client up: every request under way, and every later one, returns -ECANCELED. Any thread. */
void files_abandon(struct files *files); /* NULL: nothing */

struct file_server *files_server(struct files *files);
/* The shared memory, FILES_BYTES, which the client may change at any time. */
const void *files_memory(const struct files *files);

/* Requests and answers on the socket, for both sides. 0; -EPIPE: the other side has closed it; -EPROTO with a sentence:
 * what came is no message. Receiving waits. */
int files_send(int fd, const struct message *m, struct error *err);
int files_receive(int fd, struct message *m, struct error *err);

#endif

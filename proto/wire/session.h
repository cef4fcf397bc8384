/* proto/wire/session.h - one peer: its connection, its channel if it has one, its life.
 *
 * A session joins client, worker or viewer to the daemon by one or two links:
 *   connection  a Unix SOCK_SEQPACKET socket for attaching and for descriptors. It stays open; its end of file tells
 *               each side of the other's death within milliseconds. The daemon's own user and root connect to
 *               DIRECTORY/listener, members of a group to DIRECTORY/members.
 *   channel     a nanomsg PAIR for everything else, at an ipc address of its own, DIRECTORY/s/ID-NONCE, never used
 *               twice. Only clients and workers of the daemon's own user have one: whoever reaches a nanomsg socket can
 *               abort the process behind it, so DIRECTORY/s is closed to all others. Other users, and all viewers, send
 *               everything over the connection, with the same codec.
 * Attaching: HELLO over the connection (version, role); WELCOME (id; the channel's address, or none, and the session is
 * open); GREETING both ways on the channel within 1 s, and the session is open. Otherwise the peer starts again from
 * the connection, as nanomsg can wedge (proto/wire/channel.h).
 *
 * Each user other than the daemon's own and root has at most 64 sessions at a time, or a quarter of the process's
 * descriptors if that is less, and its requests in a tick are bounded (session_charge). Their sessions and files leave
 * SESSION_SPARE_FDS descriptors free. One more is reserved so that the owner can always come in.
 *
 * Everything runs on the caller's libuv loop thread and never blocks; session_send queues what the socket does not
 * take. A message that does not decode or has the wrong sequence number ends the session, reported by on_closed; so do
 * descriptors with a message that takes none. DISMISSED also ends the session, and says why.
 *
 * Workers get a ping every second, by the daemon's own ticks: one that has not answered 15 of them is lost, and so is a
 * daemon that has sent none for 60 of the worker's ticks. Clients and viewers get none, as they are always on the
 * daemon's host. One that does not come back to its loop, because it computes, prints into a full pipe or is stopped,
 * is slow; it ends with its socket, or with its process, whose children may hold the socket. Likewise the daemon ends
 * with its socket. What others must not wait for has limits of its own (eps/README.md). */
#ifndef PROTO_WIRE_SESSION_H
#define PROTO_WIRE_SESSION_H

#include "proto/base/error.h"
#include "proto/wire/message.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

enum {
    SESSION_MAX_FDS = MESSAGE_MAX_FILES,
    SESSION_SPARE_FDS = 32, /* free descriptors that others' sessions leave, also channels: nanomsg spins without any */
};

struct session; /* opaque here; allocated by session_connect or by the listener, freed after on_closed returns */

struct session_events {
    /* The session is open: messages may be sent. peer is its HELLO (daemon's side) or WELCOME (the other side). */
    void (*on_open)(struct session *s, const struct message *peer);
    /* fds (n_fds) came with the message over the connection; the callee closes them. Never called before on_open, after
     * session_close or session_refuse, or after on_closed. */
    void (*on_message)(struct session *s, const struct message *m, const int *fds, unsigned n_fds);
    /* The last call, always from the loop. Either the peer is gone, and reason says how ("closed", "killed", "refused:
     * ...", "silent for 15 s", "sent ...", "speaks version ..."); or session_close was called, and reason is NULL. The
     * sentence is for people: session_end says the same to programs.
     * Everything that the peer sent before it closed has been delivered. The struct is freed when this returns. Also
     * called if on_open never was. */
    void (*on_closed)(struct session *s, const char *reason);
};

struct session_listener; /* the daemon's side */

/* Makes DIRECTORY (0700, with parents; checks its owner), locks DIRECTORY/lock and binds the listener. The lock lets it
 * take over the stale directory of a killed daemon, but not a live one: -EADDRINUSE. Each attached peer becomes a
 * session with `events` and its own data pointer, initially data. Refuses peers of other users except root.
 * -ENAMETOOLONG if an address would pass 107 bytes. */
int session_listen(struct session_listener **out, uv_loop_t *loop, const char *directory,
                   const struct session_events *events, void *data, struct error *err);
/* Also admits members of the group, through a listener of their own (0660, the group's). The directory becomes 0710:
 * members can pass through it, but not list it. Call before the loop runs. -EPERM (not a group of the caller's), -EDOM
 * (members cannot reach the directory), -errno. */
int session_admit_group(struct session_listener *listener, gid_t group, struct error *err);
/* After session_admit_group: the group's members may be viewers only, except those who are also members of `users`
 * ((gid_t)-1: no group). */
void session_limit_group(struct session_listener *listener, gid_t users);
/* Closes the listening sockets; removes their files and the directory. Open sessions stay: close each. Sessions that
 * are not open yet are refused. The callback may be NULL. */
void session_unlisten(struct session_listener *listener, void (*on_closed)(void *data));

/* The daemon's side: answering the peer costs n messages (> 0), read or sent. Users other than the daemon's own and
 * root have a budget of these (proto/wire/budget.h), for all their sessions; an attempt to attach costs some, too. Once
 * it is spent, the session's next messages stay unread until the budget allows them. Free for a session by tcp. */
void session_charge(struct session *s, unsigned n);
/* Charges a request that took ns of the daemon's time (BUDGET_NS cost a tick's budget). No session of that user is read
 * before the budget allows it: requests that wait there may take as long. */
void session_charge_time(struct session *s, uint64_t ns);
/* Refills the budgets: call each second. */
void session_refill(struct session_listener *listener);

/* Makes nanomsg start its thread and keeps it until session_release_thread: nanomsg aborts if it cannot start it later.
 * Call before the first session, after process_check_threads. -EMFILE, -EAGAIN with a sentence. */
int session_hold_thread(int *hold, struct error *err);
void session_release_thread(int hold); /* after the last session has closed */

/* Starts attaching to the daemon at directory. hello: role and its fields; version and pid are filled in. Returns 0 and
 * *out; or -ENOENT (no such daemon), -ECONNREFUSED (a stale socket: nobody listens) or -errno with a sentence, and then
 * no callback follows. A daemon of another protocol version, or one that refuses, ends in on_closed. */
int session_connect(struct session **out, uv_loop_t *loop, const char *directory, const struct message *hello,
                    const struct session_events *events, void *data, struct error *err);

/* Starts attaching to a daemon on another host, through fd, one end of a pair of SOCK_SEQPACKET sockets (always taken),
 * whose other end a proxy forwards (proto/net/proxy.h). All messages go through it, and there is one attempt. Else as
 * session_connect. */
int session_connect_by(struct session **out, uv_loop_t *loop, int fd, const struct message *hello,
                       const struct session_events *events, void *data, struct error *err);
/* Makes a session of a peer on another host, on the daemon's side. The peer has authenticated itself to the proxy that
 * holds fd's other end. It has no user and no process here, so neither channel nor rights beyond a worker's. Takes fd.
 * -ENOMEM, -errno. */
int session_adopt(struct session_listener *listener, int fd);
/* True if the peer has not read what its connection was sent, but for a few packets. */
bool session_is_behind(const struct session *s);
/* True if, beside a new descriptor fd, `spare` more are free. */
bool session_leaves_fds(int fd, unsigned spare);
/* session_peer_uid of a peer on another host. */
#define SESSION_REMOTE_USER ((uid_t)-1)

/* Sends a copy of the message by the channel, or over the connection if there is none; in order. Never blocks and never
 * fails: if the peer does not read, the session closes and on_closed reports it. Not before on_open; does nothing after
 * the end has begun. */
void session_send(struct session *s, const struct message *m);
/* Sends over the connection, with descriptors, which stay the caller's. Ordered among connection messages, but not
 * relative to the channel. */
void session_send_fds(struct session *s, const struct message *m, const int *fds, unsigned n_fds);
/* Sends what is queued (up to 1 s), then BYE, and closes; on_closed(NULL) follows from the loop. A second call does
 * nothing. */
void session_close(struct session *s);
/* Ends a faulty peer: sends DISMISSED with END_FAULT and this sentence (copied), closes like session_close, and calls
 * on_closed(reason). Drops what is queued for the channel. */
void session_refuse(struct session *s, const char *reason);
/* Ends a peer that is at no fault: as session_refuse, but with END_TURNED_AWAY. */
void session_turn_away(struct session *s, const char *reason);
/* In on_closed alone: how the session ended; if the peer has sent DISMISSED, what that said. */
enum message_end session_end(const struct session *s);

void *session_data(const struct session *s);
void session_set_data(struct session *s, void *data);
uint32_t session_id(const struct session *s);
/* A worker's progress counter, sent with each PONG: it distinguishes a slow worker from one that hangs. Borrowed; any
 * thread may raise it, by __atomic_fetch_add. */
void session_share_progress(struct session *s, const uint64_t *progress);
uint64_t session_peer_progress(const struct session *s);
int session_peer_pid(const struct session *s);
/* User of the peer's process, according to the kernel: the one that connected, or that listened. */
uid_t session_peer_uid(const struct session *s);

/* True of "HOST:PORT", which lacks the tcp:// of an address on the network. NULL is none. */
bool session_has_port(const char *address);

/* Resolves an address to DIRECTORY. A path with '/' is the directory; NAME is $XDG_RUNTIME_DIR/eps/NAME, else
 * /tmp/eps-UID/NAME; NULL or "" is the caller's only live daemon (-ENOENT if none, -ENOTUNIQ with their names if
 * several). tcp:// is refused: -EPROTONOSUPPORT; so is HOST:PORT: -EINVAL. Unless the address is a path, it scans the
 * caller's daemons and removes directories that killed private ones (run-...) left there; -ENOTDIR if $XDG_RUNTIME_DIR
 * does not exist. */
int session_directory(char *out, size_t cap, const char *address, struct error *err);

/* Calls on_daemon with the directory of each of the caller's live daemons, ordered by name. Removes what killed private
 * daemons left. 0 also if there is none; -errno if the scan failed. */
int session_list(void (*on_daemon)(void *user, const char *directory), void *user, struct error *err);

/* True if a live daemon holds the directory's lock. Takes no lock itself, so it never disturbs a daemon that does. */
bool session_is_live(const char *directory);

/* For tests: sets another tick length, from the next tick on. */
void session_set_tick(struct session *s, unsigned ms);

#endif

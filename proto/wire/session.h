/* proto/wire/session.h - one peer: its door, its channel if it has one, its life.
 *
 * A session joins client, worker or viewer to the daemon by one or two links:
 *   door     a Unix SOCK_SEQPACKET connection: attaching, descriptors, and the end of file by which each side learns of
 *            the other's death within milliseconds. It stays open. The daemon's own user and root come to
 *            DIRECTORY/door, members of a group to DIRECTORY/members.
 *   channel  a nanomsg PAIR at an ipc address of its own, DIRECTORY/s/ID-NONCE, never used twice: everything else. Only
 *            clients and workers of the daemon's own user have one, since whoever reaches a nanomsg socket can abort
 *            the process behind it: DIRECTORY/s is closed to everybody else. Other users, and all viewers, say
 *            everything through the door, by the same codec.
 * Attaching: HELLO through the door (version, role) -> WELCOME (id; the channel's address, or none: the session is open)
 * -> GREETING both ways on the channel, within 1 s, else the peer tries anew from the door (nanomsg can wedge:
 * proto/wire/channel.h). After that the session is open.
 *
 * Of each user but the daemon's own and root at most 64 sessions live at a time, and a quarter of the descriptors that
 * the process may have. Their sessions and files leave SESSION_SPARE_FDS descriptors free; one more is kept so that the
 * owner can come in when there is none.
 *
 * All of it runs on the caller's libuv loop thread and never blocks; session_send queues what the socket does not take.
 * A message that does not decode, or comes out of place (wrong sequence number) ends the session, reported by
 * on_closed; so do descriptors with a message that has none. DISMISSED ends the session too, and says why. Pings go out
 * every second by the daemon's own ticks; a peer that has not answered 15 of them is lost. Seconds in which a client
 * or viewer is stopped (Ctrl-Z, a debugger) do not count. A daemon that has sent none for 60 ticks of the peer's is
 * lost too. */
#ifndef PROTO_WIRE_SESSION_H
#define PROTO_WIRE_SESSION_H

#include "proto/base/error.h"
#include "proto/wire/message.h"

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>
#include <uv.h>

enum { SESSION_MAX_FDS = 128 };

struct session; /* opaque here; allocated by session_connect or by the listener, freed after on_closed returns */

struct session_events {
    /* The session is open: messages may be sent. peer is its HELLO (daemon's side) or WELCOME (the other side). */
    void (*on_open)(struct session *s, const struct message *peer);
    /* fds (n_fds) came with a door message; they are the callee's to close. Never called before on_open, after
     * session_close or session_refuse, or after on_closed. */
    void (*on_message)(struct session *s, const struct message *m, const int *fds, unsigned n_fds);
    /* The last call, always from the loop: the peer is gone (reason says how: "closed", "killed", "refused: ...",
     * "silent for 15 s", "sent ...", "speaks version ..."), or session_close was called (reason NULL). What the peer
     * sent before it closed has been delivered. The struct is freed when this returns. Called even if on_open never
     * was. */
    void (*on_closed)(struct session *s, const char *reason);
};

struct session_listener; /* the daemon's side */

/* Makes DIRECTORY (0700, its parents too; owner checked), takes its lock (on DIRECTORY/lock, so that a stale directory
 * of a killed daemon is taken over and a live one is not: -EADDRINUSE), binds the door. Each peer that attaches becomes
 * a session with `events` and a data pointer of its own, data at first. Peers of another user are refused, but root's.
 * -ENAMETOOLONG if an address would pass 107 bytes. */
int session_listen(struct session_listener **out, uv_loop_t *loop, const char *directory,
                   const struct session_events *events, void *data, struct error *err);
/* From here on members of the group are let in too, by a door of their own (0660, theirs) in a directory that becomes
 * 0710: they pass through it and do not list it. Call before the loop runs. -EPERM (not a group of the caller's), -EDOM
 * (they cannot reach the directory), -errno. */
int session_admit_group(struct session_listener *listener, gid_t group, struct error *err);
/* Closes the door, removes its files and the directory. Sessions that are open stay so: close each; those that are not
 * yet are refused. The callback may be NULL. */
void session_unlisten(struct session_listener *listener, void (*on_closed)(void *data));

/* Has nanomsg make its thread, and keeps it until the hold is let go: where it could not make one later it would abort.
 * Before the first session; after process_check_threads. -EMFILE with a sentence. */
int session_hold_thread(int *hold, struct error *err);
void session_let_thread_go(int hold); /* after the last session has closed */

/* Starts attaching to the daemon at directory. hello: role and what goes with it; version and pid are filled in.
 * Returns 0 and *out, or -ENOENT (no such daemon), -ECONNREFUSED (a stale socket: nobody listens), -errno with a
 * sentence; then no callback comes. A daemon of another protocol version, or one that refuses, ends in on_closed. */
int session_connect(struct session **out, uv_loop_t *loop, const char *directory, const struct message *hello,
                    const struct session_events *events, void *data, struct error *err);

/* By the channel, or through the door where there is none; in order; never blocks, never fails: a session that cannot
 * take it, since its peer does not read, is closed and says so in on_closed. The message is copied. Not before on_open;
 * after the end has begun it does nothing. */
void session_send(struct session *s, const struct message *m);
/* Through the door, with descriptors, which stay the caller's. In order among themselves, not with the channel's. */
void session_send_fds(struct session *s, const struct message *m, const int *fds, unsigned n_fds);
/* Sends what is queued (up to 1 s), says BYE and closes; on_closed(NULL) follows from the loop. Calling it twice does
 * nothing. */
void session_close(struct session *s);
/* Ends a peer at fault: DISMISSED with this sentence (copied), then as session_close, on_closed(reason). What is queued
 * for the channel is dropped. */
void session_refuse(struct session *s, const char *reason);

void *session_data(const struct session *s);
void session_set_data(struct session *s, void *data);
uint32_t session_id(const struct session *s);
/* The worker's progress counter, sent with each PONG, so that a daemon can tell a slow worker from one that hangs.
 * Borrowed; any thread may raise it, by __atomic_fetch_add. */
void session_share_progress(struct session *s, const uint64_t *progress);
uint64_t session_peer_progress(const struct session *s);
int session_peer_pid(const struct session *s);
/* Whose process it is, as the kernel says: who connected, or who listened. */
uid_t session_peer_uid(const struct session *s);

/* DIRECTORY of an address: a path with '/' stands for itself; NAME is $XDG_RUNTIME_DIR/eps/NAME, else
 * /tmp/eps-UID/NAME; NULL or "" is the caller's only live daemon (-ENOENT if none, -ENOTUNIQ with their names if
 * several). tcp:// is refused: -EPROTONOSUPPORT. Unless the address is a path, it looks among the caller's daemons, and
 * removes what killed private ones (run-...) have left there. */
int session_directory(char *out, size_t cap, const char *address, struct error *err);

/* Calls on_daemon with the directory of each live daemon of the caller's, in order of their names; what killed private
 * ones have left is removed. 0 also if there is none; -errno if it could not be looked. */
int session_list(void (*on_daemon)(void *user, const char *directory), void *user, struct error *err);

/* A daemon lives in directory: its lock is held. Takes no lock itself, so it is never in the way of one that does. */
bool session_is_live(const char *directory);

/* For tests that cannot wait: another length of a tick, from the next one on. */
void session_set_tick(struct session *s, unsigned ms);

#endif

/* proto/wire/session_internal.h - a session from inside: its life (proto/wire/session.c), its beginning
 * (proto/wire/attach.c), and the listener that creates it (proto/wire/listen.c). */
#ifndef PROTO_WIRE_SESSION_INTERNAL_H
#define PROTO_WIRE_SESSION_INTERNAL_H

#include "proto/wire/channel.h"
#include "proto/wire/connection.h"
#include "proto/wire/session.h"

#include <stdatomic.h>

enum {
    SESSION_TICK_MS = 1000,
    SESSION_PINGS = 15,    /* unanswered pings after which the daemon gives a worker up */
    SESSION_PATIENCE = 60, /* ticks without a ping before a worker gives up a daemon, which may be loading a model */
    SESSION_ADDRESS_MAX = 108, /* bytes of an address with its terminator, as in sun_path */
    SESSION_MAX_QUEUED =
        CONNECTION_MAX_QUEUED - 1, /* messages queued for a peer; one more tells it why the session ends */
};

#define SESSION_CHANNELS "s"       /* directory of the channels' addresses below the daemon's, for its user only */
#define SESSION_MEMBERS  "members" /* name of the listening socket for members of a group */

enum session_state {
    /* Ends with HELLO (daemon's side) or WELCOME (peer's side) over the connection, or after too many ticks. A session
     * without a channel is then open. */
    SESSION_HELLO,
    SESSION_GREETING, /* ends with GREETING on the channel, or after too many ticks, and the peer starts again */
    SESSION_OPEN,     /* ends by either side's wish, death or fault */
    SESSION_ENDING,   /* the connection has ended, messages may follow: ends with BYE, the channel's end, or 100 ms */
    /* Ends when the peer has read our last messages and closes its connection, after three ticks in a row in which it
     * read nothing, or after 60 ticks. */
    SESSION_LEAVING,
    SESSION_RETRYING, /* ends when this attempt's links are closed */
    SESSION_CLOSING   /* ends when libuv has returned all handles */
};

struct session {
    enum session_state state;
    struct session *next, **listed; /* in the listener's list; listed: the pointer that points to this one, or NULL */
    struct session_listener *listener; /* NULL on a peer's side, and once the listener is closed */
    bool accepted;                     /* the daemon's side */
    bool by_connection;                /* has no channel; known from WELCOME on */
    bool opened;                       /* on_open was called */
    bool decided;                      /* the end has begun; reason says why, NULL: by our own wish */
    bool at_fault;                     /* the peer is at fault */
    enum message_end end;              /* decided: the kind of reason */
    const char *reason;
    char reason_text[ERROR_TEXT_BYTES];
    uv_loop_t *loop;
    uv_timer_t timer;
    unsigned tick_ms, n_ticks; /* since the state was entered; on a peer's side n_ticks also since the last ping */
    unsigned n_attempts, n_unanswered;
    size_t unsent;      /* at the last tick in SESSION_LEAVING */
    unsigned n_idle;    /* ticks in a row since then in which the peer read nothing */
    unsigned n_handles; /* timer, connection, channel: handles not returned yet */
    struct connection connection;
    struct channel channel;
    struct {
        uint64_t sent, received; /* sequence numbers */
    } on_connection, on_channel;
    uint32_t id;
    uint64_t nonce;
    int peer_pid;
    uint64_t peer_birth; /* process_birth of it, on the daemon's side */
    uid_t peer_uid;
    bool is_held;                      /* it stays unread until its user's budget allows it */
    bool may_only_view;                /* the peer may only be a viewer */
    char address[SESSION_ADDRESS_MAX]; /* the channel's; empty on a peer's side before WELCOME */
    char path[SESSION_ADDRESS_MAX];    /* path of the connection's listening socket, on a peer's side */
    struct message hello;              /* ours on a peer's side, otherwise the peer's */
    const uint64_t *progress;          /* ours, or NULL */
    uint64_t peer_progress;
    const struct session_events *events;
    void *data;
};

/* session.c: the stages of a life. Only session_enter assigns the state. */
struct session *session_new(uv_loop_t *loop, const struct session_events *events, void *data);
int session_open_connection(struct session *s, int fd); /* takes fd */
int session_open_channel(struct session *s);
void session_start(struct session *s); /* starts its clock; from here on it ends with on_closed */
void session_enter(struct session *s, enum session_state state);
void session_send_by_connection(struct session *s, const struct message *m, const int *fds, unsigned n_fds);
void session_send_by_channel(struct session *s, const struct message *m);
void session_close_links(struct session *s);
/* Begins the end: nothing more is sent or delivered. The first reason counts. */
void session_finish(struct session *s, enum message_end end, const char *reason);
/* Refuses: tells the peer why and gives it a tick to read that. end: as in DISMISSED. */
void session_refuse_code(struct session *s, enum message_end end, int code, const char *reason);
/* session_refuse_code for a fault of the peer's, which it marks (at_fault). */
void session_fault(struct session *s, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* True if the peer is the daemon's own user. Root is admitted likewise, but has no channel. */
bool session_is_own(const struct session *s);

/* attach.c: events that end SESSION_HELLO, SESSION_GREETING and SESSION_RETRYING. */
void attach_on_hello(struct session *s, const struct message *m);
void attach_on_welcome(struct session *s, const struct message *m);
void attach_on_greeting(struct session *s, const struct message *m);
void attach_on_tick(struct session *s);
void attach_again(struct session *s);

/* A listener's list of sessions, for quotas; the listener also ends those that are not open yet. */
void session_enlist(struct session *s, struct session **first);
void session_unlist(struct session *s); /* does nothing if it is in no list */

/* listen.c: true if a new descriptor fd leaves SESSION_SPARE_FDS. */
bool session_leaves_spare(int fd);
/* Logs one line for each of the first peers that are turned away, and a sum for frequent ones. */
void session_note_away(struct session_listener *listener, int pid, uid_t uid, const char *who, const char *why);

/* Daemon's side of a connected socket (always takes fd); the channel will be at address. -errno. */
int session_accept(struct session **out, uv_loop_t *loop, int fd, uint32_t id, const char *address,
                   const struct session_events *events, void *data);

#define SESSION_NO_GROUP ((gid_t)-1)

/* Removes a directory that a killed daemon left: its lock is free, and it has a listening socket or is a minute old (a
 * daemon that is just starting has no socket yet). Only for names that are never used again. */
void session_remove_stale(const char *directory);

#endif

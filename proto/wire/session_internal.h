/* proto/wire/session_internal.h - a session from inside: its life (proto/wire/session.c), its beginning (proto/wire/attach.c), and the
 * listener that begins it (proto/wire/listen.c). */
#ifndef PROTO_WIRE_SESSION_INTERNAL_H
#define PROTO_WIRE_SESSION_INTERNAL_H

#include "proto/wire/channel.h"
#include "proto/wire/door.h"
#include "proto/wire/session.h"

#include <stdatomic.h>

enum {
    SESSION_TICK_MS = 1000,
    SESSION_PINGS = 15,        /* unanswered, and the daemon gives a peer up */
    SESSION_PATIENCE = 60,     /* ticks without a ping, and a peer gives the daemon up, which may be loading a model */
    SESSION_ADDRESS_MAX = 108, /* bytes of an address, its end included: sun_path's */
    SESSION_MAX_QUEUED =
        DOOR_MAX_QUEUED - 1, /* messages that wait for a peer to read; then one that says why it ends */
    SESSION_SPARE_FDS = 32, /* descriptors that others' sessions and files leave, and channels: nanomsg spins without */
};

#define SESSION_CHANNELS "s"       /* the directory of the channels' addresses, below the daemon's; its user's alone */
#define SESSION_MEMBERS  "members" /* the door of a group's members */

enum session_state {
    SESSION_HELLO,    /* ended by HELLO (daemon's side) or WELCOME (peer's) through the door, or by too many ticks; a
                       * session without a channel is open then */
    SESSION_GREETING, /* ended by GREETING on the channel, or by too many ticks: then the peer tries anew */
    SESSION_OPEN,     /* ended by either side's wish, death or fault */
    SESSION_ENDING, /* ended by BYE, the end of the channel, or 100 ms: the door has ended, words may be on their way */
    SESSION_LEAVING,  /* ended by the peer closing its door, having read our last words, or by three ticks in a row
                       * in which it read nothing, or by 60 */
    SESSION_RETRYING, /* ended when this attempt's links are closed */
    SESSION_CLOSING   /* ended when libuv has given all handles back */
};

struct session {
    enum session_state state;
    struct session *next, **listed;    /* among the listener's; listed: what points here, or NULL */
    struct session_listener *listener; /* NULL on a peer's side, and once the listener is closed */
    bool accepted;                     /* the daemon's side */
    bool by_door;                      /* it has no channel; known from WELCOME on */
    bool opened;                       /* on_open was called */
    bool decided;                      /* how it ends: reason, or NULL for our own wish */
    bool at_fault;                     /* the peer */
    const char *reason;
    char reason_text[ERROR_TEXT_BYTES];
    uv_loop_t *loop;
    uv_timer_t timer;
    unsigned tick_ms, n_ticks; /* since the state was entered; on a peer's side also since the last ping */
    unsigned n_attempts, n_unanswered;
    size_t unsent;      /* while leaving, at the last tick */
    unsigned n_idle;    /* ticks in a row since then in which the peer took nothing */
    unsigned n_handles; /* timer, door, channel: not given back yet */
    struct door door;
    struct channel channel;
    struct {
        uint64_t sent, received; /* sequence numbers */
    } on_door, on_channel;
    uint32_t id;
    uint64_t nonce;
    int peer_pid;
    uid_t peer_uid;
    char address[SESSION_ADDRESS_MAX]; /* of the channel; on a peer's side, before WELCOME, nothing */
    char path[SESSION_ADDRESS_MAX];    /* of the door, on a peer's side */
    struct message hello;              /* ours on a peer's side, else the peer's */
    const uint64_t *progress;          /* ours, or NULL */
    uint64_t peer_progress;
    const struct session_events *events;
    void *data;
};

/* session.c: the parts of a life. Only session_enter assigns the state. */
struct session *session_new(uv_loop_t *loop, const struct session_events *events, void *data);
int session_open_door(struct session *s, int fd); /* takes fd */
int session_open_channel(struct session *s);
void session_start(struct session *s); /* its clock: from here on it ends by on_closed */
void session_enter(struct session *s, enum session_state state);
void session_send_by_door(struct session *s, const struct message *m, const int *fds, unsigned n_fds);
void session_send_by_channel(struct session *s, const struct message *m);
void session_close_links(struct session *s);
/* The end: nothing more is sent or delivered. reason counts if none was given before. */
void session_finish(struct session *s, const char *reason);
/* The peer is told why, and gets a tick to read it. */
void session_refuse_code(struct session *s, int code, const char *reason);
/* The same, for what it did. */
void session_fault(struct session *s, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));

/* The peer is the daemon's own user. Root is let in like them, but has no channel. */
bool session_is_own(const struct session *s);

/* attach.c: what ends the states SESSION_HELLO, SESSION_GREETING and SESSION_RETRYING. */
void attach_on_hello(struct session *s, const struct message *m);
void attach_on_welcome(struct session *s, const struct message *m);
void attach_on_greeting(struct session *s, const struct message *m);
void attach_on_tick(struct session *s);
void attach_again(struct session *s);

/* The sessions of a listener: for quotas, and those that are not open yet end with it. */
void session_enlist(struct session *s, struct session **first);
void session_unlist(struct session *s); /* does nothing if it is in no list */

/* listen.c: one whose descriptor is fd leaves SESSION_SPARE_FDS. */
bool session_leaves_spare(int fd);
/* One line in the log for each of the first peers that are turned away, a sum for those that come too often. */
void session_note_away(struct session_listener *listener, int pid, uid_t uid, const char *who, const char *why);

/* The daemon's side of a connected socket (taken in every case), whose channel will be at address. -errno. */
int session_accept(struct session **out, uv_loop_t *loop, int fd, uint32_t id, const char *address,
                   const struct session_events *events, void *data);

#define SESSION_NO_GROUP ((gid_t)-1)

/* Removes a directory that a killed daemon left: its lock is free, and there is a door, or it has been like that for a
 * minute (a daemon that is just starting has none yet). For names that are never used again. */
void session_remove_stale(const char *directory);

#endif

/* client/daemon/link.h - a session with the daemon, read one message at a time.
 *
 * Messages arrive as events of a libuv loop, but libeps's code reads best as a sequence. So a link runs its own loop
 * until the next message arrives, or until something else ends the wait: the end of the session, the exit of a child
 * process, or the user. */
#ifndef CLIENT_DAEMON_LINK_H
#define CLIENT_DAEMON_LINK_H

#include "proto/base/watch.h"
#include "proto/base/error.h"
#include "proto/wire/message.h"
#include "proto/wire/session.h"

#include <stdbool.h>
#include <uv.h>

enum { CLIENT_MAIL_FDS = 4 }; /* a client receives no more with one message */

struct client_mail {
    struct message message;
    int fds[CLIENT_MAIL_FDS]; /* (n_fds) descriptors that came with it */
    unsigned n_fds;
};

struct client_link {
    uv_loop_t loop;
    uv_timer_t tick;
    int messages_held;              /* a client's hold from session_hold_thread, or -1 */
    struct client_watch watches[2]; /* asked after each event and ten times a second */
    struct session *session;        /* NULL: not open */
    bool attached;                  /* the handshake is complete */
    char end[160];                  /* why the other side closed the session; empty if it did not */
    bool absent;                    /* the daemon ended before the session was open */
    bool dismissed;                 /* the daemon goes on without this client, and `end` says why */
    bool stopped;                   /* the daemon ended the session on purpose: it ends itself, and its workers do */
    struct client_mail *mail;       /* ring of messages that have not been read yet */
    size_t n_mail, first_mail, mail_cap;
    uint64_t seen_ms;  /* the loop's clock at its last reading */
    uint64_t awake_ms; /* time spent waiting on this link. While the process or machine was stopped, none passed */
    uint64_t deadline; /* when waits end with -ETIMEDOUT, by awake_ms; 0: never */
    int rc;            /* -ENOMEM after a message was dropped */
    int failed;        /* code of a FAILED message */
    uint32_t n_lost;   /* workers that LOST told of, without those that stay attached */
    int asked;         /* a watch's code, kept while a message is read first; the next wait returns it. 0: none */
    struct error why;
    /* Receives SAVED, SAVE_FAILED, OUTPUT, LOST and STOP, which come at any time, and MEMORY_REPLY and STATUS_REPLY
     * outside a wait for them. NULL: such a message is a protocol error. */
    void (*on_aside)(void *data, const struct message *m);
    void *aside_data;
    /* Hears of LOST as soon as it comes; or NULL. */
    void (*on_lost)(void *data, const struct message *m);
    void *lost_data;
    /* Hears of the place in the daemon's queue (QUEUED), in turn; or NULL. */
    void (*on_queued)(void *data, const struct message *m);
    void *queued_data;
};

/* On failure *link is zeroed. Undo: client_link_free. */
int client_link_init(struct client_link *link, struct error *err);

/* Sends queued messages, closes the session, and waits until both are done. Other handles on the loop, such as
 * children's, must be closed before. Safe on a zeroed struct. */
void client_link_free(struct client_link *link);
void client_link_close(struct client_link *link); /* closes the session only */

/* Attaches to the daemon at directory. -ENOENT, -ECONNREFUSED: there is none, or it died before the session was open;
 * -EIO: refused; the sentence says why. */
int client_link_open(struct client_link *link, const char *directory, enum message_role role, struct error *err);

void client_link_send(struct client_link *link, const struct message *m);
void client_link_send_fds(struct client_link *link, const struct message *m, const int *fds, unsigned n_fds);

/* Waits for the next message. REFUSED returns its code and FAILED returns -EIO, with their sentences. A closed session
 * returns -EIO. A watch's code ends the wait, too; if a message arrived with it, the message is returned first and the
 * next wait returns the code. fd may be NULL: a descriptor is then closed. */
int client_link_next(struct client_link *link, struct message *out, int *fd, struct error *err);

/* As client_link_next, but expects a message of this kind. Messages for on_aside are passed on; any other kind is the
 * daemon's protocol error (-EPROTO). */
int client_link_expect(struct client_link *link, enum message_kind kind, struct message *out, int *fd,
                       struct error *err);

/* client_link_expect for a message with several descriptors: fds (*n_fds), which are the caller's. */
int client_link_expect_fds(struct client_link *link, enum message_kind kind, struct message *out,
                           int fds[CLIENT_MAIL_FDS], unsigned *n_fds, struct error *err);

/* True for the messages that on_aside receives. */
bool client_link_is_aside(const struct message *m);

/* Answers the daemon while the caller waits for something else; does not block. Messages are kept for the next wait. */
void client_link_serve(struct client_link *link);

/* Waits ms milliseconds. A watch, or the end of the session, cuts it short with the errors of client_link_next. */
int client_link_pause(struct client_link *link, uint64_t ms, struct error *err);

#endif

/* client/daemon/link.h - a session with the daemon, read one message after the other.
 *
 * What comes in is an event of a libuv loop; what libeps does with it reads best from top to bottom. So a link runs
 * its own loop until the next message is there, or something else ends the wait: the session, a child that died, the
 * user. */
#ifndef CLIENT_DAEMON_LINK_H
#define CLIENT_DAEMON_LINK_H

#include "client/daemon/watch.h"
#include "proto/base/error.h"
#include "proto/wire/message.h"
#include "proto/wire/session.h"

#include <stdbool.h>
#include <uv.h>

struct client_mail {
    struct message message;
    int fd; /* that came with it, or -1; a client is sent one at most */
};

struct client_link {
    uv_loop_t loop;
    uv_timer_t tick;
    int messages_held;              /* session_hold_thread's of a client, or -1 */
    struct client_watch watches[2]; /* asked after each event, and ten times a second */
    struct session *session;        /* NULL: none, or closed */
    bool attached;                  /* the session is open */
    char end[160];                  /* why the session was closed by the other side; empty while it was not */
    struct client_mail *mail;       /* ring: what was sent and not read yet */
    size_t n_mail, first_mail, mail_cap;
    uint64_t deadline; /* of waits, by the loop's clock: -ETIMEDOUT; 0: none */
    int rc;            /* -ENOMEM once a message had to be dropped */
    int failed;        /* the code of a FAILED that came */
    int asked; /* to end a wait, while a message was there to be read first; 0: not. The next wait ends with it: */
    struct error why;
    /* SAVED, SAVE_FAILED, OUTPUT and STOP come at any time, MEMORY_REPLY where nobody waits for it: given to this where another kind is expected. NULL: out of turn. */
    void (*on_aside)(void *data, const struct message *m);
    void *aside_data;
};

/* Undo: client_link_free. On failure *link is zeroed. */
int client_link_init(struct client_link *link, struct error *err);

/* Closes the session, sends what is queued, and waits until both are done. Other handles on the loop, children's, must
 * have been closed. Safe on a zeroed one. */
void client_link_free(struct client_link *link);
void client_link_close(struct client_link *link); /* the session alone */

/* Attaches to the daemon at directory. -ENOENT, -ECONNREFUSED: there is none; -EIO: refused, and why. */
int client_link_open(struct client_link *link, const char *directory, enum message_role role, struct error *err);

void client_link_send(struct client_link *link, const struct message *m);
void client_link_send_fds(struct client_link *link, const struct message *m, const int *fds, unsigned n_fds);

/* Waits for the next message. REFUSED gives its code and FAILED -EIO, with their sentences; so does what ends the wait:
 * -EIO for a closed session, and what a watch says, which is not lost where a message comes with it: that is read first,
 * and the next wait ends at once. fd may be NULL, a descriptor is then closed. */
int client_link_next(struct client_link *link, struct message *out, int *fd, struct error *err);

/* As client_link_next, for a message of this kind: any other one, if it is not for on_aside, is a mistake of the
 * daemon's (-EPROTO). */
int client_link_expect(struct client_link *link, enum message_kind kind, struct message *out, int *fd,
                       struct error *err);

/* Lets ms milliseconds pass, unless a watch or the session's end cuts them short: then as client_link_next. */
int client_link_pause(struct client_link *link, uint64_t ms, struct error *err);

#endif

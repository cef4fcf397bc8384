/* The caller alone tries again. It closes the connection of its last attempt first, which ends that session at the
 * daemon. Its limits double, as a machine that is overloaded looks like a wedged nanomsg. To a daemon on another host
 * there is one attempt: a pair of sockets has no address to connect to again. */
#include "proto/wire/session_internal.h"

#include "proto/base/process.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

enum {
    ATTEMPTS = 4,       /* attempts, with 1, 2, 4 and 8 ticks each for WELCOME and GREETING */
    HELLO_TICKS = 5,    /* maximum time from connecting to HELLO */
    GREETING_TICKS = 15 /* the peer starts again long before, which ends this session */
};

static void attach_on_attached(struct session *s, const struct message *peer)
{
    session_enter(s, SESSION_OPEN);
    s->opened = true;
    s->events->on_open(s, peer);
}

/* On failure tells the peer and returns false. */
static bool attach_open_channel(struct session *s)
{
    const int rc = session_leaves_spare(s->connection.fd) ? session_open_channel(s) : -EMFILE;
    char reason[160];

    if (rc == -EMFILE)
        session_refuse_code(s, END_TURNED_AWAY, rc, "the daemon has no descriptors left for another session");
    else if (rc < 0) {
        snprintf(reason, sizeof reason, "the daemon cannot open a channel: %s", strerror(-rc));
        session_refuse_code(s, END_TURNED_AWAY, rc, reason);
    }
    return rc == 0;
}

/* Viewers need no channel, and other users must not reach one. */
void attach_on_hello(struct session *s, const struct message *m)
{
    struct message welcome = {.kind = MESSAGE_WELCOME, .welcome = {.id = s->id}};

    if (s->may_only_view && m->hello.role != ROLE_VIEWER) {
        session_refuse_code(s, END_TURNED_AWAY, -EPERM, "you may only observe this daemon: eps status, mem and top");
        return;
    }
    s->hello = *m;
    s->nonce = m->hello.nonce;
    if (s->peer_uid == SESSION_REMOTE_USER)
        s->peer_pid = (int)m->hello.pid; /* a pid of the peer's own host, for the log */
    s->by_connection = m->hello.role == ROLE_VIEWER || !session_is_own(s);
    if (!s->by_connection) {
        if (!attach_open_channel(s))
            return;
        snprintf(welcome.welcome.address, sizeof welcome.welcome.address, "%s", s->address);
        session_enter(s, SESSION_GREETING);
    }
    session_send_by_connection(s, &welcome, NULL, 0);
    if (s->by_connection && s->state == SESSION_HELLO)
        attach_on_attached(s, &s->hello);
}

static void attach_greet(struct session *s)
{
    const struct message m = {.kind = MESSAGE_GREETING, .greeting = {.id = s->id, .nonce = s->nonce}};

    session_send_by_channel(s, &m);
}

void attach_on_welcome(struct session *s, const struct message *m)
{
    int rc;

    s->id = m->welcome.id;
    s->by_connection = !m->welcome.address[0];
    if (s->by_connection) {
        attach_on_attached(s, m);
        return;
    }
    if (!session_is_own(s)) {
        session_fault(s, -EPROTO, "offers a channel to another user");
        return;
    }
    if (!channel_address_fits(m->welcome.address)) {
        session_fault(s, -EPROTO, "sent an address that no channel can have");
        return;
    }
    memcpy(s->address, m->welcome.address, sizeof s->address);
    rc = session_open_channel(s);
    if (rc < 0) {
        char reason[128];
        snprintf(reason, sizeof reason, "opening a channel: %s", strerror(-rc));
        session_finish(s, END_BROKEN, reason);
        return;
    }
    connection_pause(&s->connection); /* its later messages must not overtake the daemon's greeting on the channel */
    session_enter(s, SESSION_GREETING);
    attach_greet(s);
}

void attach_on_greeting(struct session *s, const struct message *m)
{
    struct message welcome = {.kind = MESSAGE_WELCOME, .welcome = {.id = s->id}};

    if (m->greeting.id != s->id || m->greeting.nonce != s->nonce) {
        session_fault(s, -EPROTO, "sent the greeting of another session");
        return;
    }
    if (s->accepted)
        attach_greet(s);
    if (s->state != SESSION_GREETING)
        return;
    connection_resume(&s->connection);
    memcpy(welcome.welcome.address, s->address, sizeof welcome.welcome.address);
    attach_on_attached(s, s->accepted ? &s->hello : &welcome);
}

/* Opens the user's own listener or, if the caller may not, the listener for group members. */
static int open_connection(struct session *s, struct error *err)
{
    char members[SESSION_ADDRESS_MAX + sizeof SESSION_MEMBERS];
    struct error other;
    int fd = -1, rc = connection_connect(&fd, s->path, err);

    if (rc == -EACCES) {
        snprintf(members, sizeof members, "%.*s" SESSION_MEMBERS, (int)(strlen(s->path) - strlen("listener")), s->path);
        const int rc2 = connection_connect(&fd, members, &other);
        if (rc2 != -ENOENT && rc2 != -EACCES)
            rc = rc2 < 0 ? error_set(err, rc2, "%s", other.text) : 0;
    }
    if (rc < 0)
        return rc;
    rc = session_open_connection(s, fd);
    return rc < 0 ? error_set(err, rc, "watching %s: %s", s->path, uv_strerror(rc)) : 0;
}

/* A nonce of its own for each attempt: a greeting of an earlier one, that was late, is told apart. */
static void say_hello(struct session *s)
{
    s->n_attempts++;
    s->on_connection.sent = s->on_connection.received = s->on_channel.sent = s->on_channel.received = 0;
    if (getrandom(&s->nonce, sizeof s->nonce, 0) != sizeof s->nonce)
        s->nonce = uv_hrtime();
    s->hello.hello.nonce = s->nonce;
    session_enter(s, SESSION_HELLO);
    session_send_by_connection(s, &s->hello, NULL, 0);
}

void attach_again(struct session *s)
{
    struct error err;

    if (open_connection(s, &err) < 0)
        session_finish(s, END_BROKEN, err.text);
    else
        say_hello(s);
}

void attach_on_tick(struct session *s)
{
    if (s->accepted) {
        unsigned limit = s->state == SESSION_HELLO ? HELLO_TICKS : GREETING_TICKS;
        if (s->n_ticks >= limit)
            session_fault(s, -ETIMEDOUT, "said nothing for %u s", limit);
    } else if (s->n_ticks >= (s->path[0] ? 1u << (s->n_attempts - 1) : GREETING_TICKS)) {
        if (s->n_attempts == ATTEMPTS || !s->path[0]) {
            session_finish(s, END_UNANSWERED, "does not answer: it is stopped, or its machine is overloaded");
            return;
        }
        session_enter(s, SESSION_RETRYING);
        session_close_links(s);
    }
}

int session_accept(struct session **out, uv_loop_t *loop, int fd, uint32_t id, const char *address,
                   const struct session_events *events, void *data)
{
    struct session *s = session_new(loop, events, data);
    int rc;

    *out = NULL;
    if (!s) {
        close(fd);
        return -ENOMEM;
    }
    s->accepted = true;
    s->id = id;
    snprintf(s->address, sizeof s->address, "%s", address);
    rc = session_open_connection(s, fd);
    if (rc < 0) {
        free(s);
        return rc;
    }
    session_start(s);
    *out = s;
    return 0;
}

/* A session with its hello; NULL: out of memory. */
static struct session *new_caller(uv_loop_t *loop, const struct message *hello, const struct session_events *events,
                                  void *data)
{
    struct session *s = session_new(loop, events, data);

    if (!s)
        return NULL;
    s->hello = *hello;
    s->hello.kind = MESSAGE_HELLO;
    s->hello.hello.pid = (uint32_t)getpid();
    return s;
}

int session_connect_by(struct session **out, uv_loop_t *loop, int fd, const struct message *hello,
                       const struct session_events *events, void *data, struct error *err)
{
    struct session *s = new_caller(loop, hello, events, data);

    *out = NULL;
    if (!s) {
        close(fd);
        return error_memory(err);
    }
    const int rc = session_open_connection(s, fd);
    if (rc < 0) {
        free(s);
        return error_set(err, rc, "watching a pair of sockets: %s", uv_strerror(rc));
    }
    session_start(s);
    say_hello(s);
    *out = s;
    return 0;
}

int session_connect(struct session **out, uv_loop_t *loop, const char *directory, const struct message *hello,
                    const struct session_events *events, void *data, struct error *err)
{
    struct session *s = new_caller(loop, hello, events, data);
    int rc;

    *out = NULL;
    if (!s)
        return error_memory(err);
    if ((size_t)snprintf(s->path, sizeof s->path, "%s/listener", directory) >= sizeof s->path) {
        free(s);
        return error_set(err, -ENAMETOOLONG, "%s: too long a path for a socket: choose a shorter one", directory);
    }
    rc = open_connection(s, err);
    if (rc < 0) {
        free(s);
        return rc;
    }
    session_start(s);
    say_hello(s);
    *out = s;
    return 0;
}

/* ---- the thread of channels ------------------------------------------------------------------------------------- */

static void hold_channel(void *hold)
{
    *(int *)hold = channel_hold_thread();
}

/* An abort leaves nanomsg in an unknown state, so it is never called again in this process. */
int session_hold_thread(int *hold, struct error *err)
{
    static atomic_bool is_lost; /* as nanomsg is, for the whole process */

    *hold = -1;
    const int rc = atomic_load(&is_lost) ? error_set(err, -EAGAIN, "no thread was to be had: start this program again")
                                         : process_survive_abort(hold_channel, hold, err);
    if (rc) {
        atomic_store(&is_lost, true);
        return rc;
    }
    return *hold < 0 ? error_set(err, *hold, "no channel can be opened: %s", strerror(-*hold)) : 0;
}

void session_release_thread(int hold)
{
    channel_release_thread(hold);
}

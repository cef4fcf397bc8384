/* The first reason counts (decide): an end causes others, which must not rename it. Each link keeps order by itself
 * alone. So whoever hears of the end on one of them first takes in what was sent before on the other: DISMISSED and
 * the connection's end drain the channel, the channel's BYE drains the connection. nanomsg hears of the peer's end
 * later than the connection does: hence SESSION_ENDING. */
#include "proto/wire/session_internal.h"

#include "proto/base/process.h"

#include <assert.h>
#include <errno.h>
#include <linux/sockios.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

enum {
    ENDING_MS = 2, /* nanomsg learns of a peer's end some milliseconds after the connection */
    ENDING_TICKS = 50,
    IDLE_TICKS = 3, /* ticks without reading after which a peer is given up */
};

static void session_on_tick(uv_timer_t *timer);

void session_enter(struct session *s, enum session_state state)
{
    s->state = state;
    s->n_ticks = 0;
    if (state == SESSION_CLOSING)
        return;
    uv_update_time(s->loop); /* a caller that was busy for long would otherwise get its first tick at once */
    uv_timer_start(&s->timer, session_on_tick, s->tick_ms, s->tick_ms);
}

/* Sets the reason of the end, unless one was given before. */
static void session_decide(struct session *s, enum message_end end, const char *reason)
{
    if (s->decided)
        return;
    s->decided = true;
    s->end = end;
    if (reason) {
        snprintf(s->reason_text, sizeof s->reason_text, "%s", reason);
        s->reason = s->reason_text;
    }
}

/* Data that waits for the peer to read: bytes on the channel, packets on the connection. */
static size_t unsent(const struct session *s)
{
    return s->channel.socket >= 0 ? channel_queued(&s->channel) : s->connection.n_queued;
}

bool session_is_behind(const struct session *s)
{
    enum { MOST = 4096 };
    int bytes = 0;

    return s->connection.n_queued > 0 || (ioctl(s->connection.fd, SIOCOUTQ, &bytes) == 0 && bytes > MOST);
}

void session_close_links(struct session *s)
{
    if (s->connection.fd >= 0)
        connection_close(&s->connection);
    if (s->channel.socket >= 0)
        channel_close(&s->channel);
}

static void session_on_handle_closed(struct session *s);

static void on_timer_closed(uv_handle_t *handle)
{
    session_on_handle_closed(handle->data);
}

/* Nothing more is sent or delivered. */
void session_finish(struct session *s, enum message_end end, const char *reason)
{
    if (s->state == SESSION_CLOSING)
        return;
    session_decide(s, end, reason);
    session_enter(s, SESSION_CLOSING);
    session_close_links(s);
    uv_close((uv_handle_t *)&s->timer, on_timer_closed);
}

void session_send_by_connection(struct session *s, const struct message *m, const int *fds, unsigned n_fds)
{
    uint8_t bytes[MESSAGE_MAX_BYTES];

    if (s->state == SESSION_OPEN && s->connection.n_queued >= SESSION_MAX_QUEUED) {
        char reason[128];
        snprintf(reason, sizeof reason, "does not read: %d messages wait for it", SESSION_MAX_QUEUED);
        s->at_fault = true;
        session_refuse_code(s, END_UNREAD, -EPROTO, reason);
        return;
    }
    size_t n = message_encode(bytes, sizeof bytes, m);
    message_number(bytes, ++s->on_connection.sent);
    int rc = connection_send(&s->connection, bytes, n, fds, n_fds); /* one slot stays free for our last message */
    if (rc < 0) {
        char reason[128];
        snprintf(reason, sizeof reason, "sending over the connection: %s", strerror(-rc));
        session_finish(s, END_LOST, reason);
    }
}

void session_send_by_channel(struct session *s, const struct message *m)
{
    uint8_t bytes[MESSAGE_MAX_BYTES];
    size_t n = message_encode(bytes, sizeof bytes, m);

    message_number(bytes, ++s->on_channel.sent);
    int rc = channel_send(&s->channel, bytes, n);
    if (rc == -ENOBUFS) {
        session_refuse_code(s, END_UNREAD, -EPROTO, "does not read: 16 MiB of messages wait for it");
    } else if (rc < 0) {
        char reason[128];
        snprintf(reason, sizeof reason, "sending by the channel: %s", strerror(-rc));
        session_finish(s, END_LOST, reason);
    }
}

/* Tells the peer why, and gives it a tick to read that. */
void session_refuse_code(struct session *s, enum message_end end, int code, const char *reason)
{
    struct message m = {.kind = MESSAGE_DISMISSED, .dismissed = {.end = end, .code = code}};

    if (s->state == SESSION_LEAVING || s->state == SESSION_CLOSING)
        return;
    session_decide(s, END_DISMISSED, reason);
    if (s->state == SESSION_RETRYING || s->state == SESSION_ENDING) {
        session_finish(s, END_DISMISSED, reason);
        return;
    }
    session_enter(s, SESSION_LEAVING);
    snprintf(m.dismissed.error.text, sizeof m.dismissed.error.text, "%s", reason);
    session_send_by_connection(s, &m, NULL, 0);
    if (s->channel.socket >= 0)
        channel_close(&s->channel);
    if (s->connection.fd >= 0)
        connection_shutdown(&s->connection);
    s->unsent = unsent(s);
}

void session_fault(struct session *s, int code, const char *format, ...)
{
    struct error err;
    va_list args;

    va_start(args, format);
    vsnprintf(err.text, sizeof err.text, format, args);
    va_end(args);
    s->at_fault = true;
    session_refuse_code(s, END_FAULT, code, err.text);
}

/* Decodes a packet of a link. If it is not the link's next message, begins the end and returns false. */
static bool session_receive(struct session *s, struct message *m, uint64_t *received, const uint8_t *bytes, size_t n)
{
    const char *why;
    int rc = message_decode(m, bytes, n, &why);

    if (rc == -EPROTONOSUPPORT) {
        session_fault(s, rc, "speaks version %d of the protocol, not %d: use programs of one build",
                      message_version(bytes, n), MESSAGE_VERSION);
        return false;
    }
    if (rc < 0) {
        session_fault(s, rc, "sent what is no message: %s", why);
        return false;
    }
    if (m->sequence != *received + 1) {
        session_fault(s, -EPROTO, "sent %s as message %llu where %llu was due", message_name(m->kind),
                      (unsigned long long)m->sequence, (unsigned long long)*received + 1);
        return false;
    }
    ++*received;
    return true;
}

static void out_of_place(struct session *s, const struct message *m, const char *link)
{
    session_fault(s, -EPROTO, "sent %s %s, out of place", message_name(m->kind), link);
}

static void send_by_carrier(struct session *s, const struct message *m)
{
    if (s->by_connection)
        session_send_by_connection(s, m, NULL, 0);
    else
        session_send_by_channel(s, m);
}

/* Handles heartbeat and end of an open session, on either link; false for other messages. */
static bool on_life(struct session *s, const struct message *m, const char *link)
{
    if (m->kind == MESSAGE_BYE) {
        session_decide(s, END_CLOSED, "closed");
        if (!s->by_connection)
            connection_drain(&s->connection); /* packets there were sent earlier */
        session_finish(s, END_CLOSED, NULL);
    } else if (m->kind == MESSAGE_PING && !s->accepted) {
        struct message pong = {.kind = MESSAGE_PONG, .pong = {.progress = 0}};
        if (s->progress)
            pong.pong.progress = __atomic_load_n(s->progress, __ATOMIC_RELAXED);
        if (s->state == SESSION_OPEN)
            s->n_ticks = 0;
        send_by_carrier(s, &pong);
    } else if (m->kind == MESSAGE_PONG && s->n_unanswered > 0) {
        s->n_unanswered--;
        s->peer_progress = m->pong.progress;
    } else if (m->kind == MESSAGE_PING || m->kind == MESSAGE_PONG) {
        out_of_place(s, m, link);
    } else {
        return false;
    }
    return true;
}

static bool is_life(enum message_kind kind)
{
    return kind == MESSAGE_PING || kind == MESSAGE_PONG || kind == MESSAGE_BYE;
}

/* Handles the session's own messages over the connection; false for others. */
static bool on_connection_message(struct session *s, const struct message *m)
{
    if (m->kind == MESSAGE_DISMISSED) {
        char reason[ERROR_TEXT_BYTES];
        snprintf(reason, sizeof reason, "refused: %.480s", m->dismissed.error.text);
        if (s->state == SESSION_OPEN && !s->by_connection)
            channel_drain(&s->channel);
        session_finish(s, m->dismissed.end, reason);
    } else if (s->state == SESSION_HELLO && m->kind == (s->accepted ? MESSAGE_HELLO : MESSAGE_WELCOME)) {
        if (s->accepted)
            attach_on_hello(s, m);
        else
            attach_on_welcome(s, m);
    } else if (s->state != SESSION_OPEN || m->kind == MESSAGE_HELLO || m->kind == MESSAGE_WELCOME ||
               m->kind == MESSAGE_GREETING || (!s->by_connection && is_life(m->kind))) {
        out_of_place(s, m, "over the connection");
    } else {
        return on_life(s, m, "over the connection");
    }
    return true;
}

/* True if the message may carry descriptors. */
static bool may_have(struct session *s, const struct message *m, unsigned n_fds)
{
    if (n_fds == 0 || message_has_descriptors(m->kind))
        return true;
    session_fault(s, -EPROTO, "sent %u descriptors with %s, where there are none", n_fds, message_name(m->kind));
    return false;
}

static void session_on_connection_packet(struct connection *connection, const uint8_t *bytes, size_t n, const int *fds,
                                         unsigned n_fds)
{
    struct session *s = connection->data;
    struct message m;
    bool ours = true; /* false: the callee closes them */

    if ((s->state != SESSION_LEAVING || s->by_connection) &&
        session_receive(s, &m, &s->on_connection.received, bytes, n)) {
        if (s->state != SESSION_LEAVING)
            ours = !may_have(s, &m, n_fds) || on_connection_message(s, &m);
        else if (m.kind == MESSAGE_BYE) /* both sides want to end: neither waits for the other */
            session_finish(s, END_CLOSED, NULL);
        else
            session_charge(s, 1);
    }
    if (!ours)
        s->events->on_message(s, &m, fds, n_fds);
    for (unsigned i = 0; ours && i < n_fds; i++)
        close(fds[i]);
}

static void on_ending(struct session *s)
{
    channel_drain(&s->channel);
    if (s->state == SESSION_ENDING && (!channel_is_connected(&s->channel) || s->n_ticks == ENDING_TICKS))
        session_finish(s, END_LOST, "killed");
}

static void session_on_connection_end(struct connection *connection, const char *what)
{
    struct session *s = connection->data;

    if (s->state == SESSION_OPEN && !what && s->by_connection) {
        session_finish(s, END_LOST, "killed");
        return;
    }
    if (s->state == SESSION_OPEN && !what) {
        session_enter(s, SESSION_ENDING);
        uv_timer_start(&s->timer, session_on_tick, ENDING_MS, ENDING_MS);
        on_ending(s);
        return;
    }
    if (what && s->state != SESSION_LEAVING)
        session_fault(s, -EPROTO, "%s", what);
    session_finish(s, END_LOST, "closed before the session was open");
}

static void session_on_connection_closed(struct connection *connection)
{
    session_on_handle_closed(connection->data);
}

static const struct connection_events connection_events = {session_on_connection_packet, session_on_connection_end,
                                                           session_on_connection_closed};

/* Handles the session's own messages on the channel; false for others. */
static bool on_channel_message(struct session *s, const struct message *m)
{
    if (s->state == SESSION_GREETING && m->kind == MESSAGE_GREETING) {
        attach_on_greeting(s, m);
    } else if ((s->state != SESSION_OPEN && s->state != SESSION_ENDING) || m->kind == MESSAGE_HELLO ||
               m->kind == MESSAGE_WELCOME || m->kind == MESSAGE_GREETING || m->kind == MESSAGE_DISMISSED) {
        out_of_place(s, m, "by the channel");
    } else {
        return on_life(s, m, "by the channel");
    }
    return true;
}

static void on_channel_packet(struct channel *channel, const uint8_t *bytes, size_t n)
{
    struct session *s = channel->data;
    struct message m;

    if (!session_receive(s, &m, &s->on_channel.received, bytes, n))
        return;
    if (s->state == SESSION_LEAVING) { /* both sides want to end: neither waits for the other */
        if (m.kind == MESSAGE_BYE)
            session_finish(s, END_CLOSED, NULL);
        return;
    }
    if (!on_channel_message(s, &m))
        s->events->on_message(s, &m, NULL, 0);
}

static void on_channel_fault(struct channel *channel, const char *what)
{
    session_finish(channel->data, END_LOST, what);
}

static void on_channel_closed(struct channel *channel)
{
    session_on_handle_closed(channel->data);
}

static const struct channel_events channel_events = {on_channel_packet, on_channel_fault, on_channel_closed};

static void session_on_handle_closed(struct session *s)
{
    s->n_handles--;
    if (s->state == SESSION_RETRYING && s->n_handles == 1) /* only the timer is left */
        attach_again(s);
    if (s->n_handles > 0)
        return;
    if (s->listener && !s->opened && s->at_fault && s->reason)
        session_note_away(s->listener, s->peer_pid, s->peer_uid, "it ", s->reason);
    session_unlist(s);
    s->events->on_closed(s, s->reason);
    free(s);
}

/* A client or viewer may be as slow as it likes, but must exist. A process that it forked may hold its socket after its
 * own end; then that tells nothing. */
static void check_process(struct session *s)
{
    if (!process_has_ended(s->peer_pid, s->peer_birth))
        return;
    connection_drain(&s->connection);
    if (s->state == SESSION_OPEN)
        session_on_connection_end(&s->connection, NULL);
}

static void on_open_tick(struct session *s)
{
    const struct message ping = {.kind = MESSAGE_PING};
    const bool is_worker = s->hello.hello.role == ROLE_WORKER;

    if (!s->accepted) {
        if (is_worker && s->n_ticks >= SESSION_PATIENCE)
            session_finish(s, END_LOST, "silent for 60 s");
    } else if (!is_worker) {
        check_process(s);
    } else if (s->n_unanswered == SESSION_PINGS) {
        session_refuse_code(s, END_SILENT, -ETIMEDOUT, "silent for 15 s");
    } else {
        s->n_unanswered++;
        send_by_carrier(s, &ping);
    }
}

/* A peer that still reads gets the time it needs. */
static void on_leaving_tick(struct session *s)
{
    const size_t left = unsent(s);

    s->n_idle = left < s->unsent ? 0 : s->n_idle + 1;
    s->unsent = left;
    if (s->n_idle == IDLE_TICKS || s->n_ticks == SESSION_PATIENCE)
        session_finish(s, END_CLOSED, NULL);
}

static void session_on_tick(uv_timer_t *timer)
{
    struct session *s = timer->data;

    s->n_ticks++;
    switch (s->state) {
    case SESSION_HELLO:
    case SESSION_GREETING:
        attach_on_tick(s);
        break;
    case SESSION_OPEN:
        on_open_tick(s);
        break;
    case SESSION_ENDING:
        on_ending(s);
        break;
    case SESSION_LEAVING:
        on_leaving_tick(s);
        break;
    case SESSION_RETRYING:
    case SESSION_CLOSING:
        break;
    }
}

struct session *session_new(uv_loop_t *loop, const struct session_events *events, void *data)
{
    struct session *s = calloc(1, sizeof *s);

    if (!s)
        return NULL;
    s->loop = loop;
    s->events = events;
    s->data = data;
    s->tick_ms = SESSION_TICK_MS;
    s->connection.fd = s->channel.socket = -1;
    return s;
}

void session_enlist(struct session *s, struct session **first)
{
    s->next = *first;
    s->listed = first;
    if (s->next)
        s->next->listed = &s->next;
    *first = s;
}

void session_unlist(struct session *s)
{
    if (!s->listed)
        return;
    *s->listed = s->next;
    if (s->next)
        s->next->listed = s->listed;
    s->listed = NULL;
}

int session_open_connection(struct session *s, int fd)
{
    struct connection_peer peer;

    if (!connection_peer(&peer, fd)) {
        close(fd);
        return -EACCES;
    }
    s->peer_pid = peer.pid;
    s->peer_uid = peer.uid;
    s->peer_birth = s->accepted ? process_birth(peer.pid) : 0;
    int rc = connection_open(&s->connection, s->loop, fd, &connection_events, s);

    s->connection.takes_no_fds = s->accepted && !session_is_own(s) && s->peer_uid != 0;
    if (rc == 0)
        s->n_handles++;
    return rc;
}

bool session_is_own(const struct session *s)
{
    return s->peer_uid == geteuid();
}

int session_open_channel(struct session *s)
{
    int rc = channel_open(&s->channel, s->loop, s->address, s->accepted, &channel_events, s);

    if (rc == 0)
        s->n_handles++;
    return rc;
}

void session_start(struct session *s)
{
    uv_timer_init(s->loop, &s->timer);
    s->timer.data = s;
    s->n_handles++;
    session_enter(s, SESSION_HELLO);
}

void session_send(struct session *s, const struct message *m)
{
    assert(s->opened || s->decided);
    if (s->state == SESSION_OPEN)
        send_by_carrier(s, m);
}

void session_send_fds(struct session *s, const struct message *m, const int *fds, unsigned n_fds)
{
    assert((s->opened || s->decided) && n_fds <= SESSION_MAX_FDS);
    assert(n_fds == 0 || message_has_descriptors(m->kind));
    if (s->state == SESSION_OPEN)
        session_send_by_connection(s, m, fds, n_fds);
}

void session_close(struct session *s)
{
    const struct message bye = {.kind = MESSAGE_BYE};

    if (s->state == SESSION_LEAVING || s->state == SESSION_CLOSING)
        return;
    session_decide(s, END_CLOSED, NULL);
    if (s->state != SESSION_OPEN) {
        session_finish(s, END_CLOSED, NULL);
        return;
    }
    session_enter(s, SESSION_LEAVING);
    send_by_carrier(s, &bye);
    s->unsent = unsent(s);
}

void session_refuse(struct session *s, const char *reason)
{
    session_refuse_code(s, END_FAULT, -ECONNREFUSED, reason);
}

void session_turn_away(struct session *s, const char *reason)
{
    session_refuse_code(s, END_TURNED_AWAY, -ECONNREFUSED, reason);
}

enum message_end session_end(const struct session *s)
{
    return s->end;
}

void *session_data(const struct session *s)
{
    return s->data;
}

void session_set_data(struct session *s, void *data)
{
    s->data = data;
}

uint32_t session_id(const struct session *s)
{
    return s->id;
}

void session_share_progress(struct session *s, const uint64_t *progress)
{
    s->progress = progress;
}

uint64_t session_peer_progress(const struct session *s)
{
    return s->peer_progress;
}

int session_peer_pid(const struct session *s)
{
    return s->peer_pid;
}

uid_t session_peer_uid(const struct session *s)
{
    return s->peer_uid;
}

void session_set_tick(struct session *s, unsigned ms)
{
    s->tick_ms = ms;
    uv_timer_start(&s->timer, session_on_tick, ms, ms);
}

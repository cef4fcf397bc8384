#include "proto/session_internal.h"

#include "proto/channel.h"
#include "proto/door.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

enum {
    ATTEMPTS = 4,       /* of 1, 2, 4 and 8 ticks for each of WELCOME and GREETING */
    HELLO_TICKS = 5,    /* that a connection may stay silent at the door */
    GREETING_TICKS = 15 /* a peer tries anew long before, which ends this session */
};

enum state {
    SESSION_HELLO,    /* ended by HELLO (daemon's side) or WELCOME (peer's) through the door, or by too many ticks */
    SESSION_GREETING, /* ended by GREETING on the channel, or by too many ticks: then the peer tries anew */
    SESSION_OPEN,     /* ended by either side's wish, death or fault */
    SESSION_LEAVING,  /* ended by the peer closing its door, having read our last words, or by a tick */
    SESSION_RETRYING, /* ended when this attempt's links are closed */
    SESSION_CLOSING   /* ended when libuv has given all handles back */
};

struct session {
    enum state state;
    bool accepted; /* the daemon's side */
    bool opened;   /* on_open was called */
    bool decided;  /* how it ends: reason, or NULL for our own wish */
    bool at_fault; /* the peer */
    const char *reason;
    char reason_text[ERROR_TEXT_BYTES];
    uv_loop_t *loop;
    uv_timer_t timer;
    unsigned tick_ms, n_ticks; /* since the state was entered; on a peer's side also since the last ping */
    unsigned n_attempts, n_unanswered;
    unsigned n_handles; /* timer, door, channel: not given back yet */
    struct door door;
    struct channel channel;
    struct {
        uint64_t sent, received; /* sequence numbers */
    } on_door, on_channel;
    uint32_t id;
    uint64_t nonce;
    int peer_pid;
    char address[SESSION_ADDRESS_MAX]; /* of the channel; on a peer's side, before WELCOME, nothing */
    char path[SESSION_ADDRESS_MAX];    /* of the door, on a peer's side */
    struct message hello;              /* ours on a peer's side, else the peer's */
    _Atomic uint64_t progress;
    uint64_t peer_progress;
    const struct session_events *events;
    void *data;
};

static void on_tick(uv_timer_t *timer);

static void enter(struct session *s, enum state state)
{
    s->state = state;
    s->n_ticks = 0;
    if (state != SESSION_CLOSING)
        uv_timer_start(&s->timer, on_tick, s->tick_ms, s->tick_ms);
}

/* The first word counts. */
static void decide(struct session *s, const char *reason)
{
    if (s->decided)
        return;
    s->decided = true;
    if (reason) {
        snprintf(s->reason_text, sizeof s->reason_text, "%s", reason);
        s->reason = s->reason_text;
    }
}

static void close_links(struct session *s)
{
    if (s->door.fd >= 0)
        door_close(&s->door);
    if (s->channel.socket >= 0)
        channel_close(&s->channel);
}

static void on_handle_closed(struct session *s);

static void on_timer_closed(uv_handle_t *handle)
{
    on_handle_closed(handle->data);
}

/* Nothing more is sent or delivered. */
static void finish(struct session *s, const char *reason)
{
    if (s->state == SESSION_CLOSING)
        return;
    decide(s, reason);
    enter(s, SESSION_CLOSING);
    close_links(s);
    uv_close((uv_handle_t *)&s->timer, on_timer_closed);
}

static void refuse(struct session *s, int code, const char *reason);

static void send_by_door(struct session *s, const struct message *m, const int *fds, unsigned n_fds)
{
    struct message numbered = *m;
    uint8_t bytes[MESSAGE_MAX_BYTES];

    numbered.sequence = ++s->on_door.sent;
    size_t n = message_encode(bytes, sizeof bytes, &numbered);
    int rc = door_send(&s->door, bytes, n, fds, n_fds);
    if (rc < 0) {
        char reason[128];
        snprintf(reason, sizeof reason, "sending through the door: %s", strerror(-rc));
        finish(s, reason);
    }
}

static void send_by_channel(struct session *s, const struct message *m)
{
    struct message numbered = *m;
    uint8_t bytes[MESSAGE_MAX_BYTES];

    numbered.sequence = ++s->on_channel.sent;
    size_t n = message_encode(bytes, sizeof bytes, &numbered);
    int rc = channel_send(&s->channel, bytes, n);
    if (rc == -ENOBUFS) {
        refuse(s, -EPROTO, "does not read: 16 MiB of messages wait for it");
    } else if (rc < 0) {
        char reason[128];
        snprintf(reason, sizeof reason, "sending by the channel: %s", strerror(-rc));
        finish(s, reason);
    }
}

/* The peer is told why, and gets a tick to read it. */
static void refuse(struct session *s, int code, const char *reason)
{
    struct message m = {.kind = MESSAGE_REFUSED, .refused = {.code = code}};

    if (s->state == SESSION_LEAVING || s->state == SESSION_CLOSING)
        return;
    decide(s, reason);
    if (s->state == SESSION_RETRYING) {
        finish(s, reason);
        return;
    }
    enter(s, SESSION_LEAVING);
    snprintf(m.refused.error.text, sizeof m.refused.error.text, "%s", reason);
    send_by_door(s, &m, NULL, 0);
    if (s->channel.socket >= 0)
        channel_close(&s->channel);
    if (s->door.fd >= 0)
        door_shutdown(&s->door);
}

static void fault(struct session *s, int code, const char *format, ...) __attribute__((format(printf, 3, 4)));
static void fault(struct session *s, int code, const char *format, ...)
{
    struct error err;
    va_list args;

    va_start(args, format);
    vsnprintf(err.text, sizeof err.text, format, args);
    va_end(args);
    s->at_fault = true;
    refuse(s, code, err.text);
}

/* Decodes what came by a link; false, and the session is on its way out, if it is not the next message of it. */
static bool receive(struct session *s, struct message *m, uint64_t *received, const uint8_t *bytes, size_t n)
{
    const char *why;
    int rc = message_decode(m, bytes, n, &why);

    if (rc == -EPROTONOSUPPORT) {
        fault(s, rc, "speaks version %d of the protocol, not %d: use programs of one build", message_version(bytes, n),
              MESSAGE_VERSION);
        return false;
    }
    if (rc < 0) {
        fault(s, rc, "sent what is no message: %s", why);
        return false;
    }
    if (m->sequence != *received + 1) {
        fault(s, -EPROTO, "sent %s as message %llu where %llu was due", message_name(m->kind),
              (unsigned long long)m->sequence, (unsigned long long)*received + 1);
        return false;
    }
    ++*received;
    return true;
}

static void out_of_place(struct session *s, const struct message *m, const char *link)
{
    fault(s, -EPROTO, "sent %s %s, out of place", message_name(m->kind), link);
}

static const struct door_events door_events;
static const struct channel_events channel_events;

static int open_channel(struct session *s)
{
    int rc = channel_open(&s->channel, s->loop, s->address, s->accepted, &channel_events, s);

    if (rc == 0)
        s->n_handles++;
    return rc;
}

static void on_hello(struct session *s, const struct message *m)
{
    struct message welcome = {.kind = MESSAGE_WELCOME};
    int rc = open_channel(s);

    if (rc < 0) {
        char reason[160];
        snprintf(reason, sizeof reason, "the daemon cannot open a channel: %s", strerror(-rc));
        refuse(s, rc, reason);
        return;
    }
    s->hello = *m;
    s->nonce = m->hello.nonce;
    welcome.welcome.id = s->id;
    snprintf(welcome.welcome.address, sizeof welcome.welcome.address, "%s", s->address);
    enter(s, SESSION_GREETING);
    send_by_door(s, &welcome, NULL, 0);
}

static void greet(struct session *s)
{
    const struct message m = {.kind = MESSAGE_GREETING, .greeting = {.id = s->id, .nonce = s->nonce}};

    send_by_channel(s, &m);
}

static void on_welcome(struct session *s, const struct message *m)
{
    int rc;

    if (!channel_address_fits(m->welcome.address)) {
        fault(s, -EPROTO, "sent an address that no channel can have");
        return;
    }
    s->id = m->welcome.id;
    memcpy(s->address, m->welcome.address, sizeof s->address);
    rc = open_channel(s);
    if (rc < 0) {
        char reason[128];
        snprintf(reason, sizeof reason, "opening a channel: %s", strerror(-rc));
        finish(s, reason);
        return;
    }
    door_pause(&s->door); /* what the daemon sends through it once it has our greeting must not overtake its own */
    enter(s, SESSION_GREETING);
    greet(s);
}

static void on_greeting(struct session *s, const struct message *m)
{
    struct message welcome = {.kind = MESSAGE_WELCOME, .welcome = {.id = s->id}};

    if (m->greeting.id != s->id || m->greeting.nonce != s->nonce) {
        fault(s, -EPROTO, "sent the greeting of another session");
        return;
    }
    if (s->accepted)
        greet(s);
    if (s->state != SESSION_GREETING)
        return;
    enter(s, SESSION_OPEN);
    door_resume(&s->door);
    s->opened = true;
    memcpy(welcome.welcome.address, s->address, sizeof welcome.welcome.address);
    s->events->on_open(s, s->accepted ? &s->hello : &welcome);
}

/* Our part of the door's messages; false if it is the user's. */
static bool on_door_message(struct session *s, const struct message *m)
{
    if (m->kind == MESSAGE_REFUSED) {
        char reason[ERROR_TEXT_BYTES];
        snprintf(reason, sizeof reason, "refused: %.480s", m->refused.error.text);
        if (s->state == SESSION_OPEN)
            channel_drain(&s->channel);
        finish(s, reason);
    } else if (s->state == SESSION_HELLO && m->kind == (s->accepted ? MESSAGE_HELLO : MESSAGE_WELCOME)) {
        if (s->accepted)
            on_hello(s, m);
        else
            on_welcome(s, m);
    } else if (s->state != SESSION_OPEN || m->kind == MESSAGE_HELLO || m->kind == MESSAGE_WELCOME ||
               m->kind == MESSAGE_GREETING || m->kind == MESSAGE_PING || m->kind == MESSAGE_PONG ||
               m->kind == MESSAGE_BYE) {
        out_of_place(s, m, "through the door");
    } else {
        return false;
    }
    return true;
}

static void on_door_packet(struct door *door, const uint8_t *bytes, size_t n, const int *fds, unsigned n_fds)
{
    struct session *s = door->data;
    struct message m;
    bool ours = true; /* the user's are its to close */

    if (s->state != SESSION_LEAVING && receive(s, &m, &s->on_door.received, bytes, n))
        ours = on_door_message(s, &m);
    if (!ours)
        s->events->on_message(s, &m, fds, n_fds);
    for (unsigned i = 0; ours && i < n_fds; i++)
        close(fds[i]);
}

static void on_door_end(struct door *door, const char *what)
{
    struct session *s = door->data;

    if (what && s->state != SESSION_LEAVING)
        fault(s, -EPROTO, "%s", what);
    else if (s->state == SESSION_OPEN)
        channel_drain(&s->channel); /* it may have said BYE */
    finish(s, s->opened ? "killed" : "closed before the session was open");
}

static void on_door_closed(struct door *door)
{
    on_handle_closed(door->data);
}

static const struct door_events door_events = {on_door_packet, on_door_end, on_door_closed};

/* Our part of the channel's messages; false if it is the user's. */
static bool on_channel_message(struct session *s, const struct message *m)
{
    if (s->state == SESSION_GREETING && m->kind == MESSAGE_GREETING) {
        on_greeting(s, m);
    } else if (s->state != SESSION_OPEN || m->kind == MESSAGE_HELLO || m->kind == MESSAGE_WELCOME ||
               m->kind == MESSAGE_GREETING) {
        out_of_place(s, m, "by the channel");
    } else if (m->kind == MESSAGE_BYE) {
        decide(s, "closed");
        door_drain(&s->door); /* what lies there came before */
        finish(s, NULL);
    } else if (m->kind == MESSAGE_PING && !s->accepted) {
        struct message pong = {.kind = MESSAGE_PONG, .pong = {.progress = s->progress}};
        s->n_ticks = 0;
        send_by_channel(s, &pong);
    } else if (m->kind == MESSAGE_PONG && s->n_unanswered > 0) {
        s->n_unanswered--;
        s->peer_progress = m->pong.progress;
    } else if (m->kind == MESSAGE_PING || m->kind == MESSAGE_PONG) {
        out_of_place(s, m, "by the channel");
    } else {
        return false;
    }
    return true;
}

static void on_channel_packet(struct channel *channel, const uint8_t *bytes, size_t n)
{
    struct session *s = channel->data;
    struct message m;

    if (!receive(s, &m, &s->on_channel.received, bytes, n))
        return;
    if (s->state == SESSION_LEAVING) { /* it wants what we want: neither need wait for the other */
        if (m.kind == MESSAGE_BYE)
            finish(s, NULL);
        return;
    }
    if (!on_channel_message(s, &m))
        s->events->on_message(s, &m, NULL, 0);
}

static void on_channel_fault(struct channel *channel, const char *what)
{
    finish(channel->data, what);
}

static void on_channel_closed(struct channel *channel)
{
    on_handle_closed(channel->data);
}

static const struct channel_events channel_events = {on_channel_packet, on_channel_fault, on_channel_closed};

static int open_door(struct session *s, struct error *err)
{
    int fd = -1, rc = door_connect(&fd, s->path, err);

    if (rc < 0)
        return rc;
    door_is_ours(fd, &s->peer_pid);
    rc = door_open(&s->door, s->loop, fd, &door_events, s);
    if (rc < 0)
        return error_set(err, rc, "watching %s: %s", s->path, uv_strerror(rc));
    s->n_handles++;
    return 0;
}

static void say_hello(struct session *s)
{
    s->n_attempts++;
    s->on_door.sent = s->on_door.received = s->on_channel.sent = s->on_channel.received = 0;
    if (getrandom(&s->nonce, sizeof s->nonce, 0) != sizeof s->nonce)
        s->nonce = uv_hrtime();
    s->hello.hello.nonce = s->nonce;
    enter(s, SESSION_HELLO);
    send_by_door(s, &s->hello, NULL, 0);
}

static void on_handle_closed(struct session *s)
{
    struct error err;

    s->n_handles--;
    if (s->state == SESSION_RETRYING && s->n_handles == 1) { /* the timer */
        if (open_door(s, &err) < 0)
            finish(s, err.text);
        else
            say_hello(s);
    }
    if (s->n_handles > 0)
        return;
    if (s->accepted && !s->opened && s->at_fault && s->reason)
        log_line("turned away at the door, pid %d: it %s", s->peer_pid, s->reason);
    s->events->on_closed(s, s->reason);
    free(s);
}

static void on_attach_tick(struct session *s)
{
    if (s->accepted) {
        unsigned limit = s->state == SESSION_HELLO ? HELLO_TICKS : GREETING_TICKS;
        if (s->n_ticks >= limit)
            fault(s, -ETIMEDOUT, "said nothing for %u s", limit);
    } else if (s->n_ticks >= 1u << (s->n_attempts - 1)) {
        if (s->n_attempts == ATTEMPTS) {
            finish(s, "does not answer");
            return;
        }
        enter(s, SESSION_RETRYING);
        close_links(s);
    }
}

static void on_open_tick(struct session *s)
{
    const struct message ping = {.kind = MESSAGE_PING};

    if (!s->accepted) {
        if (s->n_ticks >= SESSION_PATIENCE)
            finish(s, "silent for 60 s");
    } else if (s->n_unanswered == SESSION_PINGS) {
        refuse(s, -ETIMEDOUT, "silent for 15 s");
    } else {
        s->n_unanswered++;
        send_by_channel(s, &ping);
    }
}

static void on_tick(uv_timer_t *timer)
{
    struct session *s = timer->data;

    s->n_ticks++;
    switch (s->state) {
    case SESSION_HELLO:
    case SESSION_GREETING:
        on_attach_tick(s);
        break;
    case SESSION_OPEN:
        on_open_tick(s);
        break;
    case SESSION_LEAVING:
        finish(s, NULL);
        break;
    case SESSION_RETRYING:
    case SESSION_CLOSING:
        break;
    }
}

static struct session *session_new(uv_loop_t *loop, const struct session_events *events, void *data)
{
    struct session *s = calloc(1, sizeof *s);

    if (!s)
        return NULL;
    s->loop = loop;
    s->events = events;
    s->data = data;
    s->tick_ms = SESSION_TICK_MS;
    s->door.fd = s->channel.socket = -1;
    return s;
}

/* From here on on_closed ends it. */
static void start_timer(struct session *s)
{
    uv_timer_init(s->loop, &s->timer);
    s->timer.data = s;
    s->n_handles++;
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
    door_is_ours(fd, &s->peer_pid);
    rc = door_open(&s->door, loop, fd, &door_events, s);
    if (rc < 0) {
        free(s);
        return rc;
    }
    s->n_handles++;
    start_timer(s);
    enter(s, SESSION_HELLO);
    *out = s;
    return 0;
}

int session_connect(struct session **out, uv_loop_t *loop, const char *directory, const struct message *hello,
                    const struct session_events *events, void *data, struct error *err)
{
    struct session *s = session_new(loop, events, data);
    int rc;

    *out = NULL;
    if (!s)
        return error_set(err, -ENOMEM, "out of memory");
    if ((size_t)snprintf(s->path, sizeof s->path, "%s/door", directory) >= sizeof s->path) {
        free(s);
        return error_set(err, -ENAMETOOLONG, "%s: too long a path for a socket: choose a shorter one", directory);
    }
    s->hello = *hello;
    s->hello.kind = MESSAGE_HELLO;
    s->hello.hello.pid = (uint32_t)getpid();
    rc = open_door(s, err);
    if (rc < 0) {
        free(s);
        return rc;
    }
    start_timer(s);
    say_hello(s);
    *out = s;
    return 0;
}

void session_send(struct session *s, const struct message *m)
{
    assert(s->opened || s->decided);
    if (s->state == SESSION_OPEN)
        send_by_channel(s, m);
}

void session_send_fds(struct session *s, const struct message *m, const int *fds, unsigned n_fds)
{
    assert((s->opened || s->decided) && n_fds <= SESSION_MAX_FDS && m->kind != MESSAGE_REFUSED);
    if (s->state == SESSION_OPEN)
        send_by_door(s, m, fds, n_fds);
}

void session_close(struct session *s)
{
    const struct message bye = {.kind = MESSAGE_BYE};

    if (s->state == SESSION_LEAVING || s->state == SESSION_CLOSING)
        return;
    decide(s, NULL);
    if (s->state != SESSION_OPEN) {
        finish(s, NULL);
        return;
    }
    enter(s, SESSION_LEAVING);
    send_by_channel(s, &bye);
}

void session_refuse(struct session *s, const char *reason)
{
    refuse(s, -ECONNREFUSED, reason);
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

void session_set_progress(struct session *s, uint64_t progress)
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

void session_set_tick(struct session *s, unsigned ms)
{
    s->tick_ms = ms;
    uv_timer_start(&s->timer, on_tick, ms, ms);
}

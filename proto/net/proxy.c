#include "proto/net/proxy.h"

#include "proto/net/bulk.h"
#include "proto/net/control.h"
#include "proto/net/payload.h"
#include "proto/wire/connection.h"
#include "proto/wire/wire.h"

#include <assert.h>
#include <stdio.h>
#include <unistd.h>

enum {
    LINGER_MS = 2000,                            /* how long the last messages may take to leave */
    CONNECTION_FULL = CONNECTION_MAX_QUEUED / 2, /* packets; further messages wait here */
};

/* First byte of a control frame. */
enum { FRAME_MESSAGE = 1, FRAME_CREDIT };

enum proxy_state {
    PROXY_OPEN,    /* ends with either side's end or fault */
    PROXY_LEAVING, /* the last messages leave; ends when the session has closed its connection, or after LINGER_MS */
    PROXY_CLOSING  /* ends when libuv has returned all handles */
};

struct proxy {
    enum proxy_state state;
    bool is_daemon, said_hello;
    char peer[PROXY_NAME_BYTES];
    struct connection connection;
    struct control control;
    struct bulk bulk;
    uv_check_t check; /* runs while the session does not take what waits for it */
    uv_timer_t linger;
    unsigned n_handles;
    bool has_control, has_bulk;
    struct payload payload;
    uint64_t n_to_connection, n_to_peer; /* messages */
    /* Messages from the peer, oldest first: length u16 | ranges that are still to come u8 | bytes. */
    struct fifo waiting;
    size_t expecting; /* offset in `waiting` of the message whose ranges come next */
    bool job_over;    /* the worker's side: the job's memory is to be given back */
    const char *bulk_note;
    uint64_t *progress;
    void (*on_closed)(void *data);
    void *data;
};

enum { WAITING_HEADER = 3 };

/* Messages that do not wait for earlier ones. The daemon's BYE: its worker needs no more weights. A worker's BYE: FAILED,
 * which says why it ends, may be waiting. */
static bool overtakes(const struct proxy *g, enum message_kind kind)
{
    static const bool at_once[MESSAGE_KINDS] = {
        [MESSAGE_PING] = true,  [MESSAGE_PONG] = true,  [MESSAGE_DISMISSED] = true,
        [MESSAGE_PULL] = true,  [MESSAGE_LOSS] = true,  [MESSAGE_FREE] = true,
        [MESSAGE_GRANT] = true, [MESSAGE_DRAIN] = true, [MESSAGE_READ] = true,
    };

    return at_once[kind] || (kind == MESSAGE_BYE && !g->is_daemon);
}

/* What a worker may send. */
static bool is_workers(enum message_kind kind)
{
    static const bool sends[MESSAGE_KINDS] = {
        [MESSAGE_HELLO] = true,     [MESSAGE_PONG] = true,         [MESSAGE_ASSIGNED] = true,
        [MESSAGE_REFUSED] = true,   [MESSAGE_RELEASE] = true,      [MESSAGE_PULL] = true,
        [MESSAGE_LOSS] = true,      [MESSAGE_CONTRIBUTION] = true, [MESSAGE_EVALUATED] = true,
        [MESSAGE_GENERATED] = true, [MESSAGE_LEDGER] = true,       [MESSAGE_FAILED] = true,
        [MESSAGE_BYE] = true,       [MESSAGE_DISMISSED] = true,    [MESSAGE_DRAIN] = true,
        [MESSAGE_READ] = true,
    };

    return sends[kind];
}

/* A worker's last word on a job: nothing of it is under way any more. */
static bool ends_job(enum message_kind kind)
{
    return kind == MESSAGE_RELEASE || kind == MESSAGE_REFUSED;
}

/* ---- the end ---------------------------------------------------------------------------------------------------- */

static void free_proxy(struct proxy *g)
{
    payload_free(&g->payload);
    fifo_free(&g->waiting);
    if (g->on_closed)
        g->on_closed(g->data);
    free(g);
}

static void on_handle_closed(struct proxy *g)
{
    if (--g->n_handles == 0)
        free_proxy(g);
}

static void on_uv_closed(uv_handle_t *handle)
{
    on_handle_closed(handle->data);
}

static void close_all(struct proxy *g)
{
    if (g->state == PROXY_CLOSING)
        return;
    g->state = PROXY_CLOSING;
    if (g->connection.fd >= 0)
        connection_close(&g->connection);
    if (g->has_control)
        control_close(&g->control);
    if (g->has_bulk)
        bulk_close(&g->bulk);
    uv_close((uv_handle_t *)&g->check, on_uv_closed);
    uv_close((uv_handle_t *)&g->linger, on_uv_closed);
}

static void on_linger(uv_timer_t *timer)
{
    close_all(timer->data);
}

/* Nothing more is forwarded. Messages that were still arrive; bytes do not. The bulk connection stays open, so that the
 * peer hears the last message before the end of a transfer. */
static void leave(struct proxy *g)
{
    if (g->state != PROXY_OPEN)
        return;
    g->state = PROXY_LEAVING;
    uv_check_stop(&g->check);
    uv_update_time(g->linger.loop);
    uv_timer_start(&g->linger, on_linger, LINGER_MS, 0);
    if (g->has_bulk)
        bulk_stop(&g->bulk);
    if (g->has_control)
        control_finish(&g->control);
    if (g->connection.fd >= 0)
        connection_shutdown(&g->connection);
}

static int send_message(struct proxy *g, struct message *m);

static int send_to_session(struct proxy *g, struct message *m, const int *fds, unsigned n_fds)
{
    uint8_t bytes[MESSAGE_MAX_BYTES];

    m->sequence = ++g->n_to_connection;
    return connection_send(&g->connection, bytes, message_encode(bytes, sizeof bytes, m), fds, n_fds);
}

/* The peer is at fault. */
static void refuse(struct proxy *g, const char *why)
{
    struct message m = {.kind = MESSAGE_DISMISSED, .dismissed = {.end = END_FAULT, .code = -EPROTO}};

    if (g->state != PROXY_OPEN)
        return;
    log_warning("%s %s: %s", g->is_daemon ? "worker at" : "the daemon at", g->peer, why);
    snprintf(m.dismissed.error.text, sizeof m.dismissed.error.text, "it %s", why);
    send_message(g, &m);
    if (!g->is_daemon) /* else it would take the daemon for a lost one, and come again */
        send_to_session(g, &m, NULL, 0);
    leave(g);
}

/* ---- to the peer ------------------------------------------------------------------------------------------------ */

static int send_message(struct proxy *g, struct message *m)
{
    uint8_t bytes[MESSAGE_MAX_BYTES];

    m->sequence = ++g->n_to_peer;
    return control_send(&g->control, FRAME_MESSAGE, bytes, message_encode(bytes, sizeof bytes, m));
}

/* Sends a message of the session, and its bytes. */
static void forward(struct proxy *g, struct message *m)
{
    struct payload_range ranges[PAYLOAD_MAX_RANGES];
    const char *why;
    const int n = payload_ranges(ranges, &g->payload, m, &why);

    if (n < 0) {
        refuse(g, "was to be sent bytes that the job has not");
        return;
    }
    int rc = send_message(g, m);
    for (int i = 0; !rc && i < n; i++)
        rc = bulk_send(&g->bulk, (char *)g->payload.segments[ranges[i].segment].base + ranges[i].at, ranges[i].bytes);
    if (rc)
        refuse(g, "does not read: 16 MiB of messages wait for it");
}

/* The daemon's log and its viewers see how the worker is attached. */
static void note_carrier(const struct proxy *g, struct message *hello)
{
    const size_t n = strnlen(hello->hello.model, sizeof hello->hello.model - 1);
    const char *note = g->bulk_note;
    const size_t most = sizeof hello->hello.model - 1, keeps = strlen(note) + n <= most ? n : most - strlen(note);

    snprintf(hello->hello.model + keeps, sizeof hello->hello.model - keeps, "%s",
             n || note[0] != ',' ? note : note + 2);
}

/* The worker's side: contributions of a job that was broken off may still be on their way. */
static void forget_job(struct proxy *g)
{
    if (!g->job_over || !bulk_is_idle(&g->bulk))
        return;
    g->job_over = false;
    payload_free(&g->payload);
}

static void take_assignment(struct proxy *g, const struct message *m, const int *fds, unsigned n_fds)
{
    struct error err = {""};
    int rc;

    payload_free(&g->payload);
    rc = payload_attach(&g->payload, m, fds, n_fds, &err);
    if (rc) {
        log_line("the job cannot be sent to the worker at %s: %s", g->peer, err.text);
        refuse(g, "cannot be sent this job");
    }
}

static void on_connection_packet(struct connection *connection, const uint8_t *bytes, size_t n, const int *fds,
                                 unsigned n_fds)
{
    struct proxy *g = connection->data;
    struct message m;
    const char *why;
    const bool assigns = message_decode(&m, bytes, n, &why) == 0 && m.kind == MESSAGE_ASSIGN;

    assert(!why); /* our own process sent it */
    if (g->state == PROXY_OPEN && g->is_daemon && assigns)
        take_assignment(g, &m, fds, n_fds);
    else
        for (unsigned i = 0; i < n_fds; i++)
            close(fds[i]);
    if (g->state != PROXY_OPEN)
        return;
    forward(g, &m);
    if (!g->is_daemon && ends_job(m.kind)) {
        g->job_over = true;
        forget_job(g);
    }
}

/* The session has ended on this side: its last message is on its way. */
static void on_connection_end(struct connection *connection, const char *fault)
{
    struct proxy *g = connection->data;

    (void)fault;
    leave(g);
    if (g->has_control && !g->control.ended)
        return; /* until the peer has read it */
    close_all(g);
}

static void on_connection_closed(struct connection *connection)
{
    on_handle_closed(connection->data);
}

static const struct connection_events connection_events = {on_connection_packet, on_connection_end,
                                                           on_connection_closed};

/* ---- to the session --------------------------------------------------------------------------------------------- */

static void deliver(struct proxy *g, struct message *m)
{
    int fds[PAYLOAD_SEGMENTS];
    unsigned n_fds = 0;

    if (m->kind == MESSAGE_ASSIGN)
        n_fds = payload_fds(&g->payload, fds);
    if (g->is_daemon && m->kind == MESSAGE_HELLO)
        note_carrier(g, m);
    if (send_to_session(g, m, fds, n_fds))
        refuse(g, "sends more than its session takes");
}

/* The worker's side: config.json is there. False: there is no room for the job, and the daemon was told. */
static bool make_job(struct proxy *g)
{
    struct message m = {.kind = MESSAGE_REFUSED};

    m.refused.code = payload_create(&g->payload, &m.refused.error);
    if (!m.refused.code)
        return true;
    payload_free(&g->payload);
    forward(g, &m);
    return false;
}

static void on_check(uv_check_t *check);

/* Hands over the oldest messages, as far as their bytes are there and the session takes them. */
static void pump(struct proxy *g)
{
    while (g->state == PROXY_OPEN && fifo_n(&g->waiting) > 0) {
        const uint8_t *entry = fifo_at(&g->waiting, 0);
        const size_t n = wire_get(entry, 2);
        struct message m;
        const char *why;
        if (entry[2] > 0)
            break;
        if (g->connection.n_queued >= CONNECTION_FULL) {
            uv_check_start(&g->check, on_check);
            return;
        }
        const int rc = message_decode(&m, entry + WAITING_HEADER, n, &why);
        assert(rc == 0); /* it was decoded when it came */
        (void)rc;
        fifo_drop(&g->waiting, WAITING_HEADER + n);
        g->expecting -= g->expecting < WAITING_HEADER + n ? g->expecting : WAITING_HEADER + n;
        if (g->is_daemon && ends_job(m.kind) && !bulk_is_idle(&g->bulk)) {
            refuse(g, "ended its job in the middle of a transfer");
            return;
        }
        if (m.kind == MESSAGE_ASSIGN && !make_job(g))
            continue;
        deliver(g, &m);
        if (g->is_daemon && ends_job(m.kind))
            payload_free(&g->payload);
    }
    if (g->state == PROXY_OPEN)
        uv_check_stop(&g->check);
}

static void on_check(uv_check_t *check)
{
    pump(check->data);
}

/* Keeps a message until its ranges have come. */
static int wait_for(struct proxy *g, const uint8_t *bytes, size_t n, const struct payload_range *ranges, int n_ranges)
{
    uint8_t *entry = fifo_add(&g->waiting, WAITING_HEADER + n);
    int rc = entry ? 0 : -ENOBUFS;

    if (rc)
        return rc;
    wire_put(entry, n, 2);
    entry[2] = (uint8_t)n_ranges;
    memcpy(entry + WAITING_HEADER, bytes, n);
    for (int i = 0; !rc && i < n_ranges; i++)
        rc = bulk_expect(&g->bulk, (char *)g->payload.segments[ranges[i].segment].base + ranges[i].at, ranges[i].bytes);
    return rc;
}

/* A message of the peer's that may not come now; NULL: it may. */
static const char *check_message(struct proxy *g, const struct message *m)
{
    if (g->is_daemon && !is_workers(m->kind))
        return "sent a message that a worker does not send";
    if (g->is_daemon && (m->kind == MESSAGE_HELLO) == g->said_hello)
        return "sent HELLO twice, or not first";
    if (g->is_daemon && m->kind == MESSAGE_HELLO && m->hello.role != ROLE_WORKER)
        return "is no worker: only workers attach from other hosts";
    g->said_hello = true;
    return NULL;
}

static void on_message(struct proxy *g, const uint8_t *bytes, size_t n)
{
    struct payload_range ranges[PAYLOAD_MAX_RANGES];
    struct error err = {""};
    struct message m;
    const char *why;
    int n_ranges = 0;

    if (message_decode(&m, bytes, n, &why) < 0) {
        refuse(g, message_version(bytes, n) >= 0 && message_version(bytes, n) != MESSAGE_VERSION
                      ? "speaks another version of the protocol: use programs of one build"
                      : why);
        return;
    }
    why = check_message(g, &m);
    if (!why && !g->is_daemon && m.kind == MESSAGE_ASSIGN) {
        g->job_over = false;
        payload_free(&g->payload);
        if (payload_begin(&g->payload, &m, &err)) {
            error_prefix(&err, "sent a job that cannot be taken here");
            why = err.text;
        }
    }
    if (!why)
        n_ranges = payload_ranges(ranges, &g->payload, &m, &why);
    if (why) {
        refuse(g, why);
    } else if (overtakes(g, m.kind)) {
        deliver(g, &m);
    } else {
        if (wait_for(g, bytes, n, ranges, n_ranges))
            refuse(g, "sends more than its session takes");
        pump(g);
    }
}

static void move_on(struct proxy *g)
{
    if (g->progress)
        __atomic_fetch_add(g->progress, 1, __ATOMIC_RELAXED);
}

static void on_frame(struct control *c, const uint8_t *payload, size_t n)
{
    struct proxy *g = c->data;

    if (g->state != PROXY_OPEN)
        return;
    if (payload[0] == FRAME_MESSAGE)
        on_message(g, payload + 1, n - 1);
    else if (payload[0] != FRAME_CREDIT)
        refuse(g, "sent an unknown frame");
    else if (n != 2 || !bulk_grant(&g->bulk, payload[1]))
        refuse(g, "granted more credit than it was asked for");
    else
        move_on(g);
}

static void on_end(struct proxy *g, const char *fault)
{
    if (fault && g->state == PROXY_OPEN)
        log_line("%s %s: %s", g->is_daemon ? "worker at" : "the daemon at", g->peer, fault);
    leave(g);
}

static void on_control_end(struct control *c, const char *fault)
{
    struct proxy *g = c->data;

    if (g->state == PROXY_LEAVING && g->connection.ended)
        close_all(g);
    else
        on_end(g, fault);
}

static void on_control_closed(struct control *c)
{
    on_handle_closed(c->data);
}

static const struct control_events control_events = {on_frame, on_control_end, on_control_closed};

/* ---- bulk ------------------------------------------------------------------------------------------------------- */

/* Ranges come in the order of their messages: this one is of the first that still waits for any. */
static void on_received(struct bulk *b)
{
    struct proxy *g = b->data;
    uint8_t *entry = fifo_at(&g->waiting, g->expecting);

    while (entry[2] == 0) {
        g->expecting += WAITING_HEADER + (size_t)wire_get(entry, 2);
        entry = fifo_at(&g->waiting, g->expecting);
    }
    entry[2]--;
    pump(g);
}

static void on_consumed(struct bulk *b, unsigned n)
{
    struct proxy *g = b->data;
    const uint8_t count = (uint8_t)n;

    move_on(g);
    control_send(&g->control, FRAME_CREDIT, &count, 1);
}

static void on_sent(struct bulk *b)
{
    forget_job(b->data);
}

static void on_bulk_end(struct bulk *b, const char *fault)
{
    on_end(b->data, fault);
}

static void on_bulk_closed(struct bulk *b)
{
    on_handle_closed(b->data);
}

static const struct bulk_events bulk_events = {on_received, on_consumed, on_sent, on_bulk_end, on_bulk_closed};

/* ---- the beginning ---------------------------------------------------------------------------------------------- */

static void start_clocks(struct proxy *g, uv_loop_t *loop)
{
    uv_check_init(loop, &g->check);
    uv_timer_init(loop, &g->linger);
    g->check.data = g->linger.data = g;
    g->n_handles += 2;
}

int proxy_open(uv_loop_t *loop, const struct proxy_setup *setup)
{
    struct proxy *g = calloc(1, sizeof *g);
    int rc;

    if (!g) {
        close(setup->connection), close(setup->control), close(setup->bulk);
        return -ENOMEM;
    }
    g->is_daemon = setup->is_daemon;
    g->progress = setup->progress;
    memcpy(g->peer, setup->peer, sizeof g->peer);
    g->bulk_note = setup->on_bulk->flags & HANDSHAKE_PLAIN ? ", by tcp, bulk not encrypted" : ", by tcp";
    start_clocks(g, loop);
    rc = connection_open(&g->connection, loop, setup->connection, &connection_events, g);
    g->n_handles += rc == 0;
    if (rc)
        close(setup->control);
    else
        rc = control_open(&g->control, loop, setup->control, setup->on_control, &control_events, g);
    g->has_control = rc == 0;
    g->n_handles += rc == 0;
    if (rc)
        close(setup->bulk);
    else
        rc = bulk_open(&g->bulk, loop, setup->bulk, setup->on_bulk, &bulk_events, g);
    g->has_bulk = rc == 0;
    g->n_handles += rc == 0;
    if (rc) {
        close_all(g);
        return rc;
    }
    g->on_closed = setup->on_closed;
    g->data = setup->data;
    return 0;
}

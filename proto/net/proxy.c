/* Messages and their bytes come by two connections, each in order, and no range has a name: the next one belongs to
 * the oldest message that still waits for any (expecting).
 *
 * A job's memory is given back when no range of it is under way, as libuv's threads work on them. A worker's side
 * that has ended its job waits for that (job_over). At the daemon, a worker that ends its job earlier is at fault; at
 * the worker, a daemon that sends the next job earlier: it waits for the answer to RELEASE, which overtakes no
 * bytes. */
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

/* Messages that do not wait for earlier ones. The daemon's BYE: its worker needs no more weights. A worker's BYE:
 * FAILED, which says why it ends, may be waiting. */
static bool overtakes(const struct proxy *p, enum message_kind kind)
{
    return message_overtakes(kind) || (kind == MESSAGE_BYE && !p->is_daemon);
}

/* True of a worker's last message about a job: nothing of the job is under way any more. */
static bool ends_job(enum message_kind kind)
{
    return kind == MESSAGE_RELEASE || kind == MESSAGE_REFUSED;
}

/* ---- the end ---------------------------------------------------------------------------------------------------- */

static void free_proxy(struct proxy *p)
{
    payload_free(&p->payload);
    fifo_free(&p->waiting);
    if (p->on_closed)
        p->on_closed(p->data);
    free(p);
}

static void proxy_on_handle_closed(struct proxy *p)
{
    if (--p->n_handles == 0)
        free_proxy(p);
}

static void on_uv_closed(uv_handle_t *handle)
{
    proxy_on_handle_closed(handle->data);
}

/* Each handle reports its end; the last one frees the proxy. */
static void proxy_close_all(struct proxy *p)
{
    if (p->state == PROXY_CLOSING)
        return;
    p->state = PROXY_CLOSING;
    if (p->connection.fd >= 0)
        connection_close(&p->connection);
    if (p->has_control)
        control_close(&p->control);
    if (p->has_bulk)
        bulk_close(&p->bulk);
    uv_close((uv_handle_t *)&p->check, on_uv_closed);
    uv_close((uv_handle_t *)&p->linger, on_uv_closed);
}

static void on_linger(uv_timer_t *timer)
{
    proxy_close_all(timer->data);
}

/* Nothing more is forwarded. Messages that were still arrive; bytes do not. The bulk connection stays open, so that the
 * peer hears the last message before the end of a transfer. Both sides get their last message: whoever is still
 * connected hears why. */
static void proxy_leave(struct proxy *p)
{
    if (p->state != PROXY_OPEN)
        return;
    p->state = PROXY_LEAVING;
    uv_check_stop(&p->check);
    uv_update_time(p->linger.loop);
    uv_timer_start(&p->linger, on_linger, LINGER_MS, 0);
    if (p->has_bulk)
        bulk_stop(&p->bulk);
    if (p->has_control)
        control_finish(&p->control);
    if (p->connection.fd >= 0)
        connection_shutdown(&p->connection);
}

static int proxy_send_message(struct proxy *p, struct message *m);

static int send_to_session(struct proxy *p, struct message *m, const int *fds, unsigned n_fds)
{
    uint8_t bytes[MESSAGE_MAX_BYTES];

    m->sequence = ++p->n_to_connection;
    return connection_send(&p->connection, bytes, message_encode(bytes, sizeof bytes, m), fds, n_fds);
}

/* The peer is at fault. */
static void proxy_refuse(struct proxy *p, const char *why)
{
    struct message m = {.kind = MESSAGE_DISMISSED, .dismissed = {.end = END_FAULT, .code = -EPROTO}};

    if (p->state != PROXY_OPEN)
        return;
    log_warning("%s %s: %s", p->is_daemon ? "worker at" : "the daemon at", p->peer, why);
    snprintf(m.dismissed.error.text, sizeof m.dismissed.error.text, "it %s", why);
    proxy_send_message(p, &m);
    if (!p->is_daemon) /* else it would take the daemon for a lost one, and come again */
        send_to_session(p, &m, NULL, 0);
    proxy_leave(p);
}

/* ---- to the peer ------------------------------------------------------------------------------------------------ */

static int proxy_send_message(struct proxy *p, struct message *m)
{
    uint8_t bytes[MESSAGE_MAX_BYTES];

    m->sequence = ++p->n_to_peer;
    return control_send(&p->control, FRAME_MESSAGE, bytes, message_encode(bytes, sizeof bytes, m));
}

/* Sends a message of the session, and its bytes. The message precedes its bytes: the peer learns from it what they
 * are, and where they go. */
static void proxy_forward(struct proxy *p, struct message *m)
{
    struct payload_range ranges[PAYLOAD_MAX_RANGES];
    const char *why;
    const int n = payload_ranges(ranges, &p->payload, m, &why);

    if (n < 0) {
        proxy_refuse(p, "was to be sent bytes that the job has not");
        return;
    }
    int rc = proxy_send_message(p, m);
    for (int i = 0; !rc && i < n; i++)
        rc = bulk_send(&p->bulk, (char *)p->payload.segments[ranges[i].segment].base + ranges[i].at, ranges[i].bytes);
    if (rc)
        proxy_refuse(p, "does not read: 16 MiB of messages wait for it");
}

/* The daemon's log and its viewers see how the worker is attached. Its device is on another host's bus. */
static void note_carrier(const struct proxy *p, struct message *hello)
{
    const size_t n = strnlen(hello->hello.model, sizeof hello->hello.model - 1);
    const char *note = p->bulk_note;
    const size_t most = sizeof hello->hello.model - 1, keeps = strlen(note) + n <= most ? n : most - strlen(note);

    snprintf(hello->hello.model + keeps, sizeof hello->hello.model - keeps, "%s",
             n || note[0] != ',' ? note : note + 2);
    memset(hello->hello.bus, 0, sizeof hello->hello.bus);
}

/* The worker's side: contributions of a job that was broken off may still be on their way. */
static void proxy_forget_job(struct proxy *p)
{
    if (!p->job_over || !bulk_is_idle(&p->bulk))
        return;
    p->job_over = false;
    payload_free(&p->payload);
}

static void take_assignment(struct proxy *p, const struct message *m, const int *fds, unsigned n_fds)
{
    struct error err = {""};
    int rc;

    payload_free(&p->payload);
    rc = payload_attach(&p->payload, m, fds, n_fds, &err);
    if (rc) {
        log_line("the job cannot be sent to the worker at %s: %s", p->peer, err.text);
        proxy_refuse(p, "cannot be sent this job");
    }
}

static void proxy_on_connection_packet(struct connection *connection, const uint8_t *bytes, size_t n, const int *fds,
                                       unsigned n_fds)
{
    struct proxy *p = connection->data;
    struct message m;
    const char *why;
    const bool assigns = message_decode(&m, bytes, n, &why) == 0 && m.kind == MESSAGE_ASSIGN;

    assert(!why); /* our own process sent it */
    if (p->state == PROXY_OPEN && p->is_daemon && assigns)
        take_assignment(p, &m, fds, n_fds);
    else
        for (unsigned i = 0; i < n_fds; i++)
            close(fds[i]);
    if (p->state != PROXY_OPEN)
        return;
    proxy_forward(p, &m);
    if (!p->is_daemon && ends_job(m.kind)) {
        p->job_over = true;
        proxy_forget_job(p);
    }
}

/* The session has ended on this side: its last message is on its way. */
static void proxy_on_connection_end(struct connection *connection, const char *fault)
{
    struct proxy *p = connection->data;

    (void)fault;
    proxy_leave(p);
    if (p->has_control && !p->control.ended)
        return; /* until the peer has read it */
    proxy_close_all(p);
}

static void proxy_on_connection_closed(struct connection *connection)
{
    proxy_on_handle_closed(connection->data);
}

static const struct connection_events connection_events = {proxy_on_connection_packet, proxy_on_connection_end,
                                                           proxy_on_connection_closed};

/* ---- to the session --------------------------------------------------------------------------------------------- */

/* The session in this process sees a worker, or a daemon, as if it were on this host. */
static void proxy_deliver(struct proxy *p, struct message *m)
{
    int fds[PAYLOAD_SEGMENTS];
    unsigned n_fds = 0;

    if (m->kind == MESSAGE_ASSIGN)
        n_fds = payload_fds(&p->payload, fds);
    if (p->is_daemon && m->kind == MESSAGE_HELLO)
        note_carrier(p, m);
    if (send_to_session(p, m, fds, n_fds))
        proxy_refuse(p, "sends more than its session takes");
}

/* The worker's side: config.json is there. False: there is no room for the job, and the daemon was told. */
static bool make_job(struct proxy *p)
{
    struct message m = {.kind = MESSAGE_REFUSED};

    m.refused.code = payload_create(&p->payload, &m.refused.error);
    if (!m.refused.code)
        return true;
    payload_free(&p->payload);
    proxy_forward(p, &m);
    return false;
}

static void on_check(uv_check_t *check);

/* Hands over the oldest messages, as far as their bytes are there and the session takes them. */
static void proxy_pump(struct proxy *p)
{
    while (p->state == PROXY_OPEN && fifo_n(&p->waiting) > 0) {
        const uint8_t *entry = fifo_at(&p->waiting, 0);
        const size_t n = wire_get(entry, 2);
        struct message m;
        const char *why;
        if (entry[2] > 0)
            break;
        if (p->connection.n_queued >= CONNECTION_FULL) {
            uv_check_start(&p->check, on_check);
            return;
        }
        const int rc = message_decode(&m, entry + WAITING_HEADER, n, &why);
        assert(rc == 0); /* it was decoded when it came */
        (void)rc;
        fifo_drop(&p->waiting, WAITING_HEADER + n);
        /* The offset moves with what was dropped in front of it. */
        p->expecting -= p->expecting < WAITING_HEADER + n ? p->expecting : WAITING_HEADER + n;
        if (p->is_daemon && ends_job(m.kind) && !bulk_is_idle(&p->bulk)) {
            proxy_refuse(p, "ended its job in the middle of a transfer");
            return;
        }
        if (m.kind == MESSAGE_ASSIGN && !make_job(p))
            continue;
        proxy_deliver(p, &m);
        if (p->is_daemon && ends_job(m.kind))
            payload_free(&p->payload);
    }
    if (p->state == PROXY_OPEN)
        uv_check_stop(&p->check);
}

static void on_check(uv_check_t *check)
{
    proxy_pump(check->data);
}

/* Keeps a message until its ranges have come. Their memory is told to the bulk connection at once, so that bytes can
 * come before the message's turn. */
static int wait_for(struct proxy *p, const uint8_t *bytes, size_t n, const struct payload_range *ranges, int n_ranges)
{
    uint8_t *entry = fifo_add(&p->waiting, WAITING_HEADER + n);
    int rc = entry ? 0 : -ENOBUFS;

    if (rc)
        return rc;
    wire_put(entry, n, 2);
    entry[2] = (uint8_t)n_ranges;
    memcpy(entry + WAITING_HEADER, bytes, n);
    for (int i = 0; !rc && i < n_ranges; i++)
        rc = bulk_expect(&p->bulk, (char *)p->payload.segments[ranges[i].segment].base + ranges[i].at, ranges[i].bytes);
    return rc;
}

/* A message of the peer's that may not come now; NULL: it may. */
static const char *proxy_check_message(struct proxy *p, const struct message *m)
{
    if (p->is_daemon && !message_is_sent_by(m->kind, ROLE_WORKER))
        return "sent a message that a worker does not send";
    if (p->is_daemon && (m->kind == MESSAGE_HELLO) == p->said_hello)
        return "sent HELLO twice, or not first";
    if (p->is_daemon && m->kind == MESSAGE_HELLO && m->hello.role != ROLE_WORKER)
        return "is no worker: only workers attach from other hosts";
    p->said_hello = true;
    return NULL;
}

static void proxy_on_message(struct proxy *p, const uint8_t *bytes, size_t n)
{
    struct payload_range ranges[PAYLOAD_MAX_RANGES];
    struct error err = {""};
    struct message m;
    const char *why;
    int n_ranges = 0;

    if (message_decode(&m, bytes, n, &why) < 0) {
        proxy_refuse(p, message_version(bytes, n) >= 0 && message_version(bytes, n) != MESSAGE_VERSION
                            ? "speaks another version of the protocol: use programs of one build"
                            : why);
        return;
    }
    why = proxy_check_message(p, &m);
    if (!why && !p->is_daemon && m.kind == MESSAGE_ASSIGN && !bulk_is_idle(&p->bulk))
        why = "sent a job in the middle of a transfer";
    if (!why && !p->is_daemon && m.kind == MESSAGE_ASSIGN) {
        p->job_over = false;
        payload_free(&p->payload);
        if (payload_begin(&p->payload, &m, &err)) {
            error_prefix(&err, "sent a job that cannot be taken here");
            why = err.text;
        }
    }
    if (!why)
        n_ranges = payload_ranges(ranges, &p->payload, &m, &why);
    if (why) {
        proxy_refuse(p, why);
    } else if (overtakes(p, m.kind)) {
        proxy_deliver(p, &m);
    } else {
        if (wait_for(p, bytes, n, ranges, n_ranges))
            proxy_refuse(p, "sends more than its session takes");
        proxy_pump(p);
    }
}

/* A sign of life for whoever watches the worker: bytes move, though no message does. */
static void proxy_move_on(struct proxy *p)
{
    if (p->progress)
        __atomic_fetch_add(p->progress, 1, __ATOMIC_RELAXED);
}

static void on_frame(struct control *c, const uint8_t *payload, size_t n)
{
    struct proxy *p = c->data;

    if (p->state != PROXY_OPEN)
        return;
    if (payload[0] == FRAME_MESSAGE)
        proxy_on_message(p, payload + 1, n - 1);
    else if (payload[0] != FRAME_CREDIT)
        proxy_refuse(p, "sent an unknown frame");
    else if (n != 2 || !bulk_grant(&p->bulk, payload[1]))
        proxy_refuse(p, "granted more credit than it was asked for");
    else
        proxy_move_on(p);
}

static void proxy_on_end(struct proxy *p, const char *fault)
{
    if (fault && p->state == PROXY_OPEN)
        log_line("%s %s: %s", p->is_daemon ? "worker at" : "the daemon at", p->peer, fault);
    proxy_leave(p);
}

static void on_control_end(struct control *c, const char *fault)
{
    struct proxy *p = c->data;

    if (p->state == PROXY_LEAVING && p->connection.ended)
        proxy_close_all(p);
    else
        proxy_on_end(p, fault);
}

static void on_control_closed(struct control *c)
{
    proxy_on_handle_closed(c->data);
}

static const struct control_events control_events = {on_frame, on_control_end, on_control_closed};

/* ---- bulk ------------------------------------------------------------------------------------------------------- */

/* Ranges come in the order of their messages: this one is of the first that still waits for any. */
static void proxy_on_received(struct bulk *b)
{
    struct proxy *p = b->data;
    uint8_t *entry = fifo_at(&p->waiting, p->expecting);

    while (entry[2] == 0) {
        p->expecting += WAITING_HEADER + (size_t)wire_get(entry, 2);
        entry = fifo_at(&p->waiting, p->expecting);
    }
    entry[2]--;
    proxy_pump(p);
}

static void proxy_on_consumed(struct bulk *b, unsigned n)
{
    struct proxy *p = b->data;
    const uint8_t count = (uint8_t)n;

    proxy_move_on(p);
    control_send(&p->control, FRAME_CREDIT, &count, 1);
}

static void proxy_on_sent(struct bulk *b)
{
    proxy_forget_job(b->data);
}

static void on_bulk_end(struct bulk *b, const char *fault)
{
    proxy_on_end(b->data, fault);
}

static void on_bulk_closed(struct bulk *b)
{
    proxy_on_handle_closed(b->data);
}

static const struct bulk_events bulk_events = {proxy_on_received, proxy_on_consumed, proxy_on_sent, on_bulk_end,
                                               on_bulk_closed};

/* ---- the beginning ---------------------------------------------------------------------------------------------- */

static void proxy_start_clocks(struct proxy *p, uv_loop_t *loop)
{
    uv_check_init(loop, &p->check);
    uv_timer_init(loop, &p->linger);
    p->check.data = p->linger.data = p;
    p->n_handles += 2;
}

/* Takes all three descriptors, also if it fails. on_closed is set last: a proxy that did not open reports nothing. */
int proxy_open(uv_loop_t *loop, const struct proxy_setup *setup)
{
    struct proxy *p = calloc(1, sizeof *p);
    int rc;

    if (!p) {
        close(setup->connection), close(setup->control), close(setup->bulk);
        return -ENOMEM;
    }
    p->is_daemon = setup->is_daemon;
    p->progress = setup->progress;
    memcpy(p->peer, setup->peer, sizeof p->peer);
    p->bulk_note = setup->on_bulk->flags & HANDSHAKE_PLAIN ? ", by tcp, bulk not encrypted" : ", by tcp";
    proxy_start_clocks(p, loop);
    rc = connection_open(&p->connection, loop, setup->connection, &connection_events, p);
    p->n_handles += rc == 0;
    if (rc)
        close(setup->control);
    else
        rc = control_open(&p->control, loop, setup->control, setup->on_control, &control_events, p);
    p->has_control = rc == 0;
    p->n_handles += rc == 0;
    if (rc)
        close(setup->bulk);
    else
        rc = bulk_open(&p->bulk, loop, setup->bulk, setup->on_bulk, &bulk_events, p);
    p->has_bulk = rc == 0;
    p->n_handles += rc == 0;
    if (rc) {
        proxy_close_all(p);
        return rc;
    }
    p->on_closed = setup->on_closed;
    p->data = setup->data;
    return 0;
}

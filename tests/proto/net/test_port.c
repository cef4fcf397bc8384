/* The tcp port, and who meets it: workers with the key, strangers, and whoever sits in between. All on one loop. */
#include "proto/net/cipher.h"
#include "proto/net/dial.h"
#include "proto/net/proxy.h"
#include "proto/net/handshake.h"
#include "proto/net/port.h"
#include "proto/wire/wire.h"
#include "tests/kit/processes.h"
#include "tests/kit/inprocess/stage.h"
#include "tests/kit/test.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct stage st;
static struct side epsd, worker, later; /* the daemon's first session, its peer, and the daemon's next */
static struct port *port;
static const uint8_t key[KEY_BYTES] = {1, 2, 3}, other_key[KEY_BYTES] = {1, 2, 4};
static int saved_stderr;

static const char *log_path(void)
{
    return processes_path("log");
}

static void listen_with(const struct port_options *options)
{
    struct port_options all = *options;
    struct error err = {""};

    if (!all.address)
        all.address = "tcp://127.0.0.1:0";
    all.key = key;
    ck_assert_msg(port_listen(&port, &st.loop, &all, st.listener, &err) == 0, "%s", err.text);
}

/* The log goes to a file. */
static void begin(void)
{
    epsd = worker = later = (struct side){0};
    epsd.next = &later;
    processes_setup();
    saved_stderr = dup(STDERR_FILENO);
    const int fd = open(log_path(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
    ck_assert_int_ge(fd, 0);
    dup2(fd, STDERR_FILENO);
    close(fd);
    stage_begin(&st);
    stage_listen(&st, &epsd);
}

static void end(void)
{
    port_unlisten(port);
    stage_end(&st); /* no handle is left */
    dup2(saved_stderr, STDERR_FILENO);
    close(saved_stderr);
    processes_remove();
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE(begin, end)

/* ---- a worker's side, by hand ----------------------------------------------------------------------------------- */

/* Connects from a loopback address, 127.0.0.`from`. */
static int connect_from(unsigned from)
{
    struct sockaddr_in here = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7F000000u + from)},
                       there = {.sin_family = AF_INET,
                                .sin_port = htons((uint16_t)port_number(port)),
                                .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    const int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

    ck_assert_int_eq(bind(fd, (struct sockaddr *)&here, sizeof here), 0);
    ck_assert_int_eq(connect(fd, (struct sockaddr *)&there, sizeof there), 0);
    return fd;
}

static void say(int fd, const void *bytes, size_t n)
{
    ck_assert_int_eq(send(fd, bytes, n, MSG_NOSIGNAL), (ssize_t)n);
}

/* Runs the loop until n bytes have come. False: the daemon closed. */
static bool hear(int fd, uint8_t *bytes, size_t n)
{
    for (size_t at = 0; at < n;) {
        const ssize_t got = recv(fd, bytes + at, n - at, MSG_DONTWAIT);
        if (got == 0 || (got < 0 && errno != EAGAIN))
            return false;
        if (got > 0)
            at += (size_t)got;
        else
            uv_run(&st.loop, UV_RUN_NOWAIT);
    }
    return true;
}

static bool is_closed(int fd)
{
    uint8_t byte;
    const ssize_t got = recv(fd, &byte, 1, MSG_DONTWAIT);

    return got == 0 || (got < 0 && errno != EAGAIN);
}

/* Until the daemon has closed it; it says nothing before. */
static void expect_end(int fd)
{
    uint8_t byte;

    ck_assert(!hear(fd, &byte, 1));
    close(fd);
}

struct secured {
    int fd;
    struct handshake h;
    struct cipher send, receive;
    uint64_t n_sent;
};

/* False: turned away. */
static bool shake(struct secured *c, enum handshake_channel channel, uint64_t session, const uint8_t *with)
{
    struct handshake_setup setup = {.calls = true, .channel = channel, .session = session};
    uint8_t out[HANDSHAKE_HELLO_BYTES], in[HANDSHAKE_HELLO_BYTES];
    const char *why;
    size_t n;

    c->fd = connect_from(1);
    c->n_sent = 0;
    setup.key = with;
    randombytes_buf(setup.secret, sizeof setup.secret);
    handshake_begin(&c->h, &setup, out, &n);
    say(c->fd, out, n);
    while (handshake_wants(&c->h) > 0) {
        if (!hear(c->fd, in, handshake_wants(&c->h)) || handshake_take(&c->h, in, out, &n, &why) < 0)
            return false;
        if (n > 0)
            say(c->fd, out, n);
    }
    cipher_init(&c->send, CIPHER_CHACHA, c->h.send);
    cipher_init(&c->receive, CIPHER_CHACHA, c->h.receive);
    return true;
}

struct remote {
    struct secured control, bulk;
};

static void join(struct remote *r)
{
    ck_assert(shake(&r->control, HANDSHAKE_CONTROL, 0, key));
    ck_assert(shake(&r->bulk, HANDSHAKE_BULK, r->control.h.name, r->control.h.child));
}

/* A frame with a message of the control connection; its size. */
static size_t seal_message(uint8_t *frame, struct secured *c, const struct message *m)
{
    uint8_t payload[1 + MESSAGE_MAX_BYTES] = {1};
    const size_t n = 1 + message_encode(payload + 1, MESSAGE_MAX_BYTES, m);

    cipher_seal(&c->send, frame, payload, n, c->n_sent++);
    return CIPHER_HEADER_BYTES + n + CIPHER_TAG_BYTES;
}

static void send_message(struct secured *c, const struct message *m)
{
    uint8_t frame[2048];

    say(c->fd, frame, seal_message(frame, c, m));
}

/* Attaches by hand. */
static void attach(struct remote *r)
{
    join(r);
    send_message(&r->control, &worker_hello);
    stage_run_until(&st, &epsd.n_opened, 1);
}

static void leave(struct remote *r)
{
    close(r->control.fd);
    close(r->bulk.fd);
}

static struct remote sessions[PORT_SESSIONS];

/* ---- workers ---------------------------------------------------------------------------------------------------- */

/* A whole session: proxies on both sides. */
static void open_session(void)
{
    const struct message hello = worker_hello;
    struct remote r;
    struct proxy_setup setup = {.on_control = &r.control.h, .on_bulk = &r.bulk.h};
    struct error err = {""};
    int ends[2];

    join(&r);
    setup.control = r.control.fd;
    setup.bulk = r.bulk.fd;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    setup.connection = ends[1];
    ck_assert_int_eq(proxy_open(&st.loop, &setup), 0);
    ck_assert_int_eq(session_connect_by(&worker.s, &st.loop, ends[0], &hello, &side_events, &worker, &err), 0);
    stage_run_until(&st, &worker.n_opened, 1);
    stage_run_until(&st, &epsd.n_opened, 1);
}

TEST(a_worker_with_the_key_is_a_session_like_any_other)
{
    listen_with(&(struct port_options){0});
    worker.n_to_send = 400;
    open_session();
    ck_assert_str_eq(epsd.peer.hello.device, "cpu");
    ck_assert_str_eq(epsd.peer.hello.model, "by tcp");
    stage_run_until(&st, &epsd.n_received, 400); /* in order, as the stage sees to */
    ck_assert_uint_eq(session_peer_uid(epsd.s), SESSION_REMOTE_USER);
    side_send_pulls(epsd.s, 0, 5);
    stage_run_until(&st, &worker.n_received, 5);
    stage_close(&st, &epsd, &worker);
    ck_assert_str_eq(worker.reason, "closed");
}

TEST(both_sides_hear_of_the_others_end)
{
    listen_with(&(struct port_options){0});
    open_session();
    stage_close(&st, &worker, &epsd);
    ck_assert_str_eq(epsd.reason, "closed");
}

TEST(a_worker_that_dies_is_a_lost_one)
{
    struct remote r;

    listen_with(&(struct port_options){0});
    attach(&r);
    leave(&r);
    stage_run_until(&st, &epsd.n_closed, 1);
    ck_assert_str_eq(epsd.reason, "killed");
}

TEST(a_refusal_is_told)
{
    listen_with(&(struct port_options){0});
    open_session();
    session_refuse(epsd.s, "no such luck");
    stage_run_until(&st, &worker.n_closed, 1);
    stage_run_until(&st, &epsd.n_closed, 1);
    ck_assert_str_eq(worker.reason, "refused: no such luck");
}

/* What a worker hears that dials, and leaves, while the loop runs. */
struct caller {
    struct dial_options options;
    pthread_t thread;
    uv_async_t done;
    unsigned n_done;
    int rc, connection;
    char address[64];
    uv_loop_t loop; /* with its proxy */
    struct error err;
};

static void *run_dial(void *data)
{
    struct caller *c = data;

    uv_loop_init(&c->loop);
    c->rc = dial(&c->connection, &c->loop, &c->options, &c->err);
    if (c->rc == 0) {
        close(c->connection); /* the proxy's end */
        uv_run(&c->loop, UV_RUN_DEFAULT);
    }
    uv_async_send(&c->done);
    return NULL;
}

static void on_dialled(uv_async_t *async)
{
    struct caller *c = async->data;

    c->n_done++;
    uv_close((uv_handle_t *)async, NULL);
}

static void start_dial(struct caller *c, const uint8_t *with)
{
    *c = (struct caller){.options.address = c->address};
    snprintf(c->address, sizeof c->address, "tcp://127.0.0.1:%u", port_number(port));
    c->options.key = with;
    uv_async_init(&st.loop, &c->done, on_dialled);
    c->done.data = c;
    ck_assert_int_eq(pthread_create(&c->thread, NULL, run_dial, c), 0);
}

static int end_dial(struct caller *c)
{
    stage_run_until(&st, &c->n_done, 1);
    pthread_join(c->thread, NULL);
    ck_assert_int_eq(uv_loop_close(&c->loop), 0);
    return c->rc;
}

/* One that is halfway in has its place, until it leaves. */
TEST(a_worker_hears_that_there_are_as_many_as_the_daemon_takes)
{
    struct secured last;
    struct caller caller;

    listen_with(&(struct port_options){.patience_ms = 100000});
    for (unsigned i = 1; i < PORT_SESSIONS; i++)
        join(&sessions[i]);
    ck_assert(shake(&last, HANDSHAKE_CONTROL, 0, key));
    start_dial(&caller, key);
    ck_assert_int_eq(end_dial(&caller), -EBUSY);
    ck_assert_holds(caller.err.text, "has as many workers by tcp as it takes");
    start_dial(&caller, other_key);
    ck_assert_int_eq(end_dial(&caller), -EACCES);
    ck_assert_holds(caller.err.text, "its key is another one");
    ck_assert_uint_eq(processes_count(log_path(), "as many workers by tcp as the daemon takes"), 1);
    close(last.fd);
    start_dial(&caller, key);
    ck_assert_int_eq(end_dial(&caller), 0);
    for (unsigned i = 1; i < PORT_SESSIONS; i++)
        leave(&sessions[i]);
    stage_run_until(&st, &epsd.n_turned_away, PORT_SESSIONS);
}

/* 64 workers dial at once from an address that holds most places in silence. */
TEST(workers_that_come_at_once_all_come_in)
{
    enum { AT_ONCE = PORT_SESSIONS };
    static struct caller callers[AT_ONCE];
    int silent[PORT_GUESTS - 1];

    listen_with(&(struct port_options){.patience_ms = 100000});
    for (unsigned i = 0; i < COUNT(silent); i++)
        silent[i] = connect_from(1);
    for (unsigned i = 0; i < AT_ONCE; i++)
        start_dial(&callers[i], key);
    for (unsigned i = 0; i < AT_ONCE; i++)
        ck_assert_msg(end_dial(&callers[i]) == 0, "%s", callers[i].err.text);
    ck_assert_uint_eq(processes_count(log_path(), "turned away"), 0);
    ck_assert_uint_le(processes_count(log_path(), "put off"), 2); /* the first, and a sum every 10 s */
    for (unsigned i = 0; i < COUNT(silent); i++)
        close(silent[i]);
    stage_run_until(&st, &epsd.n_turned_away, AT_ONCE);
}

/* 10,000 connections that say hello and no more, as fast as the daemon takes them, from 200 addresses and the worker's. */
TEST(unfinished_handshakes_keep_no_worker_out)
{
    static const uint8_t begun[HANDSHAKE_HELLO_BYTES] = {0x51, 0xe9, 7, 0, 1, 2, 1, [32] = 9};
    static int fds[300]; /* the last ones */
    struct caller caller;

    listen_with(&(struct port_options){.patience_ms = 100000});
    for (unsigned i = 0; i < 10000 || caller.n_done == 0; i++) {
        int *fd = &fds[i % COUNT(fds)];
        if (*fd)
            close(*fd);
        *fd = connect_from(1 + i % 200);
        say(*fd, begun, i % 2 ? sizeof begun : 0);
        if (i == 5000)
            start_dial(&caller, key);
        uv_run(&st.loop, UV_RUN_NOWAIT);
    }
    ck_assert_msg(end_dial(&caller) == 0, "%s", caller.err.text);
    for (unsigned i = 0; i < COUNT(fds); i++)
        close(fds[i]);
    stage_run_until(&st, &epsd.n_turned_away, 1);
}

/* ---- strangers -------------------------------------------------------------------------------------------------- */

static const struct {
    char bytes[80]; /* (n) */
    size_t n;
    const char *says; /* in the log */
    bool is_told;     /* by the daemon's hello, which names its version */
} strangers[] = {
    {"GET / HTTP/1.1\r\nHost: somewhere.example\r\nUser-Agent: a curious one\r\n\r\n", 71, "no greeting of eps", false},
    {"\x51\xe9\x07\x00\x02\x02\x01", 64, "another version of the handshake", true},
    {"\x51\xe9\x07\x00\x01\x01\x01", 64, "is no worker", false},
    {"\x51\xe9\x07\x00\x01\x02\x03", 64, "a channel that there is none of", false},
    {"\x51\xe9\x07\x00\x01\x02\x01\x80", 64, "unknown bits", false},
    {"\x51\xe9\x07\x00\x01\x02\x01\x00", 64, "gives no secret", false}, /* its public key is 0 */
    {"\x51\xe9\x07\x00\x01\x02\x02\x00\x07", 64, "a session that there is none of", false},
};

TEST_EACH(a_stranger_is_turned_away_and_logged_once, COUNT(strangers))
{
    struct remote r;
    uint8_t hello[HANDSHAKE_HELLO_BYTES];

    listen_with(&(struct port_options){0});
    const int fd = connect_from(1);
    say(fd, strangers[_i].bytes, strangers[_i].n);
    ck_assert(!strangers[_i].is_told || hear(fd, hello, sizeof hello));
    expect_end(fd);
    ck_assert_uint_eq(processes_count(log_path(), "turned away"), 1);
    ck_assert_uint_eq(processes_count(log_path(), strangers[_i].says), 1);
    attach(&r); /* others are none the worse */
    leave(&r);
    stage_run_until(&st, &epsd.n_closed, 1);
}

TEST(another_key_and_none_are_turned_away_after_the_proof)
{
    static const uint8_t none[KEY_BYTES] = {0};
    struct secured c;

    listen_with(&(struct port_options){0});
    for (int i = 0; i < 2; i++) {
        ck_assert(!shake(&c, HANDSHAKE_CONTROL, 0, i ? none : other_key));
        ck_assert_int_eq(c.h.state, HANDSHAKE_FAILED); /* the daemon has proved nothing */
        close(c.fd);
    }
    ck_assert_uint_eq(processes_count(log_path(), "has no key, or another one"), 2);
}

TEST(a_second_connection_needs_the_sessions_own_key)
{
    struct secured control, bulk;

    listen_with(&(struct port_options){0});
    ck_assert(shake(&control, HANDSHAKE_CONTROL, 0, key));
    ck_assert(!shake(&bulk, HANDSHAKE_BULK, control.h.name, key));
    ck_assert(!shake(&bulk, HANDSHAKE_BULK, control.h.name + 1, control.h.child));
    ck_assert_uint_eq(epsd.n_opened, 0);
}

TEST(silence_ends_with_patience)
{
    struct secured c;

    listen_with(&(struct port_options){.patience_ms = 10});
    const int silent = connect_from(1), halting = connect_from(2);
    say(halting, "\x51\xe9\x07", 3);
    expect_end(silent);
    expect_end(halting);
    ck_assert(shake(&c, HANDSHAKE_CONTROL, 0, key)); /* and no second connection */
    expect_end(c.fd);
    ck_assert_uint_eq(processes_count(log_path(), "did not finish the handshake in time"), 2);
    ck_assert_uint_eq(processes_count(log_path(), "its second connection did not come"), 1);
}

/* Each finds a place: one that the most crowded address holds in silence, or else its oldest. */
TEST(room_is_made_where_most_is_taken)
{
    static const uint8_t begun[HANDSHAKE_HELLO_BYTES] = {0x51, 0xe9, 7, 0, 1, 2, 1, [32] = 9};
    uint8_t hello[HANDSHAKE_HELLO_BYTES];
    int crowd[PORT_GUESTS - 4], others[4];

    listen_with(&(struct port_options){.patience_ms = 100000});
    for (unsigned i = 0; i < COUNT(others); i++)
        others[i] = connect_from(2 + i / 2);
    for (unsigned i = 0; i < COUNT(crowd); i++) {
        crowd[i] = connect_from(1);
        say(crowd[i], begun, i % 2 ? 0 : sizeof begun);
        ck_assert(i % 2 || hear(crowd[i], hello, sizeof hello));
    }
    for (unsigned i = 0; i < 58; i++) { /* the 30 silent ones, then the 28 oldest of the others: two are no crowd */
        const unsigned next = i < 30 ? 2 * i + 1 : 2 * (i - 30);
        const int came = connect_from(9 + i);
        expect_end(crowd[next]);
        crowd[next] = came;
    }
    for (unsigned i = 0; i < COUNT(others); i++) {
        ck_assert(!is_closed(others[i]));
        close(others[i]);
    }
    for (unsigned i = 0; i < COUNT(crowd); i++) {
        ck_assert(!is_closed(crowd[i]));
        close(crowd[i]);
    }
    ck_assert_uint_eq(processes_count(log_path(), "turned away"), 0);
}

/* Those that have shown it take none of these. */
TEST(places_of_those_with_the_key_are_others)
{
    static struct secured with_key[PORT_SESSIONS / 2];
    int fds[PORT_GUESTS];

    listen_with(&(struct port_options){.patience_ms = 100000});
    for (unsigned i = 0; i < COUNT(with_key); i++)
        ck_assert(shake(&with_key[i], HANDSHAKE_CONTROL, 0, key));
    for (unsigned i = 0; i < COUNT(fds); i++)
        fds[i] = connect_from(1);
    for (int i = 0; i < 100; i++)
        uv_run(&st.loop, UV_RUN_NOWAIT);
    for (unsigned i = 0; i < COUNT(fds); i++) {
        ck_assert(!is_closed(fds[i]));
        close(fds[i]);
    }
    for (unsigned i = 0; i < COUNT(with_key); i++)
        close(with_key[i].fd);
    ck_assert_uint_eq(processes_count(log_path(), "put off"), 0);
}

static bool has_ipv6(void)
{
    struct sockaddr_in6 at = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    const int fd = socket(AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const bool has = fd >= 0 && bind(fd, (struct sockaddr *)&at, sizeof at) == 0;

    if (fd >= 0)
        close(fd);
    return has;
}

/* A socket of IPv6 sees them with one prefix. */
TEST_IF(addresses_of_ipv4_do_not_share_the_places_of_one_of_ipv6, has_ipv6())
{
    int fds[PORT_GUESTS - 1];

    listen_with(&(struct port_options){.address = "tcp://[::]:0", .patience_ms = 100000});
    const int other = connect_from(3);
    for (unsigned i = 0; i < COUNT(fds); i++)
        fds[i] = connect_from(2);
    const int came = connect_from(4);
    expect_end(fds[0]);
    ck_assert(!is_closed(other));
    close(other);
    close(came);
    for (unsigned i = 1; i < COUNT(fds); i++)
        close(fds[i]);
    ck_assert_uint_eq(processes_count(log_path(), "put off at the tcp port, 127.0.0.2:"), 1);
}

/* So does a worker of a lost daemon look for the next one. */
TEST(whoever_leaves_without_a_word_is_not_logged)
{
    struct remote r;

    listen_with(&(struct port_options){0});
    close(connect_from(1));
    attach(&r);
    leave(&r);
    stage_run_until(&st, &epsd.n_closed, 1);
    ck_assert_uint_eq(processes_count(log_path(), "127.0.0.1"), 2); /* it listens; this worker has the key */
}

TEST(a_thousand_strangers_leave_nothing_behind)
{
    unsigned before = 0;

    listen_with(&(struct port_options){0});
    for (int i = 0; i < 1000; i++) {
        uint8_t bytes[64];
        const int fd = connect_from(1);
        randombytes_buf(bytes, sizeof bytes);
        say(fd, bytes, sizeof bytes);
        expect_end(fd);
        if (i == 10)
            before = processes_count_fds(getpid());
    }
    ck_assert_uint_le(processes_count_fds(getpid()), before + 1);
    ck_assert_uint_le(processes_count(log_path(), "turned away"), 100); /* eight lines, and one for more, each 10 s */
    ck_assert_uint_eq(epsd.n_opened, 0);
}

/* ---- in between ------------------------------------------------------------------------------------------------- */

/* What arrives after the worker's HELLO instead of two frames as they were sent. */
static const char *const deeds[] = {"flipped",  "flipped length", "swapped", "repeated",
                                    "left out", "reflected",      "cut off", "inserted"};

static void tamper(struct remote *r, const char *deed)
{
    const struct message m[2] = {{.kind = MESSAGE_PONG, .sequence = 2}, {.kind = MESSAGE_LEDGER, .sequence = 3}};
    uint8_t frames[2][2048], greeting[2048];
    size_t n[2];

    if (strcmp(deed, "inserted") == 0)
        r->control.n_sent += 7; /* a stranger's guess */
    for (int i = 0; i < 2; i++)
        n[i] = seal_message(frames[i], &r->control, &m[i]);
    if (strcmp(deed, "flipped") == 0)
        frames[0][n[0] / 2] ^= 4;
    if (strcmp(deed, "flipped length") == 0)
        frames[0][0] ^= 1;
    if (strcmp(deed, "reflected") == 0) { /* WELCOME, as it came */
        ck_assert(hear(r->control.fd, greeting, CIPHER_HEADER_BYTES));
        n[0] = wire_get(greeting, CIPHER_HEADER_BYTES) + CIPHER_TAG_BYTES;
        ck_assert(hear(r->control.fd, greeting + CIPHER_HEADER_BYTES, n[0]));
        n[0] += CIPHER_HEADER_BYTES;
        memcpy(frames[0], greeting, n[0]);
    }
    if (strcmp(deed, "swapped") != 0 && strcmp(deed, "left out") != 0)
        say(r->control.fd, frames[0], strcmp(deed, "cut off") == 0 ? n[0] - 1 : n[0]);
    if (strcmp(deed, "repeated") == 0)
        say(r->control.fd, frames[0], n[0]);
    if (strcmp(deed, "cut off") == 0)
        shutdown(r->control.fd, SHUT_WR);
    else
        say(r->control.fd, frames[1], n[1]);
    if (strcmp(deed, "swapped") == 0)
        say(r->control.fd, frames[0], n[0]);
}

TEST_EACH(frames_that_are_not_as_they_were_sent_end_the_session, COUNT(deeds))
{
    struct remote r;

    listen_with(&(struct port_options){0});
    attach(&r);
    tamper(&r, deeds[_i]);
    stage_run_until(&st, &epsd.n_closed, 1);
    ck_assert_uint_eq(epsd.n_received, 0);
    ck_assert_uint_eq(processes_count(log_path(), strcmp(deeds[_i], "cut off") == 0 ? "was cut off within a frame"
                                                                                    : "that its key did not seal"),
                      1);
    leave(&r);
    attach(&r); /* the port is as before */
    leave(&r);
}

static const struct {
    struct message m;
    const char *says;
} wrongs[] = {
    {{.kind = MESSAGE_HELLO, .sequence = 2, .hello.role = ROLE_WORKER}, "sent HELLO twice"},
    {{.kind = MESSAGE_STOP, .sequence = 2}, "a worker does not send"},
    {{.kind = MESSAGE_SAVE, .sequence = 2}, "a worker does not send"},
    {{.kind = MESSAGE_CONTRIBUTION, .sequence = 2}, "bytes without a job"},
    {{.kind = MESSAGE_GENERATED, .sequence = 2}, "bytes without a job"},
};

TEST_EACH(a_message_that_cannot_be_is_refused_and_logged_once, COUNT(wrongs))
{
    struct remote r;

    listen_with(&(struct port_options){0});
    attach(&r);
    send_message(&r.control, &wrongs[_i].m);
    stage_run_until(&st, &epsd.n_closed, 1);
    ck_assert_uint_eq(processes_count(log_path(), wrongs[_i].says), 1);
    leave(&r);
}

TEST(only_workers_come_from_other_hosts)
{
    const struct message viewer = {.kind = MESSAGE_HELLO, .sequence = 1, .hello.role = ROLE_VIEWER};
    struct remote r;

    listen_with(&(struct port_options){0});
    join(&r);
    send_message(&r.control, &viewer);
    stage_run_until(&st, &epsd.n_turned_away, 1);
    ck_assert_uint_eq(processes_count(log_path(), "only workers attach from other hosts"), 1);
    leave(&r);
}

/* ---- addresses -------------------------------------------------------------------------------------------------- */

static const struct {
    const char *address, *name, *port; /* name NULL: refused */
} addresses[] = {
    {"tcp://10.0.0.1:7070", "10.0.0.1", "7070"},
    {"tcp://gpu-3.lab:1", "gpu-3.lab", "1"},
    {"tcp://[::1]:65535", "::1", "65535"},
    {"tcp://*:0", "*", "0"},
    {"tcp://10.0.0.1", NULL, NULL},
    {"tcp://10.0.0.1:", NULL, NULL},
    {"tcp://:7070", NULL, NULL},
    {"tcp://[]:7070", NULL, NULL},
    {"tcp://::1:7070", NULL, NULL},
    {"tcp://host:65536", NULL, NULL},
    {"tcp://host:-1", NULL, NULL},
    {"tcp://host:7070/x", NULL, NULL},
    {"tcp://", NULL, NULL},
};

TEST_EACH(an_address_has_a_host_and_a_port, COUNT(addresses))
{
    char name[PORT_NAME_BYTES], digits[PORT_DIGITS_BYTES];
    struct error err = {""};
    const int rc = port_split(name, digits, addresses[_i].address, &err);

    listen_with(&(struct port_options){0});
    ck_assert_int_eq(rc, addresses[_i].name ? 0 : -EDOM);
    if (rc) {
        ck_assert_holds(err.text, addresses[_i].address, "tcp://HOST:PORT");
        return;
    }
    ck_assert_str_eq(name, addresses[_i].name);
    ck_assert_str_eq(digits, addresses[_i].port);
}

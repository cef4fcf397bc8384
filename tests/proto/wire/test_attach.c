/* A session's beginning on the daemon's side, and a peer's attempts. What is said amiss meanwhile: test_session.c. */
#include "proto/wire/session_internal.h" /* session_accept: its tick can be set before the session is open */
#include "tests/kit/inprocess/stage.h"
#include "tests/kit/test.h"

#include <nanomsg/nn.h>
#include <nanomsg/pair.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static struct stage st;
static struct side epsd, worker; /* zero at the beginning of each test */

static void begin(void)
{
    epsd = worker = (struct side){0};
    stage_begin(&st);
}

/* What is left of the directory is removed by a daemon of it. */
static void end(void)
{
    if (!st.listener)
        stage_listen(&st, &epsd);
    stage_end(&st);
}

SUITE_FIXTURE(begin, end)

/* Until it is no good one any more: many bits of it may be anything. */
static void spoil(uint8_t *hello, size_t n)
{
    struct message m;
    const char *why;

    do
        for (unsigned k = 0; k < 8; k++)
            hello[(size_t)rand() % n] ^= (uint8_t)(1 << rand() % 8);
    while (message_decode(&m, hello, n, &why) == 0);
}

/* Random bytes, random bits in a good HELLO, and nothing: 300 at the listener, and one good session all along. */
TEST(a_crowd_of_strangers_does_not_disturb_a_session)
{
    uint8_t bytes[MESSAGE_MAX_BYTES];
    struct raw crowd[300];

    ck_assert_ptr_nonnull(freopen("/dev/null", "w", stderr)); /* one line for each */
    stage_open(&st, &epsd, &worker);
    srand(1);
    for (unsigned i = 0; i < 300; i++) {
        size_t n = message_encode(bytes, sizeof bytes, &worker_hello);
        bytes[8] = 1; /* the first message */
        if (i % 2)
            spoil(bytes, n);
        for (size_t k = 0; i % 2 == 0 && k < n; k++)
            bytes[k] = (uint8_t)rand();
        raw_connect(&crowd[i], &st);
        if (i % 7)
            raw_send(&crowd[i], bytes, n);
        uv_run(&st.loop, UV_RUN_NOWAIT);
        raw_close(&crowd[i]);
    }
    side_send_pulls(epsd.s, 0, 100);
    stage_run_until(&st, &worker.n_received, 100);
    stage_run_until(&st, &epsd.n_turned_away, 300);
    stage_close(&st, &worker, &epsd);
}

/* In ticks: 5 for HELLO, 15 for GREETING. */
TEST_EACH(who_says_nothing_is_turned_away, 2)
{
    struct raw raw = {.channel = -1};
    struct session *s;
    struct message m;
    char address[100];
    int fds[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    raw.fd = fds[1];
    snprintf(address, sizeof address, "ipc://%s/1-0", st.directory);
    ck_assert_int_eq(session_accept(&s, &st.loop, fds[0], 1, address, &side_events, &epsd), 0);
    session_set_tick(s, 2);
    if (_i == 1) {
        raw_say(&raw, &worker_hello);
        raw_expect(&raw, &st, MESSAGE_WELCOME, &m);
    }
    raw_expect_dismissed(&raw, &st, _i == 0 ? "said nothing for 5 s" : "said nothing for 15 s");
    stage_run_until(&st, &epsd.n_turned_away, 1);
}

/* ---- something at the listener that is no daemon ----------------------------------------------------------------- */

static int false_daemon(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    snprintf(address.sun_path, sizeof address.sun_path, "%s/listener", st.directory);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(fd, 8), 0);
    stage_connect(&st, &worker);
    return fd;
}

/* The HELLO of the next to knock. */
static struct message false_accept(struct raw *raw, int listening)
{
    struct message hello;

    *raw = (struct raw){.channel = -1};
    while ((raw->fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) < 0)
        uv_run(&st.loop, UV_RUN_NOWAIT);
    raw_expect(raw, &st, MESSAGE_HELLO, &hello);
    return hello;
}

static void welcome_to(struct raw *raw, const char *address)
{
    struct message m = {.kind = MESSAGE_WELCOME, .welcome = {.id = 1}};

    snprintf(m.welcome.address, sizeof m.welcome.address, "%s", address);
    raw_say(raw, &m);
}

static const uint8_t version[MESSAGE_HEADER_BYTES + 3] = {0x51, 0xE9, 200, 77, 3};

static const struct {
    struct raw_word word;
    const char *reason;
    enum message_end end;
} strange[] = {
    {RAW_BYTES(version, sizeof version), "speaks version 200 of the protocol, not %d: use programs of one build",
     END_DISMISSED},
    {RAW_BYTES("who is there?", 13), "sent what is no message: shorter than a header", END_DISMISSED},
    {RAW_MESSAGE(.kind = MESSAGE_WELCOME, .welcome = {.id = 1, .address = "tcp://10.0.0.1:80"}),
     "sent an address that no channel can have", END_DISMISSED},
    {RAW_MESSAGE(.kind = MESSAGE_DISMISSED, .dismissed = {.end = END_UNREAD, .code = -1, .error = {"not today"}}),
     "refused: not today", END_UNREAD},
    {RAW_MESSAGE(.kind = MESSAGE_JOB, .job.goal.n_parts = 1), "sent JOB over the connection, out of place",
     END_DISMISSED},
    {RAW_BYTES(NULL, 0), "closed before the session was open", END_LOST},
};

TEST_EACH(a_daemon_that_is_none_ends_the_attempt, COUNT(strange))
{
    struct raw raw;
    char reason[ERROR_TEXT_BYTES];

    snprintf(reason, sizeof reason, strange[_i].reason, MESSAGE_VERSION);
    int listening = false_daemon();
    const struct message hello = false_accept(&raw, listening);
    ck_assert_uint_eq(hello.hello.pid, (unsigned)getpid());
    ck_assert_str_eq(hello.hello.device, "cpu");
    if (strange[_i].word.bytes || strange[_i].word.message)
        raw_utter(&raw, &strange[_i].word);
    shutdown(raw.fd, SHUT_WR);
    stage_run_until(&st, &worker.n_closed, 1);
    ck_assert_uint_eq(worker.n_opened, 0);
    ck_assert_str_eq(worker.reason, reason);
    ck_assert_int_eq(worker.end, strange[_i].end);
    raw_close(&raw);
    close(listening);
}

/* The daemon's session is open before the peer's, so what comes through its connection must not overtake its
 * greeting. */
TEST(the_connection_waits_for_the_greeting)
{
    const struct message release = {.kind = MESSAGE_RELEASE};
    struct message greeting;
    struct raw raw;
    uint8_t bytes[MESSAGE_MAX_BYTES];
    char address[100];
    const char *why;
    int n, listening = false_daemon();

    false_accept(&raw, listening);
    snprintf(address, sizeof address, "ipc://%s/1-0", st.directory);
    raw.channel = nn_socket(AF_SP, NN_PAIR);
    ck_assert_int_ge(nn_bind(raw.channel, address), 0);
    welcome_to(&raw, address);
    raw_say(&raw, &release);
    while ((n = nn_recv(raw.channel, bytes, sizeof bytes, NN_DONTWAIT)) < 0)
        uv_run(&st.loop, UV_RUN_NOWAIT);
    ck_assert_int_eq(message_decode(&greeting, bytes, (size_t)n, &why), 0);
    ck_assert_uint_eq(worker.n_received + worker.n_opened + worker.n_closed, 0);
    raw_say_channel(&raw, &greeting);
    stage_run_until(&st, &worker.n_received, 1);
    ck_assert_int_eq(worker.last.kind, MESSAGE_RELEASE);
    raw_close(&raw);
    stage_run_until(&st, &worker.n_closed, 1);
    close(listening);
}

/* nanomsg can wedge; then another address helps. Here: a WELCOME to where nobody is. Each attempt has a nonce of its
 * own. */
TEST_EACH(without_a_greeting_it_attaches_anew_and_at_last_gives_up, 2)
{
    struct raw raw[4];
    uint64_t nonces[4];
    int listening = false_daemon();

    session_set_tick(worker.s, 10);
    for (int i = 0; i < 4; i++) {
        nonces[i] = false_accept(&raw[i], listening).hello.nonce;
        for (int k = 0; k < i; k++)
            ck_assert_uint_ne(nonces[i], nonces[k]);
        if (_i == 0)
            welcome_to(&raw[i], "ipc:///tmp/eps-test-nobody/s/1-0");
    }
    stage_run_until(&st, &worker.n_closed, 1);
    ck_assert_holds(worker.reason, "does not answer");
    ck_assert_int_eq(worker.end, END_UNANSWERED);
    for (int i = 0; i < 4; i++)
        raw_close(&raw[i]);
    close(listening);
}

TEST(a_second_attempt_may_succeed)
{
    struct raw raw;
    int listening = false_daemon();

    session_set_tick(worker.s, 100);
    false_accept(&raw, listening);
    close(listening);
    stage_listen(&st, &epsd); /* takes the connection over */
    stage_run_until(&st, &worker.n_opened, 1);
    raw_close(&raw);
    stage_close(&st, &worker, &epsd);
}

TEST_EACH(closing_while_attaching_is_closing, 6)
{
    stage_listen(&st, &epsd);
    stage_connect(&st, &worker);
    for (int i = 0; i < _i; i++)
        uv_run(&st.loop, UV_RUN_ONCE);
    session_close(worker.s);
    stage_run_until(&st, &worker.n_closed, 1);
    ck_assert_str_eq(worker.reason, "");
    while (epsd.n_closed + epsd.n_turned_away == 0 && _i > 0)
        uv_run(&st.loop, UV_RUN_ONCE);
}

#include "proto/wire/session_internal.h"
#include "tests/kit/stage.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <nanomsg/nn.h>
#include <nanomsg/pair.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static struct stage st; /* each test is a process of its own */

/* Someone at the daemon's door who is no peer: told why, sent away, and the daemon none the worse. */
static void say_garbage(struct raw *raw)
{
    raw_send(raw, "hello?", 6);
}

static void say_what_is_not_ours(struct raw *raw)
{
    raw_send(raw, "GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 35);
}

static void say_the_second_first(struct raw *raw)
{
    raw->sent_by_door = 1;
    raw_say(raw, &worker_hello);
}

static void say_ping(struct raw *raw)
{
    const struct message m = {.kind = MESSAGE_PING};

    raw_say(raw, &m);
}

static void ask_for_a_job(struct raw *raw)
{
    const struct message m = {.kind = MESSAGE_JOB, .job = {.goal = {.n_parts = 1}}};

    raw_say(raw, &m);
}

static void say_hello_twice(struct raw *raw)
{
    raw_say(raw, &worker_hello);
    raw_say(raw, &worker_hello);
}

static void say_too_much(struct raw *raw)
{
    static const uint8_t bytes[4 * MESSAGE_MAX_BYTES];

    raw_send(raw, bytes, sizeof bytes);
}

static void say_it_in_another_version(struct raw *raw)
{
    uint8_t bytes[MESSAGE_MAX_BYTES];
    size_t n = message_encode(bytes, sizeof bytes, &worker_hello);

    bytes[2] = 200;
    raw_send(raw, bytes, n);
}

static const struct {
    void (*say)(struct raw *raw);
    const char *reason;
} rude[] = {
    {say_garbage, "sent what is no message: shorter than a header"},
    {say_what_is_not_ours, "sent what is no message: not one of our messages"},
    {say_the_second_first, "sent HELLO as message 2 where 1 was due"},
    {say_ping, "sent PING through the door, out of place"},
    {ask_for_a_job, "sent JOB through the door, out of place"},
    {say_hello_twice, "sent HELLO through the door, out of place"},
    {say_too_much, "sent more through the door than one message holds"},
    {say_it_in_another_version, "speaks version 200 of the protocol, not %d: use programs of one build"},
};
enum { N_RUDE = sizeof rude / sizeof *rude };

TEST_EACH(who_does_not_attach_properly_is_turned_away, N_RUDE)
{
    struct side daemon = {0}, worker = {0};
    struct message m;
    struct raw raw;
    uint8_t byte;
    char reason[ERROR_TEXT_BYTES];

    snprintf(reason, sizeof reason, rude[_i].reason, MESSAGE_VERSION);
    stage_begin(&st);
    stage_listen(&st, &daemon);
    raw_connect(&raw, &st);
    rude[_i].say(&raw);
    raw_expect(&raw, &st, rude[_i].say == say_hello_twice ? MESSAGE_WELCOME : MESSAGE_DISMISSED, &m);
    if (m.kind == MESSAGE_WELCOME)
        raw_expect(&raw, &st, MESSAGE_DISMISSED, &m);
    ck_assert_str_eq(m.dismissed.error.text, reason);
    ck_assert_uint_eq(raw_receive(&raw, &st, &byte, 1), 0);
    raw_close(&raw);
    stage_run_until(&st, &daemon.n_turned_away, 1);
    ck_assert_str_eq(daemon.reason, reason);
    stage_connect(&st, &worker);
    stage_run_until(&st, &daemon.n_opened, 1);
    session_close(daemon.s);
    stage_run_until(&st, &worker.n_closed, 1);
    stage_end(&st);
}

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

/* Random bytes, random bits in a good HELLO, and nothing: 300 at the door, and one good session all along. */
TEST(a_crowd_of_strangers_does_not_disturb_a_session)
{
    struct side daemon = {0}, worker = {0};
    uint8_t bytes[MESSAGE_MAX_BYTES];
    struct raw crowd[300];

    stage_begin(&st);
    ck_assert_ptr_nonnull(freopen("/dev/null", "w", stderr)); /* one line for each */
    stage_open(&st, &daemon, &worker);
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
    side_send_pulls(daemon.s, 0, 100);
    stage_run_until(&st, &worker.n_received, 100);
    stage_run_until(&st, &daemon.n_turned_away, 300);
    session_close(worker.s);
    stage_run_until(&st, &daemon.n_closed, 1);
    stage_end(&st);
}

/* In ticks: 5 for HELLO, 15 for GREETING. */
TEST_EACH(who_says_nothing_is_turned_away, 2)
{
    struct side daemon = {0};
    struct raw raw = {.channel = -1};
    struct session *s;
    struct message m;
    char address[100];
    int fds[2];

    stage_begin(&st);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    raw.fd = fds[1];
    snprintf(address, sizeof address, "ipc://%s/1-0", st.directory);
    ck_assert_int_eq(session_accept(&s, &st.loop, fds[0], 1, address, &side_events, &daemon), 0);
    session_set_tick(s, 2);
    if (_i == 1) {
        raw_say(&raw, &worker_hello);
        raw_expect(&raw, &st, MESSAGE_WELCOME, &m);
    }
    raw_expect(&raw, &st, MESSAGE_DISMISSED, &m);
    ck_assert_str_eq(m.dismissed.error.text, _i == 0 ? "said nothing for 5 s" : "said nothing for 15 s");
    raw_close(&raw);
    stage_run_until(&st, &daemon.n_turned_away, 1);
    rmdir(st.directory);
    stage_end(&st);
}

TEST_EACH(a_greeting_for_another_session_is_refused, 2)
{
    struct side daemon = {0};
    struct message m = {.kind = MESSAGE_GREETING};
    struct raw raw;

    stage_begin(&st);
    stage_listen(&st, &daemon);
    raw_attach(&raw, &st);
    m.greeting.id = raw.id + (_i == 0);
    m.greeting.nonce = worker_hello.hello.nonce + (_i == 1);
    raw_say_channel(&raw, &m);
    raw_expect(&raw, &st, MESSAGE_DISMISSED, &m);
    ck_assert_str_eq(m.dismissed.error.text, "sent the greeting of another session");
    raw_close(&raw);
    stage_run_until(&st, &daemon.n_turned_away, 1);
    stage_end(&st);
}

TEST(nothing_comes_by_the_channel_before_the_greeting)
{
    struct side daemon = {0};
    struct message m = {.kind = MESSAGE_STATUS};
    struct raw raw;

    stage_begin(&st);
    stage_listen(&st, &daemon);
    raw_attach(&raw, &st);
    raw_say_channel(&raw, &m);
    raw_expect(&raw, &st, MESSAGE_DISMISSED, &m);
    ck_assert_str_eq(m.dismissed.error.text, "sent STATUS by the channel, out of place");
    raw_close(&raw);
    stage_run_until(&st, &daemon.n_turned_away, 1);
    stage_end(&st);
}

/* The other way round: a peer of ours, and something at the door that is no daemon. */
static int false_daemon(void)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    int fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

    snprintf(address.sun_path, sizeof address.sun_path, "%s/door", st.directory);
    ck_assert_int_eq(bind(fd, (const struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(fd, 8), 0);
    return fd;
}

/* The HELLO of the next to knock. */
static void false_accept(struct raw *raw, int listening, struct message *hello)
{
    *raw = (struct raw){.channel = -1};
    while ((raw->fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK)) < 0)
        uv_run(&st.loop, UV_RUN_NOWAIT);
    raw_expect(raw, &st, MESSAGE_HELLO, hello);
}

static void end_false_daemon(int listening)
{
    struct side daemon = {0};

    close(listening);
    stage_listen(&st, &daemon); /* which removes what is left */
    stage_end(&st);
}

static void answer_in_another_version(struct raw *raw)
{
    uint8_t bytes[MESSAGE_HEADER_BYTES + 3] = {0x51, 0xE9, 200, 77, 3};

    raw_send(raw, bytes, sizeof bytes);
}

static void answer_garbage(struct raw *raw)
{
    raw_send(raw, "who is there?", 13);
}

static void answer_with_an_address(struct raw *raw, const char *address)
{
    struct message m = {.kind = MESSAGE_WELCOME, .welcome = {.id = 1}};

    snprintf(m.welcome.address, sizeof m.welcome.address, "%s", address);
    raw_say(raw, &m);
}

static void answer_with_tcp(struct raw *raw)
{
    answer_with_an_address(raw, "tcp://10.0.0.1:80");
}

static void answer_refused(struct raw *raw)
{
    struct message m = {.kind = MESSAGE_DISMISSED, .dismissed = {.code = -EPERM, .error = {"not today"}}};

    raw_say(raw, &m);
}

static void answer_job(struct raw *raw)
{
    ask_for_a_job(raw);
}

static void answer_nothing(struct raw *raw)
{
    (void)raw;
}

static const struct {
    void (*answer)(struct raw *raw);
    const char *reason;
} strange[] = {
    {answer_in_another_version, "speaks version 200 of the protocol, not %d: use programs of one build"},
    {answer_garbage, "sent what is no message: shorter than a header"},
    {answer_with_tcp, "sent an address that no channel can have"},
    {answer_refused, "refused: not today"},
    {answer_job, "sent JOB through the door, out of place"},
    {answer_nothing, "closed before the session was open"},
};
enum { N_STRANGE = sizeof strange / sizeof *strange };

TEST_EACH(a_daemon_that_is_none_ends_the_attempt, N_STRANGE)
{
    struct side worker = {0};
    struct message hello;
    struct raw raw;
    char reason[ERROR_TEXT_BYTES];

    snprintf(reason, sizeof reason, strange[_i].reason, MESSAGE_VERSION);
    stage_begin(&st);
    int listening = false_daemon();
    stage_connect(&st, &worker);
    false_accept(&raw, listening, &hello);
    ck_assert_uint_eq(hello.hello.pid, (unsigned)getpid());
    ck_assert_str_eq(hello.hello.device, "cpu");
    strange[_i].answer(&raw);
    shutdown(raw.fd, SHUT_WR);
    stage_run_until(&st, &worker.n_closed, 1);
    ck_assert_uint_eq(worker.n_opened, 0);
    ck_assert_str_eq(worker.reason, reason);
    raw_close(&raw);
    end_false_daemon(listening);
}

/* The daemon's session is open before the peer's, so what comes through its door must not overtake its greeting. */
TEST(the_door_waits_for_the_greeting)
{
    struct message m, release = {.kind = MESSAGE_RELEASE}, greeting;
    struct side worker = {0};
    struct raw raw;
    uint8_t bytes[MESSAGE_MAX_BYTES];
    char address[100];
    const char *why;
    int n;

    stage_begin(&st);
    int listening = false_daemon();
    stage_connect(&st, &worker);
    false_accept(&raw, listening, &m);
    snprintf(address, sizeof address, "ipc://%s/1-0", st.directory);
    raw.channel = nn_socket(AF_SP, NN_PAIR);
    ck_assert_int_ge(nn_bind(raw.channel, address), 0);
    answer_with_an_address(&raw, address);
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
    end_false_daemon(listening);
}

/* nanomsg can wedge; then another address helps. Here: a WELCOME to where nobody is. Each attempt has a nonce of its
 * own. */
TEST_EACH(without_a_greeting_it_attaches_anew_and_at_last_gives_up, 2)
{
    struct side worker = {0};
    struct message hello;
    struct raw raw[4];
    uint64_t nonces[4];

    stage_begin(&st);
    int listening = false_daemon();
    stage_connect(&st, &worker);
    session_set_tick(worker.s, 10);
    for (int i = 0; i < 4; i++) {
        false_accept(&raw[i], listening, &hello);
        nonces[i] = hello.hello.nonce;
        for (int k = 0; k < i; k++)
            ck_assert_uint_ne(nonces[i], nonces[k]);
        if (_i == 0)
            answer_with_an_address(&raw[i], "ipc:///tmp/eps-test-nobody/s/1-0");
    }
    stage_run_until(&st, &worker.n_closed, 1);
    ck_assert_str_eq(worker.reason, "does not answer: it is stopped, or its machine is overloaded");
    for (int i = 0; i < 4; i++)
        raw_close(&raw[i]);
    end_false_daemon(listening);
}

TEST(a_second_attempt_may_succeed)
{
    struct side worker = {0}, daemon = {0};
    struct message hello;
    struct raw raw;

    stage_begin(&st);
    int listening = false_daemon();
    stage_connect(&st, &worker);
    session_set_tick(worker.s, 100);
    false_accept(&raw, listening, &hello);
    close(listening);
    stage_listen(&st, &daemon); /* takes the door over */
    stage_run_until(&st, &worker.n_opened, 1);
    raw_close(&raw);
    session_close(worker.s);
    stage_run_until(&st, &daemon.n_closed, 1);
    stage_end(&st);
}

TEST_EACH(closing_while_attaching_is_closing, 6)
{
    struct side worker = {0}, daemon = {0};

    stage_begin(&st);
    stage_listen(&st, &daemon);
    stage_connect(&st, &worker);
    for (int i = 0; i < _i; i++)
        uv_run(&st.loop, UV_RUN_ONCE);
    session_close(worker.s);
    stage_run_until(&st, &worker.n_closed, 1);
    ck_assert_str_eq(worker.reason, "");
    while (daemon.n_closed + daemon.n_turned_away == 0 && _i > 0)
        uv_run(&st.loop, UV_RUN_ONCE);
    stage_end(&st);
}

/* The tcp port, and who has no business there: strangers, and whoever sits in between. All on one loop. */
#include "proto/wire/wire.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"
#include "tests/proto/net/remote.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

SUITE_TIMEOUT(120)
SUITE_FIXTURE(remote_begin, remote_end)

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

    remote_listen_with(&(struct port_options){0});
    const int fd = remote_connect_from(1);
    remote_say(fd, strangers[_i].bytes, strangers[_i].n);
    ck_assert(!strangers[_i].is_told || remote_hear(fd, hello, sizeof hello));
    remote_expect_end(fd);
    ck_assert_uint_eq(processes_count(remote_log_path(), "turned away"), 1);
    ck_assert_uint_eq(processes_count(remote_log_path(), strangers[_i].says), 1);
    remote_attach(&r); /* others are none the worse */
    remote_leave(&r);
    stage_run_until(&remote_stage, &remote_epsd.n_closed, 1);
}

TEST(another_key_and_none_are_turned_away_after_the_proof)
{
    static const uint8_t none[KEY_BYTES] = {0};
    struct secured c;

    remote_listen_with(&(struct port_options){0});
    for (int i = 0; i < 2; i++) {
        ck_assert(!remote_shake(&c, HANDSHAKE_CONTROL, 0, i ? none : remote_other_key));
        ck_assert_int_eq(c.h.state, HANDSHAKE_FAILED); /* the daemon has proved nothing */
        close(c.fd);
    }
    ck_assert_uint_eq(processes_count(remote_log_path(), "has no key, or another one"), 2);
}

TEST(a_second_connection_needs_the_sessions_own_key)
{
    struct secured control, bulk;

    remote_listen_with(&(struct port_options){0});
    ck_assert(remote_shake(&control, HANDSHAKE_CONTROL, 0, remote_key));
    ck_assert(!remote_shake(&bulk, HANDSHAKE_BULK, control.h.name, remote_key));
    ck_assert(!remote_shake(&bulk, HANDSHAKE_BULK, control.h.name + 1, control.h.child));
    ck_assert_uint_eq(remote_epsd.n_opened, 0);
}

TEST(silence_ends_with_patience)
{
    struct secured c;

    remote_listen_with(&(struct port_options){.patience_ms = 10});
    const int silent = remote_connect_from(1), halting = remote_connect_from(2);
    remote_say(halting, "\x51\xe9\x07", 3);
    remote_expect_end(silent);
    remote_expect_end(halting);
    ck_assert(remote_shake(&c, HANDSHAKE_CONTROL, 0, remote_key)); /* and no second connection */
    remote_expect_end(c.fd);
    ck_assert_uint_eq(processes_count(remote_log_path(), "did not finish the handshake in time"), 2);
    ck_assert_uint_eq(processes_count(remote_log_path(), "its second connection did not come"), 1);
}

/* Each finds a place: one that the most crowded address holds in silence, or else its oldest. */
TEST(room_is_made_where_most_is_taken)
{
    static const uint8_t begun[HANDSHAKE_HELLO_BYTES] = {0x51, 0xe9, 7, 0, 1, 2, 1, [32] = 9};
    uint8_t hello[HANDSHAKE_HELLO_BYTES];
    int crowd[PORT_GUESTS - 4], others[4];

    remote_listen_with(&(struct port_options){.patience_ms = 100000});
    for (unsigned i = 0; i < COUNT(others); i++)
        others[i] = remote_connect_from(2 + i / 2);
    for (unsigned i = 0; i < COUNT(crowd); i++) {
        crowd[i] = remote_connect_from(1);
        remote_say(crowd[i], begun, i % 2 ? 0 : sizeof begun);
        ck_assert(i % 2 || remote_hear(crowd[i], hello, sizeof hello));
    }
    for (unsigned i = 0; i < 58; i++) { /* the 30 silent ones, then the 28 oldest of the others: two are no crowd */
        const unsigned next = i < 30 ? 2 * i + 1 : 2 * (i - 30);
        const int came = remote_connect_from(9 + i);
        remote_expect_end(crowd[next]);
        crowd[next] = came;
    }
    for (unsigned i = 0; i < COUNT(others); i++) {
        ck_assert(!remote_is_closed(others[i]));
        close(others[i]);
    }
    for (unsigned i = 0; i < COUNT(crowd); i++) {
        ck_assert(!remote_is_closed(crowd[i]));
        close(crowd[i]);
    }
    ck_assert_uint_eq(processes_count(remote_log_path(), "turned away"), 0);
}

/* Those that have shown it take none of these. */
TEST(places_of_those_with_the_key_are_others)
{
    static struct secured with_key[PORT_SESSIONS / 2];
    int fds[PORT_GUESTS];

    remote_listen_with(&(struct port_options){.patience_ms = 100000});
    for (unsigned i = 0; i < COUNT(with_key); i++)
        ck_assert(remote_shake(&with_key[i], HANDSHAKE_CONTROL, 0, remote_key));
    for (unsigned i = 0; i < COUNT(fds); i++)
        fds[i] = remote_connect_from(1);
    for (int i = 0; i < 100; i++)
        uv_run(&remote_stage.loop, UV_RUN_NOWAIT);
    for (unsigned i = 0; i < COUNT(fds); i++) {
        ck_assert(!remote_is_closed(fds[i]));
        close(fds[i]);
    }
    for (unsigned i = 0; i < COUNT(with_key); i++)
        close(with_key[i].fd);
    ck_assert_uint_eq(processes_count(remote_log_path(), "put off"), 0);
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

    remote_listen_with(&(struct port_options){.address = "tcp://[::]:0", .patience_ms = 100000});
    const int other = remote_connect_from(3);
    for (unsigned i = 0; i < COUNT(fds); i++)
        fds[i] = remote_connect_from(2);
    const int came = remote_connect_from(4);
    remote_expect_end(fds[0]);
    ck_assert(!remote_is_closed(other));
    close(other);
    close(came);
    for (unsigned i = 1; i < COUNT(fds); i++)
        close(fds[i]);
    ck_assert_uint_eq(processes_count(remote_log_path(), "put off at the tcp port, 127.0.0.2:"), 1);
}

/* So does a worker of a lost daemon look for the next one. */
TEST(whoever_leaves_without_a_word_is_not_logged)
{
    struct remote r;

    remote_listen_with(&(struct port_options){0});
    close(remote_connect_from(1));
    remote_attach(&r);
    remote_leave(&r);
    stage_run_until(&remote_stage, &remote_epsd.n_closed, 1);
    ck_assert_uint_eq(processes_count(remote_log_path(), "127.0.0.1"), 2); /* it listens; this worker has the key */
}

TEST(a_thousand_strangers_leave_nothing_behind)
{
    unsigned before = 0;

    remote_listen_with(&(struct port_options){0});
    for (int i = 0; i < 1000; i++) {
        uint8_t bytes[64];
        const int fd = remote_connect_from(1);
        randombytes_buf(bytes, sizeof bytes);
        remote_say(fd, bytes, sizeof bytes);
        remote_expect_end(fd);
        if (i == 10)
            before = processes_count_fds(getpid());
    }
    ck_assert_uint_le(processes_count_fds(getpid()), before + 1);
    ck_assert_uint_le(processes_count(remote_log_path(), "turned away"),
                      100); /* eight lines, and one for more, each 10 s */
    ck_assert_uint_eq(remote_epsd.n_opened, 0);
}

/* ---- in between ------------------------------------------------------------------------------------------------- */

/* What arrives after the worker's HELLO instead of two frames as they were sent. */
static const char *const deeds[] = {"flipped",  "flipped length", "swapped", "repeated",
                                    "left out", "reflected",      "cut off", "inserted"};

static void tamper(struct remote *r, const char *deed)
{
    const struct message m[2] = {{.kind = MESSAGE_PONG, .sequence = 2}, {.kind = MESSAGE_LEDGER, .sequence = 3}};
    uint8_t frames[2][REMOTE_FRAME_BYTES], greeting[REMOTE_FRAME_BYTES];
    size_t n[2];

    if (strcmp(deed, "inserted") == 0)
        r->control.n_sent += 7; /* a stranger's guess */
    for (int i = 0; i < 2; i++)
        n[i] = remote_seal_message(frames[i], &r->control, &m[i]);
    if (strcmp(deed, "flipped") == 0)
        frames[0][n[0] / 2] ^= 4;
    if (strcmp(deed, "flipped length") == 0)
        frames[0][0] ^= 1;
    if (strcmp(deed, "reflected") == 0) { /* WELCOME, as it came */
        ck_assert(remote_hear(r->control.fd, greeting, CIPHER_HEADER_BYTES));
        n[0] = wire_get(greeting, CIPHER_HEADER_BYTES) + CIPHER_TAG_BYTES;
        ck_assert(remote_hear(r->control.fd, greeting + CIPHER_HEADER_BYTES, n[0]));
        n[0] += CIPHER_HEADER_BYTES;
        memcpy(frames[0], greeting, n[0]);
    }
    if (strcmp(deed, "swapped") != 0 && strcmp(deed, "left out") != 0)
        remote_say(r->control.fd, frames[0], strcmp(deed, "cut off") == 0 ? n[0] - 1 : n[0]);
    if (strcmp(deed, "repeated") == 0)
        remote_say(r->control.fd, frames[0], n[0]);
    if (strcmp(deed, "cut off") == 0)
        shutdown(r->control.fd, SHUT_WR);
    else
        remote_say(r->control.fd, frames[1], n[1]);
    if (strcmp(deed, "swapped") == 0)
        remote_say(r->control.fd, frames[0], n[0]);
}

TEST_EACH(frames_that_are_not_as_they_were_sent_end_the_session, COUNT(deeds))
{
    struct remote r;

    remote_listen_with(&(struct port_options){0});
    remote_attach(&r);
    tamper(&r, deeds[_i]);
    stage_run_until(&remote_stage, &remote_epsd.n_closed, 1);
    ck_assert_uint_eq(remote_epsd.n_received, 0);
    ck_assert_uint_eq(processes_count(remote_log_path(), strcmp(deeds[_i], "cut off") == 0
                                                             ? "was cut off within a frame"
                                                             : "that its key did not seal"),
                      1);
    remote_leave(&r);
    remote_attach(&r); /* the port is as before */
    remote_leave(&r);
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

    remote_listen_with(&(struct port_options){0});
    remote_attach(&r);
    remote_send_message(&r.control, &wrongs[_i].m);
    stage_run_until(&remote_stage, &remote_epsd.n_closed, 1);
    ck_assert_uint_eq(processes_count(remote_log_path(), wrongs[_i].says), 1);
    remote_leave(&r);
}

TEST(only_workers_come_from_other_hosts)
{
    const struct message viewer = {.kind = MESSAGE_HELLO, .sequence = 1, .hello.role = ROLE_VIEWER};
    struct remote r;

    remote_listen_with(&(struct port_options){0});
    remote_join(&r);
    remote_send_message(&r.control, &viewer);
    stage_run_until(&remote_stage, &remote_epsd.n_turned_away, 1);
    ck_assert_uint_eq(processes_count(remote_log_path(), "only workers attach from other hosts"), 1);
    remote_leave(&r);
}

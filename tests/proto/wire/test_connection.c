#include "tests/kit/processes.h"
#include "tests/kit/inprocess/stage.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

SUITE_LABELS(own)

/* How often sendmsg fails from now on, and with which errno. */
static struct {
    unsigned n;
    int code;
} failing;

ssize_t sendmsg(int fd, const struct msghdr *header, int flags)
{
    if (failing.n == 0)
        return syscall(SYS_sendmsg, fd, header, flags);
    failing.n--;
    errno = failing.code;
    return -1;
}

/* One end under test, on a loop; the other is a plain socket that a test writes what it likes to. */
static uv_loop_t loop;
static struct connection connection;
static int other;
static struct {
    unsigned n_packets, n_ends, n_closed;
    char bytes[MESSAGE_MAX_BYTES];
    size_t n;
    int fds[CONNECTION_MAX_FDS];
    unsigned n_fds;
    char fault[128];
} seen;

static void on_packet(struct connection *d, const uint8_t *bytes, size_t n, const int *fds, unsigned n_fds)
{
    ck_assert_ptr_eq(d, &connection);
    seen.n_packets++;
    memcpy(seen.bytes, bytes, n);
    seen.n = n;
    memcpy(seen.fds, fds, n_fds * sizeof *fds);
    seen.n_fds = n_fds;
}

static void on_end(struct connection *d, const char *fault)
{
    seen.n_ends++;
    snprintf(seen.fault, sizeof seen.fault, "%s", fault ? fault : "");
    connection_close(d);
}

static void on_closed(struct connection *d)
{
    (void)d;
    seen.n_closed++;
}

static const struct connection_events events = {on_packet, on_end, on_closed};

static void open_pair(void)
{
    int fds[2];

    memset(&seen, 0, sizeof seen);
    uv_loop_init(&loop);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, fds), 0);
    other = fds[1];
    ck_assert_int_eq(connection_open(&connection, &loop, fds[0], &events, NULL), 0);
}

static void run_until(const unsigned *count, unsigned n)
{
    while (*count < n)
        uv_run(&loop, UV_RUN_ONCE);
}

static void end_pair(void)
{
    if (seen.n_ends == 0)
        connection_close(&connection);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_uint_eq(seen.n_closed, 1);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    close(other);
}

SUITE_FIXTURE(open_pair, end_pair)

static int send_say(const char *text)
{
    return connection_send(&connection, (const uint8_t *)text, strlen(text), NULL, 0);
}

/* By the other side. */
static void say(const char *text)
{
    ck_assert_int_eq(send(other, text, strlen(text), 0), (ssize_t)strlen(text));
}

/* The n-th packet, and the last so far. */
static void expect_packet(unsigned n, const char *text)
{
    run_until(&seen.n_packets, n);
    ck_assert_uint_eq(seen.n, strlen(text));
    ck_assert_mem_eq(seen.bytes, text, strlen(text));
}

TEST(a_packet_stays_one_packet)
{
    say("one");
    expect_packet(1, "one");
    say("three");
    expect_packet(2, "three");
    ck_assert_uint_eq(seen.n_fds, 0);
}

/* More than the socket holds: the rest waits in the connection, and goes out in order as the other side reads. */
TEST(packets_wait_their_turn_and_their_descriptors_with_them)
{
    uint8_t bytes[MESSAGE_MAX_BYTES] = {0};
    const int small = MESSAGE_MAX_BYTES; /* the least: a socket takes a packet whole */
    uint32_t n_sent = 0, n_read = 0;
    int pipes[2], rc = 0;

    ck_assert_int_eq(pipe2(pipes, O_CLOEXEC), 0);
    setsockopt(connection.fd, SOL_SOCKET, SO_SNDBUF, &small, sizeof small);
    for (; connection.n_queued < CONNECTION_MAX_QUEUED; n_sent++) {
        memcpy(bytes, &n_sent, sizeof n_sent);
        ck_assert_int_eq(connection_send(&connection, bytes, sizeof bytes, pipes, n_sent % 3), 0);
    }
    ck_assert_int_eq(connection_send(&connection, bytes, sizeof bytes, NULL, 0), -ENOBUFS);
    close(pipes[0]);
    close(pipes[1]); /* they were ours: what waits has its own */
    while (n_read < n_sent) {
        char control[CMSG_SPACE(8 * sizeof(int))];
        struct iovec vector = {bytes, sizeof bytes};
        struct msghdr header = {.msg_iov = &vector,
                                .msg_iovlen = 1,
                                .msg_control = control,
                                .msg_controllen = sizeof control};
        while ((rc = (int)recvmsg(other, &header, MSG_CMSG_CLOEXEC)) < 0)
            uv_run(&loop, UV_RUN_NOWAIT);
        uint32_t number;
        memcpy(&number, bytes, sizeof number);
        ck_assert_uint_eq(number, n_read);
        struct cmsghdr *c = CMSG_FIRSTHDR(&header);
        unsigned n_fds = c ? (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int)) : 0;
        ck_assert_uint_eq(n_fds, n_read % 3);
        for (unsigned i = 0; i < n_fds; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof fd, sizeof fd);
            ck_assert_int_eq(close(fd), 0);
        }
        n_read++;
    }
    ck_assert_uint_eq(connection.n_queued, 0);
}

/* It fails when it is sent; in the other half of the cases also twice from the queue. */
TEST_EACH(a_packet_waits_where_the_system_has_no_memory_for_it, 4)
{
    char bytes[8];

    failing.code = _i % 2 ? ENOBUFS : ENOMEM, failing.n = _i < 2 ? 1 : 3;
    ck_assert_int_eq(send_say("one"), 0);
    ck_assert_int_eq(send_say("two"), 0);
    while (connection.n_queued > 0)
        uv_run(&loop, UV_RUN_ONCE);
    ck_assert_int_eq(recv(other, bytes, sizeof bytes, 0), 3);
    ck_assert_mem_eq(bytes, "one", 3);
    ck_assert_int_eq(recv(other, bytes, sizeof bytes, 0), 3);
    ck_assert_mem_eq(bytes, "two", 3);
    ck_assert_uint_eq(seen.n_ends, 0);
}

/* So the other side never misses one in between. */
TEST(a_packet_that_can_never_be_sent_ends_the_connection)
{
    char bytes[8];

    failing.code = EPERM, failing.n = 1;
    ck_assert_int_eq(send_say("refused at once"), -EPERM);
    failing.code = ENOMEM, failing.n = 1;
    ck_assert_int_eq(send_say("one"), 0);
    ck_assert_int_eq(send_say("two"), 0);
    failing.code = EPERM, failing.n = 1;
    run_until(&seen.n_ends, 1);
    ck_assert_str_eq(seen.fault, "cannot be sent the messages that wait for it");
    ck_assert_int_eq(recv(other, bytes, sizeof bytes, 0), 0);
}

/* A reset, if it closes with our packet unread. Linux tells that first; the packet that it sent lies behind. */
TEST_EACH(what_was_sent_before_the_other_side_closed_is_delivered, 2)
{
    if (_i)
        ck_assert_int_eq(send_say("unread"), 0);
    say("last");
    close(other);
    run_until(&seen.n_ends, 1);
    expect_packet(1, "last");
    ck_assert_str_eq(seen.fault, "");
}

TEST(sending_to_who_is_gone_neither_fails_nor_kills)
{
    close(other);
    ck_assert_int_eq(send_say("anyone?"), 0); /* SIGPIPE has its default: death */
    run_until(&seen.n_ends, 1);
}

TEST_EACH(a_paused_connection_delivers_at_its_end, 2)
{
    connection_pause(&connection);
    say("early");
    for (int i = 0; i < 10; i++)
        uv_run(&loop, UV_RUN_NOWAIT);
    ck_assert_uint_eq(seen.n_packets, 0);
    if (_i == 0)
        connection_resume(&connection);
    else
        shutdown(other, SHUT_WR);
    expect_packet(1, "early");
    ck_assert_uint_eq(seen.n_ends, _i == 0 ? 0 : 1);
}

TEST(after_shutdown_packets_still_come_in)
{
    char bytes[8];

    ck_assert_int_eq(send_say("bye"), 0);
    connection_shutdown(&connection);
    ck_assert_int_eq(recv(other, bytes, sizeof bytes, 0), 3);
    ck_assert_int_eq(recv(other, bytes, 1, 0), 0);
    say("answer");
    expect_packet(1, "answer");
}

TEST(as_many_descriptors_come_as_fit)
{
    const struct message m = {.kind = MESSAGE_SNAPSHOT};
    struct raw raw = {.fd = other};

    raw_send_fds(&raw, &m, CONNECTION_MAX_FDS);
    run_until(&seen.n_packets, 1);
    ck_assert_uint_eq(seen.n_fds, CONNECTION_MAX_FDS);
    for (unsigned i = 0; i < seen.n_fds; i++) {
        ck_assert_int_eq(fcntl(seen.fds[i], F_GETFD), FD_CLOEXEC);
        close(seen.fds[i]);
    }
}

/* One descriptor, or two, or a byte too many: a fault, and none stays. */
TEST_EACH(a_packet_too_long_is_a_fault, 3)
{
    static const char bytes[MESSAGE_MAX_BYTES + 1];
    const struct message m = {.kind = MESSAGE_SNAPSHOT};
    struct raw raw = {.fd = other};
    const unsigned before = processes_count_fds(getpid());

    if (_i == 2)
        ck_assert_int_eq(send(other, bytes, sizeof bytes, 0), sizeof bytes);
    else
        raw_send_fds(&raw, &m, CONNECTION_MAX_FDS + 1 + (unsigned)_i);
    run_until(&seen.n_ends, 1);
    ck_assert_str_eq(seen.fault, "sent more over the connection than one message holds");
    ck_assert_uint_eq(seen.n_packets, 0);
    ck_assert_uint_eq(processes_count_fds(getpid()), before - 1); /* the connection's own */
}

/* Whoever may send none, and does: the kernel drops them, so that nothing closes them here. */
TEST(descriptors_that_are_not_taken_are_a_fault)
{
    const struct message m = {.kind = MESSAGE_SNAPSHOT};
    struct raw raw = {.fd = other};
    const unsigned before = processes_count_fds(getpid());

    connection.takes_no_fds = true;
    say("first");
    raw_send_fds(&raw, &m, 1);
    say("third");
    run_until(&seen.n_ends, 1);
    ck_assert_holds(seen.fault, "sent descriptors");
    ck_assert_uint_eq(seen.n_packets, 1);
    ck_assert_uint_eq(processes_count_fds(getpid()), before - 1); /* the connection's own */
}

TEST(the_right_errno_says_what_is_behind_a_path)
{
    char directory[] = "/tmp/eps-connection-XXXXXX", path[64];
    char long_path[200];
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    struct error err = {0};
    int fd;

    ck_assert_ptr_nonnull(mkdtemp(directory));
    snprintf(path, sizeof path, "%s/listener", directory);
    ck_assert_int_eq(connection_connect(&fd, path, &err), -ENOENT);
    ck_assert_holds(err.text, "no daemon at");
    memset(long_path, 'x', sizeof long_path);
    long_path[sizeof long_path - 1] = 0;
    ck_assert_int_eq(connection_connect(&fd, long_path, &err), -ENAMETOOLONG);

    snprintf(address.sun_path, sizeof address.sun_path, "%s", path);
    int listening = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    ck_assert_int_eq(bind(listening, (const struct sockaddr *)&address, sizeof address), 0);
    ck_assert_int_eq(listen(listening, 1), 0);
    ck_assert_int_eq(connection_connect(&fd, path, &err), 0);
    struct connection_peer peer;
    ck_assert(connection_peer(&peer, fd));
    ck_assert_int_eq(peer.pid, getpid());
    ck_assert_uint_eq(peer.uid, geteuid());
    ck_assert(connection_peer_is_member(fd, getegid()));
    ck_assert(!connection_peer_is_member(fd, 4242));
    close(fd);
    close(listening);
    ck_assert_int_eq(connection_connect(&fd, path, &err), -ECONNREFUSED); /* stale */
    ck_assert_holds(err.text, "nobody listens at");
    unlink(path);
    rmdir(directory);
}

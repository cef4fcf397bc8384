#include "tests/kit/inprocess/stage.h"

#include <netinet/in.h>
#include <arpa/inet.h>
#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <nanomsg/nn.h>
#include <nanomsg/pair.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

enum { WATCHDOG_MS = 120000, /* however busy the machine is */ TICK_MS = 1000 };

/* nanomsg forgets 736 bytes each time a bind fails, as for a session that begins after its daemon has stopped
 * listening. */
const char *__lsan_default_suppressions(void);
const char *__lsan_default_suppressions(void)
{
    return "leak:nn_bipc_create";
}

const struct message worker_hello = {.kind = MESSAGE_HELLO,
                                     .hello = {.role = ROLE_WORKER, .device = "cpu", .budget = 1 << 30, .nonce = 77}};

static void on_open(struct session *s, const struct message *peer)
{
    struct side *side = session_data(s);

    while (side->n_opened > 0 && side->next)
        side = side->next;
    session_set_data(s, side);
    ck_assert_uint_eq(side->n_opened, 0);
    side->n_opened++;
    side->s = s;
    side->peer = *peer;
    session_set_tick(s, side->tick_ms ? side->tick_ms : TICK_MS);
    side_send_pulls(s, 0, side->n_to_send);
    if (side->close_on_open)
        session_close(s);
    if (side->refuse_on_open)
        session_refuse(s, side->refuse_on_open);
}

static void on_message(struct session *s, const struct message *m, const int *fds, unsigned n_fds)
{
    struct side *side = session_data(s);

    if (side->n_opened != 1 || side->n_closed != 0)
        ck_abort_msg("a message outside the session's life");
    if (m->kind == MESSAGE_PULL && m->pull.version != side->n_received)
        ck_abort_msg("PULL %llu came as number %u", (unsigned long long)m->pull.version, side->n_received);
    side->last = *m;
    side->n_received++;
    side->n_fds = n_fds;
    for (unsigned i = 0; i < n_fds; i++)
        side->fds[i] = fds[i];
    if (side->n_received == 1 && side->overdue)
        session_set_tick(side->overdue->s, 0);
    if (side->cost > 0)
        session_charge(s, side->cost);
    if (side->close_on_message)
        session_close(s);
}

static void on_closed(struct session *s, const char *reason)
{
    struct side *side = session_data(s);

    snprintf(side->reason, sizeof side->reason, "%s", reason ? reason : "");
    side->end = session_end(s);
    if (side->s == s) {
        side->n_closed++;
        side->s = NULL;
    } else {
        side->n_turned_away++;
    }
}

const struct session_events side_events = {on_open, on_message, on_closed};

void side_send_pulls(struct session *s, unsigned first, unsigned n)
{
    struct message m = {.kind = MESSAGE_PULL};

    for (unsigned i = first; i < first + n; i++) {
        m.pull.version = i;
        session_send(s, &m);
    }
}

static void on_watchdog(uv_timer_t *timer)
{
    (void)timer;
    fprintf(stderr, "waited too long\n");
    abort();
}

void stage_begin(struct stage *st)
{
    memset(st, 0, sizeof *st);
    snprintf(st->directory, sizeof st->directory, "/tmp/eps-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(st->directory));
    uv_loop_init(&st->loop);
    uv_timer_init(&st->loop, &st->watchdog);
}

void stage_listen(struct stage *st, struct side *daemon)
{
    struct error err = {0};

    ck_assert_msg(session_listen(&st->listener, &st->loop, st->directory, &side_events, daemon, &err) == 0, "%s",
                  err.text);
}

static struct message hello_of(const struct stage *st)
{
    struct message hello = worker_hello;

    if (st->by_connection)
        hello.hello.role = ROLE_VIEWER;
    return hello;
}

void stage_connect(struct stage *st, struct side *peer)
{
    const struct message hello = hello_of(st);
    struct error err = {0};

    ck_assert_msg(session_connect(&peer->s, &st->loop, st->directory, &hello, &side_events, peer, &err) == 0, "%s",
                  err.text);
    session_set_tick(peer->s, WATCHDOG_MS);
}

void stage_open(struct stage *st, struct side *daemon, struct side *peer)
{
    stage_listen(st, daemon);
    stage_connect(st, peer);
    stage_run_until(st, &daemon->n_opened, 1);
    stage_run_until(st, &peer->n_opened, 1);
}

void stage_run_until(struct stage *st, const unsigned *count, unsigned n)
{
    uv_timer_start(&st->watchdog, on_watchdog, WATCHDOG_MS, 0);
    while (*count < n)
        uv_run(&st->loop, UV_RUN_ONCE);
    uv_timer_stop(&st->watchdog);
}

void stage_close(struct stage *st, const struct side *closing, const struct side *other)
{
    session_close(closing->s);
    stage_run_until(st, &other->n_closed, 1);
}

void stage_end(struct stage *st)
{
    struct stat info;

    if (st->listener)
        session_unlisten(st->listener, NULL);
    uv_close((uv_handle_t *)&st->watchdog, NULL);
    uv_run(&st->loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&st->loop), 0);
    ck_assert_int_eq(stat(st->directory, &info), -1);
    ck_assert_int_eq(errno, ENOENT);
}

pid_t stage_fork(struct stage *st, void (*body)(struct stage *st))
{
    int ends[2];

    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends), 0);
    pid_t parent = getpid(), pid = fork();
    ck_assert_int_ge(pid, 0);
    st->gate = ends[pid == 0];
    close(ends[pid != 0]);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() == parent) {
        uv_loop_fork(&st->loop);
        body(st);
    }
    _exit(0);
}

void stage_signal(struct stage *st)
{
    ck_assert_int_eq(write(st->gate, "x", 1), 1);
}

void stage_await(struct stage *st)
{
    char byte;

    ck_assert_int_eq(read(st->gate, &byte, 1), 1);
}

void stage_kill(pid_t pid)
{
    kill(pid, SIGKILL);
    ck_assert_int_eq(waitpid(pid, NULL, 0), pid);
}

static void (*daemon_does)(struct session *s, const struct message *m, const int *fds, unsigned n_fds);

static void ignore_opening(struct session *s, const struct message *peer)
{
    (void)s, (void)peer;
}

static void ignore_closing(struct session *s, const char *reason)
{
    (void)s, (void)reason;
}

static void be_the_daemon(struct stage *st)
{
    const struct session_events events = {ignore_opening, daemon_does, ignore_closing};
    struct error err = {""};

    ck_assert_msg(session_listen(&st->listener, &st->loop, st->directory, &events, NULL, &err) == 0, "%s", err.text);
    stage_signal(st);
    uv_run(&st->loop, UV_RUN_DEFAULT);
}

pid_t stage_begin_daemon(struct stage *st,
                         void (*does)(struct session *s, const struct message *m, const int *fds, unsigned n_fds))
{
    stage_begin(st);
    daemon_does = does;
    const pid_t pid = stage_fork(st, be_the_daemon);
    stage_await(st);
    return pid;
}

void stage_end_daemon(struct stage *st, pid_t pid)
{
    char command[100];

    stage_kill(pid);
    uv_close((uv_handle_t *)&st->watchdog, NULL);
    uv_run(&st->loop, UV_RUN_DEFAULT);
    uv_loop_close(&st->loop); /* busy, if the test leaves more open: the sanitizer says what */
    snprintf(command, sizeof command, "rm -r %s", st->directory); /* what a daemon leaves behind that was killed */
    ck_assert_int_eq(system(command), 0);
}

int raw_try_at(struct raw *raw, struct stage *st, const char *connection)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};

    *raw = (struct raw){.channel = -1};
    snprintf(address.sun_path, sizeof address.sun_path, "%s/%s", st->directory, connection);
    raw->fd = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (connect(raw->fd, (const struct sockaddr *)&address, sizeof address) == 0)
        return 0;
    const int rc = -errno;
    close(raw->fd);
    return rc;
}

void raw_connect_at(struct raw *raw, struct stage *st, const char *connection)
{
    ck_assert_int_eq(raw_try_at(raw, st, connection), 0);
}

void raw_connect(struct raw *raw, struct stage *st)
{
    raw_connect_at(raw, st, "listener");
}

void raw_send(struct raw *raw, const void *bytes, size_t n)
{
    ck_assert_int_eq(send(raw->fd, bytes, n, MSG_NOSIGNAL), (ssize_t)n);
    raw->sent_by_connection++;
}

void raw_say(struct raw *raw, const struct message *m)
{
    struct message numbered = *m;
    uint8_t bytes[MESSAGE_MAX_BYTES];

    numbered.sequence = raw->sent_by_connection + 1;
    raw_send(raw, bytes, message_encode(bytes, sizeof bytes, &numbered));
}

ssize_t raw_try_fds(struct raw *raw, const struct message *m, unsigned n_fds)
{
    _Alignas(struct cmsghdr) char control[CMSG_SPACE(253 * sizeof(int))] = {0}; /* the most that Linux takes */
    struct message numbered = *m;
    uint8_t bytes[MESSAGE_MAX_BYTES];
    struct iovec vector = {.iov_base = bytes};
    struct msghdr header = {.msg_iov = &vector, .msg_iovlen = 1, .msg_control = control};
    struct cmsghdr *c = (struct cmsghdr *)(void *)control;

    numbered.sequence = ++raw->sent_by_connection;
    vector.iov_len = message_encode(bytes, sizeof bytes, &numbered);
    header.msg_controllen = CMSG_SPACE(n_fds * sizeof(int));
    *c = (struct cmsghdr){.cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(n_fds * sizeof(int))};
    for (unsigned i = 0; i < n_fds; i++)
        memcpy(CMSG_DATA(c) + i * sizeof(int), &raw->fd, sizeof(int));
    return sendmsg(raw->fd, &header, MSG_NOSIGNAL);
}

void raw_send_fds(struct raw *raw, const struct message *m, unsigned n_fds)
{
    ck_assert_int_gt(raw_try_fds(raw, m, n_fds), 0);
}

/* The number of the last message by the channel, or over the connection. */
static uint64_t *raw_sent(struct raw *raw)
{
    return raw->channel < 0 ? &raw->sent_by_connection : &raw->sent_by_channel;
}

void raw_send_channel(struct raw *raw, const void *bytes, size_t n)
{
    if (raw->channel < 0) {
        raw_send(raw, bytes, n);
        return;
    }
    ck_assert_int_eq(nn_send(raw->channel, bytes, n, 0), (int)n);
    raw->sent_by_channel++;
}

void raw_say_channel(struct raw *raw, const struct message *m)
{
    struct message numbered = *m;
    uint8_t bytes[MESSAGE_MAX_BYTES];

    numbered.sequence = *raw_sent(raw) + 1;
    raw_send_channel(raw, bytes, message_encode(bytes, sizeof bytes, &numbered));
}

void raw_utter(struct raw *raw, const struct raw_word *word)
{
    uint64_t *sent = word->through_connection ? &raw->sent_by_connection : raw_sent(raw);

    *sent += (uint64_t)word->skip;
    if (word->bytes && word->through_connection)
        raw_send(raw, word->bytes, word->n);
    else if (word->bytes)
        raw_send_channel(raw, word->bytes, word->n);
    else if (word->through_connection)
        raw_say(raw, word->message);
    else
        raw_say_channel(raw, word->message);
}

size_t raw_receive(struct raw *raw, struct stage *st, uint8_t *bytes, size_t cap)
{
    ssize_t n;

    uv_timer_start(&st->watchdog, on_watchdog, WATCHDOG_MS, 0);
    while ((n = recv(raw->fd, bytes, cap, 0)) < 0 && (errno == EAGAIN || errno == ECONNRESET))
        if (errno == EAGAIN)
            uv_run(&st->loop, UV_RUN_NOWAIT);
    uv_timer_stop(&st->watchdog);
    ck_assert_int_ge(n, 0);
    return (size_t)n;
}

void raw_expect(struct raw *raw, struct stage *st, enum message_kind kind, struct message *out)
{
    uint8_t bytes[MESSAGE_MAX_BYTES];
    const char *why;
    size_t n = raw_receive(raw, st, bytes, sizeof bytes);

    ck_assert_uint_gt(n, 0);
    ck_assert_msg(message_decode(out, bytes, n, &why) == 0, "%s", why);
    ck_assert_str_eq(message_name(out->kind), message_name(kind));
}

void raw_attach(struct raw *raw, struct stage *st)
{
    const struct message hello = hello_of(st);
    struct message m;

    raw_connect(raw, st);
    raw_say(raw, &hello);
    raw_expect(raw, st, MESSAGE_WELCOME, &m);
    raw->id = m.welcome.id;
    ck_assert_int_eq(!m.welcome.address[0], st->by_connection);
    if (st->by_connection)
        return;
    raw->channel = nn_socket(AF_SP, NN_PAIR);
    ck_assert_int_ge(nn_connect(raw->channel, m.welcome.address), 0);
}

void raw_greet(struct raw *raw, struct stage *st)
{
    struct message m = {.kind = MESSAGE_GREETING, .greeting = {.id = raw->id, .nonce = worker_hello.hello.nonce}};
    uint8_t bytes[MESSAGE_MAX_BYTES];

    if (st->by_connection)
        return;
    raw_say_channel(raw, &m);
    while (nn_recv(raw->channel, bytes, sizeof bytes, NN_DONTWAIT) < 0)
        uv_run(&st->loop, UV_RUN_NOWAIT);
    ck_assert_uint_eq(bytes[3], MESSAGE_GREETING);
}

void raw_open(struct raw *raw, struct stage *st, const struct side *daemon)
{
    raw_attach(raw, st);
    raw_greet(raw, st);
    stage_run_until(st, &daemon->n_opened, 1);
}

void raw_expect_dismissed(struct raw *raw, struct stage *st, const char *reason)
{
    struct message m;

    raw_expect(raw, st, MESSAGE_DISMISSED, &m);
    ck_assert_str_eq(m.dismissed.error.text, reason);
    raw_close(raw);
}

void raw_close(struct raw *raw)
{
    close(raw->fd);
    if (raw->channel >= 0)
        nn_close(raw->channel);
}

void stage_connect_pair(int ends[2])
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof at;
    const int listener = socket(AF_INET, SOCK_STREAM, 0);

    ck_assert_int_eq(bind(listener, (struct sockaddr *)&at, sizeof at), 0);
    ck_assert_int_eq(listen(listener, 1), 0);
    ck_assert_int_eq(getsockname(listener, (struct sockaddr *)&at, &size), 0);
    ends[0] = socket(AF_INET, SOCK_STREAM, 0);
    ck_assert_int_eq(connect(ends[0], (struct sockaddr *)&at, sizeof at), 0);
    ends[1] = accept(listener, NULL, NULL);
    ck_assert_int_ge(ends[1], 0);
    close(listener);
}

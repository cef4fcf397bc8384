#include "tests/kit/processes.h"
#include "tests/kit/inprocess/stage.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <nanomsg/nn.h>
#include <signal.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct stage st;
static struct side epsd, worker, other; /* zero at the beginning of each test */

static void begin(void)
{
    epsd = worker = other = (struct side){0};
    stage_begin(&st);
}

static void end(void)
{
    stage_end(&st);
}

SUITE_FIXTURE(begin, end)

/* Most tests run twice: with a channel, and of a viewer that has the connection alone. */
static void open_both(bool by_connection)
{
    st.by_connection = by_connection;
    stage_open(&st, &epsd, &worker);
}

/* Until both have, with these reasons. */
static void check_closed(const char *of_daemon, const char *of_worker)
{
    stage_run_until(&st, &worker.n_closed, 1);
    stage_run_until(&st, &epsd.n_closed, 1);
    ck_assert_str_eq(epsd.reason, of_daemon);
    ck_assert_str_eq(worker.reason, of_worker);
}

TEST_EACH(a_session_opens_and_closes, 2)
{
    open_both(_i);
    ck_assert_int_eq(epsd.peer.kind, MESSAGE_HELLO);
    ck_assert_int_eq(epsd.peer.hello.role, _i ? ROLE_VIEWER : ROLE_WORKER);
    ck_assert_str_eq(epsd.peer.hello.device, "cpu");
    ck_assert_uint_eq(epsd.peer.hello.budget, 1 << 30);
    ck_assert_uint_eq(epsd.peer.hello.pid, (unsigned)getpid());
    ck_assert_int_eq(worker.peer.kind, MESSAGE_WELCOME);
    ck_assert_uint_eq(worker.peer.welcome.id, 1);
    ck_assert_int_eq(!worker.peer.welcome.address[0], _i);
    ck_assert_uint_eq(session_id(worker.s), session_id(epsd.s));
    ck_assert_int_eq(session_peer_pid(epsd.s), getpid());
    ck_assert_int_eq(session_peer_pid(worker.s), getpid());
    session_close(worker.s);
    session_close(worker.s);
    ck_assert_uint_eq(worker.n_closed, 0); /* never from inside */
    check_closed("closed", "");
    ck_assert_int_eq(epsd.end, END_CLOSED);
    ck_assert_int_eq(worker.end, END_CLOSED);
}

/* More at once than nanomsg and the kernel hold, so that both queues fill; of a connection's as many as it may hold. */
TEST_EACH(messages_go_each_way_in_order, 2)
{
    const unsigned n = _i ? CONNECTION_MAX_QUEUED - 1 : 10000;

    epsd.n_to_send = worker.n_to_send = n;
    open_both(_i);
    stage_run_until(&st, &epsd.n_received, n);
    stage_run_until(&st, &worker.n_received, n);
    session_close(epsd.s);
    check_closed("", "closed");
}

/* Closed at once behind 20,000 messages, for a peer that is busy for longer than a tick: none may be lost. */
TEST_EACH(what_was_sent_before_closing_arrives, 4)
{
    const unsigned n = _i & 2 ? CONNECTION_MAX_QUEUED - 1 : 20000;
    struct side *closing = _i & 1 ? &worker : &epsd, *busy = _i & 1 ? &epsd : &worker;

    *closing = (struct side){.n_to_send = n, .close_on_open = true};
    busy->overdue = closing;
    open_both(_i & 2);
    check_closed(_i & 1 ? "closed" : "", _i & 1 ? "" : "closed");
    ck_assert_uint_eq(busy->n_received, n);
}

TEST_EACH(both_may_close_at_once, 2)
{
    epsd.close_on_open = worker.close_on_open = true;
    open_both(_i);
    stage_run_until(&st, &worker.n_closed, 1);
    stage_run_until(&st, &epsd.n_closed, 1);
    ck_assert_str_eq(epsd.reason, "");
}

TEST_EACH(closing_on_a_message_delivers_no_other, 2)
{
    epsd.n_to_send = 100;
    worker.close_on_message = true;
    open_both(_i);
    stage_run_until(&st, &worker.n_closed, 1);
    stage_run_until(&st, &epsd.n_closed, 1);
    ck_assert_uint_eq(worker.n_received, 1);
    ck_assert_str_eq(worker.reason, "");
}

TEST_EACH(descriptors_come_through_the_connection, 2)
{
    const struct message m = {.kind = MESSAGE_SNAPSHOT};
    int pipes[2];
    char byte;

    open_both(_i);
    ck_assert_int_eq(pipe2(pipes, O_CLOEXEC), 0);
    session_send_fds(epsd.s, &m, pipes, 2);
    stage_run_until(&st, &worker.n_received, 1);
    ck_assert_int_eq(worker.last.kind, MESSAGE_SNAPSHOT);
    ck_assert_uint_eq(worker.n_fds, 2);
    ck_assert_int_eq(fcntl(worker.fds[1], F_GETFD), FD_CLOEXEC);
    ck_assert_int_eq(write(worker.fds[1], "x", 1), 1);
    ck_assert_int_eq(read(pipes[0], &byte, 1), 1); /* ours stayed open, and theirs is the same pipe */
    session_close(epsd.s);
    check_closed("", "closed");
}

TEST_EACH(who_is_refused_learns_why, 2)
{
    st.by_connection = _i;
    epsd.refuse_on_open = "no room for you";
    worker.n_to_send = 100;
    stage_listen(&st, &epsd);
    stage_connect(&st, &worker); /* it may not even have heard that it was open */
    check_closed("no room for you", "refused: no room for you");
    ck_assert_int_eq(epsd.end, END_DISMISSED);
    ck_assert_int_eq(worker.end, END_FAULT);
    ck_assert_uint_eq(epsd.n_received, 0);
}

TEST(a_pong_carries_the_progress)
{
    const uint64_t progress = 1234;

    epsd.tick_ms = 1;
    open_both(false);
    session_share_progress(worker.s, &progress);
    while (session_peer_progress(epsd.s) != 1234)
        uv_run(&st.loop, UV_RUN_ONCE);
    session_close(epsd.s);
    stage_run_until(&st, &worker.n_closed, 1);
}

/* ---- another process -------------------------------------------------------------------------------------------- */

static void be_worker(struct stage *stage)
{
    stage_await(stage);
    stage_connect(stage, &worker);
    stage_run_until(stage, &worker.n_closed, 1);
}

static void be_daemon(struct stage *stage)
{
    stage_listen(stage, &epsd);
    stage_signal(stage);
    stage_run_until(stage, &epsd.n_closed, 1);
}

static void stop_when_open(struct stage *stage)
{
    stage_await(stage);
    stage_connect(stage, &worker);
    stage_run_until(stage, &worker.n_opened, 1);
    kill(getpid(), SIGSTOP);
}

/* Until its session is open here. */
static pid_t fork_peer(void (*body)(struct stage *stage))
{
    const pid_t pid = stage_fork(&st, body);

    stage_listen(&st, &epsd);
    stage_signal(&st);
    stage_run_until(&st, &epsd.n_opened, 1);
    ck_assert_int_eq(session_peer_pid(epsd.s), pid);
    return pid;
}

static pid_t fork_daemon(void)
{
    const pid_t pid = stage_fork(&st, be_daemon);

    stage_await(&st);
    stage_connect(&st, &worker);
    stage_run_until(&st, &worker.n_opened, 1);
    ck_assert_int_eq(session_peer_pid(worker.s), pid);
    return pid;
}

TEST_EACH(a_killed_worker_is_noticed_and_costs_only_its_session, 2)
{
    st.by_connection = _i;
    epsd.next = &other;
    const pid_t pid = fork_peer(be_worker);
    stage_connect(&st, &worker);
    stage_run_until(&st, &other.n_opened, 1);
    stage_run_until(&st, &worker.n_opened, 1);
    stage_kill(pid);
    side_send_pulls(epsd.s, 0, 1000); /* SIGPIPE has its default: death */
    stage_run_until(&st, &epsd.n_closed, 1);
    ck_assert_str_eq(epsd.reason, "killed");
    ck_assert_int_eq(epsd.end, END_LOST);
    side_send_pulls(other.s, 0, 10);
    stage_run_until(&st, &worker.n_received, 10);
    stage_close(&st, &other, &worker);
}

TEST_EACH(a_killed_daemon_is_noticed_and_its_directory_taken_over, 2)
{
    struct error err = {0};

    st.by_connection = _i;
    const pid_t pid = fork_daemon();
    ck_assert(session_is_live(st.directory));
    stage_kill(pid);
    side_send_pulls(worker.s, 0, 1000);
    stage_run_until(&st, &worker.n_closed, 1);
    ck_assert_str_eq(worker.reason, "killed");
    ck_assert_int_eq(worker.end, END_LOST);
    ck_assert(!session_is_live(st.directory));
    ck_assert_int_eq(session_connect(&worker.s, &st.loop, st.directory, &worker_hello, &side_events, &worker, &err),
                     -ECONNREFUSED);
    ck_assert_holds(err.text, "nobody listens at /tmp/eps-test-");
    worker = (struct side){0};
    stage_open(&st, &epsd, &worker);
    stage_close(&st, &worker, &epsd); /* no socket of the killed one is left either: see stage_end */
}

TEST(a_stopped_worker_is_lost_after_15_pings)
{
    epsd.tick_ms = 2;
    const pid_t pid = fork_peer(stop_when_open);
    stage_run_until(&st, &epsd.n_closed, 1);
    ck_assert_str_eq(epsd.reason, "silent for 15 s");
    stage_kill(pid);
}

static int going_on[2]; /* a pipe: a byte ends the peer's absence */

static void open_peer(struct stage *stage)
{
    const enum message_role role = st.by_connection ? ROLE_VIEWER : ROLE_CLIENT;
    const struct message hello = {.kind = MESSAGE_HELLO, .hello = {.role = role}};
    struct error err;

    stage_await(stage);
    ck_assert_int_eq(session_connect(&worker.s, &stage->loop, stage->directory, &hello, &side_events, &worker, &err),
                     0);
    stage_run_until(stage, &worker.n_opened, 1);
}

/* It computes, or prints into a full pipe: it is not stopped, and does not come back to its loop. */
static void be_away(struct stage *stage)
{
    char byte;

    open_peer(stage);
    ck_assert_int_eq(read(going_on[0], &byte, 1), 1);
    side_send_pulls(worker.s, 0, 3);
    stage_run_until(stage, &worker.n_closed, 1);
    ck_assert_str_eq(worker.reason, "closed");
}

static void count_tick(uv_timer_t *timer)
{
    ++*(unsigned *)timer->data;
}

static void on_count_closed(uv_handle_t *timer)
{
    timer->data = NULL;
}

/* Turns the loop for so many ticks, of 2 ms. */
static void run_ticks(struct side *side, unsigned n)
{
    unsigned n_ticks = 0;
    uv_timer_t timer;

    session_set_tick(side->s, 2);
    uv_timer_init(&st.loop, &timer);
    timer.data = &n_ticks;
    uv_timer_start(&timer, count_tick, 2, 2);
    stage_run_until(&st, &n_ticks, n);
    uv_close((uv_handle_t *)&timer, on_count_closed);
    while (timer.data)
        uv_run(&st.loop, UV_RUN_NOWAIT);
}

/* For ten times as long as a worker would be. */
TEST_EACH(a_client_that_is_away_is_waited_for, 2)
{
    int status;

    st.by_connection = _i;
    ck_assert_int_eq(pipe(going_on), 0);
    const pid_t pid = fork_peer(be_away);
    run_ticks(&epsd, 150);
    ck_assert_uint_eq(epsd.n_closed, 0);
    session_set_tick(epsd.s, 200);
    ck_assert_int_eq(write(going_on[1], "x", 1), 1);
    stage_run_until(&st, &epsd.n_received, 3);
    session_close(epsd.s);
    stage_run_until(&st, &epsd.n_closed, 1);
    ck_assert(waitpid(pid, &status, 0) == pid && status == 0);
    close(going_on[0]);
    close(going_on[1]);
}

/* Its child has all of its descriptors, so no socket ends. */
static void be_parent(struct stage *stage)
{
    char byte;

    open_peer(stage);
    if (fork() == 0) {
        close(going_on[1]);
        _exit(read(going_on[0], &byte, 1) != 0); /* once this test has closed the pipe */
    }
    side_send_pulls(worker.s, 0, 1); /* there is a child now */
    stage_run_until(stage, &worker.n_closed, 1);
}

TEST_EACH(a_client_that_was_killed_is_gone_though_its_child_lives, 2)
{
    st.by_connection = _i;
    ck_assert_int_eq(pipe(going_on), 0);
    const pid_t pid = fork_peer(be_parent);
    stage_run_until(&st, &epsd.n_received, 1);
    session_set_tick(epsd.s, 2);
    stage_kill(pid);
    stage_run_until(&st, &epsd.n_closed, 1);
    ck_assert_str_eq(epsd.reason, "killed");
    ck_assert_int_eq(epsd.end, END_LOST);
    close(going_on[0]);
    close(going_on[1]);
}

TEST(a_stopped_daemon_is_given_up_by_its_worker)
{
    const pid_t pid = fork_daemon();
    kill(pid, SIGSTOP);
    waitpid(pid, NULL, WUNTRACED);
    session_set_tick(worker.s, 2);
    stage_run_until(&st, &worker.n_closed, 1);
    ck_assert_str_eq(worker.reason, "silent for 60 s");
    ck_assert_int_eq(worker.end, END_LOST);
    stage_kill(pid);
    stage_listen(&st, &epsd); /* removes what is left */
}

/* A viewer's is as a client's, and stage_connect makes one. */
TEST(a_stopped_daemon_is_waited_for_by_others_until_it_dies)
{
    st.by_connection = true;
    const pid_t pid = fork_daemon();
    kill(pid, SIGSTOP);
    waitpid(pid, NULL, WUNTRACED);
    run_ticks(&worker, 600);
    ck_assert_uint_eq(worker.n_closed, 0);
    stage_kill(pid);
    stage_run_until(&st, &worker.n_closed, 1);
    ck_assert_str_eq(worker.reason, "killed");
    stage_listen(&st, &epsd);
}

TEST_EACH(a_worker_that_does_not_read_is_ended, 2)
{
    struct message m = {.kind = MESSAGE_FAILED, .failed = {.code = -EIO}};

    st.by_connection = _i;
    const pid_t pid = fork_peer(stop_when_open);
    waitpid(pid, NULL, WUNTRACED);
    session_set_tick(epsd.s, 100);
    for (unsigned i = 0; i < 40000; i++) /* of 532 bytes: 20 MiB */
        session_send(epsd.s, &m);
    stage_run_until(&st, &epsd.n_closed, 1);
    ck_assert_str_eq(epsd.reason,
                     _i ? "does not read: 511 messages wait for it" : "does not read: 16 MiB of messages wait for it");
    stage_kill(pid);
}

/* So that it comes again, if it lives: it is at no fault. */
TEST_EACH(who_is_silent_or_does_not_read_is_told_which, 2)
{
    struct message m = {.kind = MESSAGE_FAILED, .failed = {.code = -EIO}};
    struct raw raw;

    st.by_connection = false;
    stage_listen(&st, &epsd);
    epsd.tick_ms = _i ? 1000 : 2;
    raw_open(&raw, &st, &epsd);
    for (unsigned i = 0; _i && i < 40000; i++)
        session_send(epsd.s, &m);
    raw_expect(&raw, &st, MESSAGE_DISMISSED, &m);
    ck_assert_int_eq(m.dismissed.end, _i ? END_UNREAD : END_SILENT);
    stage_run_until(&st, &epsd.n_closed, 1);
    ck_assert_int_eq(epsd.end, END_DISMISSED);
    raw_close(&raw);
}

/* ---- hostile peers ---------------------------------------------------------------------------------------------- */

static const uint8_t overlong[100000] = {0x51, 0xE9, MESSAGE_VERSION};
static const uint8_t version[MESSAGE_HEADER_BYTES] = {0x51, 0xE9, 200};
static const struct message status = {.kind = MESSAGE_STATUS}, bye = {.kind = MESSAGE_BYE};

#define IN_200 "speaks version 200 of the protocol, not %d: use programs of one build"

/* What a peer says amiss before HELLO, between WELCOME and GREETING, and when it is open: told why, sent away, and the
 * daemon none the worse. by_connection: of a viewer whose session is open, if its reason is another. */
static const struct {
    enum moment { BEFORE, BETWEEN, OPEN } when;
    struct raw_word word;
    const char *reason, *by_connection;
} faults[] = {
    {BEFORE, RAW_BYTES("hello?", 6), "sent what is no message: shorter than a header", NULL},
    {BEFORE, RAW_BYTES("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", 35),
     "sent what is no message: not one of our messages", NULL},
    {BEFORE, RAW_BYTES(overlong, 4 * MESSAGE_MAX_BYTES), "sent more over the connection than one message holds", NULL},
    {BEFORE, RAW_BYTES(version, sizeof version), IN_200, NULL},
    {BEFORE, {.message = &worker_hello, .skip = 1}, "sent HELLO as message 2 where 1 was due", NULL},
    {BEFORE, RAW_MESSAGE(.kind = MESSAGE_PING), "sent PING over the connection, out of place", NULL},
    {BEFORE, RAW_MESSAGE(.kind = MESSAGE_JOB, .job.goal.n_parts = 1), "sent JOB over the connection, out of place",
     NULL},
    {BETWEEN,
     {.message = &worker_hello, .through_connection = true},
     "sent HELLO over the connection, out of place",
     NULL},
    {BETWEEN, {.message = &status}, "sent STATUS by the channel, out of place", NULL},
    {BETWEEN, RAW_MESSAGE(.kind = MESSAGE_GREETING, .greeting = {.id = 2, .nonce = 77}),
     "sent the greeting of another session", NULL},
    {BETWEEN, RAW_MESSAGE(.kind = MESSAGE_GREETING, .greeting = {.id = 1, .nonce = 78}),
     "sent the greeting of another session", NULL},
    {OPEN, RAW_BYTES("garbage", 7), "sent what is no message: shorter than a header", NULL},
    {OPEN, RAW_BYTES(overlong, sizeof overlong), "sent what is no message: longer than any message",
     "sent more over the connection than one message holds"},
    {OPEN, {.message = &status, .skip = -1}, "sent STATUS as message 1 where 2 was due", NULL},
    {OPEN, {.message = &status, .skip = 5}, "sent STATUS as message 7 where 2 was due", NULL},
    {OPEN, RAW_MESSAGE(.kind = MESSAGE_PONG), "sent PONG by the channel, out of place",
     "sent PONG over the connection, out of place"},
    {OPEN, RAW_MESSAGE(.kind = MESSAGE_GREETING), "sent GREETING by the channel, out of place",
     "sent GREETING over the connection, out of place"},
    {OPEN, RAW_BYTES(version, sizeof version), IN_200, NULL},
    {OPEN,
     {.bytes = "garbage that is longer than a header", .n = 36, .through_connection = true},
     "sent what is no message: not one of our messages",
     NULL},
    {OPEN,
     {.message = &worker_hello, .through_connection = true},
     "sent HELLO over the connection, out of place",
     NULL},
};

TEST_EACH(a_fault_costs_its_sender_the_session, 2 * COUNT(faults))
{
    const enum moment when = faults[_i / 2].when;
    const char *says = _i % 2 && faults[_i / 2].by_connection ? faults[_i / 2].by_connection : faults[_i / 2].reason;
    struct side *good = when == OPEN ? &other : &epsd; /* who was not open has left no trace */
    char reason[ERROR_TEXT_BYTES];
    struct raw raw;

    st.by_connection = _i % 2 && when == OPEN; /* viewers are open with their WELCOME */
    epsd.next = &other;
    stage_listen(&st, &epsd);
    if (when == BEFORE)
        raw_connect(&raw, &st);
    else if (when == BETWEEN)
        raw_attach(&raw, &st);
    else
        raw_open(&raw, &st, &epsd);
    raw_utter(&raw, &faults[_i / 2].word);
    snprintf(reason, sizeof reason, says, MESSAGE_VERSION);
    raw_expect_dismissed(&raw, &st, reason);
    stage_run_until(&st, when == OPEN ? &epsd.n_closed : &epsd.n_turned_away, 1);
    ck_assert_str_eq(epsd.reason, reason);
    ck_assert_int_eq(epsd.end, END_DISMISSED);
    ck_assert_uint_eq(epsd.n_received, 0);
    stage_connect(&st, &worker);
    stage_run_until(&st, &good->n_opened, 1);
    stage_run_until(&st, &worker.n_opened, 1);
    stage_close(&st, &worker, good);
}

/* nanomsg hands over one message after the other, and learns last that the peer is gone: all must be waited for. */
TEST_EACH(what_is_on_its_way_when_the_connection_ends_is_delivered, 4)
{
    const unsigned n = _i / 2 ? 100 : 200;
    struct raw raw;

    st.by_connection = _i / 2;
    stage_listen(&st, &epsd);
    raw_open(&raw, &st, &epsd);
    for (unsigned i = 0; i < n; i++)
        raw_say_channel(&raw, &status);
    if (_i % 2 == 0)
        raw_say_channel(&raw, &bye);
    close(raw.fd);
    stage_run_until(&st, &epsd.n_closed, 1);
    ck_assert_uint_eq(epsd.n_received, n);
    ck_assert_str_eq(epsd.reason, _i % 2 == 0 ? "closed" : "killed");
    if (raw.channel >= 0)
        nn_close(raw.channel);
}

TEST(what_is_in_the_connection_at_a_bye_is_delivered)
{
    struct raw raw;

    stage_listen(&st, &epsd);
    raw_open(&raw, &st, &epsd);
    for (int i = 0; i < 100; i++) /* more than are read at one go */
        raw_say(&raw, &status);
    raw_say_channel(&raw, &bye);
    stage_run_until(&st, &epsd.n_closed, 1);
    ck_assert_uint_eq(epsd.n_received, 100);
    ck_assert_str_eq(epsd.reason, "closed");
    raw_close(&raw);
}

/* With the first word, or later. */
TEST_EACH(descriptors_where_none_belong_cost_the_session_and_are_closed, 3)
{
    struct raw raw;

    st.by_connection = _i == 1;
    stage_listen(&st, &epsd);
    const unsigned before = processes_count_fds(getpid());
    if (_i == 2) {
        raw_connect(&raw, &st);
        raw_send_fds(&raw, &worker_hello, 5);
        raw_expect_dismissed(&raw, &st, "sent 5 descriptors with HELLO, where there are none");
        stage_run_until(&st, &epsd.n_turned_away, 1);
    } else {
        raw_open(&raw, &st, &epsd);
        raw_send_fds(&raw, &status, CONNECTION_MAX_FDS);
        raw_expect_dismissed(&raw, &st, "sent 128 descriptors with STATUS, where there are none");
        stage_run_until(&st, &epsd.n_closed, 1);
    }
    ck_assert_uint_eq(epsd.n_received, 0);
    if (_i > 0) /* nanomsg keeps some of its own */
        ck_assert_uint_eq(processes_count_fds(getpid()), before);
}

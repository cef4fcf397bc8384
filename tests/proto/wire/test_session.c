#include "proto/wire/session_internal.h"
#include "tests/kit/stage.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <nanomsg/nn.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

static struct stage st; /* each test is a process of its own */

TEST_EACH(a_session_opens_and_closes, 2)
{
    struct side daemon = {0}, worker = {0};

    stage_begin(&st);
    st.by_door = _i;
    stage_open(&st, &daemon, &worker);
    ck_assert_int_eq(daemon.peer.kind, MESSAGE_HELLO);
    ck_assert_int_eq(daemon.peer.hello.role, st.by_door ? ROLE_VIEWER : ROLE_WORKER);
    ck_assert_str_eq(daemon.peer.hello.device, "cpu");
    ck_assert_uint_eq(daemon.peer.hello.budget, 1 << 30);
    ck_assert_uint_eq(daemon.peer.hello.pid, (unsigned)getpid());
    ck_assert_int_eq(worker.peer.kind, MESSAGE_WELCOME);
    ck_assert_uint_eq(worker.peer.welcome.id, 1);
    ck_assert_int_eq(!worker.peer.welcome.address[0], st.by_door);
    ck_assert_uint_eq(session_id(worker.s), session_id(daemon.s));
    ck_assert_int_eq(session_peer_pid(daemon.s), getpid());
    ck_assert_int_eq(session_peer_pid(worker.s), getpid());
    session_close(worker.s);
    session_close(worker.s);
    ck_assert_uint_eq(worker.n_closed, 0); /* never from inside */
    stage_run_until(&st, &worker.n_closed, 1);
    stage_run_until(&st, &daemon.n_closed, 1);
    ck_assert_str_eq(worker.reason, "");
    ck_assert_str_eq(daemon.reason, "closed");
    stage_end(&st);
}

/* More at once than nanomsg and the kernel hold, so that both queues fill; of a door's fewer than it may hold. */
TEST_EACH(messages_go_each_way_in_order, 2)
{
    const unsigned n = _i ? SESSION_MAX_QUEUED : 10000;
    struct side daemon = {.n_to_send = n}, worker = {.n_to_send = n};

    stage_begin(&st);
    st.by_door = _i;
    stage_open(&st, &daemon, &worker);
    stage_run_until(&st, &daemon.n_received, n);
    stage_run_until(&st, &worker.n_received, n);
    session_close(daemon.s);
    stage_run_until(&st, &worker.n_closed, 1);
    stage_run_until(&st, &daemon.n_closed, 1);
    ck_assert_str_eq(worker.reason, "closed");
    ck_assert_str_eq(daemon.reason, "");
    stage_end(&st);
}

/* Closed at once behind 20,000 messages, for a peer that is busy for longer than a tick: none may be lost. */
TEST_EACH(what_was_sent_before_closing_arrives, 4)
{
    const unsigned n = _i & 2 ? SESSION_MAX_QUEUED : 20000;
    struct side sides[2] = {{.n_to_send = n, .close_on_open = true}, {.pause_ms = 1500}};
    struct side *daemon = &sides[_i & 1], *worker = &sides[!(_i & 1)];

    stage_begin(&st);
    st.by_door = _i & 2;
    stage_open(&st, daemon, worker);
    stage_run_until(&st, &sides[0].n_closed, 1);
    stage_run_until(&st, &sides[1].n_closed, 1);
    ck_assert_uint_eq(sides[1].n_received, n);
    ck_assert_str_eq(sides[0].reason, "");
    ck_assert_str_eq(sides[1].reason, "closed");
    stage_end(&st);
}

TEST_EACH(both_may_close_at_once, 2)
{
    struct side daemon = {.close_on_open = true}, worker = {.close_on_open = true};

    stage_begin(&st);
    st.by_door = _i;
    stage_open(&st, &daemon, &worker);
    stage_run_until(&st, &worker.n_closed, 1);
    stage_run_until(&st, &daemon.n_closed, 1);
    ck_assert_str_eq(daemon.reason, "");
    stage_end(&st);
}

TEST_EACH(closing_on_a_message_delivers_no_other, 2)
{
    struct side daemon = {.n_to_send = 100}, worker = {.close_on_message = true};

    stage_begin(&st);
    st.by_door = _i;
    stage_open(&st, &daemon, &worker);
    stage_run_until(&st, &worker.n_closed, 1);
    stage_run_until(&st, &daemon.n_closed, 1);
    ck_assert_uint_eq(worker.n_received, 1);
    ck_assert_str_eq(worker.reason, "");
    stage_end(&st);
}

TEST_EACH(descriptors_come_through_the_door, 2)
{
    struct side daemon = {0}, worker = {0};
    const struct message m = {.kind = MESSAGE_SNAPSHOT};
    int pipes[2];
    char byte;

    stage_begin(&st);
    st.by_door = _i;
    stage_open(&st, &daemon, &worker);
    ck_assert_int_eq(pipe2(pipes, O_CLOEXEC), 0);
    session_send_fds(daemon.s, &m, pipes, 2);
    stage_run_until(&st, &worker.n_received, 1);
    ck_assert_int_eq(worker.last.kind, MESSAGE_SNAPSHOT);
    ck_assert_uint_eq(worker.n_fds, 2);
    ck_assert_int_eq(fcntl(worker.fds[1], F_GETFD), FD_CLOEXEC);
    ck_assert_int_eq(write(worker.fds[1], "x", 1), 1);
    ck_assert_int_eq(read(pipes[0], &byte, 1), 1); /* ours stayed open, and theirs is the same pipe */
    for (int i = 0; i < 2; i++) {
        close(worker.fds[i]);
        close(pipes[i]);
    }
    session_close(daemon.s);
    stage_run_until(&st, &worker.n_closed, 1);
    stage_run_until(&st, &daemon.n_closed, 1);
    stage_end(&st);
}

TEST_EACH(who_is_refused_learns_why, 2)
{
    struct side daemon = {.refuse_on_open = "no room for you"}, worker = {.n_to_send = 100};

    stage_begin(&st);
    st.by_door = _i;
    stage_listen(&st, &daemon);
    stage_connect(&st, &worker);
    stage_run_until(&st, &worker.n_closed, 1); /* it may not even have heard that it was open */
    stage_run_until(&st, &daemon.n_closed, 1);
    ck_assert_str_eq(worker.reason, "refused: no room for you");
    ck_assert_str_eq(daemon.reason, "no room for you");
    ck_assert_uint_eq(daemon.n_received, 0);
    stage_end(&st);
}

TEST_EACH(a_pong_carries_the_progress, 2)
{
    struct side daemon = {.tick_ms = 1}, worker = {0};
    const uint64_t progress = 1234;

    stage_begin(&st);
    st.by_door = _i;
    stage_open(&st, &daemon, &worker);
    session_share_progress(worker.s, &progress);
    while (session_peer_progress(daemon.s) != 1234)
        uv_run(&st.loop, UV_RUN_ONCE);
    session_close(daemon.s);
    stage_run_until(&st, &worker.n_closed, 1);
    stage_end(&st);
}

/* Bodies of the other process. */
static void be_worker(struct stage *stage)
{
    struct side worker = {0};

    stage_await(stage);
    stage_connect(stage, &worker);
    stage_run_until(stage, &worker.n_closed, 1);
}

static void be_daemon(struct stage *stage)
{
    struct side daemon = {0};

    stage_listen(stage, &daemon);
    stage_signal(stage);
    stage_run_until(stage, &daemon.n_closed, 1);
}

static void stop_when_open(struct stage *stage)
{
    struct side worker = {0};

    stage_await(stage);
    stage_connect(stage, &worker);
    stage_run_until(stage, &worker.n_opened, 1);
    kill(getpid(), SIGSTOP);
}

TEST_EACH(a_killed_worker_is_noticed_and_costs_only_its_session, 2)
{
    struct side other = {0}, daemon = {.next = &other}, worker = {0};

    stage_begin(&st);
    st.by_door = _i;
    pid_t pid = stage_fork(&st, be_worker);
    stage_listen(&st, &daemon);
    stage_signal(&st);
    stage_run_until(&st, &daemon.n_opened, 1);
    ck_assert_int_eq(session_peer_pid(daemon.s), pid);
    stage_connect(&st, &worker);
    stage_run_until(&st, &other.n_opened, 1);
    stage_run_until(&st, &worker.n_opened, 1);
    stage_kill(pid);
    side_send_pulls(daemon.s, 0, 1000); /* SIGPIPE has its default: death */
    stage_run_until(&st, &daemon.n_closed, 1);
    ck_assert_str_eq(daemon.reason, "killed");
    side_send_pulls(other.s, 0, 10);
    stage_run_until(&st, &worker.n_received, 10);
    session_close(other.s);
    stage_run_until(&st, &worker.n_closed, 1);
    stage_end(&st);
}

TEST_EACH(a_killed_daemon_is_noticed_and_its_directory_taken_over, 2)
{
    struct side worker = {0}, daemon = {0};
    struct error err = {0};

    stage_begin(&st);
    st.by_door = _i;
    pid_t pid = stage_fork(&st, be_daemon);
    stage_await(&st);
    stage_connect(&st, &worker);
    stage_run_until(&st, &worker.n_opened, 1);
    ck_assert_int_eq(session_peer_pid(worker.s), pid);
    ck_assert(session_is_live(st.directory));
    stage_kill(pid);
    side_send_pulls(worker.s, 0, 1000);
    stage_run_until(&st, &worker.n_closed, 1);
    ck_assert_str_eq(worker.reason, "killed");
    ck_assert(!session_is_live(st.directory));
    ck_assert_int_eq(session_connect(&worker.s, &st.loop, st.directory, &worker_hello, &side_events, &worker, &err),
                     -ECONNREFUSED);
    ck_assert_ptr_nonnull(strstr(err.text, "nobody listens at /tmp/eps-test-"));
    worker = (struct side){0};
    stage_open(&st, &daemon, &worker);
    session_close(worker.s);
    stage_run_until(&st, &daemon.n_closed, 1);
    stage_end(&st); /* no socket of the killed one is left either */
}

TEST(a_stopped_worker_is_lost_after_15_pings)
{
    struct side daemon = {.tick_ms = 2};

    stage_begin(&st);
    pid_t pid = stage_fork(&st, stop_when_open);
    stage_listen(&st, &daemon);
    stage_signal(&st);
    stage_run_until(&st, &daemon.n_closed, 1);
    ck_assert_str_eq(daemon.reason, "silent for 15 s");
    stage_kill(pid);
    stage_end(&st);
}

static void be_client(struct stage *stage)
{
    struct message hello = {.kind = MESSAGE_HELLO, .hello = {.role = ROLE_CLIENT}};
    struct side client = {0};
    struct error err;

    stage_await(stage);
    ck_assert_int_eq(session_connect(&client.s, &stage->loop, stage->directory, &hello, &side_events, &client, &err),
                     0);
    stage_run_until(stage, &client.n_opened, 1);
    kill(getpid(), SIGSTOP);
    stage_run_until(stage, &client.n_closed, 1);
    ck_assert_str_eq(client.reason, "closed");
}

static void count_tick(uv_timer_t *timer)
{
    ++*(unsigned *)timer->data;
}

TEST(a_suspended_client_is_waited_for)
{
    struct side daemon = {0};
    unsigned n_ticks = 0;
    uv_timer_t timer;

    stage_begin(&st);
    pid_t pid = stage_fork(&st, be_client);
    stage_listen(&st, &daemon);
    stage_signal(&st);
    stage_run_until(&st, &daemon.n_opened, 1);
    ck_assert_int_eq(waitpid(pid, NULL, WUNTRACED), pid);
    const unsigned before = daemon.s->n_unanswered; /* as a rule none: a second is long */
    session_set_tick(daemon.s, 2);
    uv_timer_init(&st.loop, &timer);
    timer.data = &n_ticks;
    uv_timer_start(&timer, count_tick, 2, 2);
    stage_run_until(&st, &n_ticks, 10 * SESSION_PINGS);
    ck_assert_uint_eq(daemon.n_closed, 0);
    ck_assert_uint_le(daemon.s->n_unanswered, before + 1);
    session_set_tick(daemon.s, 200);
    kill(pid, SIGCONT);
    while (daemon.s->n_unanswered > 0) /* awake, it answers */
        uv_run(&st.loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&timer, NULL);
    session_close(daemon.s);
    stage_run_until(&st, &daemon.n_closed, 1);
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert_int_eq(status, 0);
    stage_end(&st);
}

TEST_EACH(a_stopped_daemon_is_given_up, 2)
{
    struct side worker = {0}, daemon = {0};

    stage_begin(&st);
    st.by_door = _i;
    pid_t pid = stage_fork(&st, be_daemon);
    stage_await(&st);
    stage_connect(&st, &worker);
    stage_run_until(&st, &worker.n_opened, 1);
    kill(pid, SIGSTOP);
    waitpid(pid, NULL, WUNTRACED);
    session_set_tick(worker.s, 2);
    stage_run_until(&st, &worker.n_closed, 1);
    ck_assert_str_eq(worker.reason, "silent for 60 s");
    stage_kill(pid);
    stage_listen(&st, &daemon);
    stage_end(&st);
}

TEST_EACH(a_worker_that_does_not_read_is_ended, 2)
{
    struct side daemon = {0};
    struct message m = {.kind = MESSAGE_FAILED, .failed = {.code = -EIO}};

    stage_begin(&st);
    st.by_door = _i;
    pid_t pid = stage_fork(&st, stop_when_open);
    stage_listen(&st, &daemon);
    stage_signal(&st);
    stage_run_until(&st, &daemon.n_opened, 1);
    waitpid(pid, NULL, WUNTRACED);
    for (unsigned i = 0; i < 40000; i++) /* of 532 bytes: 20 MiB */
        session_send(daemon.s, &m);
    ck_assert_uint_le(daemon.s->door.n_queued, DOOR_MAX_QUEUED);
    stage_run_until(&st, &daemon.n_closed, 1);
    ck_assert_str_eq(daemon.reason,
                     _i ? "does not read: 511 messages wait for it" : "does not read: 16 MiB of messages wait for it");
    stage_kill(pid);
    stage_end(&st);
}

/* By a raw peer with an open session: each costs it the session, with the reason said to both sides. */
static void send_garbage(struct raw *raw)
{
    raw_send_channel(raw, "garbage", 7);
}

static void send_overlong(struct raw *raw)
{
    static const uint8_t bytes[100000] = {0x51, 0xE9, MESSAGE_VERSION};

    raw_send_channel(raw, bytes, sizeof bytes);
}

static void send_a_replay(struct raw *raw)
{
    const struct message m = {.kind = MESSAGE_STATUS};

    --*raw_sent(raw);
    raw_say_channel(raw, &m);
}

static void send_a_gap(struct raw *raw)
{
    const struct message m = {.kind = MESSAGE_STATUS};

    *raw_sent(raw) += 5;
    raw_say_channel(raw, &m);
}

static void send_an_unasked_pong(struct raw *raw)
{
    const struct message m = {.kind = MESSAGE_PONG};

    raw_say_channel(raw, &m);
}

static void send_another_greeting(struct raw *raw)
{
    const struct message m = {.kind = MESSAGE_GREETING};

    raw_say_channel(raw, &m);
}

static void send_another_version(struct raw *raw)
{
    static const uint8_t bytes[MESSAGE_HEADER_BYTES] = {0x51, 0xE9, 200};

    raw_send_channel(raw, bytes, sizeof bytes);
}

static void send_garbage_by_door(struct raw *raw)
{
    raw_send(raw, "garbage that is longer than a header", 36);
}

static void send_hello_again(struct raw *raw)
{
    raw_say(raw, &worker_hello);
}

static const struct {
    void (*send)(struct raw *raw);
    const char *reason, *by_door; /* NULL: the same */
} faults[] = {
    {send_garbage, "sent what is no message: shorter than a header", NULL},
    {send_overlong, "sent what is no message: longer than any message",
     "sent more through the door than one message holds"},
    {send_a_replay, "sent STATUS as message 1 where 2 was due", NULL},
    {send_a_gap, "sent STATUS as message 7 where 2 was due", NULL},
    {send_an_unasked_pong, "sent PONG by the channel, out of place", "sent PONG through the door, out of place"},
    {send_another_greeting, "sent GREETING by the channel, out of place",
     "sent GREETING through the door, out of place"},
    {send_another_version, "speaks version 200 of the protocol, not %d: use programs of one build", NULL},
    {send_garbage_by_door, "sent what is no message: not one of our messages", NULL},
    {send_hello_again, "sent HELLO through the door, out of place", NULL},
};
enum { N_FAULTS = sizeof faults / sizeof *faults };

TEST_EACH(a_fault_costs_its_sender_the_session, 2 * N_FAULTS)
{
    struct side good = {0}, bad = {.next = &good}, worker = {0};
    struct message m;
    struct raw raw;

    const bool by_door = _i % 2 && faults[_i / 2].by_door;
    char reason[ERROR_TEXT_BYTES];

    snprintf(reason, sizeof reason, by_door ? faults[_i / 2].by_door : faults[_i / 2].reason, MESSAGE_VERSION);
    stage_begin(&st);
    st.by_door = _i % 2;
    stage_listen(&st, &bad);
    raw_attach(&raw, &st);
    raw_greet(&raw, &st);
    stage_run_until(&st, &bad.n_opened, 1);
    faults[_i / 2].send(&raw);
    raw_expect(&raw, &st, MESSAGE_DISMISSED, &m);
    ck_assert_str_eq(m.dismissed.error.text, reason);
    raw_close(&raw);
    stage_run_until(&st, &bad.n_closed, 1);
    ck_assert_str_eq(bad.reason, reason);
    ck_assert_uint_eq(bad.n_received, 0);
    stage_connect(&st, &worker); /* the daemon stands */
    stage_run_until(&st, &good.n_opened, 1);
    stage_run_until(&st, &worker.n_opened, 1);
    session_close(worker.s);
    stage_run_until(&st, &good.n_closed, 1);
    stage_end(&st);
}

/* nanomsg hands over one message after the other, and learns last that the peer is gone: all must be waited for. */
TEST_EACH(what_is_on_its_way_when_the_door_ends_is_delivered, 4)
{
    const struct message status = {.kind = MESSAGE_STATUS}, bye = {.kind = MESSAGE_BYE};
    struct side daemon = {0};
    struct raw raw;
    const unsigned n = _i / 2 ? 100 : 200;

    stage_begin(&st);
    st.by_door = _i / 2;
    stage_listen(&st, &daemon);
    raw_attach(&raw, &st);
    raw_greet(&raw, &st);
    stage_run_until(&st, &daemon.n_opened, 1);
    for (unsigned i = 0; i < n; i++)
        raw_say_channel(&raw, &status);
    if (_i % 2 == 0)
        raw_say_channel(&raw, &bye);
    close(raw.fd);
    stage_run_until(&st, &daemon.n_closed, 1);
    ck_assert_uint_eq(daemon.n_received, n);
    ck_assert_str_eq(daemon.reason, _i % 2 == 0 ? "closed" : "killed");
    if (raw.channel >= 0)
        nn_close(raw.channel);
    stage_end(&st);
}

TEST(what_is_in_the_door_at_a_bye_is_delivered)
{
    const struct message status = {.kind = MESSAGE_STATUS}, bye = {.kind = MESSAGE_BYE};
    struct side daemon = {0};
    struct raw raw;

    stage_begin(&st);
    stage_listen(&st, &daemon);
    raw_attach(&raw, &st);
    raw_greet(&raw, &st);
    stage_run_until(&st, &daemon.n_opened, 1);
    for (int i = 0; i < 100; i++) /* more than are read at one go */
        raw_say(&raw, &status);
    raw_say_channel(&raw, &bye);
    stage_run_until(&st, &daemon.n_closed, 1);
    ck_assert_uint_eq(daemon.n_received, 100);
    ck_assert_str_eq(daemon.reason, "closed");
    raw_close(&raw);
    stage_end(&st);
}

TEST_EACH(descriptors_where_none_belong_cost_the_session, 2)
{
    const struct message status = {.kind = MESSAGE_STATUS};
    struct side daemon = {0};
    struct message m;
    struct raw raw;

    stage_begin(&st);
    st.by_door = _i;
    stage_listen(&st, &daemon);
    const unsigned before = stage_count_fds();
    raw_attach(&raw, &st);
    raw_greet(&raw, &st);
    stage_run_until(&st, &daemon.n_opened, 1);
    raw_send_fds(&raw, &status, DOOR_MAX_FDS);
    raw_expect(&raw, &st, MESSAGE_DISMISSED, &m);
    ck_assert_str_eq(m.dismissed.error.text, "sent 128 descriptors with STATUS, where there are none");
    raw_close(&raw);
    stage_run_until(&st, &daemon.n_closed, 1);
    ck_assert_uint_eq(daemon.n_received, 0);
    if (st.by_door) /* nanomsg keeps some of its own */
        ck_assert_uint_eq(stage_count_fds(), before);
    stage_end(&st);
}

TEST(descriptors_with_the_first_word_are_closed_too)
{
    struct side daemon = {0};
    struct message m;
    struct raw raw;

    stage_begin(&st);
    stage_listen(&st, &daemon);
    const unsigned before = stage_count_fds();
    raw_connect(&raw, &st);
    raw_send_fds(&raw, &worker_hello, 5);
    raw_expect(&raw, &st, MESSAGE_DISMISSED, &m);
    ck_assert_str_eq(m.dismissed.error.text, "sent 5 descriptors with HELLO, where there are none");
    raw_close(&raw);
    stage_run_until(&st, &daemon.n_turned_away, 1);
    ck_assert_uint_eq(stage_count_fds(), before);
    stage_end(&st);
}

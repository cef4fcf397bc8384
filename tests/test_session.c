#include "proto/session_internal.h"

#include "proto/channel.h"
#include "proto/door.h"

#include <check.h>
#include <errno.h>
#include <fcntl.h>
#include <nanomsg/nn.h>
#include <nanomsg/pair.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

/* What happened to one side; the callbacks find it by session_data. */
struct side {
    struct session *s;
    unsigned n_opened, n_closed;
    uint64_t n_received, n_expected; /* of PULL, whose version counts up */
    uint64_t n_to_send;              /* by on_open */
    bool ordered;
    int fd; /* the last that came */
    struct message peer, last;
    char reason[ERROR_TEXT_BYTES]; /* "" for NULL */
    bool close_when_open, close_on_message, refuse_when_open;
};

static char directory[64]; /* each test is a process of its own */
static uv_loop_t loop;
static struct session_listener *listener;

static void make_directory(void)
{
    snprintf(directory, sizeof directory, "/tmp/eps-test-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(directory));
    uv_loop_init(&loop);
}

static void on_watchdog(uv_timer_t *timer)
{
    (void)timer;
    fprintf(stderr, "waited too long\n");
    abort();
}

/* Runs the loop until *count reaches n. */
static void run_until(const unsigned *count, unsigned n)
{
    static uv_timer_t watchdog;

    uv_timer_init(&loop, &watchdog);
    uv_timer_start(&watchdog, on_watchdog, 20000, 0);
    while (*count < n)
        uv_run(&loop, UV_RUN_ONCE);
    uv_close((uv_handle_t *)&watchdog, NULL);
    uv_run(&loop, UV_RUN_NOWAIT);
}

static void send_pulls(struct session *s, uint64_t first, uint64_t n)
{
    struct message m = {.kind = MESSAGE_PULL};

    for (uint64_t i = first; i < first + n; i++) {
        m.pull.version = i;
        session_send(s, &m);
    }
}

static void on_open(struct session *s, const struct message *peer)
{
    struct side *side = session_data(s);

    ck_assert_uint_eq(side->n_opened, 0);
    side->n_opened++;
    side->s = s;
    side->peer = *peer;
    send_pulls(s, 0, side->n_to_send);
    if (side->close_when_open)
        session_close(s);
    if (side->refuse_when_open)
        session_refuse(s, "no room for you");
}

static void on_message(struct session *s, const struct message *m, const int *fds, unsigned n_fds)
{
    struct side *side = session_data(s);

    if (side->n_opened != 1 || side->n_closed != 0)
        ck_abort_msg("a message outside the session's life");
    side->last = *m;
    if (m->kind == MESSAGE_PULL && m->pull.version != side->n_received)
        ck_abort_msg("message %llu came as number %llu", (unsigned long long)m->pull.version,
                     (unsigned long long)side->n_received);
    side->n_received++;
    for (unsigned i = 0; i < n_fds; i++) {
        if (side->fd > 0)
            close(side->fd);
        side->fd = fds[i];
    }
    if (side->close_on_message)
        session_close(s);
}

static void on_closed(struct session *s, const char *reason)
{
    struct side *side = session_data(s);

    snprintf(side->reason, sizeof side->reason, "%s", reason ? reason : "");
    side->n_closed++;
    side->s = NULL;
}

static const struct session_events events = {on_open, on_message, on_closed};

static const struct message worker_hello = {.kind = MESSAGE_HELLO,
                                            .hello = {.role = ROLE_WORKER, .device = "cpu", .budget = 1 << 30}};

static void listen_here(struct side *side)
{
    struct error err = {0};

    ck_assert_msg(session_listen(&listener, &loop, directory, &events, side, &err) == 0, "%s", err.text);
}

static void connect_here(struct side *side)
{
    struct error err = {0};

    ck_assert_msg(session_connect(&side->s, &loop, directory, &worker_hello, &events, side, &err) == 0, "%s", err.text);
}

static void run_until_open(struct side *a, struct side *b)
{
    run_until(&a->n_opened, 1);
    run_until(&b->n_opened, 1);
}

/* Closes the listener and sees that nothing stays: no handle in the loop, no file in the directory, no directory. */
static void end_clean(void)
{
    struct stat info;

    session_unlisten(listener, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    ck_assert_int_eq(stat(directory, &info), -1);
    ck_assert_int_eq(errno, ENOENT);
}

START_TEST(a_session_opens_and_closes)
{
    struct side daemon = {0}, worker = {0};

    make_directory();
    listen_here(&daemon);
    connect_here(&worker);
    run_until_open(&daemon, &worker);
    ck_assert_int_eq(daemon.peer.kind, MESSAGE_HELLO);
    ck_assert_int_eq(daemon.peer.hello.role, ROLE_WORKER);
    ck_assert_str_eq(daemon.peer.hello.device, "cpu");
    ck_assert_uint_eq(daemon.peer.hello.budget, 1 << 30);
    ck_assert_uint_eq(daemon.peer.hello.pid, (unsigned)getpid());
    ck_assert_int_eq(worker.peer.kind, MESSAGE_WELCOME);
    ck_assert_uint_eq(worker.peer.welcome.id, 1);
    ck_assert_uint_eq(session_id(worker.s), session_id(daemon.s));
    ck_assert_int_eq(session_peer_pid(daemon.s), getpid());
    ck_assert_int_eq(session_peer_pid(worker.s), getpid());
    session_close(worker.s);
    session_close(worker.s);
    ck_assert_uint_eq(worker.n_closed, 0); /* never from inside */
    run_until(&worker.n_closed, 1);
    run_until(&daemon.n_closed, 1);
    ck_assert_str_eq(worker.reason, "");
    ck_assert_str_eq(daemon.reason, "closed");
    end_clean();
}
END_TEST

START_TEST(messages_go_both_ways_in_order)
{
    struct side daemon = {.n_to_send = 300}, worker = {.n_to_send = 200};

    make_directory();
    listen_here(&daemon);
    connect_here(&worker);
    run_until_open(&daemon, &worker);
    while (daemon.n_received < 200 || worker.n_received < 300)
        uv_run(&loop, UV_RUN_ONCE);
    session_close(daemon.s);
    run_until(&worker.n_closed, 1);
    run_until(&daemon.n_closed, 1);
    ck_assert_str_eq(worker.reason, "closed");
    ck_assert_str_eq(daemon.reason, "");
    end_clean();
}
END_TEST

/* More than nanomsg and the kernel hold, so that both queues fill; closed at once, and nothing of it may be lost. */
START_TEST(what_was_sent_before_closing_arrives)
{
    struct side daemon = {.n_to_send = 20000}, worker = {.close_when_open = true};

    make_directory();
    if (_i == 1) {
        worker = (struct side){.n_to_send = 20000, .close_when_open = true};
        daemon = (struct side){0};
    } else {
        daemon.close_when_open = true;
        worker.close_when_open = false;
    }
    listen_here(&daemon);
    connect_here(&worker);
    run_until(&worker.n_closed, 1);
    run_until(&daemon.n_closed, 1);
    ck_assert_uint_eq((_i == 1 ? &daemon : &worker)->n_received, 20000);
    ck_assert_str_eq((_i == 1 ? &daemon : &worker)->reason, "closed");
    end_clean();
}
END_TEST

START_TEST(both_may_close_at_once)
{
    struct side daemon = {.close_when_open = true}, worker = {.close_when_open = true};

    make_directory();
    listen_here(&daemon);
    connect_here(&worker);
    run_until(&worker.n_closed, 1);
    run_until(&daemon.n_closed, 1);
    ck_assert_str_eq(daemon.reason, "");
    end_clean();
}
END_TEST

START_TEST(descriptors_come_through_the_door)
{
    struct side daemon = {0}, worker = {0};
    struct message m = {.kind = MESSAGE_RELEASE};
    int pipes[2];
    char byte;

    make_directory();
    listen_here(&daemon);
    connect_here(&worker);
    run_until_open(&daemon, &worker);
    ck_assert_int_eq(pipe2(pipes, O_CLOEXEC), 0);
    session_send_fds(daemon.s, &m, pipes, 2);
    while (worker.n_received < 1)
        uv_run(&loop, UV_RUN_ONCE);
    ck_assert_int_eq(worker.last.kind, MESSAGE_RELEASE);
    ck_assert_int_ne(worker.fd, pipes[1]);
    ck_assert_int_eq(fcntl(worker.fd, F_GETFD), FD_CLOEXEC);
    ck_assert_int_eq(write(worker.fd, "x", 1), 1);
    ck_assert_int_eq(read(pipes[0], &byte, 1), 1); /* ours stayed open, and theirs is the same pipe */
    session_close(daemon.s);
    run_until(&worker.n_closed, 1);
    run_until(&daemon.n_closed, 1);
    close(worker.fd);
    close(pipes[0]);
    close(pipes[1]);
    end_clean();
}
END_TEST

START_TEST(who_is_refused_learns_why)
{
    struct side daemon = {.refuse_when_open = true}, worker = {0};

    make_directory();
    listen_here(&daemon);
    connect_here(&worker);
    run_until(&worker.n_closed, 1);
    run_until(&daemon.n_closed, 1);
    ck_assert_str_eq(worker.reason, "refused: no room for you");
    ck_assert_str_eq(daemon.reason, "no room for you");
    end_clean();
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("session");
    TCase *cases = tcase_create("life");
    SRunner *runner = srunner_create(suite);

    tcase_add_test(cases, a_session_opens_and_closes);
    tcase_add_test(cases, messages_go_both_ways_in_order);
    tcase_add_loop_test(cases, what_was_sent_before_closing_arrives, 0, 2);
    tcase_add_test(cases, both_may_close_at_once);
    tcase_add_test(cases, descriptors_come_through_the_door);
    tcase_add_test(cases, who_is_refused_learns_why);
    suite_add_tcase(suite, cases);
    srunner_run_all(runner, CK_ENV);
    int failed = srunner_ntests_failed(runner);
    srunner_free(runner);
    return failed != 0;
}

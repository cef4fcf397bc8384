/* The tcp port, and the workers that meet it. All on one loop. Strangers: test_port_strangers. */
#include "proto/net/dial.h"
#include "proto/net/proxy.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"
#include "tests/proto/net/remote.h"

#include <errno.h>
#include <netdb.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

SUITE_TIMEOUT(120)
SUITE_FIXTURE(remote_begin, remote_end)

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

    remote_join(&r);
    setup.control = r.control.fd;
    setup.bulk = r.bulk.fd;
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, ends), 0);
    setup.connection = ends[1];
    ck_assert_int_eq(proxy_open(&remote_stage.loop, &setup), 0);
    ck_assert_int_eq(session_connect_by(&remote_worker.s, &remote_stage.loop, ends[0], &hello, &side_events,
                                        &remote_worker, &err),
                     0);
    stage_run_until(&remote_stage, &remote_worker.n_opened, 1);
    stage_run_until(&remote_stage, &remote_epsd.n_opened, 1);
}

TEST(a_worker_with_the_key_is_a_session_like_any_other)
{
    remote_listen_with(&(struct port_options){0});
    remote_worker.n_to_send = 400;
    open_session();
    ck_assert_str_eq(remote_epsd.peer.hello.device, "cpu");
    ck_assert_str_eq(remote_epsd.peer.hello.model, "by tcp");
    stage_run_until(&remote_stage, &remote_epsd.n_received, 400); /* in order, as the stage sees to */
    ck_assert_uint_eq(session_peer_uid(remote_epsd.s), SESSION_REMOTE_USER);
    side_send_pulls(remote_epsd.s, 0, 5);
    stage_run_until(&remote_stage, &remote_worker.n_received, 5);
    stage_close(&remote_stage, &remote_epsd, &remote_worker);
    ck_assert_str_eq(remote_worker.reason, "closed");
}

TEST(both_sides_hear_of_the_others_end)
{
    remote_listen_with(&(struct port_options){0});
    open_session();
    stage_close(&remote_stage, &remote_worker, &remote_epsd);
    ck_assert_str_eq(remote_epsd.reason, "closed");
}

TEST(a_worker_that_dies_is_a_lost_one)
{
    struct remote r;

    remote_listen_with(&(struct port_options){0});
    remote_attach(&r);
    remote_leave(&r);
    stage_run_until(&remote_stage, &remote_epsd.n_closed, 1);
    ck_assert_str_eq(remote_epsd.reason, "killed");
}

TEST(a_refusal_is_told)
{
    remote_listen_with(&(struct port_options){0});
    open_session();
    session_refuse(remote_epsd.s, "no such luck");
    stage_run_until(&remote_stage, &remote_worker.n_closed, 1);
    stage_run_until(&remote_stage, &remote_epsd.n_closed, 1);
    ck_assert_str_eq(remote_worker.reason, "refused: no such luck");
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
    snprintf(c->address, sizeof c->address, "tcp://127.0.0.1:%u", port_number(remote_port));
    c->options.key = with;
    uv_async_init(&remote_stage.loop, &c->done, on_dialled);
    c->done.data = c;
    ck_assert_int_eq(pthread_create(&c->thread, NULL, run_dial, c), 0);
}

static int end_dial(struct caller *c)
{
    stage_run_until(&remote_stage, &c->n_done, 1);
    pthread_join(c->thread, NULL);
    ck_assert_int_eq(uv_loop_close(&c->loop), 0);
    return c->rc;
}

/* One that is halfway in has its place, until it leaves. */
TEST(a_worker_hears_that_there_are_as_many_as_the_daemon_takes)
{
    struct secured last;
    struct caller caller;

    remote_listen_with(&(struct port_options){.patience_ms = 100000});
    for (unsigned i = 1; i < PORT_SESSIONS; i++)
        remote_join(&sessions[i]);
    ck_assert(remote_shake(&last, HANDSHAKE_CONTROL, 0, remote_key));
    start_dial(&caller, remote_key);
    ck_assert_int_eq(end_dial(&caller), -EBUSY);
    ck_assert_holds(caller.err.text, "has as many workers by tcp as it takes");
    start_dial(&caller, remote_other_key);
    ck_assert_int_eq(end_dial(&caller), -EACCES);
    ck_assert_holds(caller.err.text, "its key is another one");
    ck_assert_uint_eq(processes_count(remote_log_path(), "as many workers by tcp as the daemon takes"), 1);
    close(last.fd);
    start_dial(&caller, remote_key);
    ck_assert_int_eq(end_dial(&caller), 0);
    for (unsigned i = 1; i < PORT_SESSIONS; i++)
        remote_leave(&sessions[i]);
    stage_run_until(&remote_stage, &remote_epsd.n_turned_away, PORT_SESSIONS);
}

/* 64 workers dial at once from an address that holds most places in silence. */
TEST(workers_that_come_at_once_all_come_in)
{
    enum { AT_ONCE = PORT_SESSIONS };
    static struct caller callers[AT_ONCE];
    int silent[PORT_GUESTS - 1];

    remote_listen_with(&(struct port_options){.patience_ms = 100000});
    for (unsigned i = 0; i < COUNT(silent); i++)
        silent[i] = remote_connect_from(1);
    for (unsigned i = 0; i < AT_ONCE; i++)
        start_dial(&callers[i], remote_key);
    for (unsigned i = 0; i < AT_ONCE; i++)
        ck_assert_msg(end_dial(&callers[i]) == 0, "%s", callers[i].err.text);
    ck_assert_uint_eq(processes_count(remote_log_path(), "turned away"), 0);
    ck_assert_uint_le(processes_count(remote_log_path(), "put off"), 2); /* the first, and a sum every 10 s */
    for (unsigned i = 0; i < COUNT(silent); i++)
        close(silent[i]);
    stage_run_until(&remote_stage, &remote_epsd.n_turned_away, AT_ONCE);
}

/* 10,000 connections that say hello and no more, as fast as the daemon takes them, from 200 addresses and the
 * worker's. */
TEST(unfinished_handshakes_keep_no_worker_out)
{
    static const uint8_t begun[HANDSHAKE_HELLO_BYTES] = {0x51, 0xe9, 7, 0, 1, 2, 1, [32] = 9};
    static int fds[300]; /* the last ones */
    struct caller caller;

    remote_listen_with(&(struct port_options){.patience_ms = 100000});
    for (unsigned i = 0; i < 10000 || caller.n_done == 0; i++) {
        int *fd = &fds[i % COUNT(fds)];
        if (*fd)
            close(*fd);
        *fd = remote_connect_from(1 + i % 200);
        remote_say(*fd, begun, i % 2 ? sizeof begun : 0);
        if (i == 5000)
            start_dial(&caller, remote_key);
        uv_run(&remote_stage.loop, UV_RUN_NOWAIT);
    }
    ck_assert_msg(end_dial(&caller) == 0, "%s", caller.err.text);
    for (unsigned i = 0; i < COUNT(fds); i++)
        close(fds[i]);
    stage_run_until(&remote_stage, &remote_epsd.n_turned_away, 1);
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

    remote_listen_with(&(struct port_options){0});
    ck_assert_int_eq(rc, addresses[_i].name ? 0 : -EDOM);
    if (rc) {
        ck_assert_holds(err.text, addresses[_i].address, "tcp://HOST:PORT");
        return;
    }
    ck_assert_str_eq(name, addresses[_i].name);
    ck_assert_str_eq(digits, addresses[_i].port);
}

/* The library of names then says that it does not know localhost. */
TEST_EACH(a_host_that_cannot_be_looked_up_is_not_said_to_be_missing, 2)
{
    struct addrinfo *found = NULL;
    struct rlimit before, none;
    struct error err = {""};
    int rc;

    remote_listen_with(&(struct port_options){0});
    ck_assert_int_eq(getrlimit(RLIMIT_NOFILE, &before), 0);
    none = before, none.rlim_cur = 0;
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
    if (_i)
        rc = dial_knock("tcp://localhost:1", &err);
    else
        rc = port_resolve(&found, "tcp://localhost:1", true, &err);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &before), 0);
    ck_assert_int_eq(rc, -EMFILE);
    ck_assert_str_eq(err.text, "tcp://localhost:1: its host cannot be looked up: Too many open files");
}

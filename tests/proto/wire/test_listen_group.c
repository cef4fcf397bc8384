/* A daemon that listens to a group: who is let in, and what a member who asks for much may cost the others. Only root
 * can play them. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/inprocess/stage.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static struct stage st;
static struct side epsd; /* zero at the beginning of each test, and there at its end */

static const struct message viewer_hello = {.kind = MESSAGE_HELLO, .hello = {.role = ROLE_VIEWER, .nonce = 77}};

static void begin(void)
{
    epsd = (struct side){0};
    stage_begin(&st);
}

static void end(void)
{
    stage_end(&st);
}

/* A path below the daemon's directory. */
static const char *of(const char *name)
{
    return print("%s/%s", st.directory, name);
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE(begin, end)

static struct rlimit limit_files(rlim_t n)
{
    struct rlimit before, limit;

    getrlimit(RLIMIT_NOFILE, &before);
    limit = (struct rlimit){.rlim_cur = n, .rlim_max = before.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    return before;
}

static struct stat look(const char *name)
{
    struct stat info;

    ck_assert_int_eq(stat(of(name), &info), 0);
    return info;
}

/* Of a file or directory in the daemon's. */
static void check_mode(const char *name, mode_t mode)
{
    ck_assert_uint_eq(look(name).st_mode & 07777, mode);
}

/* Each peer as a user with these groups; only root can play them. */
static void raw_connect_as(struct raw *raw, uid_t uid, gid_t gid, const gid_t *groups, size_t n_groups)
{
    ck_assert_int_eq(setgroups(n_groups, groups), 0);
    ck_assert_int_eq(setegid(gid), 0);
    ck_assert_int_eq(seteuid(uid), 0);
    if (uid == 0)
        raw_connect(raw, &st);
    else
        raw_connect_at(raw, &st, "members");
    ck_assert_int_eq(seteuid(0), 0);
    ck_assert_int_eq(setegid(0), 0);
    ck_assert_int_eq(setgroups(0, NULL), 0);
}

enum { GROUP = 4242, MEMBER = 54321 };

static void stage_listen_to_group(struct side *daemon)
{
    struct error err = {0};

    stage_listen(&st, daemon);
    ck_assert_msg(session_admit_group(st.listener, GROUP, &err) == 0, "%s", err.text);
}

TEST_EACH(members_of_its_group_are_let_in_and_nobody_else, geteuid() == 0 ? 4 : 0)
{
    static const struct {
        uid_t uid;
        gid_t gid, groups[2];
        bool member;
    } peers[] = {
        {MEMBER, GROUP, {1, 2}, true},
        {MEMBER, 54321, {1, GROUP}, true},
        {MEMBER, 54321, {1, 2}, false},
        {0, 0, {1, 2}, true},
    };
    struct message m;
    struct raw raw;

    stage_listen_to_group(&epsd);
    check_mode(".", 0710);
    ck_assert_uint_eq(look(".").st_gid, GROUP);
    check_mode("listener", 0600);
    check_mode("members", 0660);
    ck_assert_uint_eq(look("members").st_gid, GROUP);
    if (!peers[_i].member) { /* they do not come as far as the connection, unless someone has opened the way */
        chmod(st.directory, 0755);
        chmod(of("members"), 0666);
    }
    raw_connect_as(&raw, peers[_i].uid, peers[_i].gid, peers[_i].groups, 2);
    if (peers[_i].member) {
        raw_say(&raw, &worker_hello);
        raw_expect(&raw, &st, MESSAGE_WELCOME, &m);
        ck_assert_int_eq(m.welcome.address[0] != 0, peers[_i].uid == 0); /* here root is the daemon's own user */
    } else {
        raw_expect(&raw, &st, MESSAGE_DISMISSED, &m);
        ck_assert_str_eq(m.dismissed.error.text, "the daemon serves a group that you are not a member of");
    }
    raw_close(&raw);
    while (epsd.n_turned_away + epsd.n_closed < peers[_i].member)
        uv_run(&st.loop, UV_RUN_ONCE);
}

/* Those of another group, too, may still be workers. */
TEST_EACH(members_may_be_limited_to_observing, geteuid() == 0 ? 6 : 0)
{
    static const struct {
        gid_t users, groups[2];
        bool looks, is_let_in;
    } peers[] = {
        {(gid_t)-1, {1, GROUP}, true, true},         {(gid_t)-1, {1, GROUP}, false, false},
        {GROUP + 1, {1, GROUP}, true, true},         {GROUP + 1, {1, GROUP}, false, false},
        {GROUP + 1, {GROUP + 1, GROUP}, true, true}, {GROUP + 1, {GROUP + 1, GROUP}, false, true},
    };
    struct message m;
    struct raw raw;

    stage_listen_to_group(&epsd);
    session_limit_group(st.listener, peers[_i].users);
    raw_connect_as(&raw, MEMBER, 54321, peers[_i].groups, 2);
    raw_say(&raw, peers[_i].looks ? &viewer_hello : &worker_hello);
    raw_expect(&raw, &st, peers[_i].is_let_in ? MESSAGE_WELCOME : MESSAGE_DISMISSED, &m);
    if (!peers[_i].is_let_in)
        ck_assert_str_eq(m.dismissed.error.text, "you may only observe this daemon: eps status, mem and top");
    raw_close(&raw);
    while (epsd.n_turned_away + epsd.n_closed == 0)
        uv_run(&st.loop, UV_RUN_ONCE);
}

static void connect_as_member(struct raw *raw, uid_t uid)
{
    static const gid_t groups[] = {GROUP};

    raw_connect_as(raw, uid, GROUP, groups, 1);
}

static void expect_kind(struct raw *raw, enum message_kind kind, const char *why)
{
    struct message m;

    raw_expect(raw, &st, kind, &m);
    if (kind == MESSAGE_DISMISSED)
        ck_assert_str_eq(m.dismissed.error.text, why);
}

/* Until nothing that is there is left to do. */
static void turn(void)
{
    for (unsigned i = 0; i < 1000; i++)
        uv_run(&st.loop, UV_RUN_NOWAIT);
}

/* 64 sessions of a user; those that knock again and again leave nothing behind, and others are not their victims. */
TEST_IF(a_user_has_so_many_sessions_and_no_more, geteuid() == 0)
{
    static const char much[] = "you have as many sessions with the daemon as one user may have";
    static struct side sides[66]; /* of the crowd, and of two more */
    struct raw crowd[64], more, another;

    ck_assert_ptr_nonnull(freopen("/dev/null", "w", stderr));
    for (unsigned i = 0; i < 66; i++) /* none is given up for its silence, however long this takes */
        sides[i] = (struct side){.tick_ms = 100000000, .next = i < 65 ? &sides[i + 1] : NULL};
    stage_listen_to_group(&sides[0]);
    for (unsigned i = 0; i < 64; i++) {
        connect_as_member(&crowd[i], MEMBER);
        raw_say(&crowd[i], &viewer_hello);
        expect_kind(&crowd[i], MESSAGE_WELCOME, NULL);
    }
    const unsigned before = processes_count_fds(getpid());
    for (unsigned i = 0; i < 100; i++) {
        connect_as_member(&more, MEMBER);
        if (i == 64) { /* the connection has let in all that it does in a tick */
            turn();
            ck_assert(recv(more.fd, &(char){0}, 1, MSG_DONTWAIT) < 0 && errno == EAGAIN);
            session_refill(st.listener);
        }
        expect_kind(&more, MESSAGE_DISMISSED, much);
        raw_close(&more);
    }
    ck_assert_uint_eq(processes_count_fds(getpid()), before);
    connect_as_member(&another, MEMBER + 1);
    raw_say(&another, &viewer_hello);
    expect_kind(&another, MESSAGE_WELCOME, NULL);
    raw_connect(&more, &st); /* the daemon's own user, to whom no such limit applies */
    raw_say(&more, &viewer_hello);
    expect_kind(&more, MESSAGE_WELCOME, NULL);
    raw_close(&more);
    raw_close(&crowd[0]); /* whose place is free then */
    stage_run_until(&st, &sides[0].n_closed, 1);
    connect_as_member(&crowd[0], MEMBER);
    raw_send(&crowd[0], "no message", 10);
    expect_kind(&crowd[0], MESSAGE_DISMISSED, "sent what is no message: shorter than a header");
    for (unsigned i = 0; i < 64; i++)
        raw_close(&crowd[i]);
    raw_close(&another);
    for (unsigned i = 0; i < 66; i++)
        stage_run_until(&st, &sides[i].n_closed, 1);
}

static void ask(struct raw *raw, unsigned n)
{
    for (unsigned i = 0; i < n; i++)
        raw_say(raw, &(const struct message){.kind = MESSAGE_STATUS});
}

/* What a user may ask in a tick is for all of their sessions; the rest waits, and nobody else does. */
TEST_IF(what_a_user_asks_for_beyond_a_ticks_budget_waits, geteuid() == 0)
{
    enum { ASKED = 150, COST = 2, SESSIONS = 4, ATTACHING = 4, BUDGET = 512 };
    static struct side sides[SESSIONS + 2];
    struct raw crowd[SESSIONS], another, own;

    for (unsigned i = 0; i < SESSIONS + 2; i++)
        sides[i] = (struct side){.tick_ms = 100000000, .cost = COST, .next = i < SESSIONS + 1 ? &sides[i + 1] : NULL};
    stage_listen_to_group(&sides[0]);
    for (unsigned i = 0; i < SESSIONS; i++) {
        connect_as_member(&crowd[i], MEMBER);
        raw_say(&crowd[i], &viewer_hello);
        expect_kind(&crowd[i], MESSAGE_WELCOME, NULL);
    }
    connect_as_member(&another, MEMBER + 1);
    raw_say(&another, &viewer_hello);
    expect_kind(&another, MESSAGE_WELCOME, NULL);
    raw_connect(&own, &st);
    raw_say(&own, &viewer_hello);
    expect_kind(&own, MESSAGE_WELCOME, NULL);
    struct side *const of_another = &sides[SESSIONS], *const of_owner = &sides[SESSIONS + 1];

    for (unsigned i = 0; i < SESSIONS; i++)
        ask(&crowd[i], ASKED);
    turn();
    unsigned n = 0;
    for (unsigned i = 0; i < SESSIONS; i++)
        n += sides[i].n_received;
    const unsigned most = (BUDGET - SESSIONS * ATTACHING) / COST;
    ck_assert_uint_ge(n, most);
    ck_assert_uint_lt(n, most + SESSIONS); /* each session learns of it by a message of its own */
    ask(&another, ASKED);
    ask(&own, ASKED);
    turn();
    ck_assert_uint_eq(of_another->n_received, ASKED);
    ck_assert_uint_eq(of_owner->n_received, ASKED);
    ask(&own, ASKED);
    turn();
    ck_assert_uint_eq(of_owner->n_received, 2 * ASKED); /* more than a user may */
    raw_close(&crowd[0]);                               /* nothing is read of one that waits and goes */
    const unsigned before = sides[0].n_received;
    stage_run_until(&st, &sides[0].n_closed, 1);
    ck_assert_uint_eq(sides[0].n_received, before);
    for (unsigned k = 0; k < 2; k++) { /* the second pays the debt of the last messages */
        session_refill(st.listener);
        turn();
    }
    for (unsigned i = 1; i < SESSIONS; i++) {
        ck_assert_uint_eq(sides[i].n_received, ASKED);
        raw_close(&crowd[i]);
    }
    raw_close(&another);
    raw_close(&own);
    for (unsigned i = 1; i < SESSIONS + 2; i++)
        stage_run_until(&st, &sides[i].n_closed, 1);
}

/* By tcp come workers alone, with the key: they are the owner's. */
TEST(what_comes_by_tcp_has_no_budget)
{
    static struct side side = {.tick_ms = 100000000, .cost = 2};
    struct raw remote = {.channel = -1};
    int ends[2];

    stage_listen(&st, &side);
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends), 0);
    remote.fd = ends[1];
    ck_assert_int_eq(session_adopt(st.listener, ends[0]), 0);
    raw_say(&remote, &worker_hello);
    expect_kind(&remote, MESSAGE_WELCOME, NULL);
    for (unsigned n = 150; n <= 450; n += 150) { /* as many as a socket holds */
        ask(&remote, 150);
        turn();
        ck_assert_uint_eq(side.n_received, n);
    }
    raw_close(&remote);
    stage_run_until(&st, &side.n_closed, 1);
}

/* A request may cost time: then nothing of its user's is read, in whichever session it waits. By hand: 60 ms are 307
 * messages, 170 ms 870, of which the debt of 512 is paid in two ticks. */
TEST_IF(a_user_whose_request_took_long_is_not_read, geteuid() == 0)
{
    static struct side sides[3];
    struct raw one, two, another;

    for (unsigned i = 0; i < 3; i++)
        sides[i] = (struct side){.tick_ms = 100000000, .next = i < 2 ? &sides[i + 1] : NULL};
    stage_listen_to_group(&sides[0]);
    struct raw *const all[] = {&one, &two, &another};
    for (unsigned i = 0; i < 3; i++) {
        connect_as_member(all[i], MEMBER + i / 2);
        raw_say(all[i], &viewer_hello);
        expect_kind(all[i], MESSAGE_WELCOME, NULL);
    }
    session_charge_time(sides[0].s, 60000000);
    ask(&two, 10);
    turn();
    ck_assert_uint_eq(sides[1].n_received, 10);
    session_charge_time(sides[0].s, 170000000);
    for (unsigned i = 0; i < 3; i++)
        ask(all[i], 10);
    for (unsigned k = 0; k < 3; k++) {
        turn();
        ck_assert_uint_eq(sides[0].n_received, k < 2 ? 0 : 10);
        ck_assert_uint_eq(sides[1].n_received, k < 2 ? 10 : 20);
        ck_assert_uint_eq(sides[2].n_received, 10);
        session_refill(st.listener);
    }
    for (unsigned i = 0; i < 3; i++) {
        raw_close(all[i]);
        stage_run_until(&st, &sides[i].n_closed, 1);
    }
}

/* As many as the kernel lets wait, before the loop has turned once: the owner has another connection. */
TEST_IF(a_crowd_before_the_members_connection_is_not_in_the_owners_way, geteuid() == 0)
{
    struct message m;
    struct raw crowd[300], own;
    unsigned n = 0;

    ck_assert_ptr_nonnull(freopen("/dev/null", "w", stderr));
    stage_listen_to_group(&epsd);
    ck_assert_int_eq(setegid(GROUP), 0);
    ck_assert_int_eq(seteuid(MEMBER), 0);
    while (n < 300 && raw_try_at(&crowd[n], &st, "members") == 0)
        n++;
    ck_assert_int_eq(seteuid(0), 0);
    ck_assert_int_eq(setegid(0), 0);
    ck_assert_uint_ge(n, 100);
    ck_assert_uint_lt(n, 300); /* the next would have to wait */
    raw_connect(&own, &st);
    raw_say(&own, &worker_hello);
    raw_expect(&own, &st, MESSAGE_WELCOME, &m);
    raw_close(&own);
    for (unsigned i = 0; i < n; i++)
        raw_close(&crowd[i]);
    while (epsd.n_turned_away + epsd.n_closed < 1 + 64)
        uv_run(&st.loop, UV_RUN_ONCE);
}

/* Near the limit members are turned away while the owner still comes in. */
TEST_IF(the_last_descriptors_are_the_owners, geteuid() == 0)
{
    struct message m;
    struct raw member, own;

    stage_listen_to_group(&epsd);
    const struct rlimit limit = limit_files(40);
    connect_as_member(&member, MEMBER);
    expect_kind(&member, MESSAGE_DISMISSED, "the daemon has no descriptors left for another session");
    raw_close(&member);
    raw_connect(&own, &st);
    raw_say(&own, &viewer_hello);
    raw_expect(&own, &st, MESSAGE_WELCOME, &m);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    raw_close(&own);
    stage_run_until(&st, &epsd.n_closed, 1);
}

/* The kernel does not let them be sent (Linux 6.16), or drops them; the peer is at fault then. */
TEST_IF(a_members_descriptors_never_come, geteuid() == 0)
{
    const struct message job = {.kind = MESSAGE_SNAPSHOT};
    struct message m;
    struct raw member;

    stage_listen_to_group(&epsd);
    connect_as_member(&member, MEMBER);
    raw_say(&member, &viewer_hello);
    raw_expect(&member, &st, MESSAGE_WELCOME, &m);
    const unsigned before = processes_count_fds(getpid());
    if (raw_try_fds(&member, &job, 90) > 0)
        expect_kind(&member, MESSAGE_DISMISSED,
                    "sent descriptors, which only the daemon's own user and root may: use programs of one build");
    else
        ck_assert_int_eq(errno, EPERM);
    ck_assert_uint_le(processes_count_fds(getpid()), before);
    raw_close(&member);
    stage_run_until(&st, &epsd.n_closed, 1);
    ck_assert_uint_eq(epsd.n_received, 0);
}

TEST(a_directory_that_members_cannot_reach_is_refused)
{
    struct error err = {0};
    char base[80];

    memcpy(base, st.directory, sizeof base);
    strcat(st.directory, "/below");
    stage_listen(&st, &epsd);
    ck_assert_int_eq(session_admit_group(st.listener, getegid() + 1, &err), -EDOM);
    ck_assert_holds(err.text, "/below, since /tmp/eps-test-");
    ck_assert_int_eq(chmod(base, 0711), 0);
    if (geteuid() == 0)
        ck_assert_int_eq(session_admit_group(st.listener, GROUP, &err), 0);
    else
        ck_assert_int_eq(session_admit_group(st.listener, 0, &err), -EPERM);
    session_unlisten(st.listener, NULL);
    st.listener = NULL;
    ck_assert_int_eq(rmdir(base), 0);
}

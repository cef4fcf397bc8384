#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/stage.h"
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
static struct side epsd, worker, other; /* zero at the beginning of each test, and there at its end */

static const struct message viewer_hello = {.kind = MESSAGE_HELLO, .hello = {.role = ROLE_VIEWER, .nonce = 77}};

static void begin(void)
{
    epsd = worker = other = (struct side){0};
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

static void unlisten(void)
{
    session_unlisten(st.listener, NULL);
    st.listener = NULL;
}

static struct rlimit limit_files(rlim_t n)
{
    struct rlimit before, limit;

    getrlimit(RLIMIT_NOFILE, &before);
    limit = (struct rlimit){.rlim_cur = n, .rlim_max = before.rlim_max};
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    return before;
}

static void expect_refused(const char *directory, int code, const char *sentence)
{
    struct session_listener *listener;
    struct error err = {0};

    ck_assert_int_eq(session_listen(&listener, &st.loop, directory, &side_events, NULL, &err), code);
    ck_assert_holds(err.text, sentence);
    ck_assert_ptr_null(listener);
}

/* What is left of the directory is removed by a daemon of it. */
static void listen_after_all(void)
{
    chmod(st.directory, 0700);
    stage_listen(&st, &epsd);
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE(begin, end)

TEST(a_second_daemon_is_told_of_the_first)
{
    stage_listen(&st, &epsd);
    expect_refused(st.directory, -EADDRINUSE, "another daemon listens at /tmp/eps-test-");
    stage_connect(&st, &worker); /* the first is none the worse */
    stage_run_until(&st, &epsd.n_opened, 1);
    stage_close(&st, &epsd, &worker);
}

static void listen_for_ever(struct stage *stage)
{
    stage_listen(stage, &epsd);
    stage_signal(stage);
    stage_run_until(stage, &epsd.n_closed, 1);
}

TEST(so_is_one_in_another_process_until_the_first_is_killed)
{
    struct stat before, after;

    pid_t pid = stage_fork(&st, listen_for_ever);
    stage_await(&st);
    ck_assert_int_eq(stat(of("listener"), &before), 0);
    expect_refused(st.directory, -EADDRINUSE, "stop it with eps stop");
    ck_assert_int_eq(stat(of("listener"), &after), 0);
    ck_assert_uint_eq(before.st_ino, after.st_ino);
    stage_kill(pid);
    stage_listen(&st, &epsd);
}

TEST(what_a_killed_daemon_left_is_removed_and_nothing_else)
{
    ck_assert_int_eq(mkdir(of("s"), 0700), 0);
    ck_assert_int_eq(mknod(of("s/3-01234567"), S_IFSOCK | 0600, 0), 0);
    ck_assert_int_eq(mknod(of("s-notes.txt"), S_IFREG | 0600, 0), 0);
    stage_listen(&st, &epsd);
    ck_assert_int_eq(access(of("s/3-01234567"), F_OK), -1);
    unlisten();
    ck_assert_int_eq(unlink(of("s-notes.txt")), 0);
    rmdir(st.directory);
}

/* Its own files are gone, and those of that name are another's. */
TEST(a_daemon_whose_directory_was_removed_leaves_its_successor_alone)
{
    stage_listen(&st, &epsd);
    struct session_listener *const listener = st.listener;
    ck_assert_int_eq(system(print("rm -r %s", st.directory)), 0);
    stage_listen(&st, &other);
    session_unlisten(listener, NULL);
    stage_connect(&st, &worker);
    stage_run_until(&st, &other.n_opened, 1);
    stage_close(&st, &other, &worker);
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

TEST(its_files_are_private_and_its_parents_too)
{
    struct session_listener *listener;
    struct error err = {0};

    ck_assert_int_eq(session_listen(&listener, &st.loop, of("deep/down"), &side_events, NULL, &err), 0);
    check_mode("deep", 0700);
    check_mode("deep/down", 0700);
    check_mode("deep/down/s", 0700);
    check_mode("deep/down/listener", 0600);
    session_unlisten(listener, NULL);
    ck_assert_int_eq(rmdir(of("deep")), 0); /* down is gone already */
    listen_after_all();
}

TEST(a_directory_that_cannot_be_ones_own_is_refused)
{
    const char *longest = print("%s/%0*d", st.directory, 80 - (int)strlen(of("")), 0);

    chmod(st.directory, 0770);
    expect_refused(st.directory, -EACCES, "others may write to");
    chmod(st.directory, 0702);
    expect_refused(st.directory, -EACCES, "others may write to");
    chmod(st.directory, 0700);
    ck_assert_int_eq(mkdir(of("s"), 0700), 0);
    ck_assert_int_eq(chmod(of("s"), 0750), 0);
    ck_assert_int_eq(mknod(of("s/notes"), S_IFREG | 0600, 0), 0); /* else it is removed, and made anew */
    expect_refused(st.directory, -EACCES, "/s is not a directory of yours that is closed to others");
    unlink(of("s/notes"));
    expect_refused("/etc/passwd", -ENOTDIR, "/etc/passwd is not a directory");
    expect_refused("/etc/passwd/below", -ENOTDIR, "/etc/passwd");
    expect_refused(longest, -ENAMETOOLONG, "is 80 characters long, 1 too many for the sockets in it");
    if (geteuid() == 0) {
        ck_assert_int_eq(chown(st.directory, 65534, 65534), 0);
        expect_refused(st.directory, -EACCES, "belongs to another user");
        ck_assert_int_eq(chown(st.directory, 0, 0), 0);
    }
    listen_after_all();
}

/* nanomsg takes the longest address that passes; 107 is what it asserts. */
TEST(a_session_opens_in_the_longest_directory)
{
    char base[80];

    memcpy(base, st.directory, sizeof base);
    size_t n = strlen(base);
    memset(st.directory + n, 'x', 79 - n);
    st.directory[n] = '/';
    st.directory[79] = '\0';
    stage_open(&st, &epsd, &worker);
    stage_close(&st, &worker, &epsd);
    unlisten();
    ck_assert_int_eq(rmdir(base), 0);
}

static unsigned n_unlistened;

static void on_unlistened(void *data)
{
    ck_assert_ptr_eq(data, &n_unlistened);
    n_unlistened++;
}

TEST(sessions_outlive_the_listener)
{
    struct error err = {0};

    stage_open(&st, &epsd, &worker);
    unlisten();
    ck_assert_int_eq(access(st.directory, F_OK), -1);
    ck_assert_int_eq(session_connect(&other.s, &st.loop, st.directory, &worker_hello, &side_events, &other, &err),
                     -ENOENT);
    ck_assert_holds(err.text, "no daemon at /tmp/eps-test-");
    side_send_pulls(epsd.s, 0, 10);
    stage_run_until(&st, &worker.n_received, 10);
    stage_close(&st, &worker, &epsd);
    stage_run_until(&st, &worker.n_closed, 1);
    ck_assert_int_eq(session_listen(&st.listener, &st.loop, st.directory, &side_events, &n_unlistened, &err), 0);
    session_unlisten(st.listener, on_unlistened);
    st.listener = NULL;
    ck_assert_uint_eq(n_unlistened, 0);
    stage_run_until(&st, &n_unlistened, 1);
}

/* Without descriptors nanomsg would spin, so the daemon turns peers away while it still has some. Whoever looks, and
 * stops, needs none. */
TEST(without_descriptors_a_worker_is_turned_away_with_the_reason)
{
    stage_listen(&st, &epsd);
    const struct rlimit limit = limit_files(30);
    stage_connect(&st, &worker);
    stage_run_until(&st, &worker.n_closed, 1);
    ck_assert_str_eq(worker.reason, "refused: the daemon has no descriptors left for another session");
    ck_assert_int_eq(worker.end, END_TURNED_AWAY);
    stage_run_until(&st, &epsd.n_turned_away, 1);
    st.by_connection = true;
    stage_connect(&st, &other);
    stage_run_until(&st, &other.n_opened, 1);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    stage_close(&st, &other, &epsd);
}

/* None at all, not even to accept: who waits must not make the loop spin, and is let in later. */
TEST(without_any_descriptor_the_connection_waits)
{
    struct message m;
    struct raw raw;
    unsigned n_turns = 0;

    stage_listen(&st, &epsd);
    raw_connect(&raw, &st);
    const struct rlimit limit = limit_files(3);
    uint64_t begin = uv_hrtime();
    while (uv_hrtime() - begin < 100000000) {
        uv_run(&st.loop, UV_RUN_ONCE);
        n_turns++;
    }
    ck_assert_uint_le(n_turns, 5);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
    raw_say(&raw, &worker_hello);
    raw_expect(&raw, &st, MESSAGE_WELCOME, &m);
    raw_close(&raw);
    stage_run_until(&st, &epsd.n_turned_away, 1);
}

TEST(a_descriptor_is_kept_for_the_owner)
{
    struct raw raw;
    struct message m;

    st.by_connection = true;
    stage_listen(&st, &epsd);
    const int next = open("/dev/null", O_RDONLY | O_CLOEXEC);
    raw_connect(&raw, &st);
    close(next);
    const struct rlimit limit = limit_files((rlim_t)next); /* all below are in use */
    ck_assert_int_eq(open("/dev/null", O_RDONLY | O_CLOEXEC), -1);
    raw_say(&raw, &viewer_hello);
    raw_expect(&raw, &st, MESSAGE_WELCOME, &m);
    raw_close(&raw);
    stage_run_until(&st, &epsd.n_closed, 1);
    ck_assert_int_eq(setrlimit(RLIMIT_NOFILE, &limit), 0);
}

/* Only root can play two users. */
TEST_IF(another_user_is_refused, geteuid() == 0)
{
    struct raw raw;

    umask(0);
    stage_listen(&st, &epsd);
    chmod(st.directory, 0711); /* someone opened it by hand */
    chmod(of("listener"), 0666);
    ck_assert_int_eq(seteuid(65534), 0);
    raw_connect(&raw, &st);
    ck_assert_int_eq(seteuid(0), 0);
    raw_expect_dismissed(&raw, &st, "the daemon belongs to another user");
    ck_assert_int_eq(seteuid(65534), 0); /* and a peer does not talk to another user's daemon */
    struct session *s;
    struct error err = {0};
    ck_assert_int_eq(session_connect(&s, &st.loop, st.directory, &worker_hello, &side_events, NULL, &err), -EACCES);
    ck_assert_holds(err.text, "belongs to another user");
    ck_assert_int_eq(seteuid(0), 0);
    uv_run(&st.loop, UV_RUN_NOWAIT);
    ck_assert_uint_eq(epsd.n_opened, 0);
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

/* A request may cost time: then nothing of its user's is read, in whichever session it waits. By hand: 60 ms are 307 messages,
 * 170 ms 870, of which the debt of 512 is paid in two ticks. */
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
    unlisten();
    ck_assert_int_eq(rmdir(base), 0);
}

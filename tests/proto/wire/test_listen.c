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
    expect_refused(longest, -ENAMETOOLONG, "is 80 characters long, 1 too many");
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

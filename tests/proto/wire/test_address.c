#include "tests/kit/command.h"
#include "tests/kit/test.h"

#include "proto/wire/session.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

static char runtime[64]; /* XDG_RUNTIME_DIR; each test is a process of its own */
static uv_loop_t loop;
static const struct session_events no_events;

static void start(void)
{
    snprintf(runtime, sizeof runtime, "/tmp/eps-run-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(runtime));
    setenv("XDG_RUNTIME_DIR", runtime, 1);
    uv_loop_init(&loop);
}

static void finish(void)
{
    uv_run(&loop, UV_RUN_DEFAULT);
    rmdir(print("%s/eps", runtime));
    ck_assert_int_eq(rmdir(runtime), 0);
}

SUITE_FIXTURE(start, finish)

/* A path below the user's base. */
static const char *of(const char *name)
{
    return print("%s/eps/%s", runtime, name);
}

static void expect_directory(const char *address, const char *directory)
{
    char out[PATH_MAX];
    struct error err = {0};

    ck_assert_msg(session_directory(out, sizeof out, address, &err) == 0, "%s", err.text);
    ck_assert_str_eq(out, directory);
}

static void expect_refused(const char *address, int code, const char *sentence)
{
    char out[100];
    struct error err = {0};

    ck_assert_int_eq(session_directory(out, sizeof out, address, &err), code);
    ck_assert_holds(err.text, sentence);
}

static struct session_listener *live(const char *name)
{
    struct session_listener *listener;
    struct error err = {0};

    expect_directory(name, of(name));
    ck_assert_msg(session_listen(&listener, &loop, of(name), &no_events, NULL, &err) == 0, "%s", err.text);
    return listener;
}

TEST(a_path_stands_for_itself_and_a_name_for_a_directory_of_the_users_own)
{
    expect_directory("/run/mine", "/run/mine");
    expect_directory("./mine", "./mine");
    expect_directory("below/mine", "below/mine");
    expect_directory("lab", of("lab"));
    unsetenv("XDG_RUNTIME_DIR");
    expect_directory("lab", print("/tmp/eps-%u/lab", (unsigned)geteuid()));
    setenv("XDG_RUNTIME_DIR", "", 1);
    expect_directory("lab", print("/tmp/eps-%u/lab", (unsigned)geteuid()));
}

TEST(no_address_is_the_only_live_daemon)
{
    expect_refused(NULL, -ENOENT, "no daemon of yours is running");
    struct session_listener *lab = live("lab");
    ck_assert_int_eq(system(print("mkdir %s; touch %s/lock", of("aaa"), of("aaa"))), 0); /* that nobody holds */
    expect_directory(NULL, of("lab"));
    expect_directory("", of("lab"));
    struct session_listener *home = live("home");
    expect_refused(NULL, -ENOTUNIQ, "2 daemons are running: name one of home, lab");
    session_unlisten(lab, NULL);
    expect_directory(NULL, of("home"));
    session_unlisten(home, NULL);
    expect_refused("", -ENOENT, "no daemon of yours is running");
    ck_assert_int_eq(system(print("rm -r %s", of("aaa"))), 0);
}

/* A directory as a killed daemon leaves it: a lock that nobody holds, and a connection that nobody is behind. */
static void leave(const char *name, bool lock, bool connection, int age_s)
{
    const struct timespec times[2] = {{.tv_sec = time(NULL) - age_s}, {.tv_sec = time(NULL) - age_s}};

    ck_assert_int_eq(system(print("mkdir -p -m 700 %s", of(name))), 0);
    if (lock)
        fclose(fopen(print("%s/lock", of(name)), "w"));
    if (connection)
        ck_assert_int_eq(mknod(print("%s/listener", of(name)), S_IFSOCK | 0600, 0), 0);
    ck_assert_int_eq(utimensat(AT_FDCWD, of(name), times, 0), 0);
}

static void on_daemon(void *user, const char *directory)
{
    (void)directory;
    ++*(int *)user;
}

/* Whoever looks among the daemons removes what killed private ones have left. Their names come never again; a daemon's
 * that somebody chose stands until the next of that name. One that is just starting has no connection yet. */
TEST_EACH(what_killed_private_daemons_left_is_removed, 3)
{
    static const struct {
        const char *name;
        bool lock, connection;
        int age_s;
        bool stands;
    } left[] = {
        {"run-1-aa", true, true, 0, false},    {"run-2-bb", true, false, 0, true},
        {"run-3-cc", true, false, 61, false},  {"run-4-dd", false, false, 0, true},
        {"run-5-ee", false, false, 61, false}, {"lab", true, true, 61, true},
    };
    char out[100];
    struct error err;
    int n = 0;

    for (int i = 0; i < COUNT(left); i++)
        leave(left[i].name, left[i].lock, left[i].connection, left[i].age_s);
    struct session_listener *run = live("run-6-ff");
    if (_i == 0) {
        ck_assert_int_eq(session_list(on_daemon, &n, &err), 0);
        ck_assert_int_eq(n, 1);
    } else
        ck_assert_int_eq(session_directory(out, sizeof out, _i == 1 ? "new" : NULL, &err), 0);
    for (int i = 0; i < COUNT(left); i++)
        ck_assert_msg((access(of(left[i].name), F_OK) == 0) == left[i].stands, "%s", left[i].name);
    ck_assert_int_eq(access(of("run-6-ff"), F_OK), 0);
    session_unlisten(run, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(system(print("rm -r %s/eps", runtime)), 0);
}

/* Looking for daemons must not be in the way of one that starts: it takes no lock. */
TEST(looking_holds_no_lock)
{
    leave("lab", true, false, 0);
    ck_assert(!session_is_live(of("lab")));
    struct session_listener *listener = live("lab");
    ck_assert(session_is_live(of("lab")));
    ck_assert(session_is_live(of("lab")));
    session_unlisten(listener, NULL);
}

TEST(what_is_no_address_is_refused_by_name)
{
    char many[200];

    expect_refused("tcp://host:5555", -EPROTONOSUPPORT, "tcp://host:5555: only workers attach by tcp");
    expect_refused("127.0.0.1:7070", -EINVAL, "127.0.0.1:7070 has a port, and an address here is a name");
    expect_refused("[::1]:7070", -EINVAL, "(tcp://[::1]:7070)");
    expect_directory("lab:one", of("lab:one"));
    expect_directory("below/lab:1", "below/lab:1");
    expect_refused("ipc:///tmp/x", -EINVAL, "ipc:///tmp/x: an address is a name");
    expect_refused("..", -EINVAL, "does not begin with a dot");
    memset(many, 'x', sizeof many);
    many[sizeof many - 1] = '\0';
    expect_refused(many, -ENAMETOOLONG, "too long an address");
    many[0] = '/';
    expect_refused(many, -ENAMETOOLONG, "too long an address");
}

TEST(a_base_is_not_looked_for_in_a_directory_that_does_not_exist)
{
    setenv("XDG_RUNTIME_DIR", print("%s/absent", runtime), 1);
    expect_refused("lab", -ENOTDIR, "/absent, which does not exist: make it (mkdir -m 700)");
    expect_refused(NULL, -ENOTDIR, "/absent, which does not exist");
}

TEST(a_base_that_another_made_is_refused)
{
    const char *base = print("%s/eps", runtime);

    ck_assert_int_eq(symlink("/tmp", base), 0);
    expect_refused("lab", -EACCES, "is not a directory: remove it");
    unlink(base);
    if (geteuid() == 0) {
        ck_assert_int_eq(mkdir(base, 0700), 0);
        ck_assert_int_eq(chown(base, 65534, 65534), 0);
        expect_refused(NULL, -EACCES, "belongs to user 65534: set XDG_RUNTIME_DIR");
    }
}

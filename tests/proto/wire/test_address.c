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
    char base[80];

    uv_run(&loop, UV_RUN_DEFAULT);
    snprintf(base, sizeof base, "%s/eps", runtime);
    rmdir(base);
    ck_assert_int_eq(rmdir(runtime), 0);
}

SUITE_FIXTURE(start, finish)

static void expect_directory(const char *address, const char *directory)
{
    char out[PATH_MAX];
    struct error err = {0};

    ck_assert_msg(session_directory(out, sizeof out, address, &err) == 0, "%s", err.text);
    ck_assert_str_eq(out, directory);
}

static void expect_refusal(const char *address, int code, const char *sentence)
{
    char out[100];
    struct error err = {0};

    ck_assert_int_eq(session_directory(out, sizeof out, address, &err), code);
    ck_assert_msg(strstr(err.text, sentence) != NULL, "%s", err.text);
}

static struct session_listener *live(const char *name)
{
    struct session_listener *listener;
    char directory[100];
    struct error err = {0};

    ck_assert_int_eq(session_directory(directory, sizeof directory, name, &err), 0);
    ck_assert_msg(session_listen(&listener, &loop, directory, &no_events, NULL, &err) == 0, "%s", err.text);
    return listener;
}

TEST(a_path_stands_for_itself)
{
    expect_directory("/run/mine", "/run/mine");
    expect_directory("./mine", "./mine");
    expect_directory("below/mine", "below/mine");
}

TEST(a_name_is_a_directory_of_the_users_own)
{
    char expected[100];

    snprintf(expected, sizeof expected, "%s/eps/lab", runtime);
    expect_directory("lab", expected);
    unsetenv("XDG_RUNTIME_DIR");
    snprintf(expected, sizeof expected, "/tmp/eps-%u/lab", (unsigned)geteuid());
    expect_directory("lab", expected);
    setenv("XDG_RUNTIME_DIR", "", 1);
    expect_directory("lab", expected);
}

TEST(no_address_is_the_only_live_daemon)
{
    char expected[100], stale[100], other[100];

    expect_refusal(NULL, -ENOENT, "no daemon of yours is running");
    struct session_listener *lab = live("lab");
    snprintf(stale, sizeof stale, "%s/eps/aaa", runtime); /* with a lock that nobody holds */
    ck_assert_int_eq(mkdir(stale, 0700), 0);
    snprintf(other, sizeof other, "%s/eps/aaa/lock", runtime);
    fclose(fopen(other, "w"));
    snprintf(expected, sizeof expected, "%s/eps/lab", runtime);
    expect_directory(NULL, expected);
    expect_directory("", expected);
    struct session_listener *home = live("home");
    expect_refusal(NULL, -ENOTUNIQ, "2 daemons are running: name one of home, lab");
    session_unlisten(lab, NULL);
    snprintf(expected, sizeof expected, "%s/eps/home", runtime);
    expect_directory(NULL, expected);
    session_unlisten(home, NULL);
    expect_refusal("", -ENOENT, "no daemon of yours is running");
    unlink(other);
    rmdir(stale);
}

/* A directory as a killed daemon leaves it: a lock that nobody holds, and a door that nobody is behind. */
static void leave(const char *name, bool lock, bool door, int age_s)
{
    char path[120];
    const struct timespec times[2] = {{.tv_sec = time(NULL) - age_s}, {.tv_sec = time(NULL) - age_s}};

    snprintf(path, sizeof path, "%s/eps", runtime);
    mkdir(path, 0700);
    snprintf(path, sizeof path, "%s/eps/%s", runtime, name);
    ck_assert_int_eq(mkdir(path, 0700), 0);
    snprintf(path, sizeof path, "%s/eps/%s/lock", runtime, name);
    if (lock)
        fclose(fopen(path, "w"));
    snprintf(path, sizeof path, "%s/eps/%s/door", runtime, name);
    if (door)
        ck_assert_int_eq(mknod(path, S_IFSOCK | 0600, 0), 0);
    snprintf(path, sizeof path, "%s/eps/%s", runtime, name);
    ck_assert_int_eq(utimensat(AT_FDCWD, path, times, 0), 0);
}

static bool stands(const char *name)
{
    char path[120];

    snprintf(path, sizeof path, "%s/eps/%s", runtime, name);
    return access(path, F_OK) == 0;
}

static void on_daemon(void *user, const char *directory)
{
    (void)directory;
    ++*(int *)user;
}

/* Whoever looks among the daemons removes what killed private ones have left. Their names come never again; a daemon's
 * that somebody chose stands until the next of that name. One that is just starting has no door yet. */
TEST_EACH(what_killed_private_daemons_left_is_removed, 3)
{
    static const struct {
        const char *name;
        bool lock, door;
        int age_s;
        bool stands;
    } left[] = {
        {"run-1-aa", true, true, 0, false},    {"run-2-bb", true, false, 0, true},
        {"run-3-cc", true, false, 61, false},  {"run-4-dd", false, false, 0, true},
        {"run-5-ee", false, false, 61, false}, {"lab", true, true, 61, true},
    };
    char out[100], command[100];
    struct error err;
    int n = 0;

    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        leave(left[i].name, left[i].lock, left[i].door, left[i].age_s);
    struct session_listener *run = live("run-6-ff");
    if (_i == 0) {
        ck_assert_int_eq(session_list(on_daemon, &n, &err), 0);
        ck_assert_int_eq(n, 1);
    } else
        ck_assert_int_eq(session_directory(out, sizeof out, _i == 1 ? "new" : NULL, &err), 0);
    for (size_t i = 0; i < sizeof left / sizeof *left; i++)
        ck_assert_msg(stands(left[i].name) == left[i].stands, "%s", left[i].name);
    ck_assert(stands("run-6-ff"));
    session_unlisten(run, NULL);
    uv_run(&loop, UV_RUN_DEFAULT);
    snprintf(command, sizeof command, "rm -r %s/eps", runtime);
    ck_assert_int_eq(system(command), 0);
}

/* Looking for daemons must not be in the way of one that starts: it takes no lock. */
TEST(looking_holds_no_lock)
{
    char directory[100], lock[110];

    snprintf(directory, sizeof directory, "%s/lab", runtime);
    ck_assert_int_eq(mkdir(directory, 0700), 0);
    snprintf(lock, sizeof lock, "%s/lock", directory);
    fclose(fopen(lock, "w"));
    ck_assert(!session_is_live(directory));
    struct session_listener *listener;
    struct error err = {0};
    ck_assert_int_eq(session_listen(&listener, &loop, directory, &no_events, NULL, &err), 0);
    ck_assert(session_is_live(directory));
    ck_assert(session_is_live(directory));
    session_unlisten(listener, NULL);
}

TEST(what_is_no_address_is_refused_by_name)
{
    char many[200];

    expect_refusal("tcp://host:5555", -EPROTONOSUPPORT, "tcp://host:5555: daemons serve their own host only");
    expect_refusal("ipc:///tmp/x", -EINVAL, "ipc:///tmp/x: an address is a name");
    expect_refusal("..", -EINVAL, "does not begin with a dot");
    memset(many, 'x', sizeof many);
    many[sizeof many - 1] = '\0';
    expect_refusal(many, -ENAMETOOLONG, "too long an address");
    many[0] = '/';
    expect_refusal(many, -ENAMETOOLONG, "too long an address");
}

TEST(a_base_that_another_made_is_refused)
{
    char base[80];

    snprintf(base, sizeof base, "%s/eps", runtime);
    ck_assert_int_eq(symlink("/tmp", base), 0);
    expect_refusal("lab", -EACCES, "is not a directory: remove it");
    unlink(base);
    if (geteuid() == 0) {
        ck_assert_int_eq(mkdir(base, 0700), 0);
        ck_assert_int_eq(chown(base, 65534, 65534), 0);
        expect_refusal(NULL, -EACCES, "belongs to user 65534: set XDG_RUNTIME_DIR to a directory of your own");
    }
}

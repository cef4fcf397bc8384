/* A private daemon and its workers: real ones, or scripts in their place that fail as a test wants. */
#include "client/daemon/observer.h"
#include "client/daemon/spawn.h"
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static struct client_link client;
static struct client_spawn spawn;
static struct error err;

static void setup(void)
{
    processes_setup();
    ck_assert_int_eq(client_link_init(&client, &err), 0);
}

static void teardown(void)
{
    client_spawn_stop(&spawn);
    client_link_free(&client);
    processes_remove();
}

SUITE_TIMEOUT(60)
SUITE_FIXTURE(setup, teardown)

/* Programs of this directory, on the CPU; their stderr goes to the file log. */
static int start(const char *programs, uint32_t n_workers)
{
    const struct client_spawn_options options = {
        .programs = programs,
        .n_workers = n_workers,
        .device = {.kind = DEVICE_CPU},
        .device_mem = 64 << 20,
        .log_fd = open("log", O_RDWR | O_CREAT | O_APPEND | O_CLOEXEC, 0600),
    };

    ck_assert_int_ge(options.log_fd, 0);
    return client_spawn_start(&spawn, &client, &options, &err);
}

static void start_well(uint32_t n_workers)
{
    ck_assert_msg(start(BIN_DIR, n_workers) == 0, "%s", err.text);
}

static void await_end_of(const struct client_child *child)
{
    while (!child->ended)
        uv_run(&client.loop, UV_RUN_ONCE);
}

/* Nobody lives, and no directory of theirs is left. */
static void expect_nothing_left(void)
{
    ck_assert(processes_nobody());
    ck_assert_int_eq(access(spawn.directory, F_OK), -1);
    ck_assert_int_eq(errno, ENOENT);
}

/* ---- their life ------------------------------------------------------------------------------------------------- */

TEST(all_workers_are_attached_to_a_daemon_that_is_named_after_the_run)
{
    struct message m;

    start_well(2);
    ck_assert_holds(spawn.directory, processes_path(print(PROCESSES_RUNTIME "/eps/run-%d-", (int)getpid())));
    ck_assert_int_eq(client_observer_status(&client, &m, &err), 0);
    ck_assert_uint_eq(m.status_reply.n_workers, 2);
    ck_assert_int_eq((int)m.status_reply.pid, spawn.children[0].process.pid);
}

/* So the terminal's Ctrl-C does not reach it. */
TEST(each_process_has_a_session_of_its_own)
{
    start_well(1);
    for (unsigned i = 0; i < spawn.n_children; i++)
        ck_assert_int_eq(getsid(spawn.children[i].process.pid), spawn.children[i].process.pid);
}

TEST(the_end_of_the_clients_session_ends_them_without_a_signal)
{
    start_well(2);
    client_link_close(&client);
    for (unsigned i = 0; i < spawn.n_children; i++) {
        await_end_of(&spawn.children[i]);
        ck_assert_int_eq(spawn.children[i].signal, 0);
    }
    client_spawn_stop(&spawn);
    expect_nothing_left();
}

TEST(a_worker_that_is_killed_before_steps_are_taken_ends_the_wait)
{
    struct message m;

    start_well(2);
    ck_assert_int_eq(kill(spawn.children[2].process.pid, SIGKILL), 0);
    ck_assert_int_eq(client_link_next(&client, &m, NULL, &err), -EIO);
    ck_assert_str_eq(err.text, "the worker (eps-worker) was killed by signal 9 (Killed)");
    ck_assert(client_spawn_lost_worker(&spawn)); /* another one may do better */
}

TEST(the_end_of_the_daemon_takes_the_workers_along_and_is_what_is_reported)
{
    struct message m;

    start_well(2);
    ck_assert_int_eq(kill(spawn.children[0].process.pid, SIGKILL), 0);
    ck_assert_int_eq(client_link_next(&client, &m, NULL, &err), -EIO); /* whoever's end is known first */
    ck_assert_str_eq(err.text, "the daemon (epsd) was killed by signal 9 (Killed)");
    ck_assert(!client_spawn_lost_worker(&spawn));
    for (unsigned i = 1; i < spawn.n_children; i++) {
        await_end_of(&spawn.children[i]);
        ck_assert_int_eq(spawn.children[i].signal, 0); /* by itself */
    }
}

TEST(what_a_killed_daemon_left_is_removed)
{
    start_well(1);
    ck_assert_int_eq(kill(spawn.children[0].process.pid, SIGKILL), 0);
    await_end_of(&spawn.children[0]);
    ck_assert_int_eq(access(print("%s/listener", spawn.directory), F_OK), 0);
    client_spawn_stop(&spawn);
    expect_nothing_left();
}

TEST(stopping_what_never_began_or_is_stopped_does_nothing)
{
    client_spawn_stop(&spawn);
    start_well(1);
    client_spawn_stop(&spawn);
    client_spawn_stop(&spawn);
    expect_nothing_left();
}

/* ---- programs that fail ----------------------------------------------------------------------------------------- */

static void put_script(const char *name, const char *text)
{
    ck_assert_int_eq(chmod(processes_put_text(name, text), 0700), 0);
}

static const struct {
    const char *epsd, *worker; /* scripts; "": the real program; NULL: none */
    int rc;
    const char *sentence; /* all of it */
} failures[] = {
    {NULL, "", -ENOENT, "epsd is not in programs"},
    {"#!/nowhere\n", "", -ENOENT,
     "epsd did not start: no such file or directory (looked for beside this program and in PATH)"},
    {"#!/bin/sh\necho epsd: no room >&2; exit 3\n", "", -EIO, "the daemon (epsd) ended with status 3: no room"},
    {"", NULL, -ENOENT, "eps-worker is not in programs"},
    {"", "#!/nowhere\n", -ENOENT,
     "eps-worker did not start: no such file or directory (looked for beside this program and in PATH)"},
    {"", "#!/bin/sh\necho eps-worker: no device >&2; exit 2\n", -EIO,
     "the worker (eps-worker) ended with status 2: no device"},
};

TEST_EACH(a_program_that_does_not_start_is_named_and_nothing_is_left, COUNT(failures))
{
    static const char *const names[] = {"epsd", "eps-worker"};
    const char *const scripts[] = {failures[_i].epsd, failures[_i].worker};

    ck_assert_int_eq(mkdir("programs", 0700), 0);
    for (int i = 0; i < 2; i++) {
        if (scripts[i] && *scripts[i])
            put_script(print("programs/%s", names[i]), scripts[i]);
        else if (scripts[i])
            ck_assert_int_eq(symlink(print(BIN_DIR "/%s", names[i]), print("programs/%s", names[i])), 0);
    }
    ck_assert_int_eq(start("programs", 2), failures[_i].rc);
    ck_assert_str_eq(err.text, failures[_i].sentence);
    expect_nothing_left();
}

/* $$ is the process id of the script itself. */
static const struct {
    const char *says, *words;
} ends[] = {
    {"", ""},
    {"echo no line of ours >&2", ""},
    {"echo eps-worker: one >&2; echo eps-worker: two >&2", ": two"},
    {"echo \"eps-worker[$$]: mine\" >&2; echo 'eps-worker[1]: of another' >&2", ": mine"},
    {"echo 'libgomp: Thread creation failed' >&2", ": Thread creation failed"},
};

TEST_EACH(the_last_words_are_the_childs_own_in_this_run, COUNT(ends))
{
    processes_put_text("log", "eps-worker: in the run before\n");
    ck_assert_int_eq(mkdir("programs", 0700), 0);
    put_script("programs/eps-worker", print("#!/bin/sh\n%s\nexit 4\n", ends[_i].says));
    ck_assert_int_eq(symlink(BIN_DIR "/epsd", "programs/epsd"), 0);
    ck_assert_int_eq(start("programs", 1), -EIO);
    ck_assert_str_eq(err.text, print("the worker (eps-worker) ended with status 4%s", ends[_i].words));
}

static int ask_script(void *data, struct error *why)
{
    (void)data;
    return access("began", F_OK) == 0 ? error_set(why, -EINTR, "interrupted") : 0;
}

/* It cannot notice the end of a session that it never had. */
TEST(a_daemon_without_a_session_is_told_to_end_at_once)
{
    ck_assert_int_eq(mkdir("programs", 0700), 0);
    put_script("programs/epsd", "#!/bin/sh\n: >began\nexec sleep 1000\n");
    client.watches[1] = (struct client_watch){.ask = ask_script};
    ck_assert_int_eq(start("programs", 1), -EINTR);
    ck_assert_str_eq(err.text, "interrupted");
    ck_assert_int_eq(spawn.children[0].signal, SIGTERM);
}

/* ---- what they are started with --------------------------------------------------------------------------------- */

TEST(a_program_is_looked_for_where_it_was_said_or_beside_this_one)
{
    char path[PATH_MAX];

    ck_assert_int_eq(client_spawn_find(path, NULL, "epsd", &err), 0);
    ck_assert_str_eq(path, BIN_DIR "/epsd");
    ck_assert_int_eq(client_spawn_find(path, NULL, "eps-nothing", &err), 0);
    ck_assert_str_eq(path, "eps-nothing"); /* in PATH, perhaps */
    processes_put_text("epsd", "");
    ck_assert_int_eq(client_spawn_find(path, ".", "epsd", &err), -ENOENT); /* it cannot be executed */
    ck_assert_str_eq(err.text, "epsd is not in .");
    ck_assert_int_eq(chmod("epsd", 0700), 0);
    ck_assert_int_eq(client_spawn_find(path, ".", "epsd", &err), 0);
    ck_assert_str_eq(path, "./epsd");
}

/* The variables whose names begin so, in order, with a space behind each. */
static const char *variables(char **env, const char *begin)
{
    static char all[500];

    all[0] = 0;
    for (; *env; env++)
        if (strncmp(*env, begin, strlen(begin)) == 0)
            strcat(strcat(all, *env), " ");
    return all;
}

static const struct {
    const char *name, *value; /* of the caller's, about waiting */
    const char *spins;
} waitings[] = {
    {NULL, NULL, "GOMP_SPINCOUNT=2000 "},
    {"GOMP_SPINCOUNT", "5", "GOMP_SPINCOUNT=5 "},
    {"OMP_WAIT_POLICY", "active", ""},
};

TEST_EACH(the_environment_is_the_callers_without_its_managers_and_bounds_spinning, COUNT(waitings))
{
    char notify[] = "NOTIFY_SOCKET=@mine";

    unsetenv("GOMP_SPINCOUNT");
    unsetenv("OMP_WAIT_POLICY");
    setenv("NOTIFY_SOCKET", "/run/manager", 1);
    setenv("WATCHDOG_USEC", "1", 1);
    setenv("WATCHDOG_PID", "1", 1);
    setenv("WATCHED", "by nobody", 1);
    if (waitings[_i].name)
        setenv(waitings[_i].name, waitings[_i].value, 1);
    for (int i = 0; i < 2; i++) {
        char **env = client_spawn_environment(i ? notify : NULL);
        ck_assert_str_eq(variables(env, "GOMP_"), waitings[_i].spins);
        ck_assert_str_eq(variables(env, "NOTIFY_"), i ? "NOTIFY_SOCKET=@mine " : "");
        ck_assert_str_eq(variables(env, "WATCH"), "WATCHED=by nobody ");
        free(env);
    }
}

static const struct {
    const char *follow;
    struct device_name device;
    uint32_t i, n;
    uint64_t device_mem;
    const char *line;
} lines[] = {
    {"--private=7",
     {.kind = DEVICE_CPU},
     2,
     3,
     1000,
     "--private=7 --connect lab --device cpu --share 3 --device-mem 1000B"},
    {NULL, {.kind = DEVICE_CUDA}, 1, 2, 0, "--connect lab --device cuda:0 --share 2"},
    {NULL, {.kind = DEVICE_CUDA}, 2, 2, 0, "--connect lab --device cuda:1 --share 2"},
    {NULL, {.kind = DEVICE_AUTO}, 2, 2, 0, "--connect lab --device auto:1 --share 2"},
    {NULL, {.kind = DEVICE_CUDA, .index = 3, .indexed = true}, 1, 1, 0, "--connect lab --device cuda:3 --share 1"},
};

TEST_EACH(several_workers_take_a_device_each_or_share_the_cpu, COUNT(lines))
{
    struct client_worker_arguments arguments;
    char lab[] = "lab", follow[20] = "", line[200] = "eps-worker";

    if (lines[_i].follow)
        strcpy(follow, lines[_i].follow);
    client_worker_arguments(&arguments, lab, lines[_i].follow ? follow : NULL, lines[_i].device, lines[_i].i,
                            lines[_i].n, lines[_i].device_mem);
    ck_assert_str_eq(arguments.argv[0], line);
    line[0] = 0;
    for (char **at = arguments.argv + 1; *at; at++)
        strcat(strcat(line, *line ? " " : ""), *at);
    ck_assert_str_eq(line, lines[_i].line);
}

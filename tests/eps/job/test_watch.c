/* Whoever owes something and does nothing is named and lost: real daemons and clients, workers that fall silent, threads
 * that are stopped. The limit is LIMIT seconds here, in which whoever is honest has done something. */
#include "eps/daemon.h"
#include "eps/base/progress.h"
#include "proto/wire/session.h"
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

SUITE_LABELS(slow)

enum { LIMIT = 8, REFUSED = 42 };

/* A process that ends with this one; its stderr is a file of this name. */
static pid_t begin(const char *log)
{
    const pid_t parent = getpid(), pid = fork();

    ck_assert_int_ge(pid, 0);
    if (pid > 0)
        return pid;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent)
        _exit(0);
    dup2(open(processes_path(log), O_WRONLY | O_CREAT | O_APPEND, 0600), STDERR_FILENO);
    return 0;
}

static pid_t start_daemon(void)
{
    struct daemon_options options = {.most_quiet = LIMIT};
    char directory[300];
    struct error err = {""};
    const pid_t pid = begin("epsd.log");

    if (pid > 0)
        return pid;
    log_name("epsd");
    signal(SIGPIPE, SIG_IGN);
    options.directory = directory;
    if (session_directory(directory, sizeof directory, "lab", &err) || daemon_run(&options, &err))
        _exit(1);
    _exit(0);
}

/* What a worker of the tests never does; the last asks for what only it could bring about. */
enum never { ANSWER_ASSIGN, CONTRIBUTE, RELEASE, WAIT_ITS_TURN };

static void on_open(struct session *s, const struct message *welcome)
{
    (void)s, (void)welcome;
}

static void on_message(struct session *s, const struct message *m, const int *fds, unsigned n_fds)
{
    const enum never never = *(const enum never *)session_data(s);
    const struct message assigned = {.kind = MESSAGE_ASSIGNED, .assigned = {.arena_bytes = 1}};
    struct message failed = {.kind = MESSAGE_FAILED, .failed = {.code = -EDOM}};

    for (unsigned i = 0; i < n_fds; i++)
        close(fds[i]);
    snprintf(failed.failed.error.text, sizeof failed.failed.error.text, "no mood");
    if (m->kind == MESSAGE_ASSIGN && never != ANSWER_ASSIGN)
        session_send(s, &assigned);
    if (m->kind == MESSAGE_SHARE && never == RELEASE)
        session_send(s, &failed);
    if (m->kind == MESSAGE_SHARE && never == WAIT_ITS_TURN)
        session_send(s, &(struct message){.kind = MESSAGE_PULL, .pull = {.version = m->share.step + 1}});
}

static void on_closed(struct session *s, const char *reason)
{
    (void)s;
    _exit(reason && strncmp(reason, "refused: ", 9) == 0 ? REFUSED : 1);
}

/* Its session is in order, and answers each PING. */
static pid_t start_idler(enum never never)
{
    static const struct session_events events = {on_open, on_message, on_closed};
    struct message hello = {.kind = MESSAGE_HELLO, .hello = {.role = ROLE_WORKER, .device = "cpu", .budget = 1 << 28}};
    struct session *session;
    struct error err;
    char directory[300];
    uv_loop_t loop;
    const pid_t pid = begin("idler.log");

    if (pid > 0)
        return pid;
    uv_loop_init(&loop);
    session_directory(directory, sizeof directory, "lab", &err);
    while (session_connect(&session, &loop, directory, &hello, &events, &never, &err))
        poll(NULL, 0, 5);
    uv_run(&loop, UV_RUN_DEFAULT);
    _exit(1);
}

static pid_t start_worker(void)
{
    const char *const argv[] = {"--connect", "lab", "--device-mem", "256MiB", NULL};

    return processes_start("eps-worker", argv, processes_path("worker.log"));
}

static pid_t start_training(const char *out, const char *steps)
{
    char command[600];
    const char *const argv[] = {"-c", command, NULL};

    snprintf(command, sizeof command,
             "exec %s/eps train --connect lab --model tiny.json --data tiny.txt --batch 4 --steps %s --out %s >said",
             BIN_DIR, steps, out);
    return processes_start("/bin/bash", argv, processes_path("client.log"));
}

static void stop(pid_t daemon)
{
    struct eps_error error = {""};

    ck_assert_msg(eps_stop("lab", &error) == 0, "%s", error.text);
    ck_assert_int_eq(processes_wait(daemon), 0);
}

static void setup(void)
{
    processes_setup();
    processes_config("tiny.json", 2, 2, 16, 32);
    processes_text("tiny.txt", 8000);
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE(setup, processes_remove)

static const struct {
    const char *why, *client;
} idlers[] = {
    [ANSWER_ASSIGN] = {"and the job waits for it to claim its memory",
                       " (cpu) was lost after 0 steps: it hangs: nothing"},
    [CONTRIBUTE] = {"and the job waits for its part of the step", " (cpu) was lost in step 1: it hangs: nothing done"},
    [RELEASE] = {"and the last job's memory waits for it to let go", " (cpu): no mood"},
    [WAIT_ITS_TURN] = {"a pull for a step that is not open", " (cpu) was lost in step 1: a pull for a step"},
};

TEST_EACH(a_worker_that_falls_silent_is_named_and_lost_and_the_next_job_goes_on, WAIT_ITS_TURN + 1)
{
    const pid_t daemon = start_daemon(), idler = start_idler((enum never)_i);

    processes_await_workers("lab", 1);
    const pid_t worker = start_worker();
    processes_await_workers("lab", 2);
    ck_assert_int_eq(processes_wait(start_training("one", "2")), 1);
    expect_file("client.log", idlers[_i].client);
    ck_assert_int_eq(processes_wait(start_training("two", "2")), 0); /* waits for what the first has not given back */
    ck_assert_int_eq(processes_wait(idler), REFUSED);
    expect_file("epsd.log", " refused: ", idlers[_i].why);
    stop(daemon);
    ck_assert_int_eq(processes_wait(worker), 0);
}

/* The thread of this name that made the others of it, its team; 0: there is none. */
static pid_t find(pid_t pid, const char *name)
{
    char path[300], comm[64];
    pid_t first = 0;

    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *tasks = opendir(path);
    ck_assert_ptr_nonnull(tasks);
    for (struct dirent *entry = readdir(tasks); entry; entry = readdir(tasks)) {
        const pid_t thread = (pid_t)atoi(entry->d_name);
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/comm", (int)pid, entry->d_name);
        FILE *file = thread ? fopen(path, "r") : NULL;
        const bool is_it = file && fgets(comm, sizeof comm, file) && strncmp(comm, name, strlen(name)) == 0;
        if (file)
            fclose(file);
        if (is_it && (first == 0 || thread < first))
            first = thread;
    }
    closedir(tasks);
    return first;
}

static bool waits(pid_t pid, pid_t thread)
{
    char path[100], text[64] = "";

    snprintf(path, sizeof path, "/proc/%d/task/%d/syscall", (int)pid, (int)thread);
    FILE *file = fopen(path, "r");
    if (file && !fgets(text, sizeof text, file))
        text[0] = 0;
    if (file)
        fclose(file);
    return strtol(text, NULL, 10) == SYS_futex;
}

/* Stops the thread where it waits for something to do: elsewhere it might hold what the process's other threads need,
 * which who hangs in earnest does not. False: it must not be traced here. */
static bool hold(pid_t pid, pid_t thread)
{
    if (ptrace(PTRACE_SEIZE, thread, NULL, NULL))
        return false;
    for (;;) {
        if (ptrace(PTRACE_INTERRUPT, thread, NULL, NULL))
            return false;
        ck_assert_int_eq(waitpid(thread, NULL, __WALL), thread);
        if (waits(pid, thread))
            return true;
        ck_assert_int_eq(ptrace(PTRACE_CONT, thread, NULL, NULL), 0);
        poll(NULL, 0, 1);
    }
}

/* Its process ends; it is not gone before it is seen off. */
static void see_off(pid_t thread)
{
    int status = 0;

    while (waitpid(thread, &status, __WALL) == thread && WIFSTOPPED(status))
        ;
}

static bool has_steps(void *path)
{
    char *text = access(path, R_OK) == 0 ? processes_read(path) : NULL;
    const bool yes = text && strstr(text, "\"step\": 3") != NULL;

    free(text);
    return yes;
}

static const struct {
    const char *thread, *client;
} threads_that_hang[] = {
    {"compute", "was lost in step "},
    {"optimizer", "the daemon's optimizer thread hangs: nothing done for "},
};

TEST_EACH(a_thread_that_hangs_in_the_middle_of_a_step_ends_the_run_with_a_word, 2)
{
    const bool is_worker = _i == 0;
    const pid_t daemon = start_daemon(), worker = start_worker();
    char path[300];

    processes_await_workers("lab", 1);
    const pid_t client = start_training("one", "1000000");
    snprintf(path, sizeof path, "%s", processes_path("one/metrics.jsonl"));
    ck_assert(processes_until(has_steps, path));
    const pid_t pid = is_worker ? worker : daemon, thread = find(pid, threads_that_hang[_i].thread);
    ck_assert_int_gt(thread, 0);
    if (!hold(pid, thread)) {
        fprintf(stderr, "test_watch: no thread is held: %s\n", strerror(errno));
        return;
    }
    ck_assert_int_eq(processes_wait(client), 1);
    expect_file("client.log", threads_that_hang[_i].client);
    see_off(thread);
    ck_assert_int_eq(processes_wait(worker), 1);
    if (is_worker) {
        expect_file("client.log", "it hangs: nothing done for ");
        expect_file("worker.log", "refused: it hangs: nothing done for ");
        stop(daemon);
    } else {
        ck_assert_int_eq(processes_wait(daemon), 1);
        expect_file("epsd.log", "the optimizer thread hangs: nothing done for ");
    }
}

/* The ticks that pass until it is said to hang; 0: more than 1,000. */
static unsigned ticks_left(struct silence w, bool owes, uint64_t progress, double allowance)
{
    for (unsigned n = 1; n <= 1000; n++)
        if (silence_tick(&w, owes, progress, 3, allowance))
            return n;
    return 0;
}

TEST(the_limit_is_a_multiple_of_the_longest_silence_that_ended_well)
{
    struct silence w = {0};

    ck_assert_uint_eq(ticks_left(w, true, 0, 0), 4);
    ck_assert_uint_eq(ticks_left(w, true, 0, 2.5), 6);
    ck_assert_uint_eq(ticks_left(w, false, 0, 0), 0); /* waiting is no silence */
    for (int i = 0; i < 3; i++)
        ck_assert(!silence_tick(&w, true, 0, 3, 0));
    ck_assert(!silence_tick(&w, true, 1, 3, 0)); /* it has come back after 3 */
    ck_assert_uint_eq(ticks_left(w, true, 1, 0), 25);
    for (int i = 0; i < 20; i++)
        ck_assert(!silence_tick(&w, true, 1, 3, 0));
    ck_assert(!silence_tick(&w, false, 1, 3, 0)); /* nothing is owed any more */
    ck_assert_uint_eq(ticks_left(w, true, 1, 0), 25);
}

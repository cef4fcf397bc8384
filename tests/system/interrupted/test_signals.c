/* Signals at every moment of start-up and shut-down: SIGTERM, SIGINT, SIGHUP and SIGKILL in turn for epsd and
 * eps-worker after each of their system calls until they work (ptrace stops them there, so the moments are the same
 * ones always), and for all three programs at the stages of a run. Then nothing may be left: no process, directory,
 * socket or lock. */
#include "client/daemon/observer.h"
#include "proto/wire/session.h"
#include "tests/kit/command.h"
#include "tests/kit/driver.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <inttypes.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

static const int signals[] = {SIGTERM, SIGINT, SIGHUP, SIGKILL};

enum { N_SIGNALS = sizeof signals / sizeof *signals };

/* The thread sanitizer keeps a signal until a call of its choice, and for ever if it came while it allocated for
 * itself: a moment chosen by a system call would be its own, not ours. */
enum { CAN_BE_TRACED = !THREAD_SANITIZED };

/* Before a program makes or asks for anything there is little to see: only every so many moments are tried. */
enum { EARLY_STRIDE = SANITIZED ? 240 : 60, STRIDE = SANITIZED ? 7 : 2, TRACE_MAX = 100000 };

static char daemon_directory[300];

static void setup(void)
{
    processes_setup();
    snprintf(daemon_directory, sizeof daemon_directory, "%s", processes_path(PROCESSES_RUNTIME "/eps/lab"));
}

SUITE_FIXTURE(setup, processes_remove)

/* Starts a program that stops before its first instruction. */
static pid_t start_traced(const char *program, const char *const *argv)
{
    char path[400];
    const char *all[16] = {path};
    int status;
    pid_t pid;

    snprintf(path, sizeof path, "%s/%s", BIN_DIR, program);
    for (size_t i = 0; argv[i]; i++)
        all[i + 1] = argv[i];
    pid = fork();
    ck_assert_int_ge(pid, 0);
    if (pid == 0) {
        int fd = open("/dev/null", O_RDWR);
        dup2(fd, STDOUT_FILENO);
        dup2(fd, STDERR_FILENO);
        for (size_t i = 0; i < N_SIGNALS - 1; i++)
            signal(signals[i], SIG_DFL);
        setenv("ASAN_OPTIONS", "detect_leaks=0", 1); /* it hangs now and then in a process that was traced */
        if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) == 0)
            execv(path, (char *const *)all);
        _exit(127);
    }
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    if (!WIFSTOPPED(status)) {
        puts("skipped: processes may not be traced here");
        _exit(77);
    }
    ck_assert_int_eq(ptrace(PTRACE_SETOPTIONS, pid, NULL, PTRACE_O_TRACESYSGOOD | PTRACE_O_EXITKILL), 0);
    return pid;
}

/* On to the next system call's beginning or end; its number at a beginning, -1 at an end, -2: it has ended. */
static long step(pid_t pid, int *status)
{
    struct __ptrace_syscall_info info;
    int pass = 0;

    for (;;) {
        ck_assert_int_eq(ptrace(PTRACE_SYSCALL, pid, NULL, pass), 0);
        ck_assert_int_eq(waitpid(pid, status, 0), pid);
        if (!WIFSTOPPED(*status))
            return -2;
        if (WSTOPSIG(*status) == (SIGTRAP | 0x80))
            break;
        pass = WSTOPSIG(*status) == SIGTRAP ? 0 : WSTOPSIG(*status);
    }
    ck_assert_int_gt((int)ptrace(PTRACE_GET_SYSCALL_INFO, pid, sizeof info, &info), 0);
    return info.op == PTRACE_SYSCALL_INFO_ENTRY ? (long)info.entry.nr : -1;
}

/* Runs it up to stop number n, or until its loop waits for the first time, whichever comes first; how many stops.
 * *begun, which may be NULL, is the first of this system call. */
static unsigned run_to(pid_t pid, unsigned n, long begins, unsigned *begun)
{
    int status;
    bool found = false;

    for (unsigned i = 0; i < n; i++) {
        long call = step(pid, &status);
        ck_assert_int_ne(call, -2);
        if (begun && call == begins && !found)
            *begun = i;
        found = found || call == begins;
        if (call == SYS_epoll_wait || call == SYS_epoll_pwait)
            return i;
    }
    return n;
}

static unsigned next_stop(unsigned n, unsigned begun)
{
    if (n >= begun)
        return n + STRIDE;
    return n + EARLY_STRIDE < begun ? n + EARLY_STRIDE : begun;
}

/* The signal waits for it when it is let go. */
static int send_and_wait(pid_t pid, int number)
{
    ck_assert_int_eq(kill(pid, number), 0);
    ck_assert(ptrace(PTRACE_DETACH, pid, NULL, NULL) == 0 || errno == ESRCH); /* killed, it is none of ours any more */
    return processes_wait(pid);
}

static bool nothing_is_left(void *context)
{
    (void)context;
    return access(daemon_directory, F_OK) != 0;
}

/* The next daemon takes over what a killed one has left, and removes it with its own. */
static void listen_after(int number)
{
    static const char *const argv[] = {"--listen", "lab", NULL};

    if (number != SIGKILL)
        return;
    const pid_t next = processes_start("epsd", argv, NULL);
    processes_await_workers("lab", 0);
    ck_assert_int_eq(kill(next, SIGTERM), 0);
    ck_assert_int_eq(processes_wait(next), 0);
}

/* From the moment in which there is something to leave behind, its end is an orderly one. */
TEST_IF(daemon_meets_a_signal_at_each_system_call_of_its_start, CAN_BE_TRACED)
{
    static const char *const argv[] = {"--listen", "lab", NULL};
    unsigned begun = 0, turn = 0;
    pid_t pid = start_traced("epsd", argv);
    unsigned n_stops = run_to(pid, TRACE_MAX, SYS_mkdir, &begun);

    ck_assert_uint_lt(n_stops, TRACE_MAX);
    ck_assert(session_is_live(daemon_directory));
    ck_assert_int_eq(send_and_wait(pid, SIGTERM), 0);
    ck_assert_int_eq(rmdir(processes_path(PROCESSES_RUNTIME "/eps")), 0);
    for (unsigned n = 0; n <= n_stops; n = next_stop(n, begun)) {
        const int number = signals[turn++ % N_SIGNALS];
        pid = start_traced("epsd", argv);
        run_to(pid, n, 0, NULL);
        const bool made = access(processes_path(PROCESSES_RUNTIME "/eps"), F_OK) == 0;
        ck_assert(number != SIGHUP || kill(pid, SIGTERM) == 0); /* once it takes signals, SIGHUP does not end it */
        const int status = send_and_wait(pid, number);
        ck_assert_msg(status == 128 + number || (status == 0 && number != SIGKILL) ||
                          (status == 128 + SIGTERM && number == SIGHUP),
                      "stop %u: %d", n, status);
        ck_assert_msg(!made || number == SIGKILL || status == 0, "stop %u of %u: killed in its tracks", n, n_stops);
        listen_after(number);
        ck_assert_msg(nothing_is_left(NULL), "stop %u of %u", n, n_stops);
        rmdir(processes_path(PROCESSES_RUNTIME "/eps"));
    }
}

static bool has_no_worker(void *context)
{
    (void)context;
    return processes_workers("lab") == 0;
}

/* It leaves nothing, and the daemon knows it no more. */
TEST_IF(worker_meets_a_signal_at_each_system_call_of_its_start, CAN_BE_TRACED)
{
    static const char *const argv[] = {"--connect", "lab", "--device-mem", "64MiB", NULL};
    unsigned begun = 0, turn = 0;
    struct eps_error error;
    pid_t daemon = processes_daemon("lab", 0, NULL), pid = start_traced("eps-worker", argv);
    const unsigned n_stops = run_to(pid, TRACE_MAX, SYS_connect, &begun);

    ck_assert_uint_lt(n_stops, TRACE_MAX);
    ck_assert_int_eq(send_and_wait(pid, SIGTERM), 0);
    for (unsigned n = 0; n <= n_stops; n = next_stop(n, begun)) {
        const int number = signals[turn++ % N_SIGNALS];
        pid = start_traced("eps-worker", argv);
        run_to(pid, n, 0, NULL);
        const int status = send_and_wait(pid, number);
        ck_assert_msg(status == 128 + number || (status == 0 && number != SIGKILL), "stop %u: %d", n, status);
    }
    ck_assert(processes_until(has_no_worker, NULL));
    ck_assert_msg(eps_stop("lab", &error) == 0, "%s", error.text);
    ck_assert_int_eq(processes_wait(daemon), 0);
    ck_assert(nothing_is_left(NULL));
}

/* A worker whose daemon ends while it attaches ends too. If its daemon is killed, it waits for the next one until it is
 * told to end. */
TEST_EACH(worker_ends_when_its_daemon_does_while_it_attaches, 2)
{
    static const char *const argv[] = {"--connect", "lab", "--device-mem", "64MiB", NULL};
    pid_t daemon = processes_daemon("lab", 0, NULL), pid = start_traced("eps-worker", argv);

    run_to(pid, TRACE_MAX, 0, NULL); /* it has said HELLO */
    ck_assert_int_eq(kill(daemon, _i ? SIGKILL : SIGTERM), 0);
    ck_assert_int_eq(processes_wait(daemon), _i ? 128 + SIGKILL : 0);
    ck_assert_int_eq(ptrace(PTRACE_DETACH, pid, NULL, NULL), 0);
    if (_i)
        ck_assert_int_eq(kill(pid, SIGTERM), 0);
    const int status = processes_wait(pid);
    ck_assert_msg(status == 0 || status == 1, "%d", status);
}

static bool no_process_is_left(void *context)
{
    (void)context;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
    return !processes_find("epsd") && !processes_find("eps-worker") && !processes_find("eps");
}

/* A private daemon that nobody comes to: its client was killed as it started, when it worked already, or before it knew
 * of anyone. */
TEST_EACH(private_daemon_ends_with_its_parent, 2)
{
    char follow[40];
    const char *const argv[] = {follow, "--listen", daemon_directory, NULL};
    pid_t middle = fork();

    ck_assert_int_ge(middle, 0);
    if (middle == 0) {
        snprintf(follow, sizeof follow, "--private=%d", (int)getpid());
        pid_t pid = start_traced("epsd", argv);
        run_to(pid, _i ? 1 : TRACE_MAX, 0, NULL);
        ck_assert_int_eq(ptrace(PTRACE_SETOPTIONS, pid, NULL, 0), 0); /* it is not to be killed with its tracer */
        if (_i)
            kill(pid, SIGSTOP); /* until its parent is gone */
        ptrace(PTRACE_DETACH, pid, NULL, NULL);
        kill(getpid(), SIGKILL);
    }
    ck_assert_int_eq(processes_wait(middle), 128 + SIGKILL);
    const pid_t pid = processes_find("epsd"); /* ours now */
    if (pid > 0)
        kill(pid, SIGCONT);
    ck_assert(processes_until(no_process_is_left, NULL));
    ck_assert(nothing_is_left(NULL));
}

static void *start_private(void *out)
{
    char follow[40];
    const char *const argv[] = {follow, "--listen", daemon_directory, NULL};

    snprintf(follow, sizeof follow, "--private=%d", (int)getpid());
    *(pid_t *)out = processes_start("epsd", argv, "log");
    return NULL;
}

/* As where the machine is so slow that it gives up a session which is just open, and makes another. A thread starts the
 * daemon, and ends. */
TEST(private_daemon_waits_for_a_client_that_has_asked_for_nothing)
{
    struct client_link link;
    struct error err;
    pthread_t thread;
    uint32_t n;
    pid_t pid;

    ck_assert_int_eq(pthread_create(&thread, NULL, start_private, &pid), 0);
    pthread_join(thread, NULL);
    for (int i = 0; i < 3; i++) {
        processes_await_text("log", i == 0 ? "listening" : print("client %d gone", i));
        driver_attach(&link, "lab", ROLE_CLIENT);
        if (i == 2)
            ck_assert_int_eq(client_await_workers(&n, &link, 0, 60000, &err), 0);
        client_link_free(&link);
    }
    ck_assert_int_eq(processes_wait(pid), 0);
    ck_assert(nothing_is_left(NULL));
}

/* ---- the last checkpoint of a private run ------------------------------------------------------------------------ */

/* Until it has done some steps. */
static pid_t start_run(const char *save_every)
{
    const char *const argv[] = {"train",  "--model",      "tiny.json", "--data",  "tiny.txt", "--out",
                                "run",    "--steps",      "1000000",   "--batch", "4",        "--device-mem",
                                "256MiB", "--save-every", save_every,  NULL};

    processes_config("tiny.json", 2, 2, 32, 32);
    processes_text("tiny.txt", 8000);
    const pid_t pid = processes_start("eps", argv, NULL);
    processes_await_text("run/metrics.jsonl", "\"step\": 3");
    return pid;
}

/* The step of the run's only checkpoint; 0: it has none. */
static uint64_t saved_step(void)
{
    char target[40] = "";
    uint64_t step = 0;

    if (readlink("run/latest", target, sizeof target - 1) > 0)
        ck_assert_int_eq(sscanf(target, "step-%" SCNu64, &step), 1);
    return step;
}

/* The one that was promised: without --save-every, none was. Nothing else is left. */
TEST_EACH(a_private_run_whose_client_is_killed_is_saved_if_that_was_promised, 2)
{
    const pid_t client = start_run(_i ? "900000" : "0");

    ck_assert_int_eq(kill(client, SIGKILL), 0);
    ck_assert_int_eq(processes_wait(client), 128 + SIGKILL);
    ck_assert(processes_until(no_process_is_left, NULL));
    ck_assert(session_list(NULL, NULL, NULL) == 0 && strcmp(outputs_names(PROCESSES_RUNTIME "/eps"), "") == 0);
    if (_i == 0) {
        ck_assert_uint_eq(saved_step(), 0);
        return;
    }
    ck_assert_uint_ge(saved_step(), 3);
    expect("eps verify run", 0);
    expect(print("eps train --resume run --steps %ju", (uintmax_t)saved_step() + 2), 0, "continuing from ");
    ck_assert_uint_eq(saved_step() > 4, 1);
    expect("eps verify run", 0);
}

/* Whoever goes on meanwhile waits for it, and is told why; also in another directory. */
TEST_EACH_IF(a_resumed_run_waits_for_the_last_checkpoint_of_the_one_before, 2,
             !SANITIZED) /* which wants to be preloaded first */
{
    setenv("SLOW_FLUSH", processes_path("held"), 1);
    setenv("LD_PRELOAD", BIN_DIR "/libslow_disk.so", 1);
    const pid_t client = start_run("900000");
    unsetenv("LD_PRELOAD");
    processes_put_text("held", "");
    ck_assert_int_eq(kill(client, SIGKILL), 0);
    ck_assert_int_eq(processes_wait(client), 128 + SIGKILL);
    const char *line = print("exec %s/eps train --resume run %s >said 2>&1", BIN_DIR, _i ? "--out other" : "");
    const pid_t resumed = processes_start("/bin/sh", (const char *const[]){"-c", line, NULL}, NULL);
    processes_await_text("said", "run: the run before this one is being saved, as its client is gone");
    ck_assert_int_eq(access("run/latest", F_OK), -1);
    ck_assert_int_eq(unlink("held"), 0);
    processes_await_text("said", "continuing from ");
    ck_assert_uint_ge(saved_step(), 3);
    ck_assert_int_eq(kill(resumed, SIGINT), 0);
    ck_assert_int_eq(processes_wait(resumed), 130);
    ck_assert(processes_until(no_process_is_left, NULL));
}

/* A run that is live may be begun from: it stays as it is. */
TEST(a_run_begins_from_another_that_goes_on)
{
    const pid_t client = start_run("2");

    ck_assert_int_eq(kill(client, SIGSTOP), 0); /* no checkpoint is removed meanwhile */
    const char *line = print("exec %s/eps train --resume run --out other >said 2>&1", BIN_DIR);
    const pid_t other = processes_start("/bin/sh", (const char *const[]){"-c", line, NULL}, NULL);
    processes_await_text("said", "continuing from run/step-");
    processes_await_text("other/metrics.jsonl", "\"step\": "); /* before its first step there is nothing to save */
    ck_assert_int_eq(kill(other, SIGINT), 0);
    ck_assert_int_eq(processes_wait(other), 130);
    ck_assert_int_eq(kill(client, SIGCONT) | kill(client, SIGINT), 0);
    ck_assert_int_eq(processes_wait(client), 130);
    expect("eps verify run && eps verify other", 0);
}

/* ---- the stages of a run ----------------------------------------------------------------------------------------- */

enum { STAGE_DAEMON, STAGE_WORKER, STAGE_STEPS, STAGES };

/* The run has come so far. */
static bool is_at(void *context)
{
    const int stage = *(int *)context;
    struct stat info;

    if (stage == STAGE_DAEMON)
        return processes_find("epsd") != 0;
    if (stage == STAGE_WORKER)
        return processes_find("eps-worker") != 0;
    return stat(processes_path("out/metrics.jsonl"), &info) == 0 && info.st_size > 0;
}

/* In a file that may still be to come. */
static unsigned count(const char *path, const char *text)
{
    return access(processes_path(path), F_OK) == 0 ? processes_count(path, text) : 0;
}

/* A worker that trains is replaced. Before, daemon and workers are started anew, until steps are taken. */
static bool goes_on(void *context)
{
    const int stage = *(int *)context;

    return count("out/log", " joins after ") > 0 ||
           (stage == STAGE_WORKER && count("out/metrics.jsonl", "\"step\": 3") > 0);
}

/* A run with processes of its own, and one of the three is killed, or told to end by one of the other signals. */
TEST_EACH(a_run_meets_a_signal_at_each_stage, 3 * STAGES)
{
    static const char *const programs[] = {"eps", "epsd", "eps-worker"};
    static const char *const argv[] = {"train",   "--model", "tiny.json", "--data", "tiny.txt",     "--out",  "out",
                                       "--steps", "100000",  "--batch",   "4",      "--device-mem", "256MiB", NULL};
    const char *program = programs[_i % 3];
    int stage = _i / 3;
    const int number = signals[(_i + 2 * stage) % N_SIGNALS];

    if (stage == STAGE_DAEMON && strcmp(program, "eps-worker") == 0)
        TEST_SKIP("there is no worker yet");
    processes_config("tiny.json", 2, 2, 32, 32);
    processes_text("tiny.txt", 8000);
    signal(SIGHUP, SIG_DFL);
    pid_t client = processes_start("eps", argv, NULL);
    ck_assert(processes_until(is_at, &stage));
    const pid_t victim = strcmp(program, "eps") == 0 ? client : processes_find(program);
    ck_assert_int_gt(victim, 0);
    ck_assert_int_eq(kill(victim, number), 0);
    if (strcmp(program, "eps-worker") == 0) {
        ck_assert(processes_until(goes_on, &stage));
        kill(client, SIGKILL);
    }
    const int status = processes_wait(client);
    ck_assert_msg(status > 0, "%s, signal %d, stage %d: status %d", program, number, stage, status);
    ck_assert_msg(processes_until(no_process_is_left, NULL), "%s, signal %d, stage %d", program, number, stage);
    ck_assert_msg(session_list(NULL, NULL, NULL) == 0 && (access(PROCESSES_RUNTIME "/eps", F_OK) != 0 ||
                                                          strcmp(outputs_names(PROCESSES_RUNTIME "/eps"), "") == 0),
                  "%s, signal %d, stage %d: something is left", program, number, stage);
}

/* A daemon that is killed: its client and its workers say so, the workers find the next daemon at its address, and the
 * run is resumed. And a run that is interrupted while it waits for a worker. Real processes. */
#include "tests/kit/command.h"
#include "tests/kit/driver.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/inprocess/stage.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static void setup(void)
{
    processes_setup();
    processes_config_with("model.json", 1, 2, 16, 32, "\"attn_pdrop\": 0.1");
    processes_text("text.txt", 12000);
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE(setup, processes_remove)

#define RUN                                                                                                            \
    "--model model.json --data text.txt --batch 8 --seq 32 --schedule constant --warmup 0 --parts 2 --deterministic "

static pid_t start_run(const char *options)
{
    const char *line =
        print("exec %s/eps train " RUN "%s --connect lab --out run >run.said 2>run.err", BIN_DIR, options);

    return processes_start("/bin/sh", (const char *const[]){"-c", line, NULL}, NULL);
}

/* The run ends with the bits of one that was left alone. */
static void check_resumed(void)
{
    expect("n=$(ls run | sed -n 's/^step-\\([0-9]*\\)$/\\1/p' | sort -n | tail -n 1); eps train --resume run --connect "
           "lab --steps $((n + 2)) && "
           "eps train " RUN "--connect lab --out whole --steps $((n + 2))",
           0);
    outputs_check_same_latest("run", "whole");
}

TEST(workers_find_the_successor_of_a_killed_daemon_and_the_run_is_resumed)
{
    const pid_t daemon = processes_daemon("lab", 0, NULL), one = processes_worker("lab", "256MiB", "one"),
                two = processes_worker("lab", "256MiB", "two");

    processes_await_workers("lab", 2);
    const pid_t run = start_run("--steps 1000000 --save-every 3");
    processes_await_text("run/metrics.jsonl", "\"step\": 7"); /* so step 3 is saved */
    ck_assert_int_eq(kill(daemon, SIGKILL), 0);
    ck_assert_int_eq(processes_wait(run), 1);
    expect_file("run.err", "eps train: the daemon is gone: ", "; eps train --resume run continues from step ");
    processes_await_text("one", "/lab is gone: ");
    processes_await_text("two", "; waiting for the next one there");
    ck_assert_int_eq(processes_wait(daemon), 128 + SIGKILL);
    const pid_t next = processes_daemon("lab", 0, NULL);
    processes_await_workers("lab", 2);
    check_resumed();
    ck_assert_uint_eq(processes_count("one", "is gone"), 1);

    /* Again, and nobody comes: a signal ends a worker that waits. One that its daemon released has ended. */
    ck_assert_int_eq(kill(next, SIGKILL), 0);
    ck_assert_int_eq(processes_wait(next), 128 + SIGKILL);
    processes_await_text("two", "waiting for the next one there\neps-worker: attached");
    ck_assert_int_eq(kill(two, SIGTERM), 0);
    ck_assert_int_eq(processes_wait(two), 0);
    const pid_t last = processes_daemon("lab", 0, NULL);
    processes_await_workers("lab", 1);
    expect_stop(last);
    ck_assert_int_eq(processes_wait(one), 0);
}

/* The session's second is shortened to 10 ms, so "15 s" last 150 ms. A machine that sleeps, or a cable, is as a stopped
 * process. The worker gives up no daemon that answers, and ends when it is told to. */
TEST(a_worker_that_was_silent_comes_again_until_it_is_told_to_end)
{
    struct side second = {0}, first = {.next = &second};
    struct stage st;

    stage_begin(&st);
    stage_listen(&st, &first);
    const pid_t worker =
        processes_start("eps-worker", (const char *const[]){"--connect", st.directory, NULL}, "worker");
    stage_run_until(&st, &first.n_opened, 1);
    processes_await_text("worker", "attached as a worker");
    ck_assert_int_eq(kill(worker, SIGSTOP), 0);
    session_set_tick(first.s, 10);
    stage_run_until(&st, &first.n_closed, 1);
    ck_assert_str_eq(first.reason, "silent for 15 s");
    ck_assert_int_eq(kill(worker, SIGCONT), 0);
    stage_run_until(&st, &second.n_opened, 1);
    expect_file("worker", "has given this worker up, refused: silent for 15 s; coming again");
    session_close(second.s);
    stage_run_until(&st, &second.n_closed, 1);
    ck_assert_int_eq(processes_wait(worker), 0);
    stage_end(&st);
}

/* The daemon is stopped, so it answers nothing, and goes on; or dies, and another comes. What the worker waits for
 * before it gives this session up takes no time here. */
TEST_EACH_IF(a_worker_that_a_stopped_daemon_does_not_answer_comes_again, 2, !SANITIZED)
{
    pid_t daemon = processes_daemon("lab", 0, NULL);

    ck_assert_int_eq(kill(daemon, SIGSTOP), 0);
    outputs_write(".", "skip", "");
    setenv("SKIP_WAITS", processes_path("skip"), 1);
    setenv("LD_PRELOAD", BIN_DIR "/libjump_clock.so", 1);
    const pid_t worker = processes_worker("lab", "256MiB", "worker");
    unsetenv("LD_PRELOAD");
    processes_await_text("worker", "does not answer: it is stopped, or its machine is overloaded; trying again in 2 s");
    ck_assert_int_eq(unlink("skip") | kill(daemon, _i == 0 ? SIGCONT : SIGKILL), 0);
    if (_i == 1) {
        ck_assert_int_eq(processes_wait(daemon), 128 + SIGKILL);
        daemon = processes_daemon("lab", 0, NULL);
    }
    processes_await_workers("lab", 1);
    expect_stop(daemon);
    ck_assert_int_eq(processes_wait(worker), 0);
}

/* As a daemon that takes its connection and dies. */
TEST(a_worker_whose_first_connection_breaks_comes_again)
{
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    const int listener = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);

    outputs_make("raw");
    snprintf(at.sun_path, sizeof at.sun_path, "%s", processes_path("raw/listener"));
    ck_assert_int_eq(bind(listener, (struct sockaddr *)&at, sizeof at) | listen(listener, 8), 0);
    const pid_t worker = processes_worker(processes_path("raw"), "256MiB", "worker");
    close(accept4(listener, NULL, NULL, SOCK_CLOEXEC));
    processes_await_text("worker", "/raw: closed before the session was open; trying again in 2 s");
    ck_assert_int_eq(kill(worker, SIGTERM), 0);
    ck_assert_int_eq(processes_wait(worker), 0);
    close(listener);
}

static bool waits(void *viewer)
{
    struct message status;

    driver_status(viewer, &status);
    return status.status_reply.waits;
}

/* The client has been told of the loss, and the step that it has opened since waits for another worker. */
static void await_waiting(void)
{
    struct client_link viewer;

    processes_await_text("run.said", "waits for another worker to attach");
    driver_look(&viewer, "lab");
    ck_assert(processes_until(waits, &viewer));
    client_link_free(&viewer);
}

/* The open step cannot be finished: one signal is enough, and the steps before it are saved. A worker that is asked to
 * leave finishes its share first, so that nothing of that step is in the model. */
TEST(a_run_that_waits_for_a_worker_ends_with_the_first_signal_and_is_saved)
{
    pid_t worker, daemon = processes_daemon("lab", 1, &worker);
    const pid_t run = start_run("--steps 1000000");

    processes_await_text("run/metrics.jsonl", "\"step\": 2");
    ck_assert_int_eq(kill(worker, SIGTERM), 0);
    await_waiting();
    ck_assert_int_eq(kill(run, SIGINT), 0);
    ck_assert_int_eq(processes_wait(run), 130);
    expect_file("run.err", "interrupted after ", " waited for a worker and was given up; saved in run/step-",
                "eps train --resume run");
    processes_worker("lab", "256MiB", NULL);
    processes_await_workers("lab", 1);
    check_resumed();
    expect_stop(daemon);
}

struct progress {
    uint64_t step;
    bool saving;
};

static void on_status(void *user, const struct eps_status *status)
{
    *(struct progress *)user = (struct progress){status->step, status->saving};
}

static bool saves(void *progress)
{
    return eps_status("lab", on_status, progress, NULL) == 0 && ((struct progress *)progress)->saving;
}

static bool went_on(void *context)
{
    const struct progress *before = context;
    struct progress now;

    return eps_status("lab", on_status, &now, NULL) == 0 && now.step > before->step;
}

/* The checkpoint of the step before is not on disk yet when a worker comes and finishes the step that waited: the run
 * ends with that one. */
TEST_IF(a_worker_that_comes_during_the_last_save_finishes_the_step, !SANITIZED) /* which wants to be preloaded first */
{
    struct progress before;
    pid_t worker;

    setenv("SLOW_FLUSH", processes_path("held"), 1);
    setenv("LD_PRELOAD", BIN_DIR "/libslow_disk.so", 1);
    const pid_t daemon = processes_daemon("lab", 1, &worker);
    unsetenv("LD_PRELOAD");
    const pid_t run = start_run("--steps 1000000");
    processes_await_text("run/metrics.jsonl", "\"step\": 2");
    ck_assert_int_eq(kill(worker, SIGTERM), 0);
    await_waiting();
    processes_put_text("held", "");
    ck_assert_int_eq(kill(run, SIGINT), 0);
    ck_assert(processes_until(saves, &before));
    processes_worker("lab", "256MiB", NULL);
    ck_assert(processes_until(went_on, &before));
    ck_assert_int_eq(unlink("held"), 0);
    ck_assert_int_eq(processes_wait(run), 130);
    expect_file("run.err", print("interrupted after %ju steps; saved in run/step-%ju; resume with",
                                 (uintmax_t)before.step + 1, (uintmax_t)before.step + 1));
    expect_absent("run.err", "given up");
    ck_assert_int_eq(access(print("run/step-%ju", (uintmax_t)before.step), F_OK), 0);
    check_resumed();
    expect_stop(daemon);
}

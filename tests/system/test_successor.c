/* A daemon that is killed: its client and its workers say so, the workers find the next daemon at its address, and the
 * run is resumed. And a run that is interrupted while it waits for a worker. Real processes. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <string.h>
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

static pid_t start_worker(const char *log)
{
    return processes_start("eps-worker", (const char *const[]){"--connect", "lab", "--device-mem", "256MiB", NULL},
                           log);
}

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
    expect("cmp run/latest/model.safetensors whole/latest/model.safetensors", 0);
    expect("cmp run/latest/optimizer.safetensors whole/latest/optimizer.safetensors", 0);
}

TEST(workers_find_the_successor_of_a_killed_daemon_and_the_run_is_resumed)
{
    const pid_t daemon = processes_daemon("lab", 0, NULL), one = start_worker("one"), two = start_worker("two");

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
    expect("eps stop lab", 0);
    ck_assert_int_eq(processes_wait(last), 0);
    ck_assert_int_eq(processes_wait(one), 0);
}

static void on_state(void *user, const struct eps_status *status)
{
    *(bool *)user = strcmp(status->state, "waiting for a worker") == 0;
}

static bool waits(void *context)
{
    bool yes = false;

    (void)context;
    return eps_status("lab", on_state, &yes, NULL) == 0 && yes;
}

/* The open step cannot be finished: one signal is enough, and the steps before it are saved. */
TEST(a_run_that_waits_for_a_worker_ends_with_the_first_signal_and_is_saved)
{
    pid_t worker, daemon = processes_daemon("lab", 1, &worker);
    const pid_t run = start_run("--steps 1000000");

    processes_await_text("run/metrics.jsonl", "\"step\": 2");
    ck_assert_int_eq(kill(worker, SIGKILL), 0);
    ck_assert(processes_until(waits, NULL));
    ck_assert_int_eq(kill(run, SIGINT), 0);
    ck_assert_int_eq(processes_wait(run), 130);
    expect_file("run.err", "interrupted after ", " waited for a worker and was given up");
    if (processes_count("run.err", "cannot be saved") == 0) { /* nothing of that step was in the model yet */
        expect_file("run.err", "; saved in run/step-", "eps train --resume run");
        start_worker(NULL);
        processes_await_workers("lab", 1);
        check_resumed();
    }
    expect("eps stop lab", 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
}

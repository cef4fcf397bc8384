/* The last worker is lost in a step: what is whole is saved, and whoever asks for more is told what it waits for. Real
 * processes; the worker that is lost is a puppet, which knows how far the step is. */
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/puppet.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <string.h>
#include <sys/wait.h>

#define RUN                                                                                                            \
    "train --model model.json --data text.txt --batch 4 --seq 16 --steps 1000000 --eval-every 0 --connect lab --out "  \
    "run"
#define WAITS_FOR_WORKER "step 2 waits for a worker: attach one with eps-worker --connect lab\n"
#define NEEDS_WORKER     "step 2 waits for a worker, and without it the model cannot be saved: attach one within "

enum { CAN_PRELOAD = !SANITIZED }; /* sanitizers want to be preloaded first */

static pid_t daemon_pid, run;
static const char *run_environment;

/* A run with these options, too, whose worker is this one; its process. */
static pid_t start_run(enum puppet_fault fault, const char *options)
{
    static const char *const listen[] = {"--listen", "lab", NULL};
    const char *const line[] = {
        "-c", print("%s exec %s/eps " RUN "%s >run.said 2>run.err", run_environment, BIN_DIR, options), NULL};

    daemon_pid = processes_start("epsd", listen, "log");
    processes_await_workers("lab", 0);
    const pid_t puppet = puppet_start("lab", fault);
    puppet_await("lab");
    run = processes_start("/bin/sh", line, NULL);
    return puppet;
}

/* The second step's worker is lost. begun: something of that step is in the model. */
static void lose_worker(bool begun)
{
    start_run(begun ? PUPPET_DIES_LATER : PUPPET_DIES, "");
    processes_await_text("run.said", "waits for another worker to attach");
}

static void setup(void)
{
    processes_setup_tiny();
    run_environment = "";
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE(setup, processes_remove)

static pid_t begin(const char *command, const char *said)
{
    return processes_start("/bin/sh",
                           (const char *const[]){"-c", print("exec %s/eps %s >%s 2>&1", BIN_DIR, command, said), NULL},
                           NULL);
}

TEST(the_step_before_is_saved_at_once_if_nothing_of_the_next_is_in_the_model)
{
    lose_worker(false);
    expect("eps save lab", 0, "/run/step-1\n");
    expect("eps stop lab", 0, "saving, then stopping; Ctrl-C to stop at once\n");
    ck_assert_int_eq(processes_wait(daemon_pid), 0);
    ck_assert_int_eq(processes_wait(run), 1);
    expect_file("run.err",
                "the run ended after 1 steps; step 2 waited for a worker and was given up; saved in run/step-1");
}

TEST(a_save_says_that_its_step_waits_for_a_worker)
{
    lose_worker(true);
    const pid_t save = begin("save lab", "save");
    processes_await_text("save", "eps save: " WAITS_FOR_WORKER);
    processes_worker("lab", "256MiB", NULL);
    ck_assert_int_eq(processes_wait(save), 0);
    expect_file("save", "/run/step-2\n");
    expect_stop(daemon_pid);
}

/* Its worker is stopped before the job, and does not answer. */
TEST(a_save_waits_until_the_job_is_open)
{
    static const char *const listen[] = {"--listen", "lab", NULL};

    daemon_pid = processes_start("epsd", listen, "log");
    const pid_t worker = processes_worker("lab", "256MiB", NULL);
    processes_await_workers("lab", 1);
    ck_assert_int_eq(kill(worker, SIGSTOP), 0);
    run = begin(RUN, "run.said");
    processes_await_text("log", "job of client ");
    const pid_t save = begin("save lab", "save");
    processes_await_text("save", "eps save: the job is being opened, and can be saved then\n");
    ck_assert_int_eq(kill(worker, SIGCONT), 0);
    ck_assert_int_eq(processes_wait(save), 0);
    expect_file("save", "/run/step-");
    expect_stop(daemon_pid);
}

/* Of the live model: a copy of it needs the same step. */
static const char *const copies[] = {"export --connect lab --out exported", "eval --connect lab --data text.txt",
                                     "generate --connect lab --prompt a --tokens 1"};

TEST_EACH(a_copy_of_the_model_says_so, COUNT(copies))
{
    lose_worker(true);
    const pid_t copy = begin(copies[_i], "copy");
    processes_await_text("copy", print("eps %.*s: " WAITS_FOR_WORKER, (int)strcspn(copies[_i], " "), copies[_i]));
    processes_worker("lab", "256MiB", NULL);
    ck_assert_int_eq(processes_wait(copy), 0);
    expect_stop(daemon_pid);
}

/* The run's own user, or a caller of eps stop, who ends the daemon or its job. */
static const char *const stops[] = {NULL, "stop lab", "stop lab 1"};

/* The command has ended well, if there was one; the daemon with it, or only its job. */
static void check_stopped(int i, pid_t stop)
{
    if (stops[i])
        ck_assert_int_eq(processes_wait(stop), 0);
    if (i == 1)
        ck_assert_int_eq(processes_wait(daemon_pid), 0);
    else
        expect_stop(daemon_pid);
}

TEST_EACH(a_stop_says_so_and_saves_the_step_once_a_worker_has_come, COUNT(stops))
{
    pid_t stop = 0;

    lose_worker(true);
    if (stops[_i]) {
        stop = begin(stops[_i], "stop");
        processes_await_text("stop", "saving, then stopping; Ctrl-C to stop at once\neps stop: " WAITS_FOR_WORKER);
    } else {
        ck_assert_int_eq(kill(run, SIGINT), 0);
    }
    processes_await_text("run.said", NEEDS_WORKER);
    processes_worker("lab", "256MiB", NULL);
    ck_assert_int_eq(processes_wait(run), stop ? 1 : 130);
    expect_file("run.err", " after 2 steps; saved in run/step-2; resume with: eps train --resume run");
    check_stopped(_i, stop);
}

/* The step is given up, and with it the run's last steps: nobody is left in doubt. */
TEST_EACH(the_same_caller_gives_the_step_up, COUNT(stops))
{
    lose_worker(true);
    const pid_t stop = stops[_i] ? begin(stops[_i], "stop") : run;
    if (stops[_i])
        processes_await_text("stop", WAITS_FOR_WORKER);
    else
        ck_assert_int_eq(kill(run, SIGINT), 0);
    processes_await_text("run.said", NEEDS_WORKER);
    ck_assert_int_eq(kill(stop, SIGINT), 0);
    ck_assert_int_eq(processes_wait(run), stops[_i] ? 1 : 130);
    expect_file("run.err", "; no checkpoint was saved");
    check_stopped(_i, stop);
}

/* No worker comes within the 50 s that the run waits: it gives the step up by itself, before the daemon would end
 * it. */
TEST_EACH(a_stop_gives_the_step_up_when_no_worker_comes, CAN_PRELOAD ? COUNT(stops) : 0)
{
    pid_t stop = 0;

    run_environment = print("SKIP_WAITS=%s LD_PRELOAD=" BIN_DIR "/libjump_clock.so", processes_path("nobody"));
    lose_worker(true);
    if (stops[_i])
        stop = begin(stops[_i], "stop");
    else
        ck_assert_int_eq(kill(run, SIGINT), 0);
    processes_await_text("run.said", NEEDS_WORKER);
    processes_put_text("nobody", "");
    ck_assert_int_eq(processes_wait(run), stop ? 1 : 130);
    ck_assert_uint_eq(processes_count("run.said", NEEDS_WORKER), 1);
    expect_file(
        "run.err",
        " after 1 steps; step 2 waited for a worker and was given up, and without it the model cannot be saved; "
        "no checkpoint was saved");
    check_stopped(_i, stop);
}

/* The step is finished, saved, and as exact as if nobody had stopped the run. Its worker is stopped as long as it takes
 * to interrupt the run between two folds. */
TEST(a_run_that_is_interrupted_while_contributions_are_folded_ends_with_that_step)
{
    static const char options[] = " --steps 3 --save-every 1 --keep 0";
    int status;

    const pid_t puppet = start_run(PUPPET_STOPS_LATER, options);
    ck_assert_int_eq(waitpid(puppet, &status, WUNTRACED), puppet);
    ck_assert(WIFSTOPPED(status));
    ck_assert_int_eq(kill(run, SIGINT), 0);
    processes_await_text("run.said",
                         "stopping: the step under way is finished and saved first; a second request ends the run");
    ck_assert_int_eq(kill(puppet, SIGCONT), 0);
    ck_assert_int_eq(processes_wait(run), 130);
    expect_file("run.err", "interrupted after 2 steps; saved in run/step-2; resume with: eps train --resume run");
    expect_stop(daemon_pid);
    ck_assert_int_eq(processes_wait(puppet), 0);
    start_run(PUPPET_NOWHERE, print("%s --out whole", options));
    processes_await_text("run.said", "saved whole/step-2");
    ck_assert_int_eq(kill(run, SIGINT) | kill(run, SIGTERM), 0); /* at once: a puppet does not evaluate */
    processes_wait(run);
    outputs_check_same("whole/step-2", "run/step-2", "model.safetensors");
    outputs_check_same("whole/step-2", "run/step-2", "optimizer.safetensors");
    expect_stop(daemon_pid);
}

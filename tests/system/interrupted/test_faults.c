/* Workers that come before their daemon, a second client of a private run, and jobs that end before they have begun:
 * all say so and end as documented. Real processes, real signals. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>

SUITE_LABELS(slow)

static const char *const files[] = {"text.txt"};

static void setup(void)
{
    processes_setup();
    processes_config("model.json", 4, 4, 64, 64);
    processes_config("small.json", 1, 2, 16, 32);
    processes_text("text.txt", 4000);
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE(setup, processes_remove)

/* Far more steps than there is time for: whoever takes them ends it from outside. */
static struct eps_train_options endless(const char *connect, const char *out)
{
    struct eps_train_options options = processes_options("model.json", files, out);

    options.connect = connect, options.steps = 100000, options.batch = 8, options.seq = 32;
    return options;
}

static void on_loss(void *user, const struct eps_step *step)
{
    *(double *)user = step->loss;
}

/* Two steps of a fresh model; the loss of the second. */
static double run(const char *connect, const char *model, const char *out)
{
    const struct eps_train_events events = {.on_step = on_loss};
    struct eps_train_options options = endless(connect, out);
    struct eps_error error = {""};
    double loss = 0;

    options.model = model, options.steps = 2, options.deterministic = true;
    ck_assert_msg(eps_train(&options, &events, &loss, &error) == 0, "%s", error.text);
    return loss;
}

/* As when both are started in one breath, whichever comes first. */
TEST(worker_waits_for_a_daemon_that_is_about_to_start)
{
    const pid_t early = processes_worker("lab", "256MiB", "early");

    processes_await_text("early", "waiting for the daemon");
    const pid_t daemon = processes_daemon("lab", 0, NULL);
    processes_await_workers("lab", 1);
    expect_stop(daemon);
    ck_assert_int_eq(processes_wait(early), 0);
    const pid_t late = processes_worker("lab", "256MiB", "late");
    processes_await_text("late", "waiting for the daemon");
    ck_assert_int_eq(kill(late, SIGTERM), 0);
    ck_assert_int_eq(processes_wait(late), 0);
}

struct intruder {
    char address[300];
    struct eps_error error;
    uint64_t last_step;
};

static void on_address(void *user, const struct eps_status *status)
{
    snprintf(((struct intruder *)user)->address, sizeof((struct intruder *)user)->address, "%s", status->address);
}

static void on_step_intrude(void *user, const struct eps_step *step)
{
    struct intruder *intruder = user;

    intruder->last_step = step->step;
    if (step->step != 2)
        return;
    ck_assert_int_eq(eps_status(NULL, on_address, intruder, NULL), 0);
    const struct eps_train_options options = endless(intruder->address, "intruder");
    ck_assert_int_eq(eps_train(&options, NULL, NULL, &intruder->error), -EBUSY);
}

/* A private run, found by its name as any daemon of the user's. At a daemon that stays, the second job waits:
 * tests/system/daemon/test_queue.c. */
TEST(a_private_run_outlives_a_second_client_which_is_told_that_the_daemon_is_busy)
{
    const struct eps_train_events events = {.on_step = on_step_intrude};
    struct eps_train_options options = endless(NULL, "run");
    struct intruder intruder = {.last_step = 0};
    struct eps_error error = {""};

    options.steps = 5;
    ck_assert_msg(eps_train(&options, &events, &intruder, &error) == 0, "%s", error.text);
    ck_assert_holds(intruder.error.text, "busy with the run that started it");
    ck_assert_uint_eq(intruder.last_step, 5);
    processes_await_nobody();
}

/* The same job finds the same loss whatever the daemon and its workers did before. */
TEST(jobs_leave_nothing_to_the_next)
{
    const pid_t daemon = processes_daemon("lab", 2, NULL);
    const double alone = run("lab", "small.json", "alone");

    run("lab", "model.json", "between");
    expect("eps eval --model between/latest --data text.txt --connect lab", 0);
    ck_assert_double_eq(run("lab", "small.json", "after"), alone);
    expect_stop(daemon);
}

static void on_memory(void *user, const struct eps_memory *side)
{
    if (side->worker == 0)
        *(bool *)user = side->current > 0;
}

/* What a job loaded enters the daemon's ledger at the moment in which its workers are assigned. */
static bool is_assigning(void *context)
{
    bool yes = false;

    (void)context;
    return eps_mem("lab", on_memory, &yes, NULL) == 0 && yes;
}

enum { KILL_WORKER, STOP_DAEMON, KILL_CLIENT, CASES };

/* A worker that is stopped does not answer its assignment: the job stays where it is for as long as the test needs. Of
 * a dead client's job it hears late, lets go of it, and serves the next, which waited for that. */
TEST_EACH(a_job_ends_while_it_begins, CASES)
{
    static const char *const argv[] = {"train", "--model",   "model.json", "--data",  "text.txt", "--out",
                                       "hangs", "--connect", "lab",        "--batch", "8",        "--seq",
                                       "32",    "--wait",    "0.1",        NULL};
    pid_t worker, daemon = processes_daemon("lab", 1, &worker);

    ck_assert_int_eq(kill(worker, SIGSTOP), 0);
    const pid_t client = processes_start("eps", argv, "log");
    ck_assert(processes_until(is_assigning, NULL));
    if (_i == STOP_DAEMON)
        expect("eps stop lab", 0);
    else
        ck_assert_int_eq(kill(_i == KILL_WORKER ? worker : client, SIGKILL), 0);
    ck_assert_int_eq(processes_wait(client), _i == KILL_CLIENT ? 128 + SIGKILL : 1);
    if (_i == KILL_CLIENT) {
        processes_await_state("lab", "ending"); /* the worker has yet to let go of the job */
        ck_assert_int_eq(kill(worker, SIGCONT), 0);
        run("lab", "small.json", "after");
        expect_stop(daemon);
        ck_assert_int_eq(processes_wait(worker), 0);
        return;
    }
    expect_file("log", _i == STOP_DAEMON ? "the daemon was stopped" : "no other one came within 0.1 s");
    kill(worker, SIGKILL);
    if (_i == KILL_WORKER)
        expect_stop(daemon);
    else
        ck_assert_int_eq(processes_wait(daemon), 0);
}

/* kill -9 in mid-step: the others say so within 5 seconds and end as documented; no process is left over and nothing
 * stands in the way of the next run. Real processes, real signals. */
#include "tests/kit/command.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

SUITE_LABELS(slow)

enum { STEPS = 100000 }; /* far more than there is time for: every run here is ended from outside */

struct victim {
    const char *program;
    uint64_t at_step;
    pid_t killed;
};

/* A few steps in, the victim dies; the step under way dies with it. */
static void on_step(void *user, const struct eps_step *step)
{
    struct victim *victim = user;

    if (step->step != victim->at_step)
        return;
    victim->killed = processes_find(victim->program);
    ck_assert_int_gt(victim->killed, 0);
    ck_assert_int_eq(kill(victim->killed, SIGKILL), 0);
}

static struct eps_train_options endless(const char *const *files, const char *out)
{
    struct eps_train_options options = processes_options(processes_config("faults.json", 4, 4, 64, 64), files, out);

    options.steps = STEPS;
    options.batch = 8;
    options.seq = 64;
    return options;
}

static bool nobody_is_left(void *context)
{
    (void)context;
    while (waitpid(-1, NULL, WNOHANG) > 0) {
    }
    return !processes_find("epsd") && !processes_find("eps-worker");
}

static void check_next_run_works(const char *connect, const char *const *files, const char *out)
{
    struct eps_train_options options = endless(files, out);
    struct eps_error error = {""};

    options.connect = connect;
    options.steps = 2;
    ck_assert_msg(eps_train(&options, NULL, NULL, &error) == 0, "%s", error.text);
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE(processes_setup, processes_remove)

TEST_EACH(private_run_ends_with_a_word_when_its_worker_or_daemon_is_killed, 2)
{
    const char *files[] = {processes_text("faults.txt", 40000)};
    struct victim victim = {.program = _i ? "epsd" : "eps-worker", .at_step = 3};
    const struct eps_train_events events = {.on_step = on_step};
    struct eps_train_options options = endless(files, processes_path(victim.program));
    struct eps_error error = {""};
    time_t start = time(NULL);

    ck_assert_int_eq(eps_train(&options, &events, &victim, &error), -EIO);
    ck_assert_int_le((int)(time(NULL) - start), 8);
    /* Of a killed worker its own end, whether that or the daemon's word for it is heard of first. Of a killed daemon
     * either its own end is heard of first, or its worker's last word, which names it too. */
    ck_assert_msg(strstr(error.text, _i ? "daemon" : "the worker (eps-worker) was killed by signal 9") &&
                      strstr(error.text, "killed"),
                  "%s", error.text);
    ck_assert(processes_until(nobody_is_left, NULL));
    check_next_run_works(NULL, files, processes_path(_i ? "after-epsd" : "after-worker"));
}

static bool has_steps(void *context)
{
    char *text = access(context, R_OK) == 0 ? processes_read(context) : NULL;
    bool yes = text && strstr(text, "\"step\": 3") != NULL;

    free(text);
    return yes;
}

TEST(private_processes_end_when_the_client_is_killed)
{
    const char *files[] = {processes_text("faults.txt", 40000)};
    char out[300], metrics[340];
    pid_t client;

    snprintf(out, sizeof out, "%s", processes_path("killed-client"));
    snprintf(metrics, sizeof metrics, "%s/metrics.jsonl", out);
    const char *const argv[] = {"train",   "--model", processes_config("faults.json", 4, 4, 64, 64),
                                "--data",  files[0],  "--eval-data",
                                files[0],  "--out",   out,
                                "--steps", "100000",  "--batch",
                                "8",       "--seq",   "64",
                                NULL};
    client = processes_start("eps", argv, NULL);
    ck_assert(processes_until(has_steps, metrics));
    ck_assert_int_gt(processes_find("epsd"), 0);
    ck_assert_int_gt(processes_find("eps-worker"), 0);
    ck_assert_int_eq(kill(client, SIGKILL), 0);
    ck_assert_int_eq(processes_wait(client), 128 + SIGKILL);
    ck_assert(processes_until(nobody_is_left, NULL));
    check_next_run_works(NULL, files, processes_path("after-client"));
}

static void on_status(void *user, const struct eps_status *status)
{
    *(bool *)user = status->n_workers > 0;
}

static bool has_worker(void *context)
{
    bool yes = false;

    return eps_status(context, on_status, &yes, NULL) == 0 && yes;
}

static bool waits(void *context)
{
    char *said = access(context, R_OK) == 0 ? processes_read(context) : NULL;
    const bool yes = said && strstr(said, "waiting for the daemon");

    free(said);
    return yes;
}

/* As when both are started in one breath, whichever comes first. */
TEST(worker_waits_for_a_daemon_that_is_about_to_start)
{
    const char *const worker[] = {"--connect", "lab", "--device-mem", "256MiB", NULL};
    const char *const listen[] = {"--listen", "lab", NULL};
    char early_log[300], log[300];

    snprintf(early_log, sizeof early_log, "%s", processes_path("early.err"));
    snprintf(log, sizeof log, "%s", processes_path("waiting.err"));
    processes_await_free("lab");
    pid_t early = processes_start("eps-worker", worker, early_log), waiting, daemon;
    ck_assert(processes_until(waits, early_log));

    daemon = processes_start("epsd", listen, NULL);
    ck_assert(processes_until(has_worker, "lab"));
    ck_assert_int_eq(eps_stop("lab", NULL), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
    ck_assert_int_eq(processes_wait(early), 0);
    waiting = processes_start("eps-worker", worker, log);
    ck_assert(processes_until(waits, log));
    ck_assert_int_eq(kill(waiting, SIGTERM), 0);
    ck_assert_int_eq(processes_wait(waiting), 0);
}

TEST(daemon_outlives_a_killed_worker_and_serves_the_next_job)
{
    const char *files[] = {processes_text("faults.txt", 40000)};
    const char *const again[] = {"--connect", "lab", "--device-mem", "256MiB", NULL};
    struct victim victim = {.program = "eps-worker", .at_step = 3};
    const struct eps_train_events events = {.on_step = on_step};
    struct eps_train_options options = endless(files, processes_path("lab-run"));
    struct eps_error error = {""};
    pid_t worker, daemon = processes_daemon("lab", 1, &worker);

    options.connect = "lab";
    ck_assert_int_eq(eps_train(&options, &events, &victim, &error), -EIO);
    ck_assert_msg(strstr(error.text, "worker") && strstr(error.text, "step"), "%s", error.text);
    ck_assert_int_eq(processes_wait(worker), 128 + SIGKILL);
    processes_start("eps-worker", again, NULL);
    ck_assert(processes_until(has_worker, "lab"));
    check_next_run_works("lab", files, processes_path("lab-again"));
    ck_assert_int_eq(eps_stop("lab", &error), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
    ck_assert(processes_until(nobody_is_left, NULL));
}

/* A daemon killed with SIGKILL leaves its directory behind: connecting to it is an error with a sentence, and the next
 * daemon takes it over. */
TEST(killed_daemon_leaves_nothing_in_the_way)
{
    const char *files[] = {processes_text("faults.txt", 40000)};
    struct eps_train_options options = endless(files, processes_path("stale-run"));
    struct eps_error error = {""};
    pid_t worker, daemon = processes_daemon("lab", 1, &worker);

    ck_assert_int_eq(kill(daemon, SIGKILL), 0);
    ck_assert_int_eq(processes_wait(daemon), 128 + SIGKILL);
    ck_assert_int_eq(processes_wait(worker), 1);
    options.connect = "lab";
    ck_assert_int_lt(eps_train(&options, NULL, NULL, &error), 0);
    ck_assert_msg(strstr(error.text, "lab") != NULL, "%s", error.text);
    daemon = processes_daemon("lab", 1, NULL);
    check_next_run_works("lab", files, processes_path("after-stale"));
    ck_assert_int_eq(eps_stop("lab", &error), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
}

static void on_step_try_second(void *user, const struct eps_step *step)
{
    const char *files[] = {processes_path("faults.txt")};
    struct eps_train_options options = endless(files, processes_path("second"));
    struct eps_error *error = user;

    if (step->step != 2)
        return;
    options.connect = "lab";
    ck_assert_int_eq(eps_train(&options, NULL, NULL, error), -EBUSY);
}

TEST(busy_daemon_says_so_and_goes_on)
{
    const char *files[] = {processes_text("faults.txt", 40000)};
    struct eps_train_options options = endless(files, processes_path("first"));
    const struct eps_train_events events = {.on_step = on_step_try_second};
    struct eps_error error = {""}, busy = {""};
    pid_t daemon = processes_daemon("lab", 1, NULL);

    options.connect = "lab";
    options.steps = 5;
    ck_assert_msg(eps_train(&options, &events, &busy, &error) == 0, "%s", error.text);
    ck_assert_msg(strstr(busy.text, "busy") != NULL, "%s", busy.text);
    ck_assert_int_eq(kill(daemon, SIGTERM), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
    ck_assert(processes_until(nobody_is_left, NULL));
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
    const char *files[] = {processes_text("faults.txt", 40000)};
    struct eps_train_options options = endless(files, processes_path("intruder"));
    struct intruder *intruder = user;

    intruder->last_step = step->step;
    if (step->step != 2)
        return;
    ck_assert_int_eq(eps_status(NULL, on_address, intruder, NULL), 0);
    options.connect = intruder->address;
    ck_assert_int_eq(eps_train(&options, NULL, NULL, &intruder->error), -EBUSY);
}

/* Found by its name, as any daemon of the user's. */
TEST(private_run_outlives_a_second_client)
{
    const char *files[] = {processes_text("faults.txt", 40000)};
    struct eps_train_options options = endless(files, processes_path("first"));
    const struct eps_train_events events = {.on_step = on_step_intrude};
    struct intruder intruder = {.last_step = 0};
    struct eps_error error = {""};

    options.steps = 8;
    ck_assert_msg(eps_train(&options, &events, &intruder, &error) == 0, "%s", error.text);
    ck_assert_msg(strstr(intruder.error.text, "busy with the run that started it") != NULL, "%s", intruder.error.text);
    ck_assert_uint_eq(intruder.last_step, 8);
    ck_assert(processes_until(nobody_is_left, NULL));
}

static void on_loss(void *user, const struct eps_step *step)
{
    *(double *)user = step->loss;
}

/* Two steps of a fresh model; the loss of the second. */
static double run_on_lab(const char *model, const char *text, const char *out)
{
    const struct eps_train_events events = {.on_step = on_loss};
    struct eps_train_options options = processes_options(model, &text, out);
    struct eps_error error = {""};
    double loss = 0;

    options.connect = "lab";
    options.steps = 2;
    options.batch = 8;
    options.seq = 32;
    options.deterministic = true;
    ck_assert_msg(eps_train(&options, &events, &loss, &error) == 0, "%s", error.text);
    return loss;
}

/* The same job finds the same loss whatever the daemon and its workers did before. */
TEST(jobs_leave_nothing_to_the_next)
{
    char text[300], small[300], large[300], saved[340];
    const char *const files[] = {text};
    uint64_t tokens;
    struct eps_error error = {""};
    double loss;
    pid_t daemon = processes_daemon("lab", 2, NULL);

    snprintf(text, sizeof text, "%s", processes_text("faults.txt", 4000));
    snprintf(small, sizeof small, "%s", processes_config("small.json", 1, 2, 16, 32));
    snprintf(large, sizeof large, "%s", processes_config("large.json", 3, 4, 96, 64));
    const double alone = run_on_lab(small, text, processes_path("alone"));
    run_on_lab(large, text, processes_path("between"));
    snprintf(saved, sizeof saved, "%s/latest", processes_path("between"));
    const struct eps_eval_options eval = {.model = saved, .data = files, .n_data = 1, .connect = "lab"};
    ck_assert_msg(eps_eval(&loss, &tokens, &eval, NULL, NULL, &error) == 0, "%s", error.text);
    ck_assert_double_eq(run_on_lab(small, text, processes_path("after")), alone);
    ck_assert_int_eq(eps_stop("lab", &error), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
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

    return eps_mem(context, on_memory, &yes, NULL) == 0 && yes;
}

/* A worker that is stopped does not answer its assignment: the job stays where it is for as long as the test needs. */
static pid_t begin_job_that_hangs(pid_t worker, const char *log)
{
    char out[300];

    snprintf(out, sizeof out, "%s", processes_path("hangs"));
    const char *const argv[] = {"train",
                                "--model",
                                processes_config("faults.json", 4, 4, 64, 64),
                                "--data",
                                processes_text("faults.txt", 40000),
                                "--out",
                                out,
                                "--connect",
                                "lab",
                                "--batch",
                                "8",
                                "--seq",
                                "64",
                                NULL};
    ck_assert_int_eq(kill(worker, SIGSTOP), 0);
    pid_t client = processes_start("eps", argv, log);
    ck_assert(processes_until(is_assigning, "lab"));
    return client;
}

TEST_EACH(worker_killed_or_daemon_stopped_while_a_job_begins, 2)
{
    char log[300];
    struct eps_error error = {""};
    pid_t worker, daemon = processes_daemon("lab", 1, &worker);

    snprintf(log, sizeof log, "%s", processes_path("hangs.err"));
    unlink(log);
    pid_t client = begin_job_that_hangs(worker, log);
    if (_i == 0)
        ck_assert_int_eq(kill(worker, SIGKILL), 0);
    ck_assert_msg(_i == 0 || eps_stop("lab", &error) == 0, "%s", error.text);
    ck_assert_int_eq(processes_wait(client), 1);
    expect_file(log, _i ? "the daemon was stopped" : "worker");
    kill(worker, SIGKILL);
    if (_i == 0)
        ck_assert_int_eq(eps_stop("lab", &error), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
}

static void on_state(void *user, const struct eps_status *status)
{
    *(bool *)user = strcmp(status->state, "stopping") == 0;
}

/* The job has ended, and waits for its worker to let go. */
static bool is_ending(void *context)
{
    bool yes = false;

    return eps_status(context, on_state, &yes, NULL) == 0 && yes;
}

/* The worker hears of the dead job late, lets go of it, and serves the next, which waited for that. */
TEST(client_killed_while_its_job_begins)
{
    char text[300], small[300];
    struct eps_error error = {""};
    pid_t worker, daemon = processes_daemon("lab", 1, &worker), client = begin_job_that_hangs(worker, NULL);

    snprintf(text, sizeof text, "%s", processes_text("faults.txt", 4000));
    snprintf(small, sizeof small, "%s", processes_config("small.json", 1, 2, 16, 32));
    ck_assert_int_eq(kill(client, SIGKILL), 0);
    ck_assert_int_eq(processes_wait(client), 128 + SIGKILL);
    ck_assert(processes_until(is_ending, "lab"));
    ck_assert_int_eq(kill(worker, SIGCONT), 0);
    run_on_lab(small, text, processes_path("after-hang"));
    ck_assert_int_eq(eps_stop("lab", &error), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
    ck_assert_int_eq(processes_wait(worker), 0);
}

TEST(daemon_whose_directory_was_removed_leaves_its_successor_alone)
{
    char command[340];
    struct eps_error error = {""};
    pid_t first = processes_daemon("lab", 1, NULL), second;

    snprintf(command, sizeof command, "rm -r %s", processes_path("run/eps/lab"));
    ck_assert_int_eq(system(command), 0);
    second = processes_daemon("lab", 1, NULL);
    ck_assert_int_eq(kill(first, SIGTERM), 0);
    ck_assert_int_eq(processes_wait(first), 0);
    ck_assert_msg(eps_stop("lab", &error) == 0, "%s", error.text);
    ck_assert_int_eq(processes_wait(second), 0);
}

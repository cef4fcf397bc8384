/* A worker that breaks the relay's rules, or whose numbers are never finite: it is named, it loses its session, and the
 * next job is not touched by it. */
#include "tests/kit/driver.h"
#include "tests/kit/processes.h"
#include "tests/kit/puppet.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The daemon's log tells of the refusals. */
static pid_t start_daemon(const char *log)
{
    const char *const argv[] = {"--listen", "lab", NULL};

    processes_await_free("lab");
    const pid_t daemon = processes_start("epsd", argv, log);
    processes_await_workers("lab", 0);
    return daemon;
}

/* The job ends with a sentence that has these words. */
static void fail_in_step(uint64_t step, int code, const char *words)
{
    struct driver driver;
    struct message m = {0};

    driver_open(&driver, "lab", &(struct driver_options){0});
    driver_train(&driver, step - 1);
    driver_begin(&driver);
    while (m.kind != MESSAGE_FAILED)
        driver_next(&driver.link, &m);
    ck_assert_int_eq(m.failed.code, code);
    ck_assert_msg(strstr(m.failed.error.text, words) != NULL, "%s", m.failed.error.text);
    driver_leave(&driver);
}

static void train_well(void)
{
    struct driver driver;

    driver_open(&driver, "lab", &(struct driver_options){0});
    driver_train(&driver, 3);
    driver_close(&driver);
}

static const struct {
    enum puppet_fault fault;
    const char *why;
} breaches[] = {
    {PUPPET_PULLS_AMISS, "no such pull"},
    {PUPPET_CONTRIBUTES_AMISS, "no such contribution"},
    {PUPPET_ENDS_TWICE, "stale"},
};

SUITE_TIMEOUT(120)
SUITE_FIXTURE(processes_setup, processes_remove)

/* A job of one part is given to the worker that came first. */
TEST_EACH(whoever_breaks_a_rule_is_not_in_the_next_job, COUNT(breaches))
{
    const char *const worker[] = {"--connect", "lab", "--device-mem", "256MiB", NULL};
    char log[300], job_line[100];

    snprintf(log, sizeof log, "%s", processes_path("log"));
    snprintf(job_line, sizeof job_line, "was at fault in step 2: %s", breaches[_i].why);
    const pid_t daemon = start_daemon(log), puppet = puppet_start("lab", breaches[_i].fault);
    puppet_await("lab");
    processes_start("eps-worker", worker, NULL);
    processes_await_workers("lab", 2);
    fail_in_step(2, -EIO, job_line);
    train_well();
    ck_assert_int_eq(processes_wait(puppet), PUPPET_REFUSED);
    ck_assert_uint_eq(processes_workers("lab"), 1);
    ck_assert_uint_eq(processes_count(log, " refused: "), 1);
    ck_assert_uint_eq(processes_count(log, breaches[_i].why), 3); /* that of the job, of the session, of its end */
    ck_assert_int_eq(kill(daemon, SIGTERM), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
}

/* Once, it may be the model that was brought. */
TEST(a_gradient_that_is_never_finite_is_the_workers)
{
    const char *const worker[] = {"--connect", "lab", "--device-mem", "256MiB", NULL};
    char log[300];

    snprintf(log, sizeof log, "%s", processes_path("log"));
    const pid_t daemon = start_daemon(log), puppet = puppet_start("lab", PUPPET_IN_FIRST_STEP);
    puppet_await("lab");
    processes_start("eps-worker", worker, NULL);
    processes_await_workers("lab", 2);
    fail_in_step(1, -EDOM, "the gradient of step 1 is not finite");
    ck_assert_uint_eq(processes_workers("lab"), 2);
    fail_in_step(1, -EDOM, "the gradient of step 1 is not finite");
    train_well();
    ck_assert_int_eq(processes_wait(puppet), PUPPET_REFUSED);
    ck_assert_uint_eq(processes_count(log, " refused: its gradient is not finite in two jobs in a row\n"), 1);
    ck_assert_int_eq(kill(daemon, SIGTERM), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
}

/* A run whose rate is too high is no reason to lose a device. */
TEST(a_gradient_that_is_not_finite_after_good_steps_is_the_runs)
{
    const pid_t daemon = start_daemon(NULL), puppet = puppet_start("lab", PUPPET_IN_FIRST_CONTRIBUTION);

    puppet_await("lab");
    for (int i = 0; i < 3; i++)
        fail_in_step(2, -EDOM, "the gradient of step 2 is not finite");
    ck_assert_uint_eq(processes_workers("lab"), 1);
    ck_assert_int_eq(kill(daemon, SIGTERM), 0);
    ck_assert_int_eq(processes_wait(puppet), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
}

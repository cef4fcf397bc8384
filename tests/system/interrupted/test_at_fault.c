/* A worker that breaks the relay's rules, that fails, or whose numbers are not finite: it is named and loses its
 * session, and another one does what it was to do. */
#include "tests/kit/driver.h"
#include "tests/kit/command.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/puppet.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <signal.h>
#include <sys/wait.h>

SUITE_TIMEOUT(120)
SUITE_FIXTURE(processes_setup, processes_remove)

/* Each is alone when the job begins; the other worker attaches later, or is there and idle. */
static const struct {
    enum puppet_fault fault;
    const char *reason; /* in the log and in the session's end */
} faults[] = {
    {PUPPET_PULLS_AMISS, "no such pull"},
    {PUPPET_FAILS, "no mood"},
    {PUPPET_IN_FIRST_CONTRIBUTION, "its gradient of step 2 was not finite, and was finite when computed again"},
};

enum { N_STEPS_AT_FAULT = 3 };

static pid_t begin_lab(void)
{
    static const char *const listen[] = {"--listen", "lab", NULL};
    const pid_t daemon = processes_start("epsd", listen, "log");

    processes_await_workers("lab", 0);
    return daemon;
}

static void end_lab(pid_t daemon)
{
    ck_assert_int_eq(kill(daemon, SIGTERM), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
}

TEST_EACH(whoever_is_at_fault_is_named_and_its_share_is_redone, COUNT(faults))
{
    const pid_t daemon = begin_lab(), puppet = puppet_start("lab", faults[_i].fault);
    struct driver driver;

    puppet_await("lab");
    const pid_t worker = processes_worker("lab", "256MiB", NULL);
    processes_await_workers("lab", 2);
    driver_open(&driver, "lab", &(struct driver_options){0});
    driver_train(&driver, N_STEPS_AT_FAULT);
    driver_close(&driver);
    ck_assert_int_eq(processes_wait(puppet), PUPPET_REFUSED);
    ck_assert_uint_eq(processes_workers("lab"), 1);
    ck_assert_uint_eq(processes_count("log", " refused: "), 1);
    ck_assert_uint_eq(processes_count("log", print(" refused: %s\n", faults[_i].reason)), 1);
    ck_assert_uint_eq(driver.n_lost, 1);
    end_lab(daemon);
    ck_assert_int_eq(processes_wait(worker), 0);
}

/* Nobody is there who could be right: it computes the step again, and the run's rate is too high. It is no reason to
 * lose a device. */
static const enum puppet_fault alone[] = {PUPPET_IN_FIRST_CONTRIBUTION, PUPPET_IN_LAST_CONTRIBUTION};

TEST_EACH(a_gradient_that_is_never_finite_ends_the_run_and_no_session, COUNT(alone))
{
    const pid_t daemon = begin_lab(), puppet = puppet_start("lab", alone[_i]);

    puppet_await("lab");
    for (unsigned job = 0; job < 3; job++) {
        struct driver driver;
        struct message m = {0};
        driver_open(&driver, "lab", &(struct driver_options){0});
        driver_train(&driver, 1);
        driver_begin(&driver);
        while (m.kind != MESSAGE_FAILED)
            driver_next(&driver.link, &m);
        ck_assert_int_eq(m.failed.code, -EDOM);
        ck_assert_holds(m.failed.error.text, "gradient of step 2 ", " (cpu) ", "--lr");
        driver_leave(&driver);
        ck_assert_uint_eq(processes_workers("lab"), 1);
        ck_assert_uint_eq(processes_count("log", "its parts are computed again"), job + 1);
    }
    ck_assert_uint_eq(processes_count("log", " refused: "), 0);
    end_lab(daemon);
    ck_assert_int_eq(processes_wait(puppet), 0);
}

/* Folded, other slices are in the moments by then: the run ends as one that lost its daemon, which --restarts follows.
 * If nothing is, it ends as an eager one. */
TEST_EACH(a_folded_step_that_is_never_finite_is_torn_once_it_is_begun, COUNT(alone))
{
    const pid_t daemon = begin_lab(), puppet = puppet_start("lab", alone[_i]);
    const bool torn = alone[_i] == PUPPET_IN_LAST_CONTRIBUTION;
    struct driver driver;
    struct message m = {0};

    puppet_await("lab");
    driver_open(&driver, "lab", &(struct driver_options){.folded = true});
    driver_train(&driver, 1);
    driver_begin(&driver);
    while (m.kind != MESSAGE_FAILED)
        driver_next(&driver.link, &m);
    ck_assert_int_eq(m.failed.code, torn ? -EIO : -EDOM);
    ck_assert_holds(m.failed.error.text, "gradient of step 2 ", "--lr",
                    torn ? "the model in memory is void; go on from the last checkpoint, as --restarts does" : "");
    driver_leave(&driver);
    ck_assert_uint_eq(processes_workers("lab"), 1);
    ck_assert_uint_eq(processes_count("log", "its parts are computed again"), 1);
    end_lab(daemon);
    ck_assert_int_eq(processes_wait(puppet), 0);
}

/* As a worker does that was slow: it is at no fault, and gets no weights. */
TEST(a_pull_of_a_step_that_is_over_is_void)
{
    const pid_t daemon = begin_lab(), puppet = puppet_start("lab", PUPPET_PULLS_LATE);
    struct driver driver;

    puppet_await("lab");
    driver_open(&driver, "lab", &(struct driver_options){0});
    driver_train(&driver, N_STEPS_AT_FAULT);
    driver_close(&driver);
    ck_assert_uint_eq(driver.n_lost, 0);
    ck_assert_uint_eq(processes_count("log", " refused: "), 0);
    end_lab(daemon);
    ck_assert_int_eq(processes_wait(puppet), 0);
}

enum { N_STEPS = 4, VOCABULARY = 60000 /* whose folds outlast messages */ };

/* N_STEPS, each opened when the one before is covered; or by a worker whose device computes beside the optimizer, when
 * the one before has arrived and its last contributions are still folded. */
static void train(const char *out, bool ahead)
{
    const struct driver_options options = {.out = outputs_make(out), .vocabulary = VOCABULARY};
    const pid_t daemon = processes_daemon(out, 0, NULL),
                puppet = puppet_start(out, ahead ? PUPPET_BESIDE : PUPPET_NOWHERE);
    struct driver driver;

    puppet_await(out);
    driver_open(&driver, out, &options);
    for (uint64_t step = 0; step < N_STEPS; step++) {
        if (ahead)
            driver_await_arrived(&driver, step);
        else
            driver_await_covered(&driver, step);
        driver_begin(&driver);
    }
    driver_await_done(&driver, N_STEPS);
    ck_assert_uint_eq(driver.arrived, ahead ? N_STEPS : 0);
    ck_assert_uint_eq(driver.covered, N_STEPS);
    driver_save(&driver, N_STEPS);
    ck_assert_uint_eq(driver.n_saved, 1);
    driver_close(&driver);
    kill(puppet, SIGKILL), kill(daemon, SIGTERM);
    waitpid(puppet, NULL, 0), waitpid(daemon, NULL, 0);
}

TEST(a_step_that_is_opened_ahead_leaves_the_bits_as_they_were)
{
    train("in-turn", false);
    train("ahead", true);
    outputs_check_same_state(print("in-turn/step-%d", N_STEPS), print("ahead/step-%d", N_STEPS));
}

/* The puppet says that its contributions have a sum of zero, and they have not: of all that can have changed them,
 * memory is what the job ends for. */
TEST(a_contribution_that_is_not_what_its_worker_summed_ends_the_job_and_no_session)
{
    const pid_t daemon = begin_lab(), puppet = puppet_start("lab", PUPPET_NOWHERE);
    struct driver driver;
    struct message m = {0};

    puppet_await("lab");
    driver_open(&driver, "lab", &(struct driver_options){.checks_memory = true});
    driver_begin(&driver);
    while (m.kind != MESSAGE_FAILED)
        driver_next(&driver.link, &m);
    ck_assert_int_eq(m.failed.code, -EIO);
    ck_assert_holds(m.failed.error.text, "host memory is damaged: in step 1, slice 0 of the contribution of worker ",
                    " is not as it was written; go on from the last checkpoint");
    driver_leave(&driver);
    ck_assert_uint_eq(processes_workers("lab"), 1);
    ck_assert_uint_eq(processes_count("log", " refused: "), 0);
    end_lab(daemon);
    ck_assert_int_eq(processes_wait(puppet), 0);
}

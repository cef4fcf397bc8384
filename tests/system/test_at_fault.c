/* A worker that breaks the relay's rules, or whose numbers are never finite: it is named, it loses its session, and the
 * next job is not touched by it. */
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

/* Once, a gradient that is not finite may be of the model that was brought, and after good steps it is the run's, whose rate
 * is too high: no reason to lose a device. Of two workers, a job of one part is given to the one that came first. */
static const struct {
    enum puppet_fault fault;
    unsigned n_jobs, step; /* that fail, at their step */
    int code;
    const char *job, *session; /* NULL: it keeps its session */
    unsigned n_told;           /* of the session's words in the log: for the job, the session, and its end */
} faults[] = {
    {PUPPET_PULLS_AMISS, 1, 2, -EIO, "was at fault in step 2: no such pull", "no such pull", 3},
    {PUPPET_CONTRIBUTES_AMISS, 1, 2, -EIO, "was at fault in step 2: no such contribution", "no such contribution", 3},
    {PUPPET_ENDS_TWICE, 1, 2, -EIO, "was at fault in step 2: stale", "stale", 3},
    {PUPPET_IN_FIRST_STEP, 2, 1, -EDOM, "the gradient of step 1 is not finite",
     " refused: its gradient is not finite in two jobs in a row\n", 1},
    {PUPPET_IN_FIRST_CONTRIBUTION, 3, 2, -EDOM, "the gradient of step 2 is not finite", NULL, 0},
};

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
    ck_assert_holds(m.failed.error.text, words);
    driver_leave(&driver);
}

TEST_EACH(whoever_is_at_fault_is_not_in_the_next_job, COUNT(faults))
{
    static const char *const listen[] = {"--listen", "lab", NULL};
    static const char *const lend[] = {"--connect", "lab", "--device-mem", "256MiB", NULL};
    const bool refused = faults[_i].session != NULL;
    struct driver driver;

    const pid_t daemon = processes_start("epsd", listen, "log");
    processes_await_workers("lab", 0);
    const pid_t puppet = puppet_start("lab", faults[_i].fault);
    puppet_await("lab");
    if (refused) {
        processes_start("eps-worker", lend, NULL);
        processes_await_workers("lab", 2);
    }
    for (unsigned i = 0; i < faults[_i].n_jobs; i++) {
        ck_assert_uint_eq(processes_workers("lab"), refused ? 2 : 1);
        fail_in_step(faults[_i].step, faults[_i].code, faults[_i].job);
    }
    if (refused) {
        driver_open(&driver, "lab", &(struct driver_options){0});
        driver_train(&driver, 3);
        driver_close(&driver);
        ck_assert_int_eq(processes_wait(puppet), PUPPET_REFUSED);
        ck_assert_uint_eq(processes_count("log", faults[_i].session), faults[_i].n_told);
    }
    ck_assert_uint_eq(processes_workers("lab"), 1);
    ck_assert_uint_eq(processes_count("log", " refused: "), refused);
    ck_assert_int_eq(kill(daemon, SIGTERM), 0);
    ck_assert_int_eq(refused ? 0 : processes_wait(puppet), 0);
    ck_assert_int_eq(processes_wait(daemon), 0);
}

enum { N_STEPS = 4, VOCABULARY = 60000 /* whose folds outlast messages */ };

/* N_STEPS, each opened when the one before is covered; or by a worker whose device computes beside the optimizer, when the
 * one before has arrived and its last contributions are still folded. */
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

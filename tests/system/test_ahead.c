/* A worker whose device computes beside the optimizer begins the next step while this one's last contributions are folded:
 * the client may open it once all of them have arrived. */
#include "tests/kit/driver.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/puppet.h"
#include "tests/kit/test.h"

#include <signal.h>
#include <sys/wait.h>

enum { N_STEPS = 12, VOCABULARY = 60000 /* whose folds outlast messages */ };

SUITE_FIXTURE(processes_setup, processes_remove)

/* N_STEPS, each opened when the one before has arrived, or is covered; its state is saved to step-N_STEPS of `out`. */
static void train(const char *out, enum puppet_fault worker, bool ahead)
{
    const struct driver_options options = {.out = outputs_make(out), .vocabulary = VOCABULARY};
    const pid_t daemon_pid = processes_daemon(out, 0, NULL), puppet = puppet_start(out, worker);
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
    ck_assert_uint_eq(driver.arrived, worker == PUPPET_BESIDE ? N_STEPS : 0);
    ck_assert_uint_eq(driver.covered, N_STEPS);
    driver_ask_save(&driver, N_STEPS);
    driver_await_saves(&driver, 1);
    ck_assert_uint_eq(driver.n_saved, 1);
    driver_close(&driver);
    kill(puppet, SIGKILL);
    waitpid(puppet, NULL, 0);
    kill(daemon_pid, SIGTERM);
    waitpid(daemon_pid, NULL, 0);
}

TEST(a_step_that_is_opened_ahead_leaves_the_bits_as_they_were)
{
    train("in-turn", PUPPET_NOWHERE, false);
    train("covered", PUPPET_BESIDE, false);
    train("ahead", PUPPET_BESIDE, true);
    outputs_check_same_state("in-turn/step-12", "covered/step-12");
    outputs_check_same_state("in-turn/step-12", "ahead/step-12");
}

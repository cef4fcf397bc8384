/* What membership.h promises of workers that come and go, in a real daemon: some are puppets, which fail when the test
 * says so. tests/system/test_lost_workers.c and the world see to the bits. */
#include "tests/kit/driver.h"
#include "tests/kit/processes.h"
#include "tests/kit/puppet.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <signal.h>
#include <string.h>

static pid_t daemon_;
static struct driver driver;

static void setup(void)
{
    static const char *const listen[] = {"--listen", "lab", NULL};

    processes_setup();
    daemon_ = processes_start("epsd", listen, "log");
    processes_await_workers("lab", 0);
}

static void teardown(void)
{
    ck_assert_int_eq(kill(daemon_, SIGTERM), 0);
    ck_assert_int_eq(processes_wait(daemon_), 0);
    processes_remove();
}

SUITE_FIXTURE(setup, teardown)
SUITE_TIMEOUT(60) /* a worker is asked again in 10 s */

/* A worker of ours, which computes; on return it is attached, as the n'th. */
static pid_t attach_worker(uint32_t n)
{
    const pid_t pid = processes_worker("lab", "256MiB", NULL);

    processes_await_workers("lab", n);
    return pid;
}

static pid_t attach_puppet(enum puppet_fault fault, uint32_t n)
{
    const pid_t pid = puppet_start("lab", fault);

    processes_await_workers("lab", n);
    return pid;
}

static void open_job(uint32_t n_parts)
{
    driver_open(&driver, "lab", &(struct driver_options){.n_parts = n_parts});
}

static void await_lost(void)
{
    while (driver.n_lost == 0)
        driver_turn(&driver);
}

/* The number of the session of the first, or the last, worker. */
static uint32_t number_of(struct client_link *viewer, bool first)
{
    struct message m;
    uint32_t number = 0;

    client_link_send(viewer, &(struct message){.kind = MESSAGE_WORKERS});
    do {
        driver_next(viewer, &m);
        number = number && first ? number : m.workers_reply.worker;
    } while (!m.workers_reply.last);
    return number;
}

/* Until the daemon has begun the step after `done` ones, or has done it, too. */
static void await_begun(struct client_link *viewer, uint64_t done)
{
    struct message status, m;

    do {
        client_link_send(viewer, &(struct message){.kind = MESSAGE_WORKERS});
        driver_next(viewer, &m);
        driver_status(viewer, &status);
    } while (m.workers_reply.phase == PHASE_RESTING && status.status_reply.step <= done);
}

/* done: steps before the one that is under way, or has been asked for; UINT64_MAX: none is. */
static void drain(bool first, uint64_t done)
{
    struct client_link viewer;
    struct message m;

    driver_look(&viewer, "lab");
    if (done != UINT64_MAX)
        await_begun(&viewer, done);
    m = (struct message){.kind = MESSAGE_DRAIN, .drain = {.worker = number_of(&viewer, first)}};
    client_link_send(&viewer, &m);
    driver_next(&viewer, &m);
    ck_assert_str_eq(message_name(m.kind), "DRAIN");
    client_link_free(&viewer);
}

/* ---- joining ---------------------------------------------------------------------------------------------------- */

TEST(a_worker_that_attaches_gets_a_seat_of_its_own_at_once)
{
    attach_worker(1);
    open_job(2);
    driver_train(&driver, 1);
    attach_worker(2);
    processes_await_text("log", "joins after 1 steps");
    driver_train(&driver, 3);
    ck_assert_uint_eq(processes_count("log", "joins after 1 steps: arena of"), 1);
    ck_assert_uint_eq(driver.n_lost, 0);
    driver_close(&driver);
}

TEST(more_workers_than_parts_stay_idle)
{
    attach_worker(1);
    open_job(1);
    driver_train(&driver, 1);
    attach_worker(2);
    driver_train(&driver, 3);
    ck_assert_uint_eq(processes_count("log", " joins after "), 0);
    driver_close(&driver);
}

/* ---- losing ----------------------------------------------------------------------------------------------------- */

TEST(the_others_redo_what_a_lost_worker_had)
{
    attach_puppet(PUPPET_DIES, 1);
    attach_worker(2);
    open_job(2);
    driver_train(&driver, 3);
    ck_assert_uint_eq(driver.n_lost, 1);
    ck_assert_int_eq(driver.lost.lost.how, LOSS_WORKING);
    ck_assert(!driver.lost.lost.waits);
    ck_assert_uint_eq(driver.lost.lost.step, 1);
    driver_close(&driver);
}

TEST(an_idle_worker_takes_the_place_of_a_lost_one)
{
    attach_puppet(PUPPET_DIES, 1);
    attach_worker(2);
    open_job(1);
    driver_train(&driver, 3);
    ck_assert_uint_eq(driver.n_lost, 1);
    ck_assert_uint_eq(processes_count("log", "joins after 1 steps"), 1);
    driver_close(&driver);
}

TEST(a_step_without_a_worker_waits_for_the_next_one)
{
    attach_puppet(PUPPET_DIES, 1);
    open_job(1);
    driver_train(&driver, 1);
    driver_begin(&driver);
    await_lost();
    ck_assert(driver.lost.lost.waits);
    ck_assert_uint_eq(driver.covered, 1);
    attach_worker(1);
    driver_train(&driver, 3);
    ck_assert_uint_eq(driver.n_lost, 1);
    driver_close(&driver);
}

/* Memory that was short may be free again: who waits for a worker would else wait for ever beside one. */
TEST(a_worker_that_lacked_memory_is_asked_again)
{
    const pid_t first = attach_worker(1);

    attach_puppet(PUPPET_REFUSES_ONCE, 2);
    open_job(1);
    driver_train(&driver, 1);
    kill(first, SIGKILL);
    driver_train(&driver, 3);
    ck_assert_uint_eq(processes_count("log", "is left out of the job: no arena"), 1);
    ck_assert_uint_eq(processes_count("log", "joins after 1 steps"), 1);
    driver_close(&driver);
}

/* membership_leave: nothing happens. */
TEST(the_job_does_not_miss_a_worker_without_a_seat)
{
    attach_worker(1);
    open_job(1);
    driver_train(&driver, 1);
    const pid_t idle = attach_worker(2);
    kill(idle, SIGKILL);
    processes_await_workers("lab", 1);
    driver_train(&driver, 3);
    ck_assert_uint_eq(driver.n_lost, 0);
    driver_close(&driver);
}

/* ---- leaving ---------------------------------------------------------------------------------------------------- */

/* There is nobody else who could. */
TEST(a_worker_that_is_told_to_leave_finishes_its_share)
{
    const pid_t leaver = attach_worker(1);

    open_job(1);
    driver_train(&driver, 1);
    driver_begin(&driver);
    drain(true, 1);
    driver_await_covered(&driver, 2);
    ck_assert_int_eq(processes_wait(leaver), 0);
    attach_worker(1);
    driver_train(&driver, 4);
    ck_assert_uint_eq(driver.n_lost, 1);
    ck_assert_int_eq(driver.lost.lost.how, LOSS_TOLD);
    ck_assert_uint_eq(processes_count("log", "its parts"), 0);
    driver_close(&driver);
}

TEST(a_worker_without_a_share_leaves_at_once)
{
    attach_worker(1);
    open_job(1);
    driver_train(&driver, 1);
    const pid_t idle = attach_worker(2);
    drain(false, UINT64_MAX);
    ck_assert_int_eq(processes_wait(idle), 0);
    driver_train(&driver, 3);
    ck_assert_uint_eq(driver.n_lost, 0);
    driver_close(&driver);
}

/* ---- failing ---------------------------------------------------------------------------------------------------- */

TEST(a_worker_that_fails_loses_its_session_and_others_redo_its_share)
{
    const pid_t puppet = attach_puppet(PUPPET_FAILS, 1);

    attach_worker(2);
    open_job(1);
    driver_train(&driver, 3);
    ck_assert_int_eq(processes_wait(puppet), PUPPET_REFUSED);
    ck_assert_uint_eq(driver.n_lost, 1);
    ck_assert_str_eq(driver.lost.lost.error.text, "no mood");
    driver_close(&driver);
}

/* It is not the workers then, and the third one need not try. */
TEST(a_second_worker_that_fails_in_a_step_ends_the_job)
{
    struct message m = {0};

    attach_puppet(PUPPET_FAILS, 1);
    attach_puppet(PUPPET_FAILS, 2);
    attach_worker(3);
    open_job(1);
    driver_train(&driver, 1);
    driver_begin(&driver);
    while (m.kind != MESSAGE_FAILED)
        driver_next(&driver.link, &m);
    ck_assert_int_eq(m.failed.code, -EDOM);
    ck_assert_holds(m.failed.error.text, "worker ", "no mood");
    driver_leave(&driver);
    processes_await_workers("lab", 2);
}

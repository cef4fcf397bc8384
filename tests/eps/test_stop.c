/* A daemon that is asked to stop: while it trains, twice, by several, or without a run. */
#include "tests/kit/driver.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <signal.h>

static const struct message stop = {.kind = MESSAGE_STOP};
static struct client_link viewer;
static struct driver driver;
static pid_t daemon_pid;

static void setup(void)
{
    processes_setup();
    daemon_pid = processes_daemon("lab", 1, NULL);
    driver_look(&viewer, "lab");
}

SUITE_TIMEOUT(60)
SUITE_FIXTURE(setup, processes_remove)

static void await_stop(void)
{
    while (!driver.n_stops)
        driver_turn(&driver);
}

/* The daemon goes away, for this reason. Whoever stays is waited for. */
static void see_the_end(struct client_link *link, const char *reason)
{
    struct message m;
    struct error err = {""};

    ck_assert_int_lt(client_link_next(link, &m, NULL, &err), 0);
    ck_assert_holds(err.text, reason);
    client_link_free(link);
}

TEST_EACH(a_daemon_that_is_asked_to_stop_lets_its_client_save, 3)
{
    struct message m = {0};
    const struct driver_options options = {.out = outputs_make("stopping")};

    driver_open(&driver, "lab", &options);
    driver_train(&driver, 1);
    if (_i == 0)
        client_link_send(&viewer, &stop);
    else
        ck_assert_int_eq(kill(daemon_pid, _i == 1 ? SIGTERM : SIGINT), 0);
    await_stop();
    driver_status(&viewer, &m);
    ck_assert_int_eq(m.status_reply.state, STATE_STOPPING);
    driver_save(&driver, 2);
    driver_close(&driver);
    outputs_check_whole("stopping", 2);
    see_the_end(&viewer, "");
    ck_assert_int_eq(processes_wait(daemon_pid), 0);
}

/* Without a run; in one, asked twice; in an evaluation. */
TEST_EACH(asked_twice_or_without_a_run_a_daemon_stops_at_once, 3)
{
    if (_i > 0)
        driver_open(&driver, "lab", &(struct driver_options){.only_looks = _i == 2});
    client_link_send(&viewer, &stop);
    if (_i == 1) {
        await_stop();
        client_link_send(&viewer, &stop);
    }
    if (_i > 0)
        see_the_end(&driver.link, "stopped by eps stop");
    see_the_end(&viewer, "");
    ck_assert_int_eq(processes_wait(daemon_pid), 0);
}

/* A viewer, a signal, and a viewer that asks for the end of the daemon's job alone. Each joins whoever was first. */
TEST_EACH(further_callers_wait_for_the_same_end, 6)
{
    struct message m = {0};
    const struct driver_options options = {.out = outputs_make("stopping")};
    const struct message stops[] = {stop, {.kind = MESSAGE_STOP, .stop.job = 1}};
    const unsigned first = (unsigned)_i / 3, second = (unsigned)_i % 3;
    struct client_link other;

    driver_open(&driver, "lab", &options);
    driver_train(&driver, 1);
    driver_look(&other, "lab");
    client_link_send(&viewer, &stops[first]);
    await_stop();
    if (second == 2)
        ck_assert_int_eq(kill(daemon_pid, SIGTERM), 0);
    else
        client_link_send(&other, &stops[second]);
    do
        driver_status(&other, &m);
    while (second != 1 && m.status_reply.state != STATE_STOPPING);
    driver_save(&driver, 2);
    driver_close(&driver);
    outputs_check_whole("stopping", 2);
    if (first == 1 && second == 1)
        client_link_send(&other, &stop);
    see_the_end(&viewer, "");
    see_the_end(&other, "");
    ck_assert_int_eq(processes_wait(daemon_pid), 0);
}

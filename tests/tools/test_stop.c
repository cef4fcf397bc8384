/* A daemon that is asked to stop while it trains. */
#include "tests/kit/driver.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <signal.h>

static pid_t daemon_pid;

static void setup(void)
{
    processes_setup();
    daemon_pid = processes_daemon("lab", 1, NULL);
}

SUITE_TIMEOUT(60)
SUITE_FIXTURE(setup, processes_remove)

/* The daemon goes away, for this reason. Whoever stays is waited for. */
static void see_the_end(struct client_link *link, const char *reason)
{
    struct message m;
    struct error err = {""};

    ck_assert_int_lt(client_link_next(link, &m, NULL, &err), 0);
    ck_assert_holds(err.text, reason);
}

TEST_EACH(a_daemon_that_is_asked_to_stop_lets_its_client_save, 3)
{
    struct client_link viewer;
    struct driver driver;
    struct message m = {0};
    const struct driver_options options = {.out = outputs_make("stopping")};

    driver_open(&driver, "lab", &options);
    driver_look(&viewer, "lab");
    driver_train(&driver, 1);
    if (_i == 0)
        client_link_send(&viewer, &(struct message){.kind = MESSAGE_STOP});
    else
        ck_assert_int_eq(kill(daemon_pid, _i == 1 ? SIGTERM : SIGINT), 0);
    while (!driver.n_stops)
        driver_turn(&driver);
    driver_status(&viewer, &m);
    ck_assert_int_eq(m.status_reply.state, STATE_STOPPING);
    driver_begin(&driver);
    driver_await_done(&driver, 2);
    driver_ask_save(&driver, 2);
    driver_await_saves(&driver, 1);
    driver_close(&driver);
    outputs_check_whole("stopping", 2);
    see_the_end(&viewer, "");
    client_link_free(&viewer);
    ck_assert_int_eq(processes_wait(daemon_pid), 0);
}

TEST_EACH(asked_twice_or_without_a_run_a_daemon_stops_at_once, 3)
{
    const struct message stop = {.kind = MESSAGE_STOP};
    struct client_link viewer;
    struct driver driver;

    if (_i == 1)
        driver_open(&driver, "lab", &(struct driver_options){0});
    if (_i == 2)
        driver_open(&driver, "lab", &(struct driver_options){.only_looks = true});
    driver_look(&viewer, "lab");
    client_link_send(&viewer, &stop);
    if (_i == 1) {
        while (!driver.n_stops)
            driver_turn(&driver);
        client_link_send(&viewer, &stop);
    }
    if (_i > 0) {
        see_the_end(&driver.link, "stopped by request");
        driver_leave(&driver);
    }
    see_the_end(&viewer, "");
    client_link_free(&viewer);
    ck_assert_int_eq(processes_wait(daemon_pid), 0);
}

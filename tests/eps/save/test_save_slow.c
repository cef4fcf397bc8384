/* Saves that take long: what goes on meanwhile, what waits, and what becomes of them when the job ends. The daemon's
 * writes wait for the test. */
#include "tests/kit/command.h"
#include "tests/kit/driver.h"
#include "tests/kit/outputs.h"
#include "tests/kit/processes.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GLANCES = 300 }; /* at a daemon that must not move: each takes its loop once round */

static pid_t daemon_pid, worker;
static struct client_link viewer;

static void setup(void)
{
    processes_setup();
    setenv("SLOW_DISK", processes_path("held"), 1);
    setenv("LD_PRELOAD", BIN_DIR "/libslow_disk.so", 1);
    daemon_pid = processes_daemon("lab", 1, &worker);
    unsetenv("LD_PRELOAD");
    driver_look(&viewer, "lab");
}

static void remove_all(void)
{
    client_link_free(&viewer);
    processes_remove();
}

SUITE_SKIP_UNLESS(!SANITIZED, "a sanitizer must be preloaded first")
SUITE_TIMEOUT(60)
SUITE_FIXTURE(setup, remove_all)

static void let_disk_go(void)
{
    ck_assert_int_eq(unlink("held"), 0);
}

/* A job that saves into a directory of this name, after one step; the disk is held then. */
static void open_held(struct driver *driver, const char *out)
{
    driver_open(driver, "lab", &(struct driver_options){.out = outputs_make(out)});
    driver_train(driver, 1);
    outputs_write(".", "held", "");
}

static void check_nothing_moves(uint64_t step)
{
    struct message m;

    do /* the client's words go another way, which may be longer */
        driver_status(&viewer, &m);
    while (!m.status_reply.saving);
    for (int i = 0; i < GLANCES; i++) {
        driver_status(&viewer, &m);
        ck_assert_uint_eq(m.status_reply.step, step);
        ck_assert(m.status_reply.saving);
    }
}

/* Before the first step the daemon reads by itself; the step must wait all the same. */
TEST_EACH(a_step_waits_for_what_is_being_written, 2)
{
    const uint64_t step = (uint64_t)_i;
    struct driver driver;
    struct driver_options options = {.out = outputs_make("held-up")};

    driver_open(&driver, "lab", &options);
    driver_train(&driver, step);
    outputs_write(".", "held", "");
    driver_ask_save(&driver, step);
    driver_begin(&driver);
    check_nothing_moves(step);
    let_disk_go();
    driver_await_saves(&driver, 1);
    driver_await_done(&driver, step + 1);
    driver_ask_save(&driver, step + 1);
    driver_await_saves(&driver, 2);
    driver_close(&driver);

    options.out = outputs_make("free");
    driver_open(&driver, "lab", &options);
    for (uint64_t s = step; s <= step + 1; s++) {
        driver_save(&driver, s);
        outputs_check_same_state(print("held-up/step-%ju", (uintmax_t)s), print("free/step-%ju", (uintmax_t)s));
    }
    driver_close(&driver);
}

TEST_EACH(a_save_that_is_captured_outlives_its_job, 3)
{
    struct error err = {""};
    struct driver driver;
    struct message m = {0};

    open_held(&driver, "outlives");
    driver_ask_save(&driver, 1);
    check_nothing_moves(1);
    if (_i == 0) {
        ck_assert_int_eq(kill(worker, SIGKILL), 0);
        ck_assert_int_eq(client_link_next(&driver.link, &m, NULL, &err), 0);
        ck_assert_int_eq(m.kind, MESSAGE_LOST);
    }
    if (_i == 2)
        ck_assert_int_eq(kill(daemon_pid, SIGTERM) || kill(daemon_pid, SIGINT), 0); /* twice: at once */
    driver_leave(&driver);
    let_disk_go();
    if (_i < 2)
        ck_assert_int_eq(kill(daemon_pid, SIGTERM), 0);
    client_link_close(&viewer);
    ck_assert_int_eq(processes_wait(daemon_pid), 0);
    outputs_check_whole("outlives", 1);
    ck_assert_str_eq(outputs_names("outlives"), "latest step-1 ");
}

/* Far more than are taken at a time: what a run has promised has its own places, and nothing stays open. Whoever asks
 * for the save that is being written is told at its end. */
TEST(snapshots_without_end_are_not_in_the_way_of_a_save)
{
    enum { ASKED = 100, TAKEN = 8 };
    const struct message snapshot = {.kind = MESSAGE_SNAPSHOT},
                         save = {.kind = MESSAGE_SAVE, .save.step = MESSAGE_NO_STEP};
    int files[3];
    struct driver driver;
    struct message m = {0};

    open_held(&driver, "crowded");
    driver_status(&viewer, &m);
    const unsigned n_before = processes_count_fds(daemon_pid);
    for (int i = 0; i < ASKED; i++) {
        for (int k = 0; k < 3; k++)
            ck_assert_int_ge(files[k] = memfd_create("snapshot", MFD_CLOEXEC), 0);
        client_link_send_fds(&viewer, &snapshot, files, 3);
        for (int k = 0; k < 3; k++)
            close(files[k]);
        if (i < TAKEN)
            continue;
        driver_next(&viewer, &m);
        ck_assert_str_eq(message_name(m.kind), "REFUSED");
        ck_assert_msg(strstr(m.refused.error.text, "8 snapshots are under way") != NULL, "%s", m.refused.error.text);
    }
    driver_ask_save(&driver, 1);
    check_nothing_moves(1);
    client_link_send(&viewer, &save), client_link_send(&viewer, &save);
    driver_ask_save(&driver, 1);
    let_disk_go();
    for (int i = 0; i < TAKEN + 2; i++) {
        driver_next(&viewer, &m);
        ck_assert_str_eq(message_name(m.kind), "SAVED");
        ck_assert_uint_eq(m.saved.step, 1);
    }
    driver_await_saves(&driver, 1);
    driver_train(&driver, 2);
    ck_assert(driver.n_saved == 1 && driver.n_failed == 0); /* one save for all who asked */
    outputs_check_whole("crowded", 1);
    ck_assert_uint_eq(processes_count_fds(daemon_pid), n_before);
    driver_close(&driver);
}

TEST(a_directory_removed_meanwhile_costs_the_save_alone)
{
    struct driver driver;

    open_held(&driver, "vanishes");
    driver_ask_save(&driver, 1);
    driver_begin(&driver);
    check_nothing_moves(1);
    ck_assert_int_eq(system("rm -r vanishes"), 0);
    let_disk_go();
    driver_await_saves(&driver, 1);
    ck_assert_uint_eq(driver.n_failed, 1);
    ck_assert_int_eq(driver.failed.save_failed.code, -ENOENT);
    driver_train(&driver, 3);
    driver_close(&driver);
}

/* Output directories that are not as they should be: training goes on, the old checkpoint stands, and it is said. */
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
#include <sys/resource.h>
#include <unistd.h>

static pid_t daemon_pid;

static void setup(void)
{
    processes_setup();
    daemon_pid = processes_daemon("lab", 1, NULL);
}

SUITE_TIMEOUT(60)
SUITE_FIXTURE(setup, processes_remove)

TEST(what_killed_runs_left_is_removed_when_a_job_begins)
{
    struct driver driver;
    const struct driver_options options = {.out = outputs_make("killed")};

    outputs_make("killed/step-2.partial");
    outputs_write("killed/step-2.partial", "model.safetensors", "half");
    outputs_make("killed/step-7.partial");
    outputs_make("killed/step-8.partial");
    outputs_write("killed/step-8.partial", "precious", "mine");
    outputs_make("killed/step-1");
    ck_assert_int_eq(symlink("step-1", "killed/latest"), 0);
    ck_assert_int_eq(symlink("step-1", "killed/latest.partial"), 0);
    driver_open(&driver, "lab", &options);
    ck_assert_str_eq(outputs_names("killed"), "latest latest.partial step-1 step-8.partial ");
    driver_save(&driver, 2);
    driver_close(&driver);
    outputs_check_whole("killed", 2);
    ck_assert_str_eq(outputs_names("killed"), "latest step-1 step-2 step-8.partial ");
}

TEST(a_checkpoint_that_stands_is_replaced_whole)
{
    struct driver driver;
    const struct driver_options options = {.out = outputs_make("again")};

    for (int i = 0; i < 2; i++) {
        driver_open(&driver, "lab", &options);
        driver_save(&driver, 1);
        ck_assert_uint_eq(driver.n_failed, 0);
        driver_close(&driver);
        outputs_check_whole("again", 1);
        ck_assert_str_eq(outputs_names("again"), "latest step-1 ");
        ck_assert_int_eq(system("rm again/step-1/training.json"), 0); /* as if it had been another */
    }
}

/* A save that fails, and how: training goes on, the old checkpoint stands, the next one works if the reason is gone. In
 * a directory of this name, made before step 2 is saved, with the daemon's files limited to so many bytes. */
static const struct {
    const char *name, *make;
    rlim_t bytes;
    int code;
    const char *says;
    const char *next; /* the next save works, and this stands then; NULL: it cannot */
} obstacles[] = {
    {"full", "true", 4096, -EFBIG, "model.safetensors", "latest step-1 step-3 "},
    /* of 28 KiB of weights twice as much moments */
    {"fuller", "true", 60000, -EFBIG, "optimizer.safetensors", "latest step-1 step-3 "},
    {"foreign", "mkdir foreign/step-2; printf mine >foreign/step-2/precious", RLIM_INFINITY, -EEXIST, "step-2",
     "latest step-1 step-2 step-3 "},
    {"partial", "mkdir partial/step-2.partial; printf mine >partial/step-2.partial/precious", RLIM_INFINITY, -EEXIST,
     "step-2.partial", "latest step-1 step-2.partial step-3 "},
    {"removed", "rm -r removed", RLIM_INFINITY, -ENOENT, "nothing more can be saved", NULL},
};

static void limit_files(rlim_t bytes)
{
    const struct rlimit limit = {.rlim_cur = bytes, .rlim_max = RLIM_INFINITY};

    ck_assert_int_eq(prlimit(daemon_pid, RLIMIT_FSIZE, &limit, NULL), 0);
}

TEST_EACH(a_failed_save_leaves_the_old_one_and_the_run_goes_on, COUNT(obstacles))
{
    const char *name = obstacles[_i].name, *next = obstacles[_i].next;
    const struct driver_options options = {.out = outputs_make(name)};
    struct client_link viewer;
    struct driver driver;
    struct message m = {0};

    driver_open(&driver, "lab", &options);
    driver_look(&viewer, "lab");
    driver_save(&driver, 1);
    driver_begin(&driver);
    driver_await_covered(&driver, 2);
    ck_assert_int_eq(system(obstacles[_i].make), 0);
    limit_files(obstacles[_i].bytes);
    driver_ask_save(&driver, 2);
    driver_train(&driver, 3);
    driver_await_saves(&driver, 2);
    limit_files(RLIM_INFINITY);
    ck_assert_uint_eq(driver.n_failed, 1);
    ck_assert_uint_eq(driver.failed.save_failed.step, 2);
    ck_assert_int_eq(driver.failed.save_failed.code, obstacles[_i].code);
    const char *text = driver.failed.save_failed.error.text;
    ck_assert_holds(text, obstacles[_i].says, name, ";");
    driver_status(&viewer, &m);
    ck_assert_int_eq(strncmp(m.status_reply.trouble, text, 200), 0);
    ck_assert_uint_eq(m.status_reply.saved_step, 1);
    if (next)
        outputs_check_whole(name, 1);
    driver_ask(&viewer, &m);
    ck_assert_str_eq(message_name(m.kind), next ? "SAVED" : "REFUSED");
    if (next) {
        driver_await_saves(&driver, 3);
        ck_assert_uint_eq(driver.n_failed, 1);
        outputs_check_whole(name, 3);
        ck_assert_str_eq(outputs_names(name), next);
        driver_status(&viewer, &m);
        ck_assert_str_eq(m.status_reply.trouble, "");
    }
    if (_i == 2 || _i == 3)
        outputs_check_file(_i == 2 ? "foreign/step-2/precious" : "partial/step-2.partial/precious", "mine");
    client_link_free(&viewer);
    driver_close(&driver);
}

/* On file systems that take nothing. */
TEST_EACH(a_directory_that_takes_nothing_is_said_to, 2)
{
    static const char *const places[] = {"/sys", "/proc"};
    struct driver driver;
    const struct driver_options options = {.out = places[_i]};

    driver_open(&driver, "lab", &options);
    driver_save(&driver, 1);
    ck_assert_uint_eq(driver.n_failed, 1);
    ck_assert_ptr_nonnull(strstr(driver.failed.save_failed.error.text, places[_i]));
    driver_close(&driver);
}

/* The same by the command, where it has a disk of its own, which has room before the first step; then its trace takes
 * that. The last checkpoint waits for room, and gets some, or the user will not wait; with --save-every 0 an interrupt
 * ends a run at once, but not one at its end. */
TEST_EACH(the_command_waits_for_room_on_a_full_disk_or_exits_with_1, 3)
{
    const char *model = processes_config("model.json", 1, 2, 16, 32), *text = processes_text("text.txt", 8000);
    char command[2000];

    signal(SIGINT, SIG_DFL);
    snprintf(command, sizeof command,
             "mkdir disk && unshare -rm bash -c 'mount -t tmpfs -o size=128k none disk || exit 77; set -m\n"
             "%s/eps train --model %s --data %s --eval-data %s --out disk/run --batch 4 --steps 2 "
             "--trace disk/trace --save-every %d --device-mem 256MiB >out 2>said & run=$!\n"
             "until grep -q \"^note  *no room on disk for step-2: \" out || ! kill -0 $run; do sleep 0.05; done\n"
             "%s; wait $run; echo $? >left; ls disk/run | grep -c step- >>left; true' 2>/dev/null",
             BIN_DIR, model, text, text, _i < 2 ? 2 : 0, _i == 0 ? "mount -o remount,size=8m disk" : "kill -INT $run");
    if (system(command) != 0) /* the daemon's part of it is tested above */
        TEST_SKIP("no disk of its own: no user name spaces, or no mounts in them");
    outputs_check_file("left", _i == 0 ? "0\n1\n" : "1\n0\n");
    ck_assert_int_eq(system("grep -q 'not saved: .*No space left on device' out"), 0);
    ck_assert_uint_eq(processes_count("out", "not saved: "), 1); /* however often it is tried */
    expect_in_file("out", _i == 0, (const char *const[]){"weights in disk/run/step-2", "disk/run/latest", NULL});
    if (_i == 0)
        outputs_check_file("said", "");
    else
        expect_file("said", "No space left on device");
}

/* Workers that can do nothing for a job: it is left out of the job, named with its reason, and the others go on; or the
 * client waits for another one. Real processes. */
#include "tests/kit/command.h"
#include "tests/kit/driver.h"
#include "tests/kit/processes.h"
#include "tests/kit/puppet.h"
#include "tests/kit/test.h"

#include <errno.h>
#include <signal.h>

static void setup(void)
{
    processes_setup();
    processes_config("model.json", 1, 2, 16, 32);
    processes_text("text.txt", 4000);
}

SUITE_TIMEOUT(120)
SUITE_FIXTURE(setup, processes_remove)

static const struct {
    enum puppet_fault fault;
    const char *device, *why;
    bool stays; /* attached */
} useless[] = {
    {PUPPET_STRANGE, "foo", "this daemon does not know its device 'foo'", true},
    {PUPPET_NAMELESS, "", "this daemon does not know its device ''", true},
    {PUPPET_REFUSES, "cpu", "no arena", true},
    {PUPPET_DIES_ASSIGNED, "cpu", "killed", false},
};

static pid_t begin_lab(enum puppet_fault fault, pid_t *puppet)
{
    static const char *const listen[] = {"--listen", "lab", NULL};
    const pid_t daemon = processes_start("epsd", listen, "log");

    processes_await_workers("lab", 0);
    *puppet = puppet_start("lab", fault);
    puppet_await("lab");
    return daemon;
}

static void check_status(int i, pid_t puppet)
{
    json_t *status = expect_json("eps status lab --json", 0);

    ck_assert_uint_eq(json_array_size(json_at(status, "left_out")), useless[i].stays);
    if (useless[i].stays) {
        const double id = json_number_at(status, "left_out.0.worker");
        ck_assert_str_eq(json_string_value(json_at(status, "left_out.0.device")), useless[i].device);
        ck_assert_double_eq(json_number_at(status, "left_out.0.pid"), puppet);
        ck_assert_str_eq(json_string_value(json_at(status, "left_out.0.on")), "stage");
        ck_assert_str_eq(json_string_value(json_at(status, "left_out.0.why")), useless[i].why);
        expect("eps status lab", 0,
               print("left out     worker %.0f (%s), on stage, pid %d: %s", id, useless[i].device, (int)puppet,
                     useless[i].why));
    }
    json_decref(status);
}

/* In each of two jobs: what one job found out is not the next one's. */
TEST_EACH(a_worker_that_cannot_work_is_left_out_and_the_others_go_on, COUNT(useless))
{
    pid_t puppet;
    const pid_t daemon = begin_lab(useless[_i].fault, &puppet), worker = processes_worker("lab", "256MiB", NULL);
    const unsigned n_jobs = useless[_i].stays ? 2 : 1;
    uint32_t id = 0;

    processes_await_workers("lab", 2);
    for (unsigned i = 0; i < n_jobs; i++) {
        struct driver driver;
        driver_open(&driver, "lab", &(struct driver_options){.n_parts = 2});
        driver_train(&driver, 2);
        ck_assert_uint_eq(driver.n_lost, 1);
        ck_assert_uint_eq(driver.lost.lost.how, useless[_i].stays ? LOSS_UNFIT : LOSS_EARLY);
        ck_assert_uint_eq(driver.lost.lost.pid, (uint32_t)puppet);
        ck_assert_str_eq(driver.lost.lost.device, useless[_i].device);
        ck_assert_str_eq(driver.lost.lost.host, "stage");
        ck_assert_holds(driver.lost.lost.error.text, useless[_i].why);
        id = driver.lost.lost.worker;
        check_status(_i, puppet);
        driver_close(&driver);
    }
    ck_assert_uint_eq(processes_count("log",
                                      print(useless[_i].stays ? "worker %u (%s) is left out of the job: %s\n"
                                                              : "worker %u (%s) was lost before the first step: %s; ",
                                            id, useless[_i].device, useless[_i].why)),
                      n_jobs);
    expect_stop(daemon);
    ck_assert_int_eq(processes_wait(worker), 0);
    ck_assert_int_eq(processes_wait(puppet), 0);
}

/* More workers than parts: the one that had none of them comes in. */
TEST(an_idle_worker_takes_the_place_of_one_that_is_left_out)
{
    pid_t puppet;
    const pid_t daemon = begin_lab(PUPPET_REFUSES, &puppet), worker = processes_worker("lab", "256MiB", NULL);
    struct driver driver;

    processes_await_workers("lab", 2);
    for (int looks = 0; looks < 2; looks++) {
        driver_open(&driver, "lab", &(struct driver_options){.only_looks = looks});
        if (!looks)
            driver_train(&driver, 2);
        driver_close(&driver);
        ck_assert_uint_eq(processes_count("log", " is left out of the job: no arena\n"), 1U + (unsigned)looks);
    }
    expect_stop(daemon);
    ck_assert_int_eq(processes_wait(worker), 0);
    ck_assert_int_eq(processes_wait(puppet), 0);
}

static pid_t begin_client(const char *command)
{
    const char *line = print("exec %s/%s >said 2>err", BIN_DIR, command);

    return processes_start("/bin/sh", (const char *const[]){"-c", line, NULL}, NULL);
}

static const char *const commands[] = {
    "eps train --connect lab --model model.json --data text.txt --batch 4 --steps 2 --out run",
    "eps eval --connect lab --model before --data text.txt",
    "eps generate --connect lab --model before --prompt 'The ' --tokens 4",
};

/* Of each kind of job, and of each kind of worker. */
TEST_EACH(a_client_waits_where_no_worker_is_left, COUNT(useless) + COUNT(commands) - 1)
{
    const int kind = _i < COUNT(useless) ? _i : PUPPET_REFUSES - PUPPET_STRANGE;
    const int command = _i < COUNT(useless) ? 0 : _i - COUNT(useless) + 1;
    pid_t puppet;

    if (command)
        expect("eps train --model model.json --data text.txt --batch 4 --steps 1 --out before", 0);
    const pid_t daemon = begin_lab(useless[kind].fault, &puppet), client = begin_client(commands[command]);
    processes_await_text(command ? "err" : "said", "; waiting for another worker to attach");
    expect_file(command ? "err" : "said", " can do this job: worker ",
                print("(%s on stage) %s: %s; waiting for another worker to attach\n", useless[kind].device,
                      useless[kind].stays ? "is left out" : "was lost", useless[kind].why));
    const pid_t worker = processes_worker("lab", "256MiB", NULL);
    ck_assert_int_eq(processes_wait(client), 0);
    expect_stop(daemon);
    ck_assert_int_eq(processes_wait(worker), 0);
    ck_assert_int_eq(processes_wait(puppet), 0);
}
